"""Exact-match table of the demo model by the independent implementation, for examples/models/demo's README.

    python table.py --model MODEL --requests dev.jsonl [--tasks hop2 vt3] [--count 40] [--documents 8] [--seconds 600]
An answer counts when the greedy continuation begins with it, word for word. Chunks are prefilled after `<bos>`.
"""

import argparse
import json
import pathlib
import time

import torch

from methods import Model, Request
from reference import settings, solve

BOS = 1


def answer(model: Model, r: Request, s: dict, count: int) -> list[int]:
    """The first `count` tokens of the greedy continuation."""
    rows = torch.arange(r.P + r.T)
    order, _, chosen, _, logits = solve(r, s)
    selected = rows if s["method"] == "full" else chosen
    cache, tokens = r.recompute(order, selected)[1], []
    at = r.positions("global", order)
    for step in range(count):
        tokens.append(logits.argmax().item())
        row = torch.tensor([r.P + r.T + r.M + step])
        r.ids[row] = tokens[-1]
        logits = model.logits(model.forward(r.ids, row, cache, at)[-1])
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", required=True)
    parser.add_argument("--tasks", nargs="+", default=["hop2", "hop2_back", "vt3"])
    parser.add_argument("--count", type=int, default=40, help="requests a task")
    parser.add_argument("--documents", type=int, default=8, help="documents a request")
    parser.add_argument("--ratio", type=float, default=0.15)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop a task's count early after so long")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = Model(args.model)
    vocabulary = json.loads((pathlib.Path(args.model) / "tokenizer.json").read_text())["model"]["vocab"]
    encode = lambda text: [vocabulary[word] for word in text.split()]
    methods = {
        "full": settings(model, method="full"),
        "none+prefix": settings(model, method="none"),
        "infoflow, last layer": settings(model, ratio=args.ratio),
        "infoflow + reorder": settings(model, ratio=args.ratio, reorder=True),
        "prophetkv": settings(model, method="prophetkv", ratio=args.ratio),
        "relay": settings(model, method="relay", ratio=args.ratio),
    }
    requests = [json.loads(line) for line in pathlib.Path(args.requests).read_text().splitlines()]
    print(f"| task | requests | {' | '.join(methods)} |\n| --- |{' --- |' * (len(methods) + 1)}", flush=True)
    for task in args.tasks:
        started, done, right = time.monotonic(), 0, dict.fromkeys(methods, 0)
        for q in [q for q in requests if q["task"] == task and len(q["documents"]) == args.documents][: args.count]:
            if time.monotonic() - started > args.seconds:
                break
            wanted = encode(q["answer"])
            r = Request(model, [BOS], [encode(text) for text in q["documents"]], encode(q["query"]), room=len(wanted))
            for name, s in methods.items():
                right[name] += answer(model, r, s, len(wanted)) == wanted
            done += 1
        shares = " | ".join(f"{right[name] / max(done, 1):.2f}" for name in methods)
        print(f"| {task} | {done} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
