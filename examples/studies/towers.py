#!/usr/bin/env python3
"""How a request's vision phase scales over ranks: equal pictures of noise, one thread a rank.

towers.py PROGRAM [PICTURES [SIDE [ROUNDS]]]

PROGRAM is the command `tributary`. PICTURES pictures (16) of SIDE x SIDE pixels (512) are drawn and read by the model
examples/models/dummy-vlm with weights from a seed, on one rank and on two, in turns, ROUNDS times (5). Prints the median of each
phase in milliseconds, and how many times as fast two ranks are as one in the phase `vision`. Reading and resizing the files is the
coordinator's work, in the phase `tokenize`.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]


def png(side, seed):
    """A picture of noise as the bytes of a PNG file."""
    draw = random.Random(seed)
    lines = b"".join(b"\0" + draw.randbytes(3 * side) for _ in range(side))

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(lines, 1)) + part(b"IEND", b"")


def phases(program, files, world):
    model = ["--model", str(ROOT / "examples/models/dummy-vlm"), "--load-format", "dummy"]
    request = ["--documents", *files, "--query", "what is new?", "--method", "infoflow", "--max-tokens", "1"]
    command = [program, "prefill", "--json", *model, *request, "--world-size", str(world), "--threads", "1"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {phase["phase"]: phase["critical_path_ms"] for phase in report["phases"]}


def main():
    program, *rest = sys.argv[1:] or [""]
    if not program:
        sys.exit(__doc__)
    pictures, side, rounds = [int(number) for number in rest] + [16, 512, 5][len(rest):]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number in range(pictures):
            files.append(str(Path(folder) / f"{number}.png"))
            Path(files[-1]).write_bytes(png(side, number))
        found = {1: [], 2: []}
        for _ in range(rounds):
            for world in found:
                found[world].append(phases(program, files, world))
    print(f"{pictures} pictures of {side} x {side}, {rounds} rounds, medians in ms")
    for world, runs in found.items():
        row = ", ".join(f"{phase} {median(run.get(phase, 0) for run in runs):.1f}" for phase in runs[0])
        print(f"{world} ranks: {row}")
    one, two = (median(run["vision"] for run in found[world]) for world in found)
    print(f"vision: two ranks are {one / two:.2f} times as fast as one")


if __name__ == "__main__":
    main()
