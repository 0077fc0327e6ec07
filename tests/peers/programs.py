"""The programs that run.py compares, each with the same orders (lines.py): Tributary's service over
loopback, and children that speak JSON lines.
"""

import http.client
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE, TARGET = ROOT / "tests/peers", ROOT / "target/peers"
ENVIRONMENT = ROOT / "target/vllm"
sys.path.insert(0, str(ROOT / "tests/clients"))

from service import Service  # noqa: E402 - of this repository

# Tokens that each of several streams of Tributary draws more: all must run while steps are timed.
EXTRA_STEPS = 8
# The most that `logprobs` of a request may be.
MOST_LOGPROBS = 20
# Of a prompt whose documents are reused.
DOCUMENTS = 16
QUERY_TOKENS = 64


def pinned(core: int | None):
    """Puts a child on one core."""
    return None if core is None else lambda: os.sched_setaffinity(0, {core})


def python_environment() -> dict:
    """That of integrations/vllm/real/with.sh, but with tcmalloc, tensors in huge pages, compiled models, and not nice."""
    allocators = [] if os.environ.get("TCMALLOC") == "no" else sorted(pathlib.Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    # torch is linked with them; nothing runs on a GPU.
    libraries = ":".join(map(str, ENVIRONMENT.glob("lib/python3*/site-packages/nvidia/*/lib")))
    return {
        **os.environ, "LD_PRELOAD": " ".join(map(str, allocators[:1])), "LD_LIBRARY_PATH": libraries, "PATH": f"{ENVIRONMENT}/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "PYTHONPATH": str(TARGET / "python"), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1", "HF_HUB_OFFLINE": "1",
        "THP_MEM_ALLOC_ENABLE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(TARGET / "vllm-cache"), "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING", "TOKENIZERS_PARALLELISM": "false",
    }


class Child:
    """A rival in a process that stays loaded and idles between orders."""

    def __init__(self, name: str, command: list, environment: dict, core: int | None, folder: pathlib.Path):
        self.name, self.log = name, folder / f"{name}.log"
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.log, "ab"), text=True,
            preexec_fn=pinned(core))

    def ask(self, do: str, **order) -> dict:
        try:
            self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} has ended while it was asked to {do}: {self.log.relative_to(ROOT)}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Tributary:
    """`tributary serve` of one rank with one thread, asked over loopback with token ids.

    The time of a prefill is `metrics.ttft_ms` of the answer: from the request's acceptance, before
    its ids are read, until the first token's id is there. Of decoding the client's clock counts,
    from token to token of its streams.
    """

    name = "Tributary"

    def __init__(self, program: str, core: int | None, folder: pathlib.Path):
        self.program, self.core, self.log, self.service = program, core, folder / "tributary.log", None

    def load(self, folder: str, dtype: str, **_) -> dict:
        options = ["--method", "full", "--world-size", 1, "--threads", 1, "--chunk-cache", "off", "--dtype", dtype, "--decode-share", 0,
                   "--max-prefill-burst", 64, "--conversation-memory", "8GiB", "--served-model-name", "model"]
        self.service = Service(self.program, folder, options, self.log, pinned(self.core))
        version = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        return {"versions": version, "settings": f"{dtype}, `serve` with method full, no caches, asked over loopback"}

    def ask(self, do: str, **order) -> dict:
        return getattr(self, do)(**order)

    def body(self, ids: list, tokens: int, conversation: str, **more) -> dict:
        return {"model": "model", "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                "tributary": {"conversation": conversation}, **more}

    def post(self, body: dict) -> dict:
        status, told = self.service.post("/v1/completions", body, 3600)
        if status != 200:
            sys.exit(f"Tributary: {status}: {told}")
        return told

    def check(self, ids: list, top: int) -> dict:
        told = self.post(self.body(ids, 1, "off", logprobs=min(top, MOST_LOGPROBS)))
        found = told["choices"][0]["logprobs"]["top_logprobs"][0]
        return {"logprobs": sorted(((number(text), logprob) for text, logprob in found.items()), key=lambda one: -one[1])}

    def prefill(self, ids: list) -> dict:
        told = self.post(self.body(ids, 1, "off"))
        if told["usage"]["prompt_tokens_details"]["cached_tokens"] or not told["metrics"]["exact"]:
            sys.exit(f"Tributary has not computed the whole prompt: {told}")
        return {"seconds": told["metrics"]["ttft_ms"] / 1e3, "token": number(told["choices"][0]["text"])}

    def begin(self, prompts: list) -> dict:
        firsts = [number(self.post(self.body(ids, 1, "recompute"))["choices"][0]["text"]) for ids in prompts]
        self.prompts, self.drawn = prompts, [[token] for token in firsts]
        return {"tokens": firsts}

    def decode(self, steps: int) -> dict:
        """Streams that go on from the keys and values of the previous order."""
        count = steps + (1 if len(self.prompts) == 1 else EXTRA_STEPS)
        streams = [Stream(self.service.url, self.body(ids + drawn, count, "recompute", stream=True)) for ids, drawn in zip(self.prompts, self.drawn)]
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.join()
        for stream, drawn in zip(streams, self.drawn):
            if len(stream.tokens) != count or stream.conversation != "reused":
                sys.exit(f"Tributary: a stream has {len(stream.tokens)} tokens of {count}, its conversation {stream.conversation}: {stream.rest}")
            drawn += stream.tokens
        began, ended = max(one.times[0] for one in streams), min(one.times[-1] for one in streams)
        counted = sum(began < at <= ended for one in streams for at in one.times)
        # What `steps` steps would take: a step gives each stream a token.
        seconds = (ended - began) / (counted / len(streams)) * steps
        return {"seconds": seconds, "tokens": [one.tokens for one in streams]}

    def end(self) -> dict:
        return {"tokens": self.drawn}

    def close(self):
        if self.service:
            self.service.end()


class WarmTributary(Tributary):
    """The same by a method that reuses chunks: a prompt is documents, whose chunks are cached before
    it is timed, and a query. Such answers are approximate, so they are compared with none.
    """

    def __init__(self, program: str, core: int | None, folder: pathlib.Path, method: str):
        super().__init__(program, core, folder)
        self.name, self.method, self.log, self.warm = f"warm {method}", method, folder / "tributary-warm.log", set()

    def load(self, folder: str, dtype: str, **_) -> dict:
        options = ["--method", self.method, "--world-size", 1, "--threads", 1, "--chunk-cache", "4GiB", "--dtype", dtype, "--served-model-name", "model"]
        self.service = Service(self.program, folder, options, self.log, pinned(self.core))
        return {"versions": "the same program", "settings": f"{dtype}, {DOCUMENTS} documents of one chunk each, all cached, and a query of {QUERY_TOKENS} tokens"}

    def prefill(self, ids: list) -> dict:
        context, query = ids[:-QUERY_TOKENS], ids[-QUERY_TOKENS:]
        length = -(-len(context) // DOCUMENTS)
        documents = [in_words(context[at:at + length]) for at in range(0, len(context), length)]
        body = {**self.body(in_words(query), 1, "off"), "documents": documents}
        if tuple(ids) not in self.warm:
            self.post(body)
            self.warm.add(tuple(ids))
        told = self.post(body)
        cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
        if cached < len(context) or told["usage"]["prompt_tokens"] < len(ids) or told["metrics"]["exact"]:
            sys.exit(f"Tributary has not reused the chunks of all {len(context)} tokens: {told}")
        return {"seconds": told["metrics"]["ttft_ms"] / 1e3}


def in_words(ids: list) -> str:
    """A text of these tokens of the exported tokenizer."""
    return " ".join(f"t{token}" for token in ids)


def number(text: str) -> int:
    """The id of a word of the exported tokenizer."""
    return int(text.strip().removeprefix("t"))


class Stream(threading.Thread):
    """A streamed answer: its tokens, and when each came."""

    def __init__(self, url: str, body: dict):
        super().__init__()
        self.address, self.body = urllib.parse.urlsplit(url).netloc, json.dumps(body)
        self.times, self.tokens, self.conversation, self.rest = [], [], None, ""

    def run(self):
        connection = http.client.HTTPConnection(self.address, timeout=3600)
        connection.request("POST", "/v1/completions", self.body, {"Content-Type": "application/json"})
        for line in connection.getresponse():
            at, line = time.perf_counter(), line.decode().strip()
            if not line.startswith("data: {"):
                self.rest += line
                continue
            told = json.loads(line.removeprefix("data: "))
            words = "".join(choice["text"] for choice in told.get("choices", [])).split()
            self.tokens += map(number, words)
            self.times += [at] * len(words)
            self.conversation = told.get("metrics", {}).get("conversation", self.conversation)
        connection.close()


def rival(name: str, core: int | None, folder: pathlib.Path) -> Child:
    if name == "llama.cpp":
        huge_pages = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        command = ["node", str(HERE / "llama_peer.mjs"), str(TARGET / "node/node_modules")]
        return Child(name, command, {**os.environ, **huge_pages}, core, folder)
    script = {"vLLM": "vllm_peer.py", "PyTorch": "pytorch_peer.py"}[name]
    return Child(name, [str(ENVIRONMENT / "bin/python"), str(HERE / script)], python_environment(), core, folder)
