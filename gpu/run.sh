#!/bin/sh
# Everything that a GPU must show, on the machine that has it: kernels and methods checked, then measured. About ten minutes; where
# a call may not take so long, in parts: STEPS="kernels stack nccl pytorch bench", then STEPS=llama, then STEPS=qwen.
#
#   sh gpu/run.sh BUNDLE OUT     BUNDLE: what `make gpu-bundle` built (compressed or not); OUT: where tables and JSON go
#   sh gpu/run.sh --sanitize BUNDLE OUT   the kernels' tests under compute-sanitizer instead: memcheck, then synccheck
#   SMALL=yes  a rehearsal: sizes that an emulated GPU manages (`sh gpu/bundle.sh emulated`, then with target/cuda-on-cpu/env)
#   SMALL=least   the same, with a test or two of each program and the shortest sweeps: does everything start and end well?
#   LONG_REPEATS=1, CHUNK_CACHE=48GiB: for lengths from 64K on, and where a quarter of the free memory does not hold the chunks
#   STEPS="kernels stack nccl pytorch bench llama qwen" picks steps; the default is all
#
# Every step runs, whatever became of those before (but none after kernels that fail); the exit code is 1 if one failed.
set -u
sanitize=""
if [ "$1" = --sanitize ]; then
    sanitize=yes
    shift
