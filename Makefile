# Every command of the project. `make demo` and `make test` work on a fresh Debian with Rust or rustup: they install what
# they lack and say so.

CARGO ?= cargo
TRIBUTARY = target/release/tributary
DENY_VERSION = 0.20.2

# Ranks as processes, and places where tests make them fail.
MPI = --features tributary/mpi,tributary/failpoints
# GPUs, emulated, with ranks as processes too: one set of features for everything built with CUDA, so that it is built once.
CUDA = --features tributary/nccl,tributary-tests/nccl,tributary/mpi,tributary/failpoints
EMULATED = . target/cuda-on-cpu/env && EMULATED_GPUS=4
OPENMPI5 = $(CURDIR)/target/openmpi5

.PHONY: help build mpi demo test cuda-test emulated check bench study deny clean tools mpi-tools slurm-test gpu gpu-bundle gpu-rehearsal faults

help:
	@echo "make demo    the main job on the small trained model: a table of methods, in under a minute once built"
	@echo "make test    all tests"
	@echo "make cuda-test  the tests of CUDA code alone, on an emulated GPU"
	@echo "make check   formatting, lints, documentation, licences"
	@echo "make mpi     target/release/tributary with ranks as processes, for mpirun and srun; installs Open MPI where it lacks"
	@echo "make bench   the kernels' benchmark, and methods side by side on a 25 M parameter model"
	@echo "make gpu     what only a GPU can show (docs/gpu.md); make gpu-bundle builds it for another machine, gpu-rehearsal"
	@echo "             runs it on an emulated one"
	@echo "make faults  a rank is stopped in every phase under every launcher: a table; half an hour"
	@echo "make slurm-test  ranks under a real Slurm of one node; as root"
	@echo "make study   the scaling study of that model, with this machine's own profile; report in target/study; half an hour"

tools:
	@sh .ci/tools

mpi-tools:
	@sh .ci/tools mpi

build: tools
	$(CARGO) build --release --locked

mpi: mpi-tools
	$(CARGO) build --release --locked --features mpi

demo: build
	@sh models/demo/demo.sh $(TRIBUTARY)

# Everything without MPI first, then what concerns processes, with it, then what concerns GPUs.
test: mpi-tools
	$(CARGO) test --release --locked --workspace
	OPENMPI5=$(OPENMPI5) $(CARGO) test --release --locked -p tributary -p tributary-comm $(MPI)
	@$(MAKE) --no-print-directory cuda-test

# The CUDA kernels: compiled by NVIDIA's run-time compiler, then run, with everything that calls them, on an emulated GPU,
# by threads and by processes under mpirun; then what an emulated GPU alone can do, which is ignored elsewhere.
cuda-test: emulated mpi-tools
	sh .ci/cuda nvrtc
	target/nvrtc/bin/python tests/nvrtc/compile.py target/nvrtc/libnvrtc.so.13
	$(EMULATED) OPENMPI5=$(OPENMPI5) $(CARGO) test --release --locked $(CUDA) -p tributary-kernels -p tributary-comm -p tributary -p tributary-tests \
	  --lib --test 'cuda*' --test nccl --test mpi_cuda
	$(EMULATED) OPENMPI5=$(OPENMPI5) $(CARGO) test --release --locked $(CUDA) -p tributary-kernels -p tributary-comm -p tributary -p tributary-tests \
	  --test cuda --test mpi_cuda -- --ignored emulated::

emulated: tools
	@sh .ci/cuda emulated

# A rank is stopped: the first, a middle and the last one, in every phase, under every launcher; half an hour. It prints a table.
faults: mpi-tools
	OPENMPI5=$(OPENMPI5) $(CARGO) test --release --locked -p tributary $(MPI) --test faults -- --ignored --nocapture --test-threads 1 the_table_of_stops

# A real Slurm of one node, as root: not part of `make test`, because it installs and starts daemons.
slurm-test: mpi
	sh tests/slurm/one-node.sh $(TRIBUTARY)

check: mpi-tools
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --release --locked --workspace --all-targets $(MPI) -- -D warnings
	@$(MAKE) --no-print-directory emulated
	$(EMULATED) $(CARGO) clippy --release --locked --workspace --all-targets $(CUDA) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --workspace --no-deps
	@$(MAKE) --no-print-directory deny

# The advisory database lives on GitHub; where that is not reachable, licences, sources and bans are checked all the same.
deny:
	@command -v cargo-deny >/dev/null 2>&1 || { echo "installing cargo-deny $(DENY_VERSION)"; \
	  $(CARGO) install --quiet --locked cargo-deny@$(DENY_VERSION); }
	$(CARGO) deny check licenses bans sources

bench: build
	$(CARGO) bench --locked -p tributary-kernels
	@sh models/dummy-25m/compare.sh $(TRIBUTARY)

study: build
	$(TRIBUTARY) bench --model models/dummy-25m --load-format dummy --worlds 2 --calibrate target/here.toml --force
	$(TRIBUTARY) bench --study studies/dummy-25m.toml --profile target/here.toml --out target/study --force

# What only a GPU can show: docs/gpu.md. Where there is none, this says so.
gpu:
	@sh gpu/present.sh
	sh gpu/bundle.sh
	sh gpu/run.sh target/gpu target/gpu-results

gpu-bundle:
	sh gpu/bundle.sh

# The same scripts on the emulated GPU, at sizes that it manages: so that a GPU's time is not spent on their mistakes.
gpu-rehearsal:
	sh gpu/bundle.sh emulated
	$(EMULATED) SMALL=yes STEPS="kernels stack nccl bench llama" sh gpu/run.sh target/gpu-emulated target/gpu-rehearsal

clean:
	$(CARGO) clean
