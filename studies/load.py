"""What a service bears: the 25 M shape with dummy weights on two ranks under `tributary load`, from idle to beyond saturation, cold,
and many clients at once, warm. Prints the tables of docs/load.md and writes a picture.

    python3 studies/load.py PROGRAM FOLDER [WINDOW_SECONDS]

FOLDER gets the model, the vocabulary, every result as JSON and CSV, and the picture load.svg. About 40 minutes with windows of two minutes.
The machine should have nothing else to do. Machines drift all the same: times under load are compared with those of requests that found
nobody in the same window, and the longest gap with the longest prefill of the same window.
"""

import csv
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

WORLD, TOKENS, CLIENTS, WARM_TOKENS = 2, 32, 16, 256
LONG = 2.5  # a window whose 99th percentile is told is so many times as long as one of the search

program, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
window = int(sys.argv[3]) if len(sys.argv) > 3 else 120
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def make_model(model):
    """The shape's config beside a tokenizer of one word a token; the words are also the vocabulary of the texts."""
    os.makedirs(model, exist_ok=True)
    shutil.copy(os.path.join(root, "models/dummy-25m/config.json"), model)
    size = json.load(open(os.path.join(model, "config.json")))["vocab_size"]
    draw, words = random.Random(7), {"<unk>": 0}
    while len(words) < size:
        words.setdefault("".join(draw.choice("bdfgklmnprstv") + draw.choice("aeiou") for _ in range(draw.randint(2, 4))), len(words))
    unknown = {"id": 0, "content": "<unk>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [unknown], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    json.dump(tokenizer, open(os.path.join(model, "tokenizer.json"), "w"))
    vocabulary = os.path.join(model, "words.txt")
    open(vocabulary, "w").write("\n".join(list(words)[1:]) + "\n")
    return vocabulary


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def serve(model, url):
    command = [program, "serve", "--model", model, "--load-format", "dummy", "--world-size", str(WORLD), "--max-waiting", "32"]
    server = subprocess.Popen(command + ["--listen", url.removeprefix("http://"), "--self-test-interval", "0"], stdout=subprocess.DEVNULL)
    for _ in range(600):
        try:
            get(url + "/ready")
            return server
        except OSError:
            if server.poll() is not None:
                sys.exit("the service has ended")
            time.sleep(0.1)
    sys.exit("the service does not become ready")


def load(url, words, name, *options):
    """One run of `tributary load`; its result, which is also written to the folder."""
    command = [program, "load", "--url", url, "--words", words, "--json", "--csv", os.path.join(folder, name + ".csv"), *options]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    open(os.path.join(folder, name + ".json"), "w").write(text)
    return json.loads(text)


def step_seconds(url):
    """Steps of decoding so far: their seconds and their number."""
    values = dict(line.rsplit(" ", 1) for line in get(url + "/metrics").splitlines() if line and line[0] != "#")
    name = "tributary_decode_step_duration_seconds_"
    return float(values[name + "sum"]), float(values[name + "count"])


def longest_prefill(name, window):
    """Milliseconds from a request's turn to its first text, at most, in a window of the load of this name."""
    with open(os.path.join(folder, name + ".csv")) as file:
        lines = [line for line in csv.DictReader(file) if line["queue_ms"] and line["window"] == str(window)]
    return max(float(line["ttft_ms"]) - float(line["queue_ms"]) for line in lines)


def row(label, found, name, window=0):
    def ms(times, which):
        value = found[times][which]
        return "-" if value is None else f"{value:.0f}"

    turned_away = sum(count for way, count in found["outcomes"].items() if way in ("http_429", "not_sent"))
    cells = [label, found["answered"], turned_away, ms("ttft_alone_ms", "p50"), ms("ttft_ms", "p50"), ms("ttft_ms", "p99"),
             ms("queue_ms", "p50"), ms("longest_gap_ms", "max"), f"{longest_prefill(name, window):.0f}", f"{found['tokens_per_second']:.1f}"]
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def cold(url, words):
    print("| requests a second | answered | 429 | TTFT of who found nobody, p50 ms | TTFT p50 | p99 | queue p50 | longest gap | longest "
          "prefill | tokens/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    fresh = ["--fresh", "--max-tokens", str(TOKENS)]
    alone = load(url, words, "alone", *fresh, "--clients", "1", "--requests", "30", "--duration", "600")["windows"][0]
    row("one after the other", alone, "alone")
    found = load(url, words, "saturation", *fresh, "--find-saturation", "--duration", str(window))["saturation"]
    rate = found["growing_rate"]
    shares = [(1 / 3, "a third of saturation"), (1 / 2, "half"), (1, "saturation"), (2, "twice")]
    rates = ",".join(f"{rate * share:.4f}" for share, _ in shares)
    options = ["--rate", rates, "--duration", str(LONG * window), "--plot", os.path.join(folder, "load.svg")]
    ladder = load(url, words, "ladder", *fresh, *options)["windows"]
    for index, ((share, label), result) in enumerate(zip(shares, ladder)):
        row(f"{label}: {rate * share:.3f}", result, "ladder", index)
    print(f"\nSaturation: {rate:.3f} requests a second ({found['steady_rate']:.3f} is steady).")
    for result, (_, label) in zip(ladder[:2], shares):
        print(f"TTFT p99 at {label}: {result['ttft_ms']['p99'] / result['ttft_alone_ms']['p50']:.2f} times the median without load.")
    print(f"Tokens a second at twice of saturation: {ladder[3]['tokens_per_second'] / ladder[2]['tokens_per_second']:.2f} of those at it.")


def warm(url, words):
    print(f"\n| clients | tokens a second | mean step ms | the steps alone would give | share of that |\n| --- | --- | --- | --- | --- |")
    speeds = []
    for clients in (1, CLIENTS):
        before = step_seconds(url)
        options = ["--clients", str(clients), "--warm-up", "--max-tokens", str(WARM_TOKENS), "--duration", str(window)]
        found = load(url, words, f"warm-{clients}", *options)["windows"][0]
        seconds, steps = (after - first for after, first in zip(step_seconds(url), before))
        speed, ceiling = found["tokens_per_second"], clients * steps / seconds
        speeds.append(speed)
        print(f"| {clients} | {speed:.0f} | {1000 * seconds / steps:.2f} | {ceiling:.0f} | {speed / ceiling:.2f} |", flush=True)
    print(f"\n{CLIENTS} clients get {speeds[1] / speeds[0]:.2f} times the tokens of one.")


def main():
    os.makedirs(folder, exist_ok=True)
    words = make_model(os.path.join(folder, "model"))
    url = f"http://127.0.0.1:{free_port()}"
    server = serve(os.path.join(folder, "model"), url)
    try:
        cold(url, words)
        warm(url, words)
    finally:
        server.terminate()
        server.wait()


main()
