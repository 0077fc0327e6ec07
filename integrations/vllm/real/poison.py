"""No request that asks for exact computing may ever get approximate keys and values: requests of all kinds in random order, prefix cache on.

    with.sh target/vllm python poison.py PROGRAM [--requests 10000] [--seed 1] [--json FILE]

PROGRAM may also be the URL of a server that runs. The KV cache of vLLM is small, so that requests are preempted. Kinds:

    plain      no id                              stolen     an approximate id without its salt
    foreign    an approximate id, another's salt  unsalted   an approximate id, the client's own salt
    exact      an exact id                        approx     an approximate id with its salt
    again      approx, sent twice                 aborted    approx, aborted while it loads
    damaged    approx, a bit flipped in the first, a middle or the last block
    expired    approx, released before it is sent
    deleted    approx, released while it loads

Tokens and log-probabilities of a clean vLLM judge: `plain`, `stolen`, `foreign`, `unsalted`, `exact`, `damaged` and `expired` must equal them. A request
`deleted` is either: that of the method, or exact. Approximate answers must differ from the clean ones nearly always, else the test would see no poison.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
from collections import Counter

import kit

# Long answers take more blocks while they are decoded, and so preempt others.
SHORT, LONG = 6, 100
EXACT_KINDS = ("plain", "stolen", "foreign", "unsalted", "exact", "damaged", "expired")
WEIGHTS = {"plain": 30, "stolen": 10, "foreign": 5, "unsalted": 5, "exact": 10, "approx": 15, "again": 10, "aborted": 5, "damaged": 6, "expired": 2, "deleted": 2}


def outcome(output):
    """Tokens, and the log-probability of each."""
    one = output.outputs[0]
    return list(one.token_ids), [step[token].logprob for token, step in zip(one.token_ids, one.logprobs)]


def apart(found, clean):
    """The largest difference of log-probabilities; infinite where tokens differ. The clean answer may be longer."""
    if found[0] != clean[0][:len(found[0])]:
        return float("inf")
    return max(abs(a - b) for a, b in zip(found[1], clean[1]))


def clean_answers(file, prompts):
    """In a process of its own: a vLLM without connector and without prefix cache."""
    llm = kit.engine(kit.DEMO, enable_prefix_caching=False)
    outputs = llm.generate([kit.prompt(ids) for ids in prompts], [kit.sampling(LONG, logprobs=0) for _ in prompts], use_tqdm=False)
    file.write_text(json.dumps([outcome(output) for output in outputs]))


class Poison:
    def __init__(self, args, url, proxy, llm, requests, prompts, clean):
        self.args, self.url, self.proxy, self.llm = args, url, proxy, llm
        self.requests, self.prompts, self.clean = requests, prompts, clean
        self.rng = random.Random(args.seed)
        self.counts, self.poisoned, self.furthest, self.unlike = Counter(), [], Counter(), Counter()
        self.reasons = Counter()
        # The smallest distance of an approximate answer to the clean one, for comparison with the tolerance.
        self.nearest = float("inf")

    def make(self, kind):
        """A request of vLLM: prompt, hand-over, salt."""
        number = self.rng.randrange(len(self.requests))
        if kind == "plain":
            return number, None, None
        method = "full" if kind == "exact" else self.args.method
        told, reason = kit.prefill(self.url, self.requests[number], method)
        if reason:
            raise RuntimeError(f"{method} cannot be handed over: {reason}")
        salt = told["cache_salt"]
        if kind in ("stolen", "exact"):
            salt = None
        elif kind == "foreign":
            salt = "tributary-" + f"{self.rng.getrandbits(256):064x}"
        elif kind == "unsalted":
            salt = f"tenant-{number}"
        elif kind == "damaged":
            last = told["tokens"] - 2
            self.proxy.damage[told["id"]] = (self.rng.randrange(told["layers"]), self.rng.choice((0, last // 2, last)))
        elif kind == "expired":
            kit.call(self.url, "DELETE", f"/v1/prefill/{told['id']}")
        elif kind == "deleted":
            layer = self.rng.randrange(told["layers"])
            self.proxy.before[told["id"]] = lambda at: at == layer and kit.call(self.url, "DELETE", f"/v1/prefill/{told['id']}")
        return number, told, salt

    def round(self, kinds):
        """Sends requests of these kinds together and judges the answers."""
        engine, sent = self.llm.llm_engine, {}
        for at, kind in enumerate(kinds):
            number, told, salt = self.make(kind)
            for copy in range(2 if kind == "again" else 1):
                name = f"{self.sum()}-{at}-{copy}"
                self.counts[kind] += 1
                sent[name] = (kind, number)
                engine.add_request(name, kit.prompt(self.prompts[number], salt), kit.sampling(self.rng.choice((SHORT, LONG)), told, logprobs=0))
        aborts = [name for name, (kind, _) in sent.items() if kind == "aborted"]
        steps, abort_at = 0, self.rng.randrange(1, 12)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    self.judge(*sent[output.request_id], output)
            steps += 1
            if steps == abort_at and aborts:
                engine.abort_request(aborts)

    def judge(self, kind, number, output):
        told = ((output.kv_transfer_params or {}).get("tributary") or {})
        if told.get("reason"):
            self.reasons[f"{kind}: {told['reason']}"] += 1
        if output.outputs[0].finish_reason == "abort":
            return
        distance = apart(outcome(output), self.clean[number])
        if kind not in EXACT_KINDS:
            if told.get("imported_tokens"):
                self.unlike["imported"] += 1
                self.unlike["unlike"] += distance > self.args.tolerance
                self.nearest = min(self.nearest, distance)
            return
        if distance <= self.args.tolerance:
            self.furthest[kind] = max(self.furthest[kind], distance)
            return
        self.poisoned.append({"kind": kind, "prompt": number, "distance": distance, "found": outcome(output), "clean": self.clean[number], "import": told})

    def sum(self):
        return sum(self.counts.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--method", default="none")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--blocks", type=int, default=66, help="blocks of 32 tokens in vLLM's KV cache")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("target/vllm-poison.json"))
    parser.add_argument("--clean", type=pathlib.Path, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.clean:
        clean_answers(args.clean[1], json.loads(args.clean[0].read_text()))
        return
    running = None if args.program.startswith("http") else kit.Service(args.program, kit.DEMO, ["--world-size", 2, "--threads", 1], log="target/vllm-serve.log")
    url = running.url if running else args.program
    requests = [kit.demo_request(number, documents=6) for number in range(args.prompts)]
    prompts = [kit.prefill(url, request, "full")[0]["token_ids"] for request in requests]
    files = args.json.with_suffix(".prompts"), args.json.with_suffix(".clean")
    files[0].write_text(json.dumps(prompts))
    subprocess.run([sys.executable, __file__, args.program, "--clean", *map(str, files)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    clean = json.loads(files[1].read_text())
    proxy = kit.Proxy()
    proxy.target = url
    llm = kit.engine(kit.DEMO, proxy.url, enable_prefix_caching=True, num_gpu_blocks_override=args.blocks, disable_log_stats=False)
    poison = Poison(args, url, proxy, llm, requests, prompts, clean)
    kinds = list(WEIGHTS)
    while poison.sum() < args.requests:
        poison.round(poison.rng.choices(kinds, WEIGHTS.values(), k=poison.rng.randrange(1, 16)))
        if poison.sum() % 200 < 16:
            print(f"{poison.sum()} requests, {len(poison.poisoned)} poisoned", flush=True)
    preemptions = sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
    free = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    if running:
        running.end()
    sys.exit(report(poison, preemptions, free, args))


def report(poison, preemptions, free, args):
    kit.print_table([["kind", "requests", "furthest from clean"], *([kind, poison.counts[kind], f"{poison.furthest[kind]:.1e}" if kind in EXACT_KINDS else "-"] for kind in WEIGHTS)])
    for reason, count in sorted(poison.reasons.items()):
        print(f"{count:6} {reason}")
    imported, unlike = poison.unlike["imported"], poison.unlike["unlike"]
    # Block 0 is vLLM's own null block.
    checks = {
        f"{len(poison.poisoned)} of {sum(poison.counts[kind] for kind in EXACT_KINDS)} exact requests differ from a clean vLLM": not poison.poisoned,
        f"{unlike} of {imported} imports of approximate KV differ from a clean vLLM, the nearest by {poison.nearest:.1e}": imported and unlike >= 0.9 * imported,
        f"{preemptions} preemptions": preemptions > 0,
        f"{free} of {args.blocks - 1} blocks are free at the end": free == args.blocks - 1,
    }
    for line, right in checks.items():
        print(("right: " if right else "WRONG: ") + line)
    for one in poison.poisoned[:10]:
        print(one)
    args.json.write_text(json.dumps({"counts": poison.counts, "reasons": poison.reasons, "poisoned": poison.poisoned, "preemptions": preemptions,
                                     "unlike": poison.unlike, "furthest": poison.furthest, "nearest": poison.nearest, "seed": args.seed}, indent=1))
    wrong = sum(not right for right in checks.values())
    print(f"{len(checks) - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
