#!/usr/bin/env python3
"""How often each method answers right: draws requests of every task (recipe/tasks.py), lets `tributary compare` answer them
and prints a table. Python's standard library only.

    python3 examples/models/demo/rates.py [--binary target/release/tributary] [--requests 50] [--documents 8] [--seed 7] [--world 2]
                                  [--tasks TASK ...] [--methods METHOD ...]
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "recipe"))
import tasks  # noqa: E402

TASKS = ["single", "multikey", "multiquery", "multivalue", "hop2", "hop2_back", "vt2", "vt3", "vt3s",
         "vt3_back", "hop2_shuf", "vt3_shuf"]
METHODS = ["full", "none", "random", "epic", "infoflow", "infoflow:exchange=selected", "infoflow:reorder", "prophetkv:ratio=0.15", "relay",
           "trace", "infoflow:ratio=0.05", "relay:ratio=0.05", "trace:ratio=0.05"]


def words(ids):
    return " ".join(tasks.INV[i] for i in ids)


def write_requests(folder, task, count, documents, seed):
    """Writes `count` request files of a task; their paths."""
    source = random.Random(f"{seed} {task} {documents}")
    paths = []
    for number in range(count):
        sample = tasks.eval_sample(source, task, documents)
        request = {
            "documents": [words(chunk) for chunk in sample["chunks"]],
            "query": words(sample["question"]),
            "answer": words(sample["answer"]),
        }
        path = pathlib.Path(folder) / f"{task}-{number}.json"
        path.write_text(json.dumps(request))
        paths.append(str(path))
    return paths


def rates(options, task):
    """Share of right answers of each method."""
    with tempfile.TemporaryDirectory() as folder:
        requests = write_requests(folder, task, options.requests, options.documents, options.seed)
        command = [options.binary, "compare", "--json", "--model", str(HERE), "--world", str(options.world),
                   "--max-tokens", "16", "--repeat", "1", "--warmup", "0", "--request", *requests, "--methods", *options.methods]
        report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    right = {method: 0 for method in options.methods}
    for request in report["requests"]:
        for row in request["methods"]:
            right[row["method"]] += row["right"]
    return [right[method] / options.requests for method in options.methods]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/tributary")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    print(f"{options.requests} requests a task, {options.documents} documents, seed {options.seed}, world {options.world}\n")
    print("| task | " + " | ".join(options.methods) + " |")
    print("| --- |" + " --- |" * len(options.methods))
    for task in options.tasks:
        print(f"| {task} | " + " | ".join(f"{rate:.2f}" for rate in rates(options, task)) + " |", flush=True)


if __name__ == "__main__":
    main()
