#!/bin/sh
# Runs gpu/run.sh with stand-ins for the GPU, for the bundle's programs and for NVIDIA's tools, and checks what it makes of machines with
# none, one, two and four GPUs, of failures, of signals and of a budget that is too short. Takes seconds; needs no GPU and no build.
set -eu
cd "$(dirname "$0")/.."
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir -p "$place/tree/bin" "$place/tree/mpi/bin" "$place/tree/lib" "$place/bundle" "$place/own" "$place/path" "$place/tools"

# One program for all: it notes how it was called and with which variables, and answers by its name.
cat >"$place/stand-in" <<'F'
#!/bin/sh
me=${0##*/}
case $me in nvidia-smi | python3) ;; *)
    echo "$me $* [modules=${CUDA_MODULE_LOADING:-} nvls=${NCCL_NVLS_ENABLE:-} shared=${NCCL_MULTI_RANK_GPU_ENABLE:-} keys=${GPU_BENCH_KEYS:-} cache=${CUDA_CACHE_PATH:+set}]" >>"$LOG"
    ;;
esac
[ "${HANGS:-}" != "$me" ] || { echo "hangs as $$" >>"$LOG" && exec sleep 77; }
case " ${FAILS:-} " in *" $me "*) echo "$me was made to fail" && exit 1 ;; esac
case "$me $*" in
"nvidia-smi -L") seq -f 'GPU %.0f: a stand-in' "$GPUS" ;;
*memory.total,compute_cap*) seq -f 'a stand-in, 580, %.0f' "$GPUS" ;;
*--query-gpu=memory.total*) yes "${MIB:-81559}" | head -n "$GPUS" ;;
*--query-gpu=compute_cap*) yes "${CAPABILITY:-9.0}" | head -n "$GPUS" ;;
"python3 "*nccl_version.py) case $LD_LIBRARY_PATH in */bundle/lib:*) echo "${CARRIED:-0}" ;; *) echo "${OWN:-22809}" ;; esac ;;
"python3 "*pytorch.py) printf '{"case": "dense_causal", "ms": 1.5}\n{"case": "probe_64", "failed": "no"}\n' ;;
"kernels-bench "*)
    printf 'dense: 1 ms\ncase  median ms\ndense  1.0\n'
    seq -f "case %g and very much about it: $(seq -s ' ' 90)" "${LINES_OF_BENCH:-1}"
    ;;
*-cuda\ * | stack-*) echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured' ;;
"mpirun "*)
    while [ "$1" != -n ]; do shift; done
    shift 2
    exec "$@"
    ;;
"ncu "* | "nsys "* | "compute-sanitizer "*) echo 'Duration us 5' ;;
"tributary bench "*)
    while [ $# -gt 1 ]; do
        [ "$1" != --out ] || out=$2
        shift
    done
    [ -z "${out:-}" ] || mkdir -p "$out"
    [ -z "${out:-}" ] || printf 'id,failures,median_ttft_ms,speed_up_to_full\nfull tokens=64 world=1,0,12.5,1.0\n' >"$out/points.csv"
    ;;
"tributary quality "*)
    while [ "$1" != --out ]; do shift; done
    mkdir -p "$2"
    printf 'method,task,score\nfull,hop2,0.1\nfull,all,0.5\n' >"$2/points.csv"
    ;;
"tributary methods"*) printf '# method answer\n  full exact\n  none approximate\n' ;;
"tributary prefill "*) echo '  "answer": "seven",' ;;
"tributary doctor "*) echo '64 KiB        0.009     0.007     0.028                 1.5           2.5             0' ;;
esac
F
chmod +x "$place/stand-in"
for name in tributary kernels-cuda kernels-bench nccl-cuda stack-cuda; do
    cp "$place/stand-in" "$place/tree/bin/$name"
done
cp "$place/stand-in" "$place/tree/mpi/bin/mpirun"
for name in nvidia-smi python3; do cp "$place/stand-in" "$place/path/$name"; done
for name in ncu nsys compute-sanitizer; do cp "$place/stand-in" "$place/tools/$name"; done
touch "$place/own/libnccl.so.2" "$place/tree/complete"
tar -C "$place/tree" -c bin mpi lib complete | xz -0 >"$place/bundle/bundle.tar.xz"

fail() {
    echo "gpu/rehearse.sh, $case: $1" >&2
    for file in "$place/said" "$LOG"; do echo "-- $file" >&2 && cat "$file" >&2; done
    exit 1
}

# Case, expected exit code, VARIABLE=VALUE..: a run of the script.
run() {
    case=$1 expected=$2
    shift 2
    LOG=$place/log
    : >"$LOG"
    rm -rf "$place/out"
    code=0
    env PATH="$place/path:$PATH" LD_LIBRARY_PATH="$place/own" LOG="$LOG" WORK="$place/work" "$@" sh gpu/run.sh "$place/bundle" "$place/out" >"$place/said" 2>&1 ||
        code=$?
    [ "$code" = "$expected" ] || fail "ends with $code, not $expected"
}

