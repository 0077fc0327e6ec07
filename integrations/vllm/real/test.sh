#!/bin/sh
# `make vllm-test`: Tributary's prefill decoded by the real vLLM, on CPUs. About two hours; SHORT=1 takes about ten minutes.
#   test.sh PROGRAM [ENVIRONMENT]
set -eu
program=$1
environment=${2:-target/vllm}
here=integrations/vllm/real
out=target/vllm-results
models=${TRIBUTARY_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/tributary/models}
mkdir -p "$out"
run() {
    sh "$here/with.sh" "$environment" python "$@"
}
failed=0
run -m unittest discover integrations/vllm/tests
for spoil in slots few; do
    # The comparison itself: rows in wrong slots, and too few rows, must not pass for any method.
    run $here/compare.py "$program" --worlds 2:8 --methods full infoflow --spoil $spoil >"$out/$spoil.txt" || true
    if grep -q " right *$" "$out/$spoil.txt" || [ "$(grep -c " WRONG *$" "$out/$spoil.txt")" != 2 ]; then
        echo "rows spoilt by '$spoil' were not noticed: $out/$spoil.txt"
        failed=1
    fi
done
run $here/compare.py "$program" --worlds 2:20 --methods full none infoflow attn-drift --tensor-parallel 2 --json "$out/tensor-parallel.json" || failed=1
if [ -n "${SHORT:-}" ]; then
    run $here/compare.py "$program" --worlds 2:8 --json "$out/demo.json" || failed=1
    run $here/poison.py "$program" --requests 300 --json "$out/poison.json" || failed=1
    exit $failed
fi
run $here/compare.py "$program" --worlds 2:200,1:20,3:20,4:20 --options "--aux-model examples/models/demo/auxiliary" --json "$out/demo.json" || failed=1
if [ -e "$models/smollm2-135m-instruct/model.safetensors" ]; then
    run $here/compare.py "$program" --model "$models/smollm2-135m-instruct" --worlds 2:3 --counts full:20 none:20 infoflow:20 attn-drift:20 \
        --json "$out/smollm2-135m-instruct.json" || failed=1
else
    echo "SmolLM2 is not there: make real-models MODELS=smollm2-135m-instruct"
    failed=1
fi
run $here/poison.py "$program" --requests 10000 --json "$out/poison.json" || failed=1
run $here/timing.py "$program" --json "$out/timing.json" || failed=1
exit $failed
