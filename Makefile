# Every command of the project. `make demo` and `make test` work on a fresh Debian with Rust or rustup: they install what
# they lack and say so.

CARGO ?= cargo
TRIBUTARY = target/release/tributary
DENY_VERSION = 0.20.2

.PHONY: help build demo test check bench deny clean

help:
	@echo "make demo    the main job on the small trained model: a table of methods, in under a minute once built"
	@echo "make test    all tests"
	@echo "make check   formatting, lints, documentation, licences"
	@echo "make bench   the kernels' benchmark, and methods side by side on a 25 M parameter model"

tools:
	@sh .ci/tools

build: tools
	$(CARGO) build --release --locked

demo: build
	@sh models/demo/demo.sh $(TRIBUTARY)

test: build
	$(CARGO) test --release --locked --workspace

check: tools
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
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

clean:
	$(CARGO) clean
