#!/bin/sh
# Builds what a GPU machine runs into target/gpu/bundle.tar.xz, so that it can be carried there. Needs no GPU.
#   sh gpu/bundle.sh             with nvcc 13.0, which `.ci/cuda toolkit` gets; the first build takes about ten CPU minutes
#   sh gpu/bundle.sh emulated    into target/gpu-emulated, for the emulated GPU: gpu/run.sh is rehearsed with it (SMALL=yes)
# CUDA_LINE_INFO=1 keeps the kernels' line numbers, with which ncu shows stalls at the source lines; the bundle grows by a megabyte.
#
# One archive, and one dictionary for all of it: the programs are mostly the same code.
set -eu
cd "$(dirname "$0")/.."
kind=${1:-toolkit}
case $kind in
toolkit) environment=target/cuda-toolkit/env out=target/gpu compression=preset=6,dict=256MiB ;;
emulated) environment=target/cuda-on-cpu/env out=target/gpu-emulated compression=preset=1,dict=256MiB ;;
*) echo "usage: gpu/bundle.sh [toolkit | emulated]" >&2 && exit 64 ;;
esac
sh .ci/tools bundle
sh .ci/tools mpi
sh .ci/cuda "$kind"
# shellcheck disable=SC1090
. "$environment"
messages=$(mktemp)
tree=$(mktemp -d)
trap 'rm -rf "$messages" "$tree"' EXIT
mkdir -p "$out" "$tree/bin" "$tree/lib" "$tree/mpi"

# One build for all. Of the whole workspace, as `make test` has it: of a part Cargo gives other features to crates that both need, and
# builds them again. For the emulated GPU with that build's failpoints too, so that hardly anything is built twice.
features=tributary/nccl,tributary-tests/nccl,tributary/mpi
[ "$kind" = toolkit ] || features=$features,tributary-tests/mpi,tributary/failpoints
"${CARGO:-cargo}" build --release --locked --features "$features" --message-format=json \
    --workspace \
    --bin tributary --test cuda --test nccl --bench gpu >"$messages"

# Name in the bundle, crate's folder, target: the program that Cargo's messages tell of.
keep() {
    program=$(sed -n "s|.*\"manifest_path\":\"[^\"]*/$2/Cargo.toml\".*\"name\":\"$3\",.*\"executable\":\"\([^\"]*\)\".*|\1|p" "$messages")
    [ -n "$program" ] || { echo "no program $3 of $2 was built" >&2 && exit 69; }
    cp "$program" "$tree/bin/$1"
}

keep tributary launch tributary
keep kernels-cuda kernels cuda
keep kernels-bench kernels gpu
keep nccl-cuda comm nccl
keep stack-cuda tests cuda
# Open MPI with its launcher: ranks that share a GPU must be processes, and a machine with a GPU need not have MPI.
tar -C target/openmpi5 -c bin/mpirun bin/prte bin/prted bin/prterun bin/ompirun_wrapper lib/libmpi.so.40 lib/libopen-pal.so.80 \
    lib/openmpi share etc | tar -C "$tree/mpi" -x
# NCCL for two processes on one GPU. Where there is none the machine's own has to do, and the step that needs a newer one says so.
if [ "$kind" = toolkit ]; then
    if sh .ci/cuda nccl; then
        cp target/nccl/libnccl.so.2 target/nccl/libnccl.LICENSE "$tree/lib"
    else
        echo "the bundle carries no NCCL"
    fi
fi
: >"$tree/complete" # comes last, so that gpu/run.sh knows that it has unpacked all
tar -C "$tree" -c bin mpi lib complete | xz --threads=1 --lzma2="$compression" >"$out/bundle.new"
find "$out" -type f ! -name bundle.new -exec rm {} + # programs of an older kind of bundle would travel too
mv "$out/bundle.new" "$out/bundle.tar.xz"
find "$tree/bin" -type f -exec ls -l {} +
ls -l "$tree/lib" "$out"
