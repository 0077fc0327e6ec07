"""FLOPs a second of a full prefill with experts, beside the dense shape in which a row meets as many numbers. Prints a table.

    python3 examples/studies/experts.py PROGRAM [ROUNDS [TOKENS ..]]

One rank of one thread, random tokens, dummy weights: dense and experts in turn, ROUNDS times (5). FLOPs are those of the products and of
attention that a row meets, a router's among them; the time is the time to first token. The ratio is that of the rates, round by round:
the median, the least and the greatest. The goal is 0.8.
"""

import json
import os
import statistics
import subprocess
import sys

program = os.path.abspath(sys.argv[1])
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
lengths = [int(tokens) for tokens in sys.argv[3:]] or [2048, 8192]
models = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "models")
CHUNK, QUERY = 512, 32


def flops(config, rows):
    hidden, layers, head = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    experts = config.get("num_experts")
    mlp = 3 * hidden * config["intermediate_size"]
    if experts:
        mlp = hidden * (3 * config["num_experts_per_tok"] * config["moe_intermediate_size"] + experts)
    all_rows, asking = 2 * 2 * hidden * keys, 2 * (2 * hidden * queries + mlp)
    layer = rows * asking + 4 * queries * rows * (rows + 1) / 2
    # After the last layer's keys only the last row goes on.
    return layers * rows * all_rows + (layers - 1) * layer + asking + 4 * queries * rows


def rate(name, tokens):
    model = os.path.join(models, name)
    command = [program, "prefill", "--model", model, "--load-format", "dummy", "--method", "full", "--json"]
    command += ["--synthetic", f"{tokens // CHUNK}x{CHUNK}+{QUERY}", "--max-tokens", "1", "--threads", "1"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return flops(json.load(open(os.path.join(model, "config.json"))), tokens + QUERY) / report["ttft_ms"] / 1e6


print("| tokens | dense, GFLOP/s | experts, GFLOP/s | ratio (least, greatest) |\n| --- | --- | --- | --- |")
for tokens in lengths:
    pairs = [(rate("dummy-25m", tokens), rate("dummy-moe-25m", tokens)) for _ in range(rounds)]
    ratios = [experts / dense for dense, experts in pairs]
    dense, experts = (statistics.median(side) for side in zip(*pairs))
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
    print(f"| {tokens} | {dense:.1f} | {experts:.1f} | {ratio} |", flush=True)
