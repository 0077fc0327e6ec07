# The steps of gpu/run.sh, which reads this file: each is a function that runs in a separate process. Its output is its text among
# the results; `number` gives the table a line, `leave_out` ends a step that cannot be run here, `omit` notes a part of one.
# shellcheck shell=sh disable=SC2154

bin=$work/bundle/bin
carried=$work/bundle/lib # NCCL, trimmed to one architecture
mpirun=$work/bundle/mpi/bin/mpirun

# CUDA's libraries: where the system has them, else those that came with PyTorch. Open MPI of the bundle, which every program needs.
libraries=$work/bundle/mpi/lib
for folder in /usr/local/cuda/lib64 /usr/local/nvidia/lib64 \
    $(python3 -c 'import glob, site, sys
for root in set(site.getsitepackages() + sys.path):
    print(*glob.glob(root + "/nvidia/*/lib"))' 2>/dev/null); do
    libraries=$libraries:$folder
done
libraries=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Where the machine has no NCCL the bundle's comes last, since no program starts without one.
has_nccl=no
case $(ldconfig -p 2>/dev/null) in *libnccl.so.2*) has_nccl=yes ;; esac
for folder in $(echo "$libraries" | tr : ' '); do
    [ ! -e "$folder/libnccl.so.2" ] || has_nccl=yes
done
[ $has_nccl = yes ] || libraries=$libraries:$carried

# Memory of the smallest GPU in MB, and the compute capability of the first.
card_mb=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | sort -n | head -n 1 |
    awk '{ printf "%d", $1 * 1.048576 }')
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)

# Seconds, VARIABLE=VALUE.., program, arguments: a program of the bundle with its libraries. No variable outlives it; a step's own
# are in `variables`.
variables=""
ours() {
    limit_s=$1
    shift
    # The variables are meant to be split into words.
    # shellcheck disable=SC2086
    limited "$limit_s" env LD_LIBRARY_PATH="$libraries" CUDA_CACHE_PATH="$work/cache" $variables "$@"
}

# The first of these programs that there is.
found() {
    for program in "$@"; do
        command -v "$program" 2>/dev/null && return 0
    done
    return 1
}

# Seconds, program, names: its tests, one after the other, less those for emulated GPUs only. With SMALL=least those only whose name
# is the fourth argument. To have run none is a failure.
tests() {
    seconds=$1 program=$2 names=$3
    [ "$small" != least ] || names=${4:-$names}
    ignored=--include-ignored # an emulated GPU cannot run what is ignored
    [ -z "$small" ] || ignored=""
    # The names are meant to be split into words.
    # shellcheck disable=SC2086
    ours "$seconds" "$bin/$program" --test-threads 1 --skip emulated:: $ignored $names >"$results/$name.$program" 2>&1
    ended=$?
    cat "$results/$name.$program"
    said=$(grep '^test result:' "$results/$name.$program" | cut -d ';' -f 1-2)
    number "$program: ${said:-no result}"
    grep '^test .* FAILED' "$results/$name.$program" | while read -r line; do number "$line"; done
    rm -f "$results/$name.$program"
    [ "$ended" = 0 ] || return "$ended"
    case $said in "test result: ok. "[1-9]*) ;; *) echo "$program: no test has run" && return 1 ;; esac
}

# The versions, as NCCL counts, of the machine's own NCCL and of the bundle's; 0 where there is none or it cannot be loaded.
own_nccl() {
    [ $has_nccl = yes ] || { echo 0 && return; }
    env LD_LIBRARY_PATH="$libraries" python3 gpu/nccl_version.py 2>/dev/null | grep -x '[0-9][0-9]*' || echo 0
}
carried_nccl() {
    [ -e "$carried/libnccl.so.2" ] || { echo 0 && return; }
    env LD_LIBRARY_PATH="$carried:$libraries" python3 gpu/nccl_version.py 2>/dev/null | grep -x '[0-9][0-9]*' || echo 0
}

