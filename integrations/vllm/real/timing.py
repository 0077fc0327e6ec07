"""Time from a client's request to the second token of vLLM's answer, with and without hand-over: a table of medians.

    with.sh target/vllm python timing.py PROGRAM [--tokens 8192] [--world 2] [--methods full infoflow none] [--repeat 5] [--json FILE]

The model is the 25 M shape with drawn weights: times and bytes are those of a real model of this shape, answers mean nothing. PROGRAM may also be the URL
of a server that runs. With hand-over the time begins when the prefill is asked for. `cold`: documents that no request had before. `warm`: the documents of an
earlier request in another order and with another question. vLLM's own prefix cache is off, and so its prompts are always computed or imported.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import time

import kit
from service import dummy_folder


class Client:
    def __init__(self, args, url, model, llm):
        self.args, self.url, self.llm, self.names = args, url, llm, 0
        vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
        # Words of two syllables or more after a space: one token each.
        self.words = [word[1:] for word in vocabulary if len(word) >= 5]
        self.rng = random.Random(3)

    def documents(self):
        each = self.args.tokens // self.args.documents
        return [" ".join(self.rng.choices(self.words, k=each)) for _ in range(self.args.documents)]

    def request(self, documents):
        return {"documents": documents, "messages": [{"role": "user", "content": " ".join(self.rng.choices(self.words, k=16))}]}

    def decode(self, ids, told, began):
        """Seconds to the first and to the second token, and what the answer says of the import."""
        engine, times = self.llm.llm_engine, []
        self.names += 1
        engine.add_request(str(self.names), kit.prompt(ids, told and (told["cache_salt"] or told["id"])), kit.sampling(2, told))
        imported = {}
        while engine.has_unfinished_requests():
            outputs = engine.step()
            for output in outputs:
                times += [time.perf_counter() - began] * (len(output.outputs[0].token_ids) - len(times))
                imported = (output.kv_transfer_params or {}).get("tributary", {})
            if not outputs:
                # As vLLM's own engine process does while only loads are under way.
                time.sleep(0.001)
        return times[0], times[1], imported

    def handed_over(self, request, method):
        began = time.perf_counter()
        told, reason = kit.prefill(self.url, request, method)
        if reason:
            return None, reason
        first, second, imported = self.decode(told["token_ids"], told, began)
        if imported.get("imported_tokens") != told["tokens"] - 1:
            raise RuntimeError(f"{method}: not imported: {imported}")
        return {"first": first, "second": second, "tokens": told["tokens"]}, None

    def alone(self, request):
        told, _ = kit.prefill(self.url, request, "full")
        kit.call(self.url, "DELETE", f"/v1/prefill/{told['id']}")
        first, second, _ = self.decode(told["token_ids"], None, time.perf_counter())
        return {"first": first, "second": second, "tokens": told["tokens"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=["full", "ring", "infoflow", "none"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("target/vllm-timing.json"))
    args = parser.parse_args()
    model = dummy_folder(pathlib.Path("target/vllm-dummy-25m"))
    running = None if args.program.startswith("http") else kit.Service(
        args.program, model, ["--load-format", "dummy", "--world-size", args.world, "--threads", 1], log="target/vllm-serve.log")
    url = running.url if running else args.program
    llm = kit.engine(model, url, load_format="dummy", max_model_len=args.tokens + 1024, enable_prefix_caching=False)
    client, rows = Client(args, url, model, llm), []

    def measure(name, cache, sample):
        samples = [sample() for _ in range(args.repeat + 1)][1:]
        rows.append({"prefill": name, "cache": cache, "samples": samples})
        print(f"{name}, {cache}: {[round(one['second'], 3) for one in samples]}", flush=True)

    measure("vLLM alone", "cold", lambda: client.alone(client.request(client.documents())))
    for method in args.methods:
        documents = client.documents()
        _, reason = client.handed_over(client.request(documents), method)
        if reason:
            print(f"{method} is not handed over: {reason}")
            continue
        measure(method, "cold", lambda method=method: client.handed_over(client.request(client.documents()), method)[0])
        measure(method, "warm", lambda method=method: client.handed_over(client.request(client.rng.sample(documents, len(documents))), method)[0])
    if running:
        running.end()
    table = [["prefill", "cache", "tokens", "first token, s", "second token, s: median", "min", "max"]]
    for row in rows:
        seconds = [one["second"] for one in row["samples"]]
        table.append([row["prefill"], row["cache"], row["samples"][0]["tokens"], f"{statistics.median(one['first'] for one in row['samples']):.3f}",
                      f"{statistics.median(seconds):.3f}", f"{min(seconds):.3f}", f"{max(seconds):.3f}"])
    kit.print_table(table)
    args.json.write_text(json.dumps({"world": args.world, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
