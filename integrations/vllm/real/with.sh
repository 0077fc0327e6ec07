#!/bin/sh
# Runs a command of an environment that `.ci/tools vllm` made, with one thread and without a network.
#   with.sh target/vllm python SCRIPT...
set -eu
folder=$(cd "$1" && pwd)
shift
libraries=""
for tree in "$folder"/lib/python3*/site-packages/nvidia/*/lib; do
    # torch is linked with them; nothing runs on a GPU.
    libraries="$libraries${libraries:+:}$tree"
done
export LD_LIBRARY_PATH="$libraries" PATH="$folder/bin:$PATH"
export OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}" VLLM_HOST_IP=127.0.0.1
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 TORCH_COMPILE_DISABLE=1
exec nice -n 10 "$@"