# The machine and its libraries: what is missing is known before anything else is tried.
look_around() {
    [ -n "$small" ] || nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm,power.limit,mig.mode.current \
        --format=csv,noheader | tee "$results/gpu.txt"
    [ -n "$small" ] || number "$(head -n 1 "$results/gpu.txt"); $gpus GPU(s)"
    python3 -c 'import torch
print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version(), "NCCL", torch.cuda.nccl.version())' 2>/dev/null
    number "NCCL of this machine: $(own_nccl), of the bundle: $(carried_nccl) (0: none; 22809 is 2.28.9)"
    df -h /dev/shm
    if command -v ldd >/dev/null; then
        for program in "$bin"/*; do
            env LD_LIBRARY_PATH="$libraries" ldd "$program" 2>/dev/null | grep 'not found' | sed "s|^|$(basename "$program") lacks|"
        done | sort -u >"$results/missing.txt"
        cat "$results/missing.txt"
        [ ! -s "$results/missing.txt" ] || { number "$(head -n 1 "$results/missing.txt")" && return 1; }
    fi
    ours 60 "$bin/tributary" doctor
}

# The tests that say whether the products of matrices compute at all.
kernels_first() {
    tests 60 kernels-cuda "device:: persistent:: precision::" device::
}

kernels() {
    tests 180 kernels-cuda "" merging
}

pytorch() {
    python3 -c 'import torch' 2>/dev/null || leave_out "PyTorch is not on this machine"
    limited 120 python3 gpu/pytorch.py >"$work/pytorch.new" 2>"$results/$name.errors"
    ended=$?
    mv "$work/pytorch.new" "$work/pytorch.jsonl"
    cp "$work/pytorch.jsonl" "$results"
    cat "$results/$name.errors" "$work/pytorch.jsonl"
    tr -d '{}"' <"$work/pytorch.jsonl" | while read -r line; do number "$line"; done
    return "$ended"
}

kernels_bench() {
    sizes=""
    [ -z "$small" ] || sizes="GPU_BENCH_KEYS=300 GPU_BENCH_PEAK=128 GPU_BENCH_COPY=1048576 GPU_BENCH_ROUNDS=1"
    # The sizes are meant to be split into words.
    # shellcheck disable=SC2086
    ours 150 PYTORCH_JSON="$work/pytorch.jsonl" GPU_BENCH_JSON="$results/kernels.json" $sizes "$bin/kernels-bench" >"$results/$name.said" 2>&1
    ended=$?
    cat "$results/$name.said"
    sed -n '/^case /,$p' "$results/$name.said" | while read -r line; do number "$line"; done
    rm -f "$results/$name.said"
    return "$ended"
}

# Which caches a card has room for at this many tokens: `caches` is empty where not even a cold run fits. Sizes in MB: the weights
# with what every run takes; for 1000 tokens, keys and values, and all that a request takes. They are those of `tributary plan`.
room() {
    model=$1 tokens=$2
    case $model in
    llama-3.1-8b) fixed_mb=17750 request_kb=184 chunk_kb=131 ;;
    qwen3-30b-a3b) fixed_mb=62800 request_kb=150 chunk_kb=98 ;;
    gpt-oss-20b) fixed_mb=16100 request_kb=110 chunk_kb=49 ;;
    llama-q4_0) fixed_mb=6400 request_kb=184 chunk_kb=131 ;;
    gemma-3-27b) fixed_mb=58000 request_kb=620 chunk_kb=508 ;;
    *) fixed_mb=31450 request_kb=225 chunk_kb=164 ;;
    esac
    # What the planner takes: nine tenths of what is free once the driver is there.
    usable_mb=$(((card_mb - 1400) * 9 / 10))
    request_mb=$((fixed_mb + tokens * request_kb / 1000))
    # A tenth more than the chunks themselves, in whole GiB.
    cache_gib=$(((tokens * chunk_kb * 11 / 10000 + 1073) / 1074))
    warm_mb=$((request_mb + cache_gib * 1074))
    caches=cold cache=off
    if [ "$warm_mb" -le "$usable_mb" ]; then
        caches=cold,warm cache=${cache_gib}GiB
    elif [ "$request_mb" -gt "$usable_mb" ]; then
        caches=""
    fi
}

# Seconds, folder, options: a study of `tributary bench`, whose medians go into the table.
bench() {
    seconds=$1 folder=$results/$2
    shift 2
    ours "$seconds" "$bin/tributary" bench "$@" --out "$folder" --force || return
    awk -F , 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next } {
        printf "%s: %.1f ms", $1, $at["median_ttft_ms"]
        if ($at["speed_up_to_full"] != "") printf ", %.2f x full", $at["speed_up_to_full"]
        if ($at["failures"] > 0) printf ", %d failures", $at["failures"]
        print ""
    }' "$folder/points.csv" 2>/dev/null | sed 's/tokens=//; s/world=/on /; s/exchange=none //; s/cache=//' |
        while read -r line; do number "$line"; done
}

# One model at one kind of sizes: exact, then selective from cold and from warm chunks; one command a length.
study() {
    label=$1 lengths=$2 model=$1 chunk=2048 repeats=3 methods="full infoflow excerpt" rounds=""
    case $lengths in
    short) list="8192 32768" ;;
    long) list="65536 131072" repeats=1 ;;
    others) list=32768 methods="none epic" ;;
    experts | packed) list=8192 ;;
    windows) list="8192 32768" repeats=1 ;;
    *) list="" ;;
    esac
    if [ -n "$small" ]; then
        model=dummy-25m chunk=32 rounds="--repeats 3"
        [ "$lengths" != experts ] || model=dummy-moe-25m
        case $lengths in short) list="128 256" ;; long) list=384 ;; others | packed) list=256 ;; esac
    fi
    if [ "$small" = least ]; then
        repeats=1
        [ -z "$list" ] || list=64
    fi
    folder=examples/models/$model
    if [ "$lengths" = packed ]; then
        label=llama-q4_0
        packed_model "$model" Q4_0 && folder=$work/tmp/$model-Q4_0 || return
    fi
    set -- --model "$folder" --load-format dummy --device cuda --dtype bf16 --worlds 1
    if [ "$lengths" = calibrate ]; then
        # shellcheck disable=SC2086
        ours 150 "$bin/tributary" bench "$@" $rounds --force --calibrate "$results/$label.toml"
        return
    fi
    wrong=0
    for tokens in $list; do
        caches=cold,warm cache=""
        [ -n "$small" ] || room "$label" "$tokens"
        if [ -z "$caches" ]; then
            omit "$label at $tokens tokens: needs $request_mb MB, of $card_mb MB there are $usable_mb to use"
            continue
        fi
        [ "$caches" = cold,warm ] || omit "$label at $tokens tokens from warm chunks: needs $warm_mb MB, of $card_mb MB there are $usable_mb to use"
        # shellcheck disable=SC2086
        bench 200 "$name-$tokens" "$@" --lengths "$tokens" --chunk-tokens $chunk --query-tokens 64 --methods $methods --caches $caches \
            ${cache:+--chunk-cache "$cache"} --warmups 1 --repeats $repeats || wrong=1
    done
    return $wrong
}

# Model, type of GGUF: the folder of the same shape whose random weights are packed so.
packed_model() {
    mkdir -p "$work/tmp/$1-$2" || return
    sed "s/^}/,\"quantization_config\": {\"quant_method\": \"gguf\", \"type\": \"$2\"}}/" "examples/models/$1/config.json" \
        >"$work/tmp/$1-$2/config.json"
}

# Packed weights: time to first token with them, then milliseconds a token in four and eight bits, and of gpt-oss, whose experts are in MXFP4.
packed() {
    dense=llama-3.1-8b experts=examples/models/gpt-oss-20b
    [ -z "$small" ] || { dense=dummy-25m && experts=; }
    study "$dense" packed || return
    packed_model "$dense" Q8_0 || return
    for folder in "$work/tmp/$dense-Q4_0" "$work/tmp/$dense-Q8_0" $experts; do
        number "$(basename "$folder"):"
        decoding "$folder" 4x2048+64 || return
    done
}

# Folder of a model, shapes of requests: milliseconds a token while an answer is decoded.
decoding() {
    folder=$1 count=65
    shift
    [ -z "$small" ] || { count=3 && set -- 2x32+8; }
    [ -z "$small" ] || [ "$folder" != examples/models/llama-3.1-8b ] || folder=examples/models/dummy-25m
    for shape in "$@"; do
        ours 120 "$bin/tributary" prefill --model "$folder" --load-format dummy --device cuda --method full --synthetic "$shape" \
            --max-tokens $count --json >"$results/$name-$(basename "$folder")-$shape.json" || return
        python3 -c 'import json, sys
answer = json.load(open(sys.argv[1]))
tokens = answer["tokens"]
context = sum(tokens[part] for part in ("prefix", "context", "query"))
each = (answer["total_ms"] - answer["ttft_ms"]) / (tokens["generated"] - 1)
print(f"behind {context} tokens: {each:.2f} ms a token, mean of {tokens['"'generated'"'] - 1}")' "$results/$name-$(basename "$folder")-$shape.json" >"$results/$name.said" || return
        number "$(cat "$results/$name.said")"
    done
}

# The same behind contexts of two lengths.
decoding_llama() {
    decoding examples/models/llama-3.1-8b 4x2048+64 16x2048+64
}

# What limits kernels: shares of the tensor cores, of the L2 cache and of memory, and where warps wait. NCU_KERNELS names fewer.
counters() {
    ncu=$(found ncu /usr/local/cuda/bin/ncu /opt/nvidia/nsight-compute/*/ncu) || leave_out "ncu is not on this machine"
    case $capability in
    9.*) kernels="attend_sm90_bf16_128 pack_sm90_bf16_128" ;;
    *) kernels="" ;;
    esac
    wrong=0
    # `attend` as in decoding: one row. The norm's kernel is that of rows of up to 4096 numbers, as kernels-bench has them.
    for kernel in ${NCU_KERNELS:-$kernels attend_bf16_128 rms_norm_1_bf16 silu_mul_bf16}; do
        case $kernel in
        attend_bf16*) only=decode ;;
        rms_norm*) only=rms_norm ;;
        silu_mul*) only=silu_mul ;;
        *) only=dense ;;
        esac
        ours 60 GPU_BENCH_KEYS=16384 GPU_BENCH_ONLY=$only GPU_BENCH_ROUNDS=1 "$ncu" --clock-control none --kill yes -k "regex:$kernel" -c 1 \
            --section SpeedOfLight --section WarpStateStats --section MemoryWorkloadAnalysis "$bin/kernels-bench" >"$results/ncu-$kernel.txt" 2>&1
        cat "$results/ncu-$kernel.txt"
        ! grep -q ERR_NVGPUCTRPERM "$results/ncu-$kernel.txt" || leave_out "the driver does not let this user read performance counters"
        grep -E '(\(SM\)|L2 Cache|DRAM) Throughput|Duration' "$results/ncu-$kernel.txt" | awk '{ $1 = $1; print }' |
            while read -r line; do number "$kernel: $line"; done
        # ncu ends the program as soon as it has the kernel, so no exit code says whether it found one.
        grep -q Duration "$results/ncu-$kernel.txt" || { echo "the output of ncu lacks $kernel" && wrong=1; }
    done
    return $wrong
}

