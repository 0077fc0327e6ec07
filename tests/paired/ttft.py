"""Compares the time to first token of two builds of this program, pair by pair, on this machine.

    python3 tests/paired/ttft.py OLD NEW [--pairs 200] [--ranks 2] [--length 512] [-- further options of `tributary bench`]

A pair is one run of each program, one after the other, in an order drawn at random; a run is `tributary bench` with dummy
weights of the 25 M model and counts with the median of its samples. With --ranks above 1 the ranks are processes under
mpirun. What is printed is the geometric mean of the ratios new / old with its 95 % interval (Student's t on logarithms), and
the median of the ratios. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Quantile of Student's t for a 95 % interval; beyond 120 degrees of freedom the normal one is within 1 %.
T_95 = {1: 12.71, 2: 4.30, 4: 2.78, 9: 2.26, 19: 2.09, 29: 2.05, 59: 2.00, 119: 1.98}


def ttft_ms(program, options, folder):
    """Median of one run's samples, in milliseconds."""
    command = [str(program), "bench", "--model", str(ROOT / "examples/models/dummy-25m"), "--load-format", "dummy"]
    command += ["--worlds", str(options.ranks), "--lengths", str(options.length), "--chunk-tokens", "256"]
    command += ["--methods", "infoflow", "--repeats", str(options.repeats), "--warmups", "2", "--out", str(folder)]
    command += options.further
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    if options.ranks > 1:
        command = ["mpirun", "-n", str(options.ranks), "--oversubscribe", "--bind-to", "none"] + command
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    report = json.loads((folder / "report.json").read_text())
    samples = [sample["ttft_ms"] for point in report["points"] for sample in point["samples"]]
    return statistics.median(samples)


def t_95(degrees):
    """The quantile for these degrees of freedom, on the safe side."""
    return T_95[max(known for known in T_95 if known <= degrees)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("further", nargs="*")
    options = parser.parse_args()
    logarithms, olds, news = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        for pair in range(options.pairs):
            order = [("old", options.old), ("new", options.new)]
            random.shuffle(order)
            found = {}
            for name, program in order:
                found[name] = ttft_ms(program, options, pathlib.Path(scratch) / f"{pair}-{name}")
            olds.append(found["old"])
            news.append(found["new"])
            logarithms.append(math.log(found["new"] / found["old"]))
    mean = statistics.mean(logarithms)
    half = t_95(len(logarithms) - 1) * statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    low, middle, high = (math.exp(value) for value in (mean - half, mean, mean + half))
    print(f"{len(logarithms)} pairs, {options.ranks} ranks, {options.length} tokens, medians of {options.repeats} samples")
    print(f"old {statistics.median(olds):.2f} ms, new {statistics.median(news):.2f} ms (medians)")
    print(f"new / old: {middle:.4f}, 95 % interval {low:.4f} to {high:.4f}; median ratio {math.exp(statistics.median(logarithms)):.4f}")


if __name__ == "__main__":
    main()
