#!/bin/sh
# What each CUDA kernel takes, as nvcc compiles it for sm_80 and sm_90a: registers, spilled bytes, and the instructions of its innermost
# loops. Needs no GPU; gets nvcc and a disassembler from PyPI. The tables in docs/gpu.md come from here.
#   gpu/sass.sh [FILE.cu ...]      all of kernels/cu where none is named
set -eu
cd "$(dirname "$0")/.."
sh .ci/cuda toolkit
sh .ci/cuda disassembler
# shellcheck disable=SC1091
. target/cuda-toolkit/env
[ $# -gt 0 ] || set -- kernels/cu/*.cu
exec python3 gpu/sass.py "$CUDA_HOME/bin/nvcc" "$(pwd)/target/nvdisasm/nvdisasm" "$@"
