#!/bin/sh
# Checks and measures everything that only a GPU can show, on the machine that has it: the most important first, within ten minutes.
#
#   sh gpu/run.sh BUNDLE OUT     BUNDLE: the folder that `make gpu-bundle` filled; OUT: gets table.txt and results.tar.gz
#   BUDGET_S=540      seconds that the whole run may take; a step that no longer fits is left out and named
#   STEPS="kernels llama"   picks steps by their names or by the first part of their names; the default is all of them
#   WORK=target/gpu-work    the folder for the unpacked bundle, which the next run uses again; a temporary one where it cannot be written
#   SMALL=yes         a rehearsal with sizes that an emulated GPU manages (`sh gpu/bundle.sh emulated`, then target/cuda-on-cpu/env)
#   SMALL=least       the same with a test or two of each program and the shortest sweeps
#   ESTIMATE_S=2      each step is taken to need this many seconds (for the rehearsal of this script)
#
# A failed step is marked and the others run. All results are archived at the end, when the script is ended by a signal, and once
# shortly before the budget ends. The exit code is 1 if a step failed, 69 without a GPU.
set -u
[ $# = 2 ] || { echo "usage: gpu/run.sh BUNDLE OUT" >&2 && exit 64; }
began=$(date +%s)
small=${SMALL:-}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ "$gpus" = 0 ]; then
    [ -n "$small" ] || { echo "no GPU on this machine: nothing was run (docs/gpu.md)" >&2 && exit 69; }
    gpus=${EMULATED_GPUS:-2}
fi
budget=540
[ -z "$small" ] || budget=3600
budget=${BUDGET_S:-$budget}
early=$((budget / 36 + 1)) # seconds before the end at which results are archived and nothing runs any more
mkdir -p "$2"
bundle=$(cd "$1" && pwd)
out=$(cd "$2" && pwd)
cd "$(dirname "$0")/.." || exit

# Results of this run; those of the run before are in its archive.
work=${WORK:-target/gpu-work}
mkdir -p "$work" 2>/dev/null && [ -w "$work" ] || work=$(mktemp -d)
work=$(cd "$work" && pwd)
results=$work/results
rm -rf "$results" "$work/running" "$work/now"
mkdir -p "$results" "$work/cache" "$work/tmp"
: >"$results/outcomes"

# Seconds that are left for steps.
left() {
    echo $((began + budget - early - $(date +%s)))
}

