"""How long streams wait beside a long prompt: eight streams, then a prompt of many documents, with and without halts of the prefill. The
25 M shape with dummy weights on two ranks. Prints a table.

    python3 examples/studies/gaps.py PROGRAM FOLDER [TOKENS [METHOD [OPTION ..]]]

Each line has a service of its own with an empty cache. The streams run alone, beside the prompt, and alone again. Times are of this machine at that
moment; the machine should have nothing else to do.
"""

import http.client
import json
import os
import random
import statistics
import sys
import threading
import time

from serving import free_port, get, make_model, serve

STREAMS, ALONE_S, DOCUMENT = 8, 8, 2000

program, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 64000
method = sys.argv[4] if len(sys.argv) > 4 else "infoflow"
rows = [["--decode-share", "0"], ["--decode-share", "0.1"], ["--decode-share", "0.5"]]
rows = [[option.replace("=", " ") for option in sys.argv[5:]]] if len(sys.argv) > 5 else rows


class Stream(threading.Thread):
    """A streamed answer; the times at which its tokens came."""

    def __init__(self, port, number):
        super().__init__(daemon=True)
        self.times, self.port, self.number, self.stops = [], port, number, False

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        body = {"stream": True, "max_tokens": 60000, "ignore_eos": True, "temperature": 0}
        body["messages"] = [{"role": "user", "content": f"{words[self.number]} {words[self.number + 1]}"}]
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(answer.read().decode())
        for line in answer:
            if line.startswith(b"data: {") and b'"choices":[{' in line:
                self.times.append(time.monotonic())
            if self.stops:
                break
        connection.close()


def prompt(port, count):
    """Sends the long prompt; the times at which it was sent and at which its one token came."""
    draw = random.Random(count)
    documents = [" ".join(draw.choices(words, k=DOCUMENT)) for _ in range(count // DOCUMENT)]
    body = {"max_tokens": 1, "documents": documents, "tributary": {"method": method}, "messages": [{"role": "user", "content": words[9]}]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    began = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        sys.exit(text)
    return began, time.monotonic()


def rate(times, since, until):
    return sum(since <= at < until for at in times) / (until - since)


def halted(url):
    """Seconds of other requests' steps within prefills."""
    name = 'tributary_phase_duration_seconds_sum{phase="interleaved_decode"} '
    return sum(float(line.removeprefix(name)) for line in get(url + "/metrics").split("\n") if line.startswith(name))


def alone_rate(streams):
    time.sleep(2)
    since = time.monotonic()
    time.sleep(ALONE_S)
    return statistics.mean(rate(stream.times, since, time.monotonic()) for stream in streams)


def longest_gap(times, since, until):
    """The longest time without a token that overlaps the time of the prompt."""
    pairs = [(a, b) for a, b in zip(times, times[1:]) if b > since and a < until]
    return max(b - a for a, b in pairs)


def line(options):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    every = ["--world-size", "2", "--max-prompt-tokens", "131072", "--max-tokens-limit", "65536", "--chunk-cache", "off"]
    server = serve(program, os.path.join(folder, "model"), url, *every, *" ".join(options).split())
    try:
        began, ended = prompt(port, tokens)
        alone_s = ended - began
        streams = [Stream(port, number) for number in range(STREAMS)]
        for stream in streams:
            stream.start()
            time.sleep(0.05)
        before = alone_rate(streams)
        began, ended = prompt(port, tokens)
        halted_s = halted(url)
        # Streams grow longer, and the time of a token grows in step with them: the mean of both times is that of the lengths between.
        alone = 2 / (1 / before + 1 / alone_rate(streams))
        beside = statistics.mean(rate(stream.times, began, ended) for stream in streams)
        gap = max(longest_gap(stream.times, began, ended) for stream in streams)
        for stream in streams:
            stream.stops = True
    finally:
        server.terminate()
        server.wait()
    prefill = f"{alone_s:.1f} | {ended - began:.1f} | {(ended - began) / alone_s:.2f}"
    print(f"| {' '.join(options)} | {alone:.1f} | {beside:.1f} | {beside / alone:.2f} | {gap * 1e3:.0f} | {prefill} | {halted_s:.1f} |", flush=True)


os.makedirs(folder, exist_ok=True)
words = open(make_model(os.path.join(folder, "model"))).read().split()
print(f"{STREAMS} streams beside a prompt of {tokens} tokens, {method}\n")
print("| options | tokens/s of a stream alone | beside | ratio | longest gap, ms | TTFT alone, s | beside | ratio | of it halted, s |")
print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
for options in rows:
    line(options)
