"""What two kinds of blocks of requests cost beside each other: the options, the order of the blocks, and the verdict."""

import argparse
import math
import pathlib
import random
import statistics
import sys

from ttft import ROOT, t_95


def parser(description):
    """Options that both measurements have."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program", type=pathlib.Path)
    options.add_argument("--pairs", type=int, default=200)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--model", type=pathlib.Path, default=ROOT / "models/dummy-25m")
    options.add_argument("--times", type=int, default=1, help="documents are this many times as long as the demo's")
    return options


def pair(block):
    """A pair of means of milliseconds, with and without: four blocks, the outer two of one kind and the inner two of the other."""
    found, outer = {True: [], False: []}, random.choice([True, False])
    for is_with in (outer, not outer, not outer, outer):
        found[is_with].append(block(is_with))
    return statistics.mean(found[True]), statistics.mean(found[False])


def verdict(pairs, what, allowed):
    """Prints the medians and the mean share with its interval; ends with 1 if the upper end is above what is allowed."""
    with_it, without = (statistics.median(column) for column in zip(*pairs))
    shares = [slower / plain - 1 for slower, plain in pairs]
    mean = statistics.mean(shares)
    half = t_95(len(shares) - 1) * statistics.stdev(shares) / math.sqrt(len(shares))
    print(f"time to first token: {without:.3f} ms, {what} {with_it:.3f} ms (medians)")
    print(f"cost: mean {100 * mean:+.2f} %, 95 % interval {100 * (mean - half):+.2f} to {100 * (mean + half):+.2f} %")
    good = mean + half <= allowed
    print(f"at most {100 * allowed:g} %: {'yes' if good else 'NO'}")
    sys.exit(0 if good else 1)
