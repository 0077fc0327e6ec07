"""Real clients against a running service: a table, and exit code 1 if any of them fails.

    python3 tests/clients/run.py PROGRAM [--only CLIENT...] [--requests 20] [--tokens 4096] [--out target/clients/results]

Clients that check answers ask the demo model. Clients that stream also ask the 25 M shape with long prompts, one request at a time,
and the median time to first token that they see must be the service's own of the same requests, within 2 % or 3 ms, whichever is more. `make clients` installs them. A client
that is not installed has failed. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import recipes
from clients import CLIENTS, HERE, INSTALLED, ROOT
from service import DEMO, Service, dummy_folder

# What a client's median may differ from the service's.
SHARE, MS = 0.02, 3.0
PATIENCE = 1200


def environment():
    """Of a client: hubs are not asked, telemetry is off, and this project's integrations are found."""
    own = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "CLIENTS_ROOT": str(ROOT), "NO_COLOR": "1", "TOKENIZERS_PARALLELISM": "false",
           "PYTHONPATH": os.pathsep.join(str(ROOT / "integrations" / name) for name in ("langchain", "llamaindex")),
           "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "HAYSTACK_TELEMETRY_ENABLED": "False", "AI_SDK_LOG_WARNINGS": "false"}
    return {**os.environ, **own}


def prepare_node():
    """Node finds packages beside the file that imports them, so the clients in JavaScript go there."""
    if (INSTALLED / "node").is_dir():
        for file in HERE.glob("*.mjs"):
            shutil.copy(file, INSTALLED / "node")


def ask(client, url, part, folder, options, style=""):
    """Runs a client; what it prints last is its result."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [*client.command(), url, part, "--folder", folder, "--scratch", scratch, "--requests", options.requests, "--tokens", options.tokens]
        command += ["--style", style] if style else []
        try:
            done = subprocess.run([str(word) for word in command], env=environment(), capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return {"version": "", "requests": 1, "failures": 1, "note": f"did not end in {PATIENCE} s"}
        try:
            return json.loads(done.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            words = (done.stderr.strip() or done.stdout.strip() or "nothing said").splitlines()[-1]
            return {"version": "", "requests": 1, "failures": 1, "note": f"exit {done.returncode}: {words}"[:300]}


def row(client, style, found):
    return {"client": f"{client.name} {style}".strip(), "version": found["version"], "requests": found["requests"], "failures": found["failures"],
            "note": found["note"], "right": found["failures"] == 0 and found["requests"] > 0}


def measured(client, style, service, folder, options):
    """A row with times: what the client says beside what the service says of the same requests."""
    total, count = service.first_tokens()
    found = ask(client, service.url, "ttft", folder, options, style)
    new_total, new_count = service.first_tokens()
    line = row(client, style, found)
    mean = statistics.mean(found["ttft_ms"]) if found.get("ttft_ms") else found.get("mean_ms")
    median = statistics.median(found["ttft_ms"]) if found.get("ttft_ms") else found.get("median_ms")
    answered = found["requests"] - found["failures"]
    if not answered or mean is None:
        return {**line, "right": False, "note": line["note"] or "told no times"}
    compared = len(found["ttft_ms"]) or answered
    own = service.recent(compared)
    # A client that warms up asks more often than it times: then only the last requests are compared.
    own_mean = (new_total - total) / compared if new_count - count == compared else statistics.mean(own)
    difference = median - statistics.median(own)
    allowed = max(SHARE * statistics.median(own), MS)
    agrees = abs(difference) <= allowed
    note = line["note"] or ("" if agrees else f"its median differs by {difference:+.1f} ms, allowed {allowed:.1f}")
    return {**line, "note": note, "median_ms": median, "mean_ms": mean, "own_median_ms": statistics.median(own), "own_mean_ms": own_mean,
            "agrees": agrees, "right": line["right"] and agrees}


def print_table(rows):
    def ms(line, name):
        return f"{line[name]:.1f}" if line.get(name) is not None else "-"

    head = ["client", "version", "requests", "failures", "TTFT median", "/metrics", "TTFT mean", "/metrics", "agrees", "verdict", "note"]
    cells = [[line["client"], line["version"], str(line["requests"]), str(line["failures"]), ms(line, "median_ms"), ms(line, "own_median_ms"), ms(line, "mean_ms"),
              ms(line, "own_mean_ms"), {True: "yes", False: "no", None: "-"}[line.get("agrees")], "right" if line["right"] else "FAILED", line["note"][:160]] for line in rows]
    widths = [max(len(line[at]) for line in [head, *cells]) for at in range(len(head) - 1)]
    print("times in milliseconds; /metrics: the service's own for the same requests")
    for line in [head, *cells]:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths)), line[-1]]).rstrip())


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=[], metavar="CLIENT")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/clients/results")
    options = parser.parse_args()
    options.out = options.out.resolve()
    known = [client.name for client in CLIENTS]
    if unknown := set(options.only) - set(known):
        parser.error(f"{', '.join(unknown)}: clients are {', '.join(known)}")
    return options


def main():
    options = parse()
    prepare_node()
    options.out.mkdir(parents=True, exist_ok=True)
    clients = [client for client in CLIENTS if not options.only or client.name in options.only]
    rows, here = [], [client for client in clients if client.command()]
    for client in clients:
        if client not in here:
            rows.append({"client": client.name, "version": "-", "requests": 0, "failures": 0, "right": False, "note": f"not installed: {client.why_not()}"})

    def add(line):
        rows.append(line)
        print(f"{line['client']}: {'right' if line['right'] else 'FAILED'} {line['note']}".rstrip(), flush=True)

    with Service(options.program, DEMO, ["--world-size", 2], options.out / "demo.log") as service:
        for client in here:
            if client.answers:
                add(row(client, "answers", ask(client, service.url, "answers", DEMO, options)))
        for line in recipes.rows(service.url, environment()) if not options.only else ():
            add(line)
    # The served name is the folder's.
    folder = dummy_folder(options.out / "demo")
    with Service(options.program, folder, ["--load-format", "dummy"], options.out / "dummy.log") as service:
        for client in here:
            for style in client.styles if client.streams else ():
                add(measured(client, style, service, folder, options))
    (options.out / "results.json").write_text(json.dumps(rows, indent=1))
    print()
    print_table(rows)
    right = sum(line["right"] for line in rows)
    print(f"{right} passed, {len(rows) - right} failed")
    sys.exit(right < len(rows))


if __name__ == "__main__":
    main()
