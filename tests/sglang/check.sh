#!/bin/sh
# `make sglang-check`: pages that `tributary prefill --export-kv` writes, checked by SGLang's own code on a CPU.
#   check.sh PROGRAM     the environment is target/sglang, installed where it lacks; 5 GB
set -eu
program=$1
here=tests/sglang
environment=target/sglang
if ! cmp -s "$here/requirements.txt" "$environment/packages"; then
    rm -rf "$environment"
    python3 -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$here/requirements.txt"
    cp "$here/requirements.txt" "$environment/packages"
fi
out=$(mktemp -d)
trap 'rm -rf "$out"; [ -z "${server:-}" ] || kill "$server"' EXIT
"$environment/bin/python" "$here/check.py" --self-test
export_of() {
    folder=$1 settings=$2
    shift 2
    "$program" prefill --model examples/models/demo --request examples/models/demo/requests/vt3-1.json --max-tokens 2 \
        --export-kv "sglang:$out/$folder,model=demo$settings" "$@"
    "$environment/bin/python" "$here/check.py" "$out/$folder"
}
# Layouts, types, tensor-parallel ranks, methods, several ranks of ours; two prompts in one folder.
export_of exact ,page-size=16 --method full
export_of exact ,page-size=16 --method infoflow --world-size 2
export_of layers ,page-size=16,layout=layer_first,tp=2 --method relay:reorder --world-size 3
export_of direct ,page-size=4,layout=page_first_direct,tp=4 --method full --dtype bf16
# Byte for byte, for the same ids: keys and values as a service hands them over.
"$program" serve --model examples/models/demo --listen 127.0.0.1:0 >"$out/serve" 2>&1 &
server=$!
"$program" prefill --model examples/models/demo --request examples/models/demo/requests/vt3-1.json --max-tokens 2 --method full \
    --export-kv "sglang:$out/bytes,model=demo,page-size=16" >/dev/null
"$environment/bin/python" "$here/fetch.py" "$out/serve" "$out/bytes/manifest.json" "$out/kv.safetensors"
"$environment/bin/python" "$here/check.py" "$out/bytes" --kv "$out/kv.safetensors"
