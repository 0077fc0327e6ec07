"""Prefill, decoding and memory by the packing of weights, on one thread. Prints a table.

    python3 examples/studies/packed.py PROGRAM [--model DIR] [--tokens N] [--generated N] [--rounds N] [FOLDER or FILE ..]

Random weights at a config's shape (examples/models/qwen2.5-0.5b), in f32, in bf16, and packed: of GGUF's types, INT4 as AWQ and GPTQ have it,
FP8, and each of these with `--dtype bf16` too. Real models follow, by their folders and .gguf files. All take turns in every round (5); a ratio
is that of the times of a round to those of bf16's, the median, least and greatest. Decoding is the mean time of a token after the first, at a
context of N tokens (1024); memory is the largest of the process.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading

PACKINGS = [
    ("Q4_0", {"quant_method": "gguf", "type": "Q4_0"}),
    ("Q4_1", {"quant_method": "gguf", "type": "Q4_1"}),
    ("Q5_0", {"quant_method": "gguf", "type": "Q5_0"}),
    ("Q8_0", {"quant_method": "gguf", "type": "Q8_0"}),
    ("INT4, groups of 128", {"quant_method": "awq", "bits": 4, "group_size": 128}),
    ("INT4, groups of 32", {"quant_method": "awq", "bits": 4, "group_size": 32}),
    ("FP8", {"quant_method": "fp8", "weight_block_size": [128, 128]}),
]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

options = argparse.ArgumentParser()
options.add_argument("program")
options.add_argument("real", nargs="*")
options.add_argument("--model", default=os.path.join(ROOT, "examples/models/qwen2.5-0.5b"))
options.add_argument("--tokens", type=int, default=1024)
options.add_argument("--generated", type=int, default=48)
options.add_argument("--rounds", type=int, default=5)
options = options.parse_intermixed_args()


def run(model, dtype, dummy):
    command = [os.path.abspath(options.program), "prefill", "--model", model, "--method", "full", "--threads", "1", "--dtype", dtype]
    command += ["--synthetic", f"{options.tokens // 256}x256+32", "--max-tokens", str(options.generated), "--json"]
    process = subprocess.Popen(command + ["--load-format", "dummy"] * dummy, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    text = []
    reader = threading.Thread(target=lambda: text.append(process.stdout.read()))
    reader.start()
    _, status, usage = os.wait4(process.pid, 0)
    reader.join()
    if status:
        raise SystemExit(f"{' '.join(command)}: status {status}")
    report = json.loads(text[0])
    # A real model may end its answer.
    token_ms = (report["total_ms"] - report["ttft_ms"]) / max(1, len(report["token_ids"]) - 1)
    return report["ttft_ms"], token_ms, usage.ru_maxrss / 1024


def middle(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}, {max(values):.2f})"


with tempfile.TemporaryDirectory() as folder:
    rows = [("f32", options.model, "f32", True), ("bf16", options.model, "bf16", True)]
    config = json.load(open(os.path.join(options.model, "config.json")))
    for name, quantisation in PACKINGS:
        packed = os.path.join(folder, name)
        os.mkdir(packed)
        json.dump({**config, "quantization_config": quantisation}, open(os.path.join(packed, "config.json"), "w"))
        rows += [(name, packed, dtype, True) for dtype in ("f32", "bf16")]
    for path in options.real:
        rows += [(os.path.basename(path), path, dtype, False) for dtype in ("f32", "bf16")]
    seen = {row: [] for row in rows}
    for _ in range(options.rounds):
        for row in rows:
            seen[row].append(run(*row[1:]))
    base = seen[rows[1]]
    print("| weights | dtype | prefill [ms] | speed to bf16's | token [ms] | speed to bf16's | memory [MB] |\n| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        name, _, dtype, dummy = row
        ttft, token, memory = zip(*seen[row])
        # Real models are of another shape, perhaps: their base is their own first row.
        against = base if dummy else seen[next(other for other in rows if not other[3])]
        cells = [f"{statistics.median(ttft):.0f}", middle([b[0] / t for b, t in zip(against, ttft)])]
        cells += [f"{statistics.median(token):.1f}", middle([b[1] / t for b, t in zip(against, token)]), f"{max(memory):.0f}"]
        print(f"| {name} | {dtype} | {' | '.join(cells)} |")
