#!/bin/sh
# Says what `make gpu` needs before it begins. Exit code 69 where something is missing. (Make shows it as `Error 69` and answers 2 itself.)
echo "make gpu needs a GPU (compute capability 8.0 to 9.0, driver 580 or newer), and Rust and a network to build the bundle."
echo "A machine with a GPU often has neither: then build it elsewhere (make gpu-bundle), carry the repository with target/gpu there,"
echo "and run sh gpu/run.sh target/gpu OUT (docs/gpu.md)."
if [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" = 0 ]; then
    echo "no GPU on this machine: nothing was run" >&2
    exit 69
fi
if ! command -v "${CARGO:-cargo}" >/dev/null; then
    echo "no cargo on this machine: carry a bundle and run gpu/run.sh" >&2
    exit 69
fi
