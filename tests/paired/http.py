"""Compares the time to first token of a request over HTTP with that of the same request on the command line, on this machine.

    python3 tests/paired/http.py PROGRAM [--pairs 200] [--ranks 1] [--model examples/models/demo] [--warm]

One `tributary serve` runs all the time. A pair is a block of streamed requests to it and a run of `tributary prefill --requests`
with as many, one after the other, in an order drawn at random; a block counts with the medians of its samples. Over HTTP the
client's clock runs from before the request is sent until the first text is here, and the service's own number is kept beside
it. The chunk cache is off on both sides, or with --warm holds everything on both. What is printed are the medians and the mean
difference HTTP - command line with its 95 % interval (Student's t). A model without a tokenizer gets the demo's, and as many
words as that knows; its weights are drawn. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import math
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from ttft import ROOT, t_95

DEMO = ROOT / "examples/models/demo"
MAX_TOKENS = 4
# What HTTP may cost: milliseconds, and a share of the command line's time.
ALLOWED_MS, ALLOWED_SHARE = 2.0, 0.01


def model_folder(model, scratch):
    """The folder and the options of a model that reads text."""
    if (model / "tokenizer.json").exists():
        return model, []
    folder = scratch / model.name
    folder.mkdir()
    shutil.copy(DEMO / "tokenizer.json", folder)
    shutil.copy(DEMO / "tokenizer_config.json", folder)
    config, demo = (json.loads((of / "config.json").read_text()) for of in (model, DEMO))
    for key in ("vocab_size", "bos_token_id", "eos_token_id"):
        config[key] = demo.get(key)
    (folder / "config.json").write_text(json.dumps(config))
    return folder, ["--load-format", "dummy"]


def documents(request, times):
    """The request's documents, each `times` as long."""
    texts = request["documents"]
    return [" ".join(texts[(index + step) % len(texts)] for step in range(times)) for index in range(len(texts))]


class Client:
    """One connection that stays open, as those of real clients do."""

    def __init__(self, address, request):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = {"messages": [{"role": "user", "content": request["query"]}], "documents": request["documents"]}
        body = json.dumps({**body, "stream": True, "max_tokens": MAX_TOKENS}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        self.bytes = head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body

    def ask(self):
        """The client's milliseconds to the first text, and the service's own."""
        received, first = b"", None
        began = time.perf_counter()
        self.socket.sendall(self.bytes)
        while not received.endswith(b"\r\n0\r\n\r\n"):
            part = self.socket.recv(65536)
            if not part:
                sys.exit(f"the service has hung up: {received.decode()}")
            received += part
            if first is None and b'"delta":{"content":"' in received:
                first = time.perf_counter()
        if first is None:
            sys.exit(f"no text came: {received.decode()}")
        closing = [line for line in received.decode().splitlines() if '"metrics":' in line]
        return 1e3 * (first - began), json.loads(closing[0].removeprefix("data: "))["metrics"]["ttft_ms"]


def over_http(client, options):
    samples = [client.ask() for _ in range(options.warmups + options.samples)][options.warmups :]
    return [statistics.median(sample) for sample in zip(*samples)]


def command_line(command, options):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return statistics.median(report["ttft_ms"] for report in reports[options.warmups :])


def interval(differences):
    mean = statistics.mean(differences)
    half = t_95(len(differences) - 1) * statistics.stdev(differences) / math.sqrt(len(differences))
    return f"mean {mean:+.3f} ms, 95 % interval {mean - half:+.3f} to {mean + half:+.3f}; median {statistics.median(differences):+.3f}"


def measure(options, scratch):
    """One row a pair: the client's time, the service's, the command line's."""
    folder, load = model_folder(options.model, scratch)
    request = json.loads((DEMO / "requests/hop2-0.json").read_text())
    request["documents"] = documents(request, options.times)
    lines = scratch / "requests.jsonl"
    lines.write_text(f"{json.dumps(request)}\n" * (options.warmups + options.samples))
    common = ["--model", str(folder), *load, "--world-size", str(options.ranks)]
    common += [] if options.warm else ["--chunk-cache", "off"]
    prefill = [str(options.program), "prefill", *common, "--requests", str(lines), "--json"]
    prefill += ["--max-tokens", str(MAX_TOKENS)]
    serve = [str(options.program), "serve", *common, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split("http://")[1].split()[0]
            client, rows = Client(address, request), []
            sides = [("http", lambda: over_http(client, options)), ("command", lambda: command_line(prefill, options))]
            for _ in range(options.pairs):
                random.shuffle(sides)
                found = {name: side() for name, side in sides}
                rows.append((*found["http"], found["command"]))
        finally:
            server.terminate()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--model", type=pathlib.Path, default=DEMO)
    parser.add_argument("--times", type=int, default=1, help="documents are this many times as long as the demo's")
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(options, pathlib.Path(scratch))
    client, service, command = (statistics.median(column) for column in zip(*rows))
    cache = "warm" if options.warm else "off"
    print(f"{options.model.name}, {len(rows)} pairs, {options.ranks} ranks, chunk cache {cache}, medians of {options.samples} samples")
    print(f"command line {command:.3f} ms, service {service:.3f} ms, client {client:.3f} ms (medians)")
    print(f"client - command line: {interval([row[0] - row[2] for row in rows])}")
    print(f"service - command line: {interval([row[1] - row[2] for row in rows])}")
    print(f"client - service: {interval([row[0] - row[1] for row in rows])}")
    allowed_ms = command * (1 + ALLOWED_SHARE) + ALLOWED_MS
    print(f"at most {allowed_ms:.3f} ms: {'yes' if client <= allowed_ms else 'NO'}")


if __name__ == "__main__":
    main()
