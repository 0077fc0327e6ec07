"""What a service bears: the 25 M shape with dummy weights on two ranks under `tributary load`, from idle to beyond saturation, cold,
and many clients at once, warm. Prints the tables of docs/load.md and writes pictures.

    python3 examples/studies/load.py PROGRAM FOLDER [WINDOW_SECONDS]

FOLDER gets the model, the vocabulary, every result as JSON and CSV, and pictures. About half an hour with windows of 90 seconds. The machine
should have nothing else to do. Machines change their pace all the same: saturation, which is what a server answers a second that always
has requests, is measured right before each window, times under load are compared with those of requests that found no other in the
same window, and the longest gap with the longest prefill of the same window.
"""

import csv
import json
import os
import subprocess
import sys

from serving import free_port, get, make_model, serve

WORLD, TOKENS, CLIENTS, WARM_TOKENS = 2, 32, 16, 256
CROWD = 48  # clients that keep the server busy
SHARES = [(1 / 3, "a third of saturation"), (1 / 2, "half"), (1, "saturation"), (2, "twice")]
LONG = 4  # factor of the length of a window whose 99th percentile is reported

program, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
window = int(sys.argv[3]) if len(sys.argv) > 3 else 90
def load(url, words, name, *options):
    """One run of `tributary load`; its result, which is also written to the folder."""
    shape = ["--documents-per-request", "8", "--document-tokens", "256", "--zipf", "1"]
    files = ["--words", words, "--csv", os.path.join(folder, name + ".csv")]
    command = [program, "load", "--url", url, "--json", *files, *shape, *options]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    open(os.path.join(folder, name + ".json"), "w").write(text)
    return json.loads(text)


def step_seconds(url):
    """Steps of decoding so far: their seconds and their number."""
    values = dict(line.rsplit(" ", 1) for line in get(url + "/metrics").splitlines() if line and line[0] != "#")
    name = "tributary_decode_step_duration_seconds_"
    return float(values[name + "sum"]), float(values[name + "count"])


def answered(name):
    """Every answered request of the load of this name."""
    with open(os.path.join(folder, name + ".csv")) as file:
        return [line for line in csv.DictReader(file) if line["outcome"] == "answered"]


def longest_prefill(name):
    """Milliseconds from a request's turn to its first text, at most."""
    return max(float(line["ttft_ms"]) - float(line["queue_ms"]) for line in answered(name))


def row(label, rate, found, name):
    def ms(times, which):
        value = found[times][which]
        return "-" if value is None else f"{value:.0f}"

    turned_away = sum(count for way, count in found["outcomes"].items() if way in ("http_429", "not_sent"))
    grows = "-" if found["growth"] is None else "yes" if found["growth"]["grows"] else "no"
    cells = [label, rate, found["answered"], turned_away, grows, ms("ttft_alone_ms", "p50"), ms("ttft_ms", "p50"), ms("ttft_ms", "p99"),
             ms("queue_ms", "p50"), ms("longest_gap_ms", "max"), f"{longest_prefill(name):.0f}", f"{found['tokens_per_second']:.1f}"]
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def capacity(url, words, name):
    """Requests a second that a server begins to answer which always has some that wait: the rate from which on its queue grows. Counted
    from the second quarter of the window on, when as many are decoded beside each other as will be."""
    load(url, words, name, "--fresh", "--max-tokens", str(TOKENS), "--clients", str(CROWD), "--duration", str(window))
    firsts = (float(line["planned_s"]) + float(line["ttft_ms"]) / 1000 for line in answered(name))
    return sum(window / 4 < first <= window for first in firsts) / (0.75 * window)


def cold(url, words):
    print("| load | requests/s | answered | 429 | queue grows | TTFT alone in flight, p50 ms | TTFT p50 | p99 | queue p50 | longest gap "
          "| longest prefill | tokens/s |")
    print("| --- |" + " --- |" * 11)
    fresh = ["--fresh", "--max-tokens", str(TOKENS)]
    alone = load(url, words, "alone", *fresh, "--clients", "1", "--requests", "30", "--duration", "600")["windows"][0]
    row("one after the other", "-", alone, "alone")
    found = {}
    for index, (share, label) in enumerate(SHARES):
        # Right before each window: the machine may have another pace by then.
        rate = share * capacity(url, words, f"capacity-{index}")
        name = f"at-{share:.2f}"
        options = ["--rate", str(rate), "--duration", str((LONG if share < 1 else 1) * window)]
        found[share] = load(url, words, name, *fresh, *options, "--plot", os.path.join(folder, name + ".svg"))["windows"][0]
        row(label, f"{rate:.3f} of {rate / share:.3f}", found[share], name)
    print()
    for share, label in SHARES[:2]:
        times = found[share]["ttft_ms"]["p99"] / found[share]["ttft_alone_ms"]["p50"]
        print(f"TTFT p99 at {label}: {times:.2f} times the median without load.")
    print(f"Tokens a second at twice of saturation: {found[2]['tokens_per_second'] / found[1]['tokens_per_second']:.2f} of those at it.")


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
    server = serve(program, os.path.join(folder, "model"), url, "--world-size", str(WORLD), "--max-waiting", "32")
    try:
        cold(url, words)
        warm(url, words)
    finally:
        server.terminate()
        server.wait()


main()