# Where a request's time goes, kernel by kernel.
timeline() {
    nsys=$(found nsys /usr/local/cuda/bin/nsys /opt/nvidia/nsight-systems/*/bin/nsys) || leave_out "nsys is not on this machine"
    ours 120 "$nsys" profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --force-overwrite=true --stats=true -o "$work/tmp/llama" \
        "$bin/tributary" bench --model examples/models/llama-3.1-8b --load-format dummy --device cuda --worlds 1 --lengths 8192 --chunk-tokens 2048 \
        --query-tokens 64 --methods full infoflow --caches cold --warmups 1 --repeats 1 --out "$work/tmp/nsys" --force || return
    # The recording itself only where it is small enough to be taken home.
    find "$work/tmp" -name 'llama.nsys-rep' -size -6000k -exec cp {} "$results" \;
}

# Whole requests on the device, compared with the CPU.
stack() {
    tests 180 stack-cuda whole_requests:: phases_on_a_device
}

# Scores of answers on the device, compared with those on the CPU, by method: the demo model with all methods, with five and more requests,
# and with keys and values in 8 bits; then the demo model that reads pictures.
answers() {
    many=40 some=20 parts="text all fp8 pictures" hops="--suite hops --model examples/models/demo --tasks hop2,vt3"
    [ -z "$small" ] || many=2 some=1
    [ "$small" != least ] || parts=text
    wrong=0
    for part in $parts; do
        # The options and names are meant to be split into words.
        # shellcheck disable=SC2086
        case $part in
        text) set -- $hops --samples $many --methods full none infoflow attn-drift relay --warm ;;
        all)
            # A line a method, which begins with its name, under a heading.
            names=$(ours 60 "$bin/tributary" methods | awk '!/^#/ { print $1 }') || return
            set -- $hops --samples $some --methods $names \
                --aux-model examples/models/demo/auxiliary --adapter examples/models/demo/adapters/kv-packet
            ;;
        fp8) set -- $hops --samples $many --methods full infoflow excerpt --kv-dtype fp8 --warm ;;
        pictures) set -- --suite pages --model examples/models/demo-vlm --tasks hop2_pages --samples $many --methods full none infoflow relay ;;
        esac
        for device in cpu cuda; do
            ours 60 "$bin/tributary" quality "$@" --device $device --out "$work/tmp/$device-$part" --force || return
        done
        scores "$part" "$work/tmp/cpu-$part/points.csv" "$work/tmp/cuda-$part/points.csv" || wrong=1
    done
    [ "$wrong" = 0 ] || echo "scores lie more than 0.1 apart: FAILED"
    return $wrong
}

# Part, results of the CPU, results of the device: a line a method. Fails where two scores are more than 0.1 apart.
scores() {
    awk -F , -v part="$1" 'FNR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $at["task"] != "all" { next }
        FILENAME == ARGV[1] { cpu[$at["method"]] = $at["score"]; next }
        {
            here = $at["score"]
            there = cpu[$at["method"]]
            printf "%s, %s: score %.3f, on the CPU %.3f\n", part, $at["method"], here, there
            if (here - there > 0.1 || there - here > 0.1) wrong = 1
        }
        END { exit wrong }' "$2" "$3" >"$work/now.scores"
    ended=$?
    cat "$work/now.scores"
    while read -r line; do number "$line"; done <"$work/now.scores"
    return "$ended"
}

# Memory of requests, compared with the plan.
stack_memory() {
    # Each in a process of its own, whose pool is then its own.
    tests 90 stack-cuda "memory::memory_is_taken --nocapture" && tests 90 stack-cuda "memory::packed_weights --nocapture"
    ended=$?
    sed -n '/^counted:/p' "$results/$name.txt" | while read -r line; do number "$line"; done
    return "$ended"
}

# The same requests by candle's own operations, whose code the driver compiles first: 19 s in all with an H200.
stack_plain() {
    [ -z "$small" ] || leave_out "an emulated GPU has none of candle's kernels"
    tests 180 stack-cuda plain_kernels::
}

# Memcheck finds accesses outside of allocations, synccheck barriers that not all threads come to.
sanitizer() {
    tool=$(found compute-sanitizer /usr/local/cuda/bin/compute-sanitizer) || leave_out "compute-sanitizer is not on this machine"
    seconds=60 names="persistent::one_and_two moving::"
    [ "$1" = few ] || { seconds=270 && names=""; }
    for check in memcheck synccheck; do
        echo "$check:"
        # shellcheck disable=SC2086
        ours "$seconds" "$tool" --tool "$check" --error-exitcode 1 "$bin/kernels-cuda" --test-threads 1 $names || { number "$check: FAILED" && return 1; }
        number "$check: no error"
    done
}

# Chooses the NCCL for two processes on one GPU, which must be 2.30 or newer: the machine's own, else the bundle's, which has code for
# compute capability 9.0 alone.
choose_nccl() {
    own=$(own_nccl)
    [ "$own" -lt 23000 ] || return 0
    of_bundle=0 why="the bundle has none"
    if [ -e "$carried/libnccl.so.2" ]; then
        why="the bundle's is for 9.0 alone"
        if [ "$capability" = 9.0 ]; then
            of_bundle=$(carried_nccl) why="the bundle's cannot be loaded"
        fi
    fi
    [ "$of_bundle" -ge 23000 ] || leave_out "two processes on one GPU need NCCL 2.30, this machine has $own; $why"
    libraries=$carried:$libraries
    number "with the bundle's NCCL $of_bundle; this machine's is $own"
}

# What messages between GPUs need. NVLS is multicast in the switches: nothing here uses it, and where a machine refuses it NCCL does not
# start. All code is loaded at the start: what is loaded later may wait for a message of another rank.
for_messages() {
    variables="NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0} NCCL_DEBUG=${NCCL_DEBUG:-WARN} CUDA_MODULE_LOADING=EAGER"
}

# The lines of a table of `tributary doctor` that have bandwidths.
bandwidths() {
    grep -E '^[0-9.]+ [KMG]?i?B ' | awk -v what="$1" '{ print what ": " $1, $2 ": median " $3 " ms, bus " $7 " GB/s" }' |
        while read -r line; do number "$line"; done
}

# Collectives, then whole requests. Ranks are threads only where each has a GPU: NCCL does not support two threads of a process on one
# GPU. Two processes may share it.
between_ranks() {
    for_messages
    if [ "$gpus" = 1 ]; then
        choose_nccl
        omit "ranks as threads: there is one GPU"
    else
        tests 120 nccl-cuda "" one_rank_conforms && tests 120 stack-cuda between_gpus:: || return
    fi
    two_processes
}

# Seconds, arguments: `tributary` as two processes.
processes() {
    seconds=$1
    shift
    ours "$seconds" NCCL_MULTI_RANK_GPU_ENABLE=1 "$mpirun" --allow-run-as-root --oversubscribe -n 2 "$bin/tributary" "$@"
}

# The answer in a report.
answer() {
    sed -n 's/.*"answer": *"\([^"]*\)".*/\1/p' | head -n 1
}

# Checks and measurements of `tributary doctor` between GPUs, then answers of methods and exchanges, compared with those of one rank.
two_processes() {
    shared="" sizes=1MiB,64MiB
    [ -z "$small" ] || sizes=64KiB
    [ "$gpus" != 1 ] || shared=--allow-shared-gpu
    processes 90 doctor --backend nccl ${shared:+"$shared"} --sizes "$sizes" || return
    set -- --model examples/models/demo --device cuda --request examples/models/demo/requests/hop2-0.json --max-tokens 8 --json
    for way in "ring full" "all-gather full" "infoflow:exchange=replicate infoflow" "infoflow:exchange=pass-q infoflow"; do
        read -r method alone <<F
$way
F
        ours 60 "$bin/tributary" prefill "$@" --method "$alone" >"$work/tmp/alone.json" || return
        processes 60 prefill "$@" --method "$method" --backend nccl ${shared:+"$shared"} >"$work/tmp/two.json" || return
        expected=$(answer <"$work/tmp/alone.json") got=$(answer <"$work/tmp/two.json")
        number "$method, two processes: '$got'; $alone on one rank: '$expected'"
        if [ -z "$got" ] || [ "$got" != "$expected" ]; then
            echo "$method: two processes answer '$got', one rank '$expected'"
            return 1
        fi
    done
}

# Several GPUs: what their links carry, and what methods and exchanges make of it.
ranks() {
    [ "$gpus" -gt 1 ] || leave_out "there is one GPU"
    for_messages
    wrong=0 worlds=1 world=2 model=llama-3.1-8b list="32768 131072" chunk=2048 sizes=64KiB,1MiB,64MiB,1GiB
    while [ "$world" -le "$gpus" ]; do
        worlds=$worlds,$world world=$((world * 2))
    done
    [ -z "$small" ] || model=dummy-25m list=64 chunk=32 sizes=64KiB
    most=${worlds##*,}
    # NCCL takes as many multiprocessors as attention leaves alone.
    for kept in 4 8 16; do
        ours 60 "$bin/tributary" doctor --backend nccl --world-size "$most" --message-multiprocessors $kept --sizes "$sizes" >"$work/tmp/doctor.txt" 2>&1 ||
            wrong=1
        cat "$work/tmp/doctor.txt"
        bandwidths "$most GPUs, $kept multiprocessors" <"$work/tmp/doctor.txt"
        [ "$small" != least ] || break
    done
    set -- --model "examples/models/$model" --load-format dummy --device cuda --dtype bf16
    for tokens in $list; do
        caches="" # so that a small rehearsal asks for no memory
        [ -n "$small" ] || room "$model" "$tokens"
        if [ -z "$small$caches" ]; then
            omit "$model at $tokens tokens: needs $request_mb MB, of $card_mb MB there are $usable_mb to use"
            continue
        fi
        bench 240 "$name-$tokens" "$@" --worlds "$worlds" --lengths "$tokens" --chunk-tokens $chunk --query-tokens 64 \
            --methods full ring all-gather pass-q infoflow:exchange=replicate infoflow:exchange=pass-q --caches cold --chunk-cache off \
            --warmups 1 --repeats 2 || wrong=1
    done
    [ "$small" = least ] ||
        ours 150 "$bin/tributary" bench "$@" --worlds "$most" --force --calibrate "$results/$model-$most-ranks.toml" || wrong=1
    # Whether this machine's switches take NVLS: an answer, no failure.
    if ours 60 NCCL_NVLS_ENABLE=2 "$bin/tributary" doctor --backend nccl --world-size "$most" --sizes 64KiB; then
        number "NCCL_NVLS_ENABLE=2: starts"
    else
        number "NCCL_NVLS_ENABLE=2: does not start"
    fi
    return $wrong
}