fi
[ $# = 2 ] || { echo "usage: gpu/run.sh [--sanitize] BUNDLE OUT" >&2 && exit 64; }
gpus=$(nvidia-smi -L 2>/dev/null | grep -c GPU)
if [ "$gpus" = 0 ] && [ -z "${SMALL:-}" ]; then
    echo "no GPU on this machine: nothing was run (docs/gpu.md)" >&2
    exit 69
fi
mkdir -p "$2"
bundle=$(cd "$1" && pwd)
out=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
steps=${STEPS:-kernels stack nccl pytorch bench llama qwen}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# CUDA's libraries: where the system has them, else those that came with PyTorch.
libraries=$work/bin
for folder in /usr/local/cuda/lib64 /usr/local/nvidia/lib64 \
    $(python3 -c 'import glob, site, sys
for root in set(site.getsitepackages() + sys.path):
    print(*glob.glob(root + "/nvidia/*/lib"))' 2>/dev/null); do
    libraries=$libraries:$folder
done
export LD_LIBRARY_PATH="$libraries:${LD_LIBRARY_PATH:-}"

mkdir -p "$work/bin" "$work/mpi"
for file in "$bundle"/*; do
    name=$(basename "$file" .xz)
    case $file in
    *.xz)
        xz -dc "$file" >"$work/bin/$name" 2>/dev/null ||
            python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' \
                "$file" "$work/bin/$name"
        ;;
    *) cp "$file" "$work/bin/$name" ;;
    esac
    chmod +x "$work/bin/$name"
done
bin=$work/bin
# Open MPI of the bundle; every program here needs its library to start.
tar -x -C "$work/mpi" -f "$bin/mpi.tar"
mpirun=$work/mpi/bin/mpirun
export LD_LIBRARY_PATH="$work/mpi/lib:$LD_LIBRARY_PATH"

# A kernel that waits for ever must not take the machine with it.
limited() {
    timeout -k 5 "$@"
}

failed=""
step() {
    name=$1
    shift
    case " $steps " in *" $name "*) ;; *) return ;; esac
    case " $failed " in
    *" kernels "*)
        echo "== $name is left out: the kernels failed"
        return
        ;;
    esac
    echo "== $name"
    began=$(date +%s)
    if "$@" >"$out/$name.txt" 2>&1; then
        tail -n "${LINES_SHOWN:-40}" "$out/$name.txt"
    else
        failed="$failed $name"
        echo "FAILED:"
        tail -n 60 "$out/$name.txt"
    fi
    echo "== $name took $(($(date +%s) - began)) s"
}

# Seconds, program: its tests, one after the other, less those for an emulated GPU only. With SMALL=least those only whose names
# have the third argument. To have run none is a failure.
tests() {
    only="" # not `name`, which is the step's
    [ "${SMALL:-}" != least ] || only=${3:-}
    limited "$1" "$bin/$2" --test-threads 1 --skip emulated:: ${ignored:+"$ignored"} ${only:+"$only"} >"$work/tests.txt" 2>&1
    ended=$?
    cat "$work/tests.txt"
    [ $ended = 0 ] || return $ended
    grep -q '^test result: ok. [1-9]' "$work/tests.txt" || { echo "$2: no test has run" && return 1; }
}

# The study of one model: exact, warm and cold, then the two methods that show what selection costs and brings.
study() {
    model=$1 chunk=2048 short=8k,16k,32k long=64k,128k one=32k repeats=5 others=3 rounds="" more=${LONG_REPEATS:-2}
    if [ -n "${SMALL:-}" ]; then
        model=dummy-25m chunk=32 short=128,256 long=384 one=256
    fi
    if [ "${SMALL:-}" = least ]; then
        short=64 long=96 one=64 repeats=1 others=1 more=1 rounds="--repeats 3"
    fi
    begin="--model models/$model --load-format dummy --device cuda --dtype bf16 --worlds 1 --force"
    sizes="--chunk-tokens $chunk --query-tokens 64"
    [ -z "${CHUNK_CACHE:-}" ] || sizes="$sizes --chunk-cache $CHUNK_CACHE"
    wrong=0
    # The options are meant to be split into words.
    # shellcheck disable=SC2086
    {
        limited 240 "$bin/tributary" bench $begin $sizes --lengths "$short" --methods full infoflow --caches cold,warm \
            --warmups 1 --repeats $repeats --out "$out/$1-short" || wrong=1
        limited 120 "$bin/tributary" bench $begin $rounds --calibrate "$out/$1.toml" || wrong=1
        limited 120 "$bin/tributary" bench $begin $sizes --lengths "$one" --methods none epic --caches cold,warm \
            --warmups 1 --repeats $others --out "$out/$1-others" || wrong=1
        limited 300 "$bin/tributary" bench $begin $sizes --lengths "$long" --methods full infoflow --caches cold,warm \
            --warmups 1 --repeats $more --out "$out/$1-long" || wrong=1
    }
    return $wrong
}

if [ -n "$sanitize" ]; then
    steps=sanitize
    # First memcheck looks for accesses outside of allocations, then synccheck for barriers that not all threads come to.
    sanitized() {
        for tool in memcheck synccheck; do
            echo "$tool:"
            limited 270 compute-sanitizer --tool $tool --error-exitcode 1 "$bin/kernels-cuda" --test-threads 1 || return 1
        done
    }
    step sanitize sanitized
    [ -z "$failed" ]
    exit
fi

# Tests that an emulated GPU cannot run are ignored where they are not asked for.
ignored=--include-ignored
if [ -n "${SMALL:-}" ]; then
    ignored=""
    export GPU_BENCH_KEYS=300 GPU_BENCH_PEAK=128 GPU_BENCH_COPY=1048576 GPU_BENCH_ROUNDS=1
else
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi
# Collectives, then whole requests. Ranks are threads only where each has a GPU: NCCL does not support two threads of a process on
# one GPU, where the driver, which loads code when it is first used, can make them wait for each other. Two processes may share a
# GPU (NCCL 2.30 and later), with all code loaded at the start.
between_ranks() {
    if [ "$gpus" = 1 ]; then
        echo "one GPU: ranks as threads are left out, two processes share it"
    else
        # Ranks as threads: no library may load code behind a message of one that waits for another.
        CUDA_MODULE_LOADING=EAGER
        export CUDA_MODULE_LOADING
        tests 90 nccl-cuda one_rank_conforms && tests 90 stack-nccl || return 1
    fi
    two_processes
}

# Two processes: what `tributary doctor` checks and measures between GPUs, then the answers of methods and exchanges beside those of
# one rank.
two_processes() {
    shared="" sizes=1MiB,64MiB
    [ -z "${SMALL:-}" ] || sizes=64KiB
    [ "$gpus" != 1 ] || shared="--allow-shared-gpu"
    request="prefill --model models/demo --device cuda --request models/demo/requests/hop2-0.json --max-tokens 8 --json"
    # The options are meant to be split into words.
    # shellcheck disable=SC2086
    {
        processes 90 doctor --backend nccl $shared --sizes $sizes || return 1
        for way in "ring replicate full" "all-gather replicate full" "infoflow replicate infoflow" "infoflow pass-q infoflow"; do
            read -r method exchange alone <<F
$way
F
            limited 60 "$bin/tributary" $request --method "$alone" >"$work/alone.json" || return 1
            processes 60 $request --method "$method" --exchange "$exchange" --backend nccl $shared >"$work/two.json" || return 1
            expected=$(answer <"$work/alone.json") found=$(answer <"$work/two.json")
            echo "$method, $exchange, two processes: '$found'; $alone on one rank: '$expected'"
            [ -n "$found" ] && [ "$found" = "$expected" ] || return 1
        done
    }
}

# The answer in a report.
answer() {
    sed -n 's/.*"answer": *"\([^"]*\)".*/\1/p' | head -n 1
}

# Seconds, arguments: `tributary` as two processes.
processes() {
    seconds=$1
    shift
    limited "$seconds" env NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_MODULE_LOADING=EAGER "$mpirun" --allow-run-as-root --oversubscribe \
        -n 2 "$bin/tributary" "$@"
}

# Whole requests, and what they leave in memory.
whole() {
    tests 120 stack-cuda phases_on_a_device && tests 120 stack-memory
}

step kernels tests 120 kernels-cuda merging
step stack whole
step nccl between_ranks
if ! python3 -c 'import torch' 2>/dev/null; then
    echo "PyTorch is not here: nothing to compare with"
    steps=$(echo " $steps " | sed 's/ pytorch / /')
fi
step pytorch limited 90 sh -c "python3 gpu/pytorch.py >'$out/pytorch.json' && cat '$out/pytorch.json'"
step bench limited 120 env PYTORCH_JSON="$out/pytorch.json" GPU_BENCH_JSON="$out/kernels.json" "$bin/kernels-bench"
step llama study llama-3.1-8b
step qwen study qwen3-14b
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
