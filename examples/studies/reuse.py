"""Which cache hits: methods behind the same requests, whose documents come from a corpus by Zipf's law. The 25 M shape with dummy weights
on two ranks; five documents of 267 tokens a request and exponent 0.8, as in the public trace RAGPulse; one client. Prints a table.

    python3 examples/studies/reuse.py PROGRAM FOLDER [REQUESTS [METHOD ..]]

Each method has a service of its own with an empty cache; the first half of its requests fills it, the second half is measured. Times are
of this machine at that moment; the share of cached tokens is not. The machine should have nothing else to do.
"""

import csv
import math
import os
import statistics
import subprocess
import sys

from serving import free_port, make_model, serve

program, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
requests = int(sys.argv[3]) if len(sys.argv) > 3 else 80
methods = sys.argv[4:] or ["full", "prefix-cache", "context-pilot-like", "ring", "none", "infoflow"]


def measured(method, words):
    url = f"http://127.0.0.1:{free_port()}"
    server = serve(program, os.path.join(folder, "model"), url, "--world-size", "2", "--method", method)
    shape = ["--documents-per-request", "5", "--document-tokens", "267", "--corpus", "64", "--zipf", "0.8", "--max-tokens", "1"]
    csv_file = os.path.join(folder, f"{method}.csv")
    command = [program, "load", "--url", url, "--words", words, "--csv", csv_file, "--clients", "1", "--requests", str(requests)]
    try:
        subprocess.run(command + shape + ["--duration", "3600"], check=True, stdout=subprocess.DEVNULL)
    finally:
        server.terminate()
        server.wait()
    with open(csv_file) as file:
        return list(csv.DictReader(file))[requests // 2 :]


def main():
    os.makedirs(folder, exist_ok=True)
    words = make_model(os.path.join(folder, "model"))
    print("| method | tokens of a request | cached | TTFT p50, ms | TTFT p90, ms |\n| --- | --- | --- | --- | --- |")
    for method in methods:
        found = measured(method, words)
        tokens, cached = (sum(float(line[key]) for line in found) for key in ("prompt_tokens", "cached_tokens"))
        ttft = sorted(float(line["ttft_ms"]) for line in found)
        p90 = ttft[math.ceil(0.9 * len(ttft)) - 1]
        print(f"| `{method}` | {tokens / len(found):.0f} | {100 * cached / tokens:.0f} % | {statistics.median(ttft):.0f} | {p90:.0f} |", flush=True)


main()
