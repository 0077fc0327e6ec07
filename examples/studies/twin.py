"""The twin against a service: `tributary plan --trace` predicts a replay, and `tributary load --trace` makes it. The 25 M shape with dummy
weights on two ranks, calibrated just before; the first requests of a trace with shorter texts, at a pace that keeps the ranks busy for a share
of the time. The profile is used as calibrated, and fitted to a service that answers other requests of the trace, those that follow. Prints a
table of all replays, the twin's with their ranges.

    python3 examples/studies/twin.py PROGRAM FOLDER TRACE [REQUESTS [REPLAYS [METHOD ..]]]

BUSY=0.6 is another share, FIT=0 leaves the fitted profile out. Each live replay has a service of its own with empty caches. The machine should
have nothing else to do: its pace is part of the result.
"""

import csv
import json
import math
import os
import statistics
import subprocess
import sys
import urllib.request

from serving import free_port, make_model, serve

program, folder, trace = (os.path.abspath(path) for path in sys.argv[1:4])
requests = int(sys.argv[4]) if len(sys.argv) > 4 else 1000
replays = int(sys.argv[5]) if len(sys.argv) > 5 else 3
methods = sys.argv[6:] or ["prefix-cache", "infoflow"]

BUSY = float(os.environ.get("BUSY", "0.7"))
FIT = int(os.environ.get("FIT", "300"))
SCALE = "0.25"
CACHE = "64MiB"
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }} {% endfor %}"


def add_template(model):
    """A first token with which every prompt begins, for --chunk-prefix head."""
    path = os.path.join(model, "tokenizer.json")
    tokenizer = json.load(open(path))
    words = tokenizer["model"]["vocab"]
    last = max(words, key=words.get)
    words["<s>"] = words.pop(last)
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": words["<s>"], "content": "<s>", "special": True})
    json.dump(tokenizer, open(path, "w"))
    json.dump({"bos_token": "<s>", "chat_template": TEMPLATE}, open(os.path.join(model, "tokenizer_config.json"), "w"))
    vocabulary = os.path.join(model, "words.txt")
    open(vocabulary, "w").write("\n".join(word for word in words if not word.startswith("<")) + "\n")
    return vocabulary


def replayed(speed, part=()):
    """Options of a replay: the first requests, or FIT of those from a second of the trace on."""
    count, window = (FIT, ["--window", f"{part[0]:.3f}..1e9"]) if part else (requests, [])
    return ["--trace", trace, "--requests", str(count), *window, "--scale", SCALE, "--speed", f"{speed:.6g}"]


def predicted(method, model, profile, speed, part=(), *options):
    service = ["--chunk-prefix", "head", "--chunk-cache", CACHE, "--dtype", "f32"]
    command = [program, "plan", "--model", model, "--profile", profile, "--method", method, "--json", *service, *replayed(speed, part)]
    return json.loads(subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE).stdout)


def pace(method, model, profile):
    """The speed at which the twin's ranks are busy for that share of the time."""
    speed = 10.0
    for _ in range(8):
        busy = predicted(method, model, profile, speed)["rows"][0]["busy"]
        speed *= BUSY / (1 - busy["idle"])
    return speed


