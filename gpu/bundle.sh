#!/bin/sh
# Builds what a GPU machine runs into target/gpu, compressed, so that it can be carried. Needs no GPU: `.ci/cuda toolkit` has the
# compiler. The first build takes about ten CPU minutes, most of it in candle's kernels.
set -eu
cd "$(dirname "$0")/.."
sh .ci/tools
sh .ci/cuda toolkit
# shellcheck disable=SC1091
. target/cuda-toolkit/env
cargo=${CARGO:-cargo}
out=target/gpu
mkdir -p "$out"

# The program of the target named $1 that Cargo's messages on the input tell of.
program() {
    sed -n "s/.*\"name\":\"$1\",.*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -n 1
}

keep() {
    [ -n "$2" ] || { echo "no program for $1 was built" >&2; exit 69; }
    strip --strip-debug -o "$out/$1" "$2"
    xz -f -3 -T0 "$out/$1"
}

# Arguments: name in the bundle, Cargo's target, then what Cargo is told.
bundle() {
    name=$1
    target=$2
    shift 2
    keep "$name" "$("$cargo" "$@" --release --locked --message-format=json | program "$target")"
}

bundle tributary tributary build --features cuda,nccl -p tributary --bin tributary
bundle kernels-cuda cuda test --no-run --features cuda -p tributary-kernels --test cuda
bundle kernels-bench gpu bench --no-run --features cuda -p tributary-kernels --bench gpu
bundle nccl-cuda nccl test --no-run --features nccl -p tributary-comm --test nccl
bundle stack-cuda cuda test --no-run --features cuda -p tributary-tests --test cuda
ls -l "$out"
