"""Time from a client's request to the second token, of Tributary alone, of vLLM alone, and of both with a hand-over: a table of medians.

    with.sh target/vllm python timing.py PROGRAM [--tokens 8192] [--world 2] [--methods full infoflow none] [--caches cold warm] [--repeat 5] [--json FILE]

The model is the 25 M shape with drawn weights: times and bytes are those of a real model of this shape, answers mean nothing. Ways, one after the other for
every sample:

    alone       Tributary decodes itself, a server of its own
    client      the client asks Tributary for a prefill, and vLLM's server for two tokens
    decode-at   the client asks `tributary serve --decode-at`, which asks vLLM
    vllm        vLLM's server computes the same prompt

`cold`: documents that no request had before. `warm`: the documents of an earlier request in another order and with another question. vLLM's own prefix cache
is off, and so its prompts are always computed or imported. `copy`: all layers of a finished prefill read and hashed by the connector's code, without vLLM.
`step`: one of vLLM's steps of decoding behind an imported prompt. `after the first`: from the first token, whose time Tributary tells, to the second: the
hand-over alone, which the noise of a long prefill would hide.
"""

import argparse
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import time

import kit
from service import dummy_folder
from tributary_vllm.handover import Part, Server, Shape, pieces
from tributary_vllm.worker import PIECE_BYTES


class Client:
    def __init__(self, args, model):
        self.args, self.rng = args, random.Random(3)
        vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
        # Words of two syllables or more after a space: one token each.
        self.words = [word[1:] for word in vocabulary if len(word) >= 5]

    def documents(self):
        each = self.args.tokens // self.args.documents
        return [" ".join(self.rng.choices(self.words, k=each)) for _ in range(self.args.documents)]

    def request(self, documents):
        return {"documents": documents, "messages": [{"role": "user", "content": " ".join(self.rng.choices(self.words, k=16))}]}


def two_tokens(url, request, method):
    """Seconds until Tributary's server has answered with two tokens, and those of them after the first one."""
    body = {**request, "tributary": {"method": method}, "temperature": 0, "max_tokens": 2, "ignore_eos": True}
    began = time.perf_counter()
    status, told = kit.call(url, "POST", "/v1/chat/completions", body)
    taken = time.perf_counter() - began
    if status != 200 or told["usage"]["completion_tokens"] != 2:
        raise RuntimeError(f"{method}: {status}: {told}")
    return taken, taken - told["metrics"]["ttft_ms"] / 1000


def complete(vllm, ids, told=None, tokens=2):
    """vLLM's answer of two tokens, or as many as are asked for."""
    body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    if told:
        body.update(kv_transfer_params={"tributary": {"id": told["id"]}}, cache_salt=told["cache_salt"] or told["id"])
    status, answer = kit.call(vllm, "POST", "/v1/completions", body)
    if status != 200 or len(answer["choices"][0]["token_ids"]) != tokens:
        raise RuntimeError(f"vLLM: {status}: {answer}")
    return answer


def steps(url, vllm, request, repeat):
    """Seconds of one of vLLM's steps of decoding behind an imported prompt, several times: two answers of it, one of them 32 tokens longer."""
    samples = []
    for _ in range(repeat):
        taken = []
        for tokens in (2, 34):
            told = held(url, request)
            began = time.perf_counter()
            complete(vllm, told["token_ids"], told, tokens)
            taken.append(time.perf_counter() - began)
            kit.call(url, "DELETE", f"/v1/prefill/{told['id']}")
        samples.append((taken[1] - taken[0]) / 32)
    return samples


def held(url, request):
    """A prefill that has ended and is held."""
    told, _ = kit.prefill(url, request, "none")
    while kit.call(url, "GET", f"/v1/prefill/{told['id']}")[1]["status"] == "planned":
        time.sleep(0.05)
    return told


def handed_over(url, vllm, request, method):
    """Seconds until vLLM has answered with two tokens, from the question for the prefill on."""
    began = time.perf_counter()
    told, _ = kit.prefill(url, request, method)
    answer = complete(vllm, told["token_ids"], told)
    taken = time.perf_counter() - began
    imported = (answer.get("kv_transfer_params") or {}).get("tributary", {})
    if imported.get("imported_tokens") != told["tokens"] - 1:
        raise RuntimeError(f"{method}: not imported: {imported}")
    return taken, None


def vllm_alone(url, vllm, request):
    told, _ = kit.prefill(url, request, "full")
    kit.call(url, "DELETE", f"/v1/prefill/{told['id']}")
    began = time.perf_counter()
    complete(vllm, told["token_ids"])
    return time.perf_counter() - began, None