def measured(method, model, profile, words, speed, number, part=()):
    url = f"http://127.0.0.1:{free_port()}"
    options = ["--world-size", "2", "--method", method, "--chunk-prefix", "head", "--chunk-cache", CACHE, "--profile", profile]
    server = serve(program, model, url, *options)
    csv_file = os.path.join(folder, f"{method}-{number}.csv")
    try:
        command = [program, "load", "--url", url, "--words", words, "--csv", csv_file, *replayed(speed, part)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        metrics = urllib.request.urlopen(f"{url}/metrics").read()
        open(os.path.join(folder, f"{method}-{number}.prom"), "wb").write(metrics)
    finally:
        server.terminate()
        server.wait()
    with open(csv_file) as file:
        lines = [line for line in csv.DictReader(file) if line["ttft_ms"]]
    ttft = sorted(float(line["ttft_ms"]) for line in lines)
    queue = sorted(float(line["queue_ms"] or 0) for line in lines)
    prompt, cached = (sum(float(line[key] or 0) for line in lines) for key in ("prompt_tokens", "cached_tokens"))
    at = lambda values, share: values[math.ceil(share * len(values)) - 1]
    return {"answered": len(lines), "p50": at(ttft, 0.5), "p95": at(ttft, 0.95), "queue": at(queue, 0.95), "hits": 100 * cached / prompt}


def fitted(method, model, profile, words, speed):
    """The profile fitted to a service that answers the requests after those that are predicted."""
    after = speed * predicted(method, model, profile, speed)["replayed"]["seconds"]
    part, file = (after + 1e-3,), os.path.join(folder, f"{method}-fitted.toml")
    found = measured(method, model, profile, words, speed, "fit", part)
    if os.path.exists(file):
        os.remove(file)
    metrics = os.path.join(folder, f"{method}-fit.prom")
    answer = predicted(method, model, profile, speed, part, "--measured", metrics, "--save-profile", file)
    factors = " and ".join(f"{answer['fit']['under_load'][key]:.3f}" for key in ("prefill", "decode"))
    line(f"`{method}`, live, the {FIT} requests after them", found)
    line(f"`{method}`, twin of those, fitted: prefills and steps {factors} times the profile's", row_of(answer))
    return file


def row_of(answer):
    """A twin's row as a live one."""
    row = answer["rows"][0]
    tokens = row["tokens"]
    hits = 100 * (tokens["memory"] + tokens["store"]) / tokens["prompt"]
    times = {"p50": row["ttft_ms"]["p50"], "p95": row["ttft_ms"]["p95"], "queue": row["queue_ms"]["p95"]}
    return {"answered": row["answered"], **times, "hits": hits, "busy": 1 - row["busy"]["idle"], "ranges": row["ttft_range_ms"]}


def line(name, found, ranges=None):
    ms = {key: f"{found[key]:.0f}" + (" ({:.0f} to {:.0f})".format(*ranges[key]) if ranges else "") for key in ("p50", "p95")}
    numbers = f"{ms['p50']} | {ms['p95']} | {found['queue']:.0f} | {found['hits']:.1f} %"
    print(f"| {name} | {found['answered']} | {numbers} |", flush=True)


def compared(name, twin, live):
    middle = {key: statistics.median(found[key] for found in live) for key in live[0]}
    off = []
    for key in ("p50", "p95"):
        low, high = twin["ranges"][key]
        least, most = min(one[key] for one in live), max(one[key] for one in live)
        within = "in" if low <= middle[key] <= high else "not in"
        off.append(f"{key} {100 * (twin[key] / middle[key] - 1):+.0f} % of {middle[key]:.0f} ({within} its range; live {least:.0f} to {most:.0f})")
    print(f"{name} over the live median: {', '.join(off)}; cached {twin['hits'] - middle['hits']:+.1f} points", flush=True)


def main():
    os.makedirs(folder, exist_ok=True)
    model, profile = os.path.join(folder, "model"), os.path.join(folder, "here.toml")
    make_model(model)
    words = add_template(model)
    calibrate = [program, "bench", "--model", model, "--load-format", "dummy", "--worlds", "2", "--calibrate", profile, "--force"]
    subprocess.run(calibrate, check=True, stdout=subprocess.DEVNULL)
    print("| replay | answered | TTFT p50, ms | p95, ms | queue p95, ms | cached |\n| --- | --- | --- | --- | --- | --- |")
    for method in methods:
        profiles = {"as calibrated": profile}
        speed = pace(method, model, profile)
        if FIT:
            # The fitted ranks have more to do: their pace is sought anew.
            profiles["fitted"] = fitted(method, model, profile, words, speed)
            speed = pace(method, model, profiles["fitted"])
        twins = {name: row_of(predicted(method, model, file, speed)) for name, file in profiles.items()}
        for name, twin in twins.items():
            line(f"`{method}`, twin {name}, {speed:.1f}x, busy {100 * twin['busy']:.0f} %", twin, twin["ranges"])
        live = [measured(method, model, profile, words, speed, number) for number in range(replays)]
        for number, found in enumerate(live):
            line(f"`{method}`, live {number + 1}", found)
        print()
        for name, twin in twins.items():
            compared(f"{method}: twin {name}", twin, live)
        print(flush=True)


main()