# Prints at most 8000 characters: steps with their outcome and seconds, then what was left out inside of steps, then numbers.
table() {
    {
        printf '%-18s %5s  %s\n' step s outcome
        awk -F '\t' '{ printf "%-18s %5s  %s\n", $1, $2, $3 }' "$results/outcomes"
        [ ! -f "$work/now" ] || printf '%-18s %5s  had not ended\n' "$(cat "$work/now")" -
        cat "$results"/*.omitted 2>/dev/null
        cut -f 1 "$results/outcomes" | while read -r step; do
            [ ! -s "$results/$step.numbers" ] || sed "s/^/$step: /" "$results/$step.numbers"
        done
    } | LC_ALL=C awk '{
        line = length($0) > 150 ? substr($0, 1, 147) "..." : $0
        all += length(line) + 1
        if (all > 7800) { print "(more numbers are in results.tar.gz)"; exit }
        print line
    }'
}

# Writes table.txt and results.tar.gz into OUT, each atomically. The argument distinguishes writers.
archive() {
    table >"$results/table.$1" && mv "$results/table.$1" "$results/table.txt"
    cp "$results/table.txt" "$out/.table.$1" && mv "$out/.table.$1" "$out/table.txt"
    tar -C "$work" -czf "$out/.results.$1" results 2>/dev/null
    mv "$out/.results.$1" "$out/results.tar.gz"
}

# Archives shortly before the budget ends, whatever runs then.
archive_in_time() {
    trap 'kill "$nap" 2>/dev/null; exit 0' TERM
    sleep $((budget - early)) &
    nap=$!
    wait "$nap"
    archive timer
}
archive_in_time >/dev/null 2>&1 </dev/null &
timer=$!

finish() {
    code=$?
    trap - EXIT
    kill "$timer" 2>/dev/null
    rm -f "$out"/.table.* "$out"/.results.*
    archive end
    echo "== results are in $out/results.tar.gz"
    cat "$out/table.txt"
    exit "$code"
}

# Ends the running step, then the script, which archives on its way out.
stop() {
    trap '' HUP INT TERM
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null
        [ ! -f "$work/running" ] || kill "$(cat "$work/running")" 2>/dev/null
        outcome "$(cat "$work/now")" - "FAILED: ended by a signal"
    fi
    exit "$1"
}
child="" failed=""
trap finish EXIT
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 143' TERM

# Notes what came of a step: name, seconds, outcome.
outcome() {
    rm -f "$work/now"
    printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$results/outcomes"
    echo "== $1: $3"
}

# Seconds, command: runs it, but no longer than the budget lasts. A kernel that waits for ever must not take the machine with it.
limited() {
    limit=$1 rest=$(left)
    shift
    [ "$rest" -gt 1 ] || rest=1
    [ "$limit" -le "$rest" ] || limit=$rest
    timeout -k 5 "$limit" "$@" &
    echo $! >"$work/running"
    wait $!
    ended=$?
    rm -f "$work/running"
    [ "$ended" != 124 ] || echo "ended after $limit s"
    return "$ended"
}

# Ends a step that cannot be run here, with the reason.
leave_out() {
    echo "left out: $1"
    exit 3
}

# Notes a part of a step that was not run, with the reason.
omit() {
    echo "left out: $1" | tee -a "$results/$name.omitted"
}

# Notes a line for the table.
number() {
    echo "$1" >>"$results/$name.numbers"
}

# What the text of a failed step says went wrong: its last line that speaks of it, else the last one with a word in it.
reason() {
    { grep -E '^tributary: |^ended after|panicked at|error|lacks|FAILED' "$1" || grep '[a-z]' "$1"; } | tail -n 1 | tr '\t' ' ' | cut -c 1-100
}

# Whether STEPS has the step's name, or the first part of it.
is_picked() {
    [ -n "${STEPS:-}" ] || return 0
    for word in $STEPS; do
        case $1 in "$word" | "$word"-*) return 0 ;; esac
    done
    return 1
}

# Name, expected seconds, function: runs a step in a separate process, so that its variables do not remain.
step() {
    name=$1 estimate=${ESTIMATE_S:-$2}
    shift 2
    is_picked "$name" || return 0
    rest=$(left)
    if [ "$rest" -lt "$estimate" ]; then
        [ "$rest" -ge 0 ] || rest=0
        outcome "$name" - "left out: it takes about $estimate s, $rest s are left"
        return 0
    fi
    echo "$name" >"$work/now"
    echo "== $name"
    started=$(date +%s)
    "$@" >"$results/$name.txt" 2>&1 &
    child=$!
    wait "$child"
    ended=$?
    child=""
    took=$(($(date +%s) - started))
    case $ended in
    0)
        tail -n 40 "$results/$name.txt"
        outcome "$name" "$took" ok
        ;;
    3) outcome "$name" "$took" "$(tail -n 1 "$results/$name.txt")" ;;
    *)
        tail -n 60 "$results/$name.txt"
        outcome "$name" "$took" "FAILED: $(reason "$results/$name.txt")"
        failed=yes
        ;;
    esac
}

# Unpacks the bundle unless the work folder has this very one, as it was.
files_of() {
    (cd "$1" && find . -type f -exec ls -l {} + | cksum)
}
unpack() {
    sum=$(cksum <"$bundle/bundle.tar.xz")
    if [ "$(cat "$work/unpacked" 2>/dev/null)" = "$sum $(files_of "$work/bundle" 2>/dev/null)" ]; then
        echo "== the bundle was unpacked before"
        return 0
    fi
    rm -rf "$work/bundle" "$work/unpacked"
    mkdir -p "$work/bundle"
    if command -v xz >/dev/null; then
        xz -dc "$bundle/bundle.tar.xz" | tar -x -C "$work/bundle" -f -
    else
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$bundle/bundle.tar.xz" "$work/bundle"
    fi
    # The last file of the archive.
    [ -e "$work/bundle/complete" ] || { echo "$bundle/bundle.tar.xz could not be unpacked" >&2 && exit 69; }
    echo "$sum $(files_of "$work/bundle")" >"$work/unpacked"
}
unpack

# shellcheck source=gpu/steps.sh
. gpu/steps.sh

# The order of the ten-minute plan (docs/gpu.md). Seconds are about one and a half times those of an H200; llama-calibrate, llama-others, nsys,
# qwen-.., packed, ranks, nccl on several GPUs and sanitizer-full have not run to their end on a GPU: theirs are guesses.
step libraries 12 look_around
step kernels-first 10 kernels_first
step kernels 20 kernels
if [ "$gpus" != 1 ]; then
    step nccl 60 between_ranks
    step ranks 150 ranks
fi
step pytorch 20 pytorch
step bench 45 kernels_bench
step llama-short 20 study llama-3.1-8b short
step ncu 60 counters
step stack 10 stack
step stack-memory 5 stack_memory
step answers 90 answers
step decoding 30 decoding_llama
step packed 150 packed
step experts 60 study qwen3-30b-a3b experts
step gpt-oss 80 study gpt-oss-20b windows
step gemma 60 study gemma-3-27b windows
step sanitizer 80 sanitizer few
step llama-long 85 study llama-3.1-8b long
step llama-calibrate 90 study llama-3.1-8b calibrate
step llama-others 15 study llama-3.1-8b others
step nsys 40 timeline
step qwen-short 60 study qwen3-14b short
step qwen-calibrate 120 study qwen3-14b calibrate
step qwen-others 25 study qwen3-14b others
step qwen-long 110 study qwen3-14b long
step stack-plain 30 stack_plain
if [ "$gpus" = 1 ]; then
    step nccl 55 between_ranks
    step ranks 150 ranks
fi
step sanitizer-full 400 sanitizer all
[ -s "$results/outcomes" ] || { echo "STEPS names no step: $STEPS" >&2 && exit 64; }
[ -z "$failed" ]
