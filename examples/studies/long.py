"""A prompt of 512K tokens on two ranks beside two busy loops, `none` and `infoflow` with 1 % recomputed: each run has to end with its
answer. The 25 M shape with dummy weights, random tokens in chunks of 2048. Prints a table.

    python3 examples/studies/long.py PROGRAM FOLDER [TOKENS [LAUNCHER ..]]

Ranks are threads; with a launcher, such as `mpirun -n 2`, and the program of `make mpi` they are processes. The busy loops take turns with
the ranks on two cores, so that a rank computes at about half of its pace. A rank without progress for 10 seconds would end the run.
TTFT is the time to the first token; a later token is the mean of all after the first, and the first of these also rotates the
cached keys. Memory is the peak of the largest process, beside the prediction for all ranks together. At most 40 minutes and 12 GB.
"""

import json
import os
import subprocess
import sys
import time

CHUNK, QUERY, ANSWER, LOOPS, METHODS = 2048, 32, 9, 2, ["none", "infoflow:ratio=0.01"]

program, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 512 * 1024
launcher = sys.argv[4:]
faults = []
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def make_model(model):
    """The shape's config with positions for the prompt; random tokens need no tokenizer."""
    os.makedirs(model, exist_ok=True)
    config = json.load(open(os.path.join(root, "examples/models/dummy-25m/config.json")))
    config["max_position_embeddings"] = 2 * tokens
    json.dump(config, open(os.path.join(model, "config.json"), "w"))


def run(method):
    """A run's report, the peak memory of its largest process in bytes, and its seconds; None if it failed."""
    report = os.path.join(folder, method.split(":")[0] + ".json")
    command = [*launcher, program, "prefill", "--model", os.path.join(folder, "model"), "--load-format", "dummy", "--json"]
    command += ["--synthetic", f"{tokens // CHUNK}x{CHUNK}+{QUERY}", "--method", method, "--world-size", "2"]
    command += ["--max-tokens", str(ANSWER), "--chunk-cache", "off", "--collective-timeout", "10"]
    began = time.monotonic()
    with open(report, "w") as output:
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        faults.append(f"{method}: the run ended with {process.returncode}")
        return None
    return json.load(open(report)), usage.ru_maxrss * 1024, time.monotonic() - began


def line(method):
    ended = run(method)
    if ended is None:
        return
    found, peak, seconds = ended
    phases = {phase["phase"]: phase["critical_path_ms"] / 1e3 for phase in found["phases"]}
    token_ms = (found["total_ms"] - found["ttft_ms"]) / (ANSWER - 1)
    predicted = found["predicted_memory_bytes"]
    if len(found["token_ids"]) != ANSWER or found["tokens"]["context"] != tokens // CHUNK * CHUNK:
        faults.append(f"{method}: not the whole answer: {found['tokens']}")
    if not launcher and peak > predicted:
        faults.append(f"{method}: {peak} bytes at the peak, {predicted} predicted")
    cells = [f"`{method}`", f"{found['ttft_ms'] / 1e3:.1f}", f"{phases['chunk_prefill']:.1f}", f"{phases.get('recompute', 0):.1f}",
             found["tokens"]["recomputed"], f"{token_ms:.0f}", f"{peak / 1e9:.2f}", f"{predicted / 1e9:.2f}", f"{seconds:.0f}"]
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def main():
    make_model(os.path.join(folder, "model"))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
    print(f"{tokens} tokens in chunks of {CHUNK}, two ranks beside {LOOPS} busy loops\n")
    print("| method | TTFT, s | of it chunks, s | recompute, s | rows computed again | a later token, ms | peak, GB | predicted, GB | run, s |")
    print("|" + " --- |" * 9, flush=True)
    try:
        for method in METHODS:
            line(method)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    if faults:
        sys.exit("\n".join(faults))


main()