# A line of the table, as a pattern: the step, and what came of it.
row() {
    grep -Eq "^$1 +[0-9-]+  $2" "$place/out/table.txt" || fail "no row of $1 with: $2"
}
table_has() { grep -Fq -- "$1" "$place/out/table.txt" || fail "the table has no: $1"; }
was_called() { grep -Eq -- "$1" "$LOG" || fail "nothing was called as: $1"; }
was_not_called() { ! grep -Eq -- "$1" "$LOG" || fail "something was called as: $1"; }
archive_has() { tar -tzf "$place/out/results.tar.gz" | grep -q "^results/$1" || fail "the archive has no $1"; }

run "no GPU" 69 GPUS=0
grep -q 'no GPU on this machine' "$place/said" || fail "does not say so"

run "one GPU" 0 GPUS=1 PATH="$place/path:$place/tools:$PATH" BUDGET_S=9000
for name in libraries kernels-first kernels pytorch bench llama-short ncu stack stack-memory answers decoding packed experts gpt-oss gemma sanitizer llama-long llama-calibrate llama-others nsys \
    qwen-short qwen-calibrate qwen-others qwen-long stack-plain sanitizer-full; do
    row "$name" ok
done
row nccl "left out: two processes on one GPU need NCCL 2.30, this machine has 22809; the bundle has none"
row ranks "left out: there is one GPU"
# What a card of 80 GB holds, and a command a length.
was_called 'llama-3.1-8b .*--lengths 65536 .*--caches cold,warm --chunk-cache 9GiB'
was_called 'llama-3.1-8b .*--lengths 131072 .*--caches cold,warm --chunk-cache 18GiB'
was_called 'qwen3-14b .*--lengths 65536 .*--caches cold,warm --chunk-cache 12GiB'
was_called 'qwen3-14b .*--lengths 131072 .*--caches cold --chunk-cache off'
table_has "left out: qwen3-14b at 131072 tokens from warm chunks: needs "
was_called '^kernels-cuda .*device:: persistent:: precision::.* cache=set'
was_called '^ncu .*regex:attend_sm90_bf16_128 .* keys=16384'
was_called '^ncu .*regex:pack_sm90_bf16_128 '
was_called '^ncu .*regex:attend_bf16_128 .* keys=16384'
was_called '^ncu .*regex:rms_norm_1_bf16 '
was_not_called '^(tributary bench|kernels-cuda).*keys=[0-9]'
was_not_called 'modules=EAGER'
for part in text all fp8 pictures; do table_has "answers: $part, full: score 0.500, on the CPU 0.500"; done
was_called '^tributary quality .*--samples 20 --methods full none --aux-model .* --device cuda'
table_has 'llama-short: full 64 on 1: 12.5 ms, 1.00 x full'
table_has 'pytorch: case: dense_causal, ms: 1.5'
was_called 'qwen3-30b-a3b .*--lengths 8192 .*--caches cold,warm --chunk-cache 1GiB'
was_called 'gpt-oss-20b .*--lengths 32768 .*--caches cold,warm --chunk-cache 2GiB'
was_called 'prefill .*--synthetic 16x2048.64 --max-tokens 65'
was_called 'bench .*--model [^ ]*/llama-3.1-8b-Q4_0 .*--lengths 8192 .*--caches cold,warm --chunk-cache 2GiB'
for model in llama-3.1-8b-Q4_0 llama-3.1-8b-Q8_0 gpt-oss-20b; do was_called "prefill --model [^ ]*/$model .*--max-tokens 65"; done
table_has 'bench: dense  1.0'
[ "$(tail -n 1 "$place/said")" = "$(tail -n 1 "$place/out/table.txt")" ] || fail "the table does not come last"
[ "$(wc -c <"$place/out/table.txt")" -le 8000 ] || fail "the table is too long"
archive_has kernels.txt
archive_has llama-long-131072/points.csv

run "NCCL of the bundle's, no tools, no PyTorch, the bundle as before" 0 GPUS=1 CARRIED=23007 OWN=22809 FAILS=python3 STEPS="nccl pytorch ncu"
grep -q 'was unpacked before' "$place/said" || fail "unpacks anew"
row nccl "left out: two processes .*; the bundle has none"
row pytorch 'left out: PyTorch is not'
row ncu 'left out: ncu is not'
: >"$place/tree/lib/libnccl.so.2"
tar -C "$place/tree" -c bin mpi lib complete | xz -0 >"$place/bundle/bundle.tar.xz"
run "NCCL of the bundle" 0 GPUS=1 CARRIED=23007 STEPS="nccl llama"
row nccl ok
table_has "with the bundle's NCCL 23007; this machine's is 22809"
was_called '^mpirun .* doctor --backend nccl --allow-shared-gpu .*modules=EAGER nvls=0 shared=1'
was_not_called 'bench .*(EAGER|nvls=0|shared=1)'
run "NCCL of the bundle on an older GPU" 0 GPUS=1 CARRIED=23007 CAPABILITY=8.0 STEPS=nccl
row nccl "left out: .*; the bundle's is for 9.0 alone"
run "a new NCCL of the machine" 0 GPUS=1 OWN=23100 STEPS=nccl
row nccl ok

