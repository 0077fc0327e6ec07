#!/bin/sh
# Builds what a GPU machine runs into target/gpu, compressed, so that it can be carried. Needs no GPU.
#   sh gpu/bundle.sh             with nvcc 13.0, which `.ci/cuda toolkit` gets; the first build takes about fifteen CPU minutes
#   sh gpu/bundle.sh emulated    for the emulated GPU, to rehearse gpu/run.sh where there is none (SMALL=yes); hardly compressed
set -eu
cd "$(dirname "$0")/.."
kind=${1:-toolkit}
case $kind in
toolkit) environment=target/cuda-toolkit/env out=target/gpu compression=-6 ;;
emulated) environment=target/cuda-on-cpu/env out=target/gpu-emulated compression=-0 ;;
*) echo "usage: gpu/bundle.sh [toolkit | emulated]" >&2 && exit 64 ;;
esac
sh .ci/tools bundle
sh .ci/tools mpi
sh .ci/cuda "$kind"
# shellcheck disable=SC1090
. "$environment"
messages=$(mktemp)
trap 'rm -f "$messages"' EXIT
mkdir -p "$out"

# One build for all, with the features of `make test` but for its failpoints. Of the whole workspace, as there: of a part Cargo gives
# other features to crates that both need, and builds them again.
"${CARGO:-cargo}" build --release --locked --features tributary/nccl,tributary-tests/nccl,tributary/mpi --message-format=json \
    --workspace \
    --bin tributary --test cuda --test cuda_memory --test nccl --bench gpu >"$messages"

# Name in the bundle, crate's folder, target: the program that Cargo's messages tell of.
keep() {
    program=$(sed -n "s|.*\"manifest_path\":\"[^\"]*/$2/Cargo.toml\".*\"name\":\"$3\",.*\"executable\":\"\([^\"]*\)\".*|\1|p" "$messages")
    [ -n "$program" ] || { echo "no program $3 of $2 was built" >&2 && exit 69; }
    cp "$program" "$out/$1"
    xz -f "$compression" -T0 "$out/$1"
}

keep tributary launch tributary
keep kernels-cuda kernels cuda
keep kernels-bench kernels gpu
keep nccl-cuda comm nccl
keep stack-cuda tests cuda
keep stack-memory tests cuda_memory
keep stack-nccl tests nccl
# Open MPI with its launcher: ranks that share a GPU must be processes, and a machine with a GPU need not have MPI.
tar -C target/openmpi5 -c bin/mpirun bin/prte bin/prted bin/prterun bin/ompirun_wrapper lib/libmpi.so.40 lib/libopen-pal.so.80 \
    lib/openmpi share etc >"$out/mpi.tar"
xz -f "$compression" -T0 "$out/mpi.tar"
# Ranks that share a GPU need NCCL 2.30: a libnccl.so.2 put here by hand is taken before the machine's own.
ls -l "$out"
