"""Attacks on services and commands of this machine: a table of what was measured and what must be; exit code 1 if any bound is broken.

    python3 tests/attack/run.py PROGRAM [--short] [--only NAME...] [--json FILE]

Standard library only; loopback and temporary folders only. Every service is bounded in memory, every attack in time. --short takes about a minute, all
of it about a quarter of an hour. The last line counts.
"""

import argparse
import json
import pathlib
import resource
import shutil
import sys
import tempfile
import time

import bodies
import folders
import sharing
import stopping
from kit import Context, Row

ATTACKS = {
    "memory": bodies.memory, "together": bodies.together, "announced": bodies.announced, "keyless": bodies.keyless, "slow": bodies.slow, "tokenizing": sharing.tokenizing,
    "reserving": sharing.reserving, "turns": sharing.turns, "gone": stopping.gone, "drained": stopping.drained, "timeout": stopping.timeout, "templates": folders.templates, "special-files": folders.special_files, "tokenizers": folders.tokenizers,
    "numbers": folders.numbers, "adapters": folders.adapters, "keys": bodies.keys, "cached": sharing.cached, "whitespace": bodies.whitespace, "store": folders.store,
    "remote": folders.remote, "http": bodies.http, "key-files": folders.key_files,
}


def open_files():
    """As many connections as the machine allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def attack(name, context):
    """The rows of one attack; one that cannot be made is a row too."""
    try:
        for row in ATTACKS[name](context):
            print(f"{'held' if row.right else 'BROKEN'}: {row.attack}: {row.measured}", flush=True)
            yield row
    except Exception as error:  # noqa: BLE001 - a service that dies in the middle breaks the attack's own steps
        row = Row(name, f"could not go on: {type(error).__name__}: {error}"[:200], "-", False)
        print(f"BROKEN: {row.attack}: {row.measured}", flush=True)
        yield row


def print_table(rows):
    lines = [["attack", "measured", "bound", "verdict"], *([row.attack, row.measured, row.bound, "held" if row.right else "BROKEN"] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(3)]
    for line in lines:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths)), line[3]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    open_files()
    rows, began = [], time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="attack-"))
    try:
        for name in options.only or ATTACKS:
            start = time.monotonic()
            rows += attack(name, Context(options.program.resolve(), options.short, folder))
            print(f"    {name}: {time.monotonic() - start:.0f} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps([vars(row) for row in rows], indent=1))
    print()
    print_table(rows)
    held = sum(row.right for row in rows)
    print(f"{time.monotonic() - began:.0f} s")
    print(f"{held} passed, {len(rows) - held} failed")
    sys.exit(held < len(rows))


if __name__ == "__main__":
    main()