def copied(url, request, repeat):
    """Seconds in which the connector's code reads a finished prefill, several times, and its bytes and tokens."""
    told = held(url, request)
    shape = Shape(*(told[name] for name in ("layers", "kv_heads", "head_dim", "dtype")))
    whole = Part(shape, range(shape.kv_heads))
    samples = []
    for _ in range(repeat):
        server, began = Server(url, None), time.perf_counter()
        for layer in range(told["layers"]):
            for first, rows in pieces(0, told["tokens"], PIECE_BYTES // shape.row_bytes):
                server.layer(told["id"], layer, range(first, first + rows), whole, time.monotonic() + 60)
        samples.append(time.perf_counter() - began)
        server.close()
    kit.call(url, "DELETE", f"/v1/prefill/{told['id']}")
    return samples, shape.row_bytes * told["layers"] * told["tokens"], told["tokens"]


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def start_vllm(model, url, port, args, log):
    """vLLM's server with the connector, once it answers."""
    transfer = {"kv_connector": "TributaryConnector", "kv_connector_module_path": "tributary_vllm", "kv_role": "kv_consumer",
                "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"url": url}}
    child = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "float32",
         "--enforce-eager", "--block-size", "32", "--max-model-len", str(args.tokens + 1024), "--no-enable-prefix-caching", "--host", "127.0.0.1",
         "--port", str(port), "--kv-transfer-config", json.dumps(transfer)],
        env={**os.environ, "PYTHONPATH": str(kit.PACKAGE)}, stdout=open(log, "wb"), stderr=subprocess.STDOUT)
    vllm, end = f"http://127.0.0.1:{port}", time.monotonic() + 300
    while time.monotonic() < end and child.poll() is None:
        try:
            if kit.call(vllm, "GET", "/health", timeout=5)[0] == 200:
                return child
        except OSError:
            pass
        time.sleep(0.5)
    child.terminate()
    sys.exit(f"vLLM's server does not start: {log}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=["full", "infoflow", "none"])
    parser.add_argument("--caches", nargs="+", choices=["cold", "warm"], default=["cold", "warm"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("target/vllm-timing.json"))
    args = parser.parse_args()
    model = dummy_folder(pathlib.Path("target/vllm-dummy-25m"))
    port, options = free_port(), ["--load-format", "dummy", "--world-size", args.world, "--threads", 1]
    vllm = f"http://127.0.0.1:{port}"
    both = kit.Service(args.program, model, [*options, "--decode-at", vllm], log="target/vllm-serve.log")
    child = start_vllm(model, both.url, port, args, "target/vllm-timing.log")
    alone = kit.Service(args.program, model, options, log="target/vllm-serve.log")
    try:
        rows = measure(args, Client(args, model), alone.url, both.url, vllm)
    finally:
        both.end()
        alone.end()
        child.terminate()
        child.wait(60)
    args.json.write_text(json.dumps({"world": args.world, "rows": rows}, indent=1))
    table = [["prefill", "cache", "way", "second token, s: median", "min", "max", "to alone", "after the first", "to alone", "load average"]]
    for row in rows:
        alone = next((one for one in rows if (one["prefill"], one["cache"], one["way"]) == (row["prefill"], row["cache"], "alone")), None)
        base = statistics.median(alone["seconds"]) if alone else None
        median = statistics.median(row["seconds"])
        after = statistics.median(row["after_first"]) if row.get("after_first") else None
        table.append([row["prefill"], row["cache"], row["way"], f"{median:.3f}", f"{min(row['seconds']):.3f}", f"{max(row['seconds']):.3f}",
                      f"{median - base:+.3f} ({median / base - 1:+.1%})" if base else "-",
                      f"{after:.3f}" if after else "-", f"{after - statistics.median(alone['after_first']):+.3f}" if after else "-", f"{row['load'][0]:.1f}-{row['load'][1]:.1f}"])
    kit.print_table(table)
    return 0


def measure(args, client, alone, both, vllm):
    rows = []

    def sample(prefill, cache, ways):
        """Every way in turn, several times; the first round is not counted."""
        seconds, load = {way: [] for way in ways}, [os.getloadavg()[0]]
        for _ in range(args.repeat + 1):
            for way, act in ways.items():
                seconds[way].append(act())
            load.append(os.getloadavg()[0])
        for way, taken in seconds.items():
            taken, after = zip(*taken[1:])
            rows.append({"prefill": prefill, "cache": cache, "way": way, "seconds": taken, "load": [min(load), max(load)]})
            if None not in after:
                rows[-1]["after_first"] = after
            print(f"{prefill}, {cache}, {way}: {[round(one, 3) for one in taken]}, load {min(load):.1f}-{max(load):.1f}", flush=True)

    samples, size, tokens = copied(both, client.request(client.documents()), args.repeat)
    rows.append({"prefill": "-", "cache": "-", "way": "copy", "seconds": samples, "load": [os.getloadavg()[0]] * 2})
    print(f"{tokens} tokens, {size} bytes: {size / statistics.median(samples) / 1e9:.2f} GB/s", flush=True)
    samples = steps(both, vllm, client.request(client.documents()), args.repeat)
    rows.append({"prefill": "-", "cache": "-", "way": "step", "seconds": samples, "load": [os.getloadavg()[0]] * 2})
    for method in args.methods:
        # Full prefill has no use for caches.
        for cache in (cache for cache in args.caches if (method, cache) != ("full", "warm")):
            documents = client.documents()

            def fresh(cache=cache, documents=documents):
                return client.request(client.documents() if cache == "cold" else client.rng.sample(documents, len(documents)))

            if cache == "warm":
                for url in (alone, both):
                    two_tokens(url, client.request(documents), method)
            ways = {"alone": lambda method=method, fresh=fresh: two_tokens(alone, fresh(), method),
                    "client": lambda method=method, fresh=fresh: handed_over(both, vllm, fresh(), method),
                    "decode-at": lambda method=method, fresh=fresh: two_tokens(both, fresh(), method)}
            if (method, cache) == ("full", "cold"):
                ways["vllm"] = lambda fresh=fresh: vllm_alone(both, vllm, fresh())
            sample(method, cache, ways)
    return rows


if __name__ == "__main__":
    sys.exit(main())
