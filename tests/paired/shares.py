"""What two kinds of blocks of requests cost beside each other: the options, the order of the blocks, and the verdict."""

import argparse
import json
import math
import pathlib
import random
import statistics
import sys

# The script beside this one: no module of Python's own with that name is used here.
from http import DEMO, documents, model_folder
from ttft import ROOT, t_95


def parser(description):
    """Options that both measurements have."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program", type=pathlib.Path)
    options.add_argument("--pairs", type=int, default=200)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--model", type=pathlib.Path, default=ROOT / "examples/models/dummy-25m")
    options.add_argument("--times", type=int, default=1, help="documents are this many times as long as the demo's")
    return options


def serving(options, scratch):
    """The command of a service that keeps nothing in memory, and the request that it is asked."""
    folder, load = model_folder(options.model, scratch)
    request = json.loads((DEMO / "requests/hop2-0.json").read_text())
    request["documents"] = documents(request, options.times)
    serve = [str(options.program), "serve", "--model", str(folder), *load, "--world-size", str(options.ranks)]
    return [*serve, "--chunk-cache", "off", "--listen", "127.0.0.1:0"], request


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