run "a small card" 0 GPUS=1 MIB=24576 STEPS="llama-short llama-long qwen-short"
was_called 'llama-3.1-8b .*--lengths 8192 .*--caches cold,warm --chunk-cache 2GiB'
table_has 'left out: llama-3.1-8b at 65536 tokens: needs 29808 MB'
was_not_called 'qwen'

for gpus in 2 4; do
    run "$gpus GPUs" 0 GPUS=$gpus STEPS="nccl ranks llama-short" NCCL_NVLS_ENABLE=
    [ $gpus = 2 ] && worlds=1,2 || worlds=1,2,4
    row nccl ok
    row ranks ok
    was_called '^nccl-cuda .*modules=EAGER nvls=0'
    was_called "^tributary bench .*--worlds $worlds --lengths 32768 .*infoflow:exchange=pass-q"
    was_called "^tributary bench .*--worlds $gpus --force --calibrate"
    was_called "^tributary doctor --backend nccl --world-size $gpus .*--sizes 64KiB,1MiB,64MiB,1GiB"
    was_called '^tributary doctor .*nvls=2'
    was_not_called '^tributary bench .*--worlds 1 .*modules=EAGER'
    table_has "ranks: $gpus GPUs, 4 multiprocessors: 64 KiB: median 0.009 ms, bus 2.5 GB/s"
done
run "NVLS as asked for" 0 GPUS=2 STEPS=nccl NCCL_NVLS_ENABLE=1
was_called '^nccl-cuda .*nvls=1'

run "failures" 1 GPUS=1 FAILS="kernels-cuda kernels-bench" STEPS="kernels pytorch bench llama-short"
row kernels-first 'FAILED: kernels-cuda was made to fail'
row kernels 'FAILED'
row bench 'FAILED: kernels-bench was made to fail'
row pytorch ok
row llama-short ok

run "no such step" 64 GPUS=1 STEPS=kernel
run "more numbers than a table holds" 0 GPUS=1 LINES_OF_BENCH=300 STEPS="bench llama-long"
[ "$(wc -c <"$place/out/table.txt")" -le 8000 ] || fail "the table is too long"
row llama-long ok
table_has "(more numbers are in results.tar.gz)"

run "a short budget" 0 GPUS=1 BUDGET_S=55
row kernels ok
row ncu 'left out: it takes about 60 s, [0-9]+ s are left'
row llama-calibrate "left out: it takes about 90 s"
row llama-short ok

# A step that hangs is ended when the budget ends; the archive is there before.
run "a step that hangs" 1 GPUS=1 HANGS=kernels-cuda BUDGET_S=4 ESTIMATE_S=1 STEPS="libraries kernels llama"
row libraries ok
row kernels-first 'FAILED: ended after [0-9] s'
row llama-short 'left out'

# Starts a run that hangs in its second step, and waits until it does.
hang() {
    case=$1
    rm -rf "$place/out"
    : >"$LOG"
    env PATH="$place/path:$PATH" LOG="$LOG" WORK="$place/work" GPUS=1 HANGS=kernels-cuda BUDGET_S="$2" ESTIMATE_S=1 \
        sh gpu/run.sh "$place/bundle" "$place/out" >"$place/said" 2>&1 &
    run=$!
    tries=0
    until grep -q "^hangs" "$LOG"; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || fail "does not come to the step that hangs"
        sleep 0.1
    done
}
hang "ended by a signal" 100
kill -TERM $run
code=0
wait $run || code=$?
[ $code = 143 ] || fail "ends with $code"
row libraries ok
row kernels-first 'FAILED: ended by a signal'
[ "$(tail -n 1 "$place/said")" = "$(tail -n 1 "$place/out/table.txt")" ] || fail "the table does not come last"
archive_has libraries.txt
sleep 0.2
! kill -0 "$(sed -n "s/^hangs as //p" "$LOG")" 2>/dev/null || fail "leaves a process"

# Where no trap can run any more, what the timer wrote is there.
hang "stopped, then killed" 4
kill -STOP $run
sleep 4
[ -s "$place/out/results.tar.gz" ] || fail "the timer wrote nothing"
table_has kernels-first
kill -KILL $run
wait $run 2>/dev/null || true
echo "gpu/run.sh is as it should be with none, one, two and four GPUs, with failures, signals and short budgets"
