"""What the checks with a real vLLM share: requests, Tributary's server, a proxy that counts and damages, and vLLM's engine."""

import http.client
import json
import os
import pathlib
import random
import re
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import blake3

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "integrations/vllm"
DEMO = ROOT / "examples/models/demo"
HASH_BYTES = 32
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
sys.path[:0] = [str(ROOT / "tests/clients"), str(PACKAGE)]

from service import Service  # noqa: E402 - of this repository


# Requests.

def words():
    """The demo model's vocabulary by kind, as its requests use it."""
    names = "alice john mary peter susan david laura james emma oliver sophia henry anna george clara frank helen ivan julia kevin linda martin nina".split()
    cities = "london paris rome berlin madrid vienna prague lisbon dublin oslo athens cairo delhi tokyo seoul lima quito boston denver miami".split()
    colours = "red blue green yellow black white orange purple brown pink gray silver gold violet amber coral ivory olive teal navy".split()
    variables = [f"v{a}{b}" for a in "bcdfgk" for b in "aeiouyxz"]
    return names, cities, colours, variables


def demo_request(number, documents=8, sentences=11):
    """A question with two hops whose halves stand in different documents, or a chain of variables."""
    rng = random.Random(f"demo-{number}")
    names, cities, colours, variables = map(lambda kind: rng.sample(kind, len(kind)), words())
    hosts, guests = names[:8], names[8:]
    facts = [f"house of {host} in {city} ." for host, city in zip(hosts, cities)]
    facts += [f"{guest} stays with {rng.choice(hosts)} ." for guest in guests]
    chain = variables[:4]
    facts += [f"let {chain[0]} = {colours[0]} ."] + [f"let {chain[at]} = {chain[at - 1]} ." for at in (1, 2, 3)]
    facts += [f"let {variable} = {colour} ." for variable, colour in zip(variables[4:10], colours[1:])]
    adjectives, animals = "small quiet old young happy tired brave clever".split(), "dog cat horse bird fox wolf rabbit turtle".split()
    verbs, places = "sleeps runs waits plays sings walks rests jumps".split(), "tree lake hill road wall gate farm forest".split()
    while len(facts) < documents * sentences:
        facts.append(f"the {rng.choice(adjectives)} {rng.choice(animals)} {rng.choice(verbs)} near the {rng.choice(places)} .")
    rng.shuffle(facts)
    texts = ["passage " + " ".join(facts[at::documents]) for at in range(documents)]
    question = f"question : {guests[0]} stays in" if number % 2 else f"question : let {chain[rng.choice((1, 2, 3))]} ="
    return {"documents": texts, "messages": [{"role": "user", "content": question}]}


def prose_request(number, documents=5, characters=700):
    """Passages of this repository's documentation, and a question about one of them."""
    rng = random.Random(f"prose-{number}")
    passages = [text for file in sorted((ROOT / "docs").glob("*.md")) for text in re.split(r"\n\n+", file.read_text())
                if 200 < len(text) and not text.startswith(("|", "#", "```"))]
    texts = [" ".join(passage[:characters].split()) for passage in rng.sample(passages, documents)]
    about = " ".join(rng.choice(texts).split()[:6])
    return {"documents": texts, "messages": [{"role": "user", "content": f"What do the passages say about \"{about}\"? Answer in one sentence."}]}


# HTTP.

def call(url, method, path, body=None, timeout=600):
    """A status and the answer as JSON, or as text where it is none."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text.decode(errors="replace")


def prefill(url, request, method, **settings):
    """A prefill to hand over: its description, or None and the reason of the refusal."""
    status, told = call(url, "POST", "/v1/prefill", {**request, "tributary": {"method": method, **settings}})
    if status == 202:
        return told, None
    message = told.get("error", {}).get("message") if isinstance(told, dict) else told
    if status == 400:
        return None, message
    raise RuntimeError(f"POST /v1/prefill answers {status}: {message}")


def decode(url, request, method, tokens, **settings):
    """Tributary's own greedy answer: its tokens' texts, and the distance of each one's log-probability to the next likeliest."""
    status, told = call(url, "POST", "/v1/chat/completions", {
        **request, "tributary": {"method": method, **settings}, "temperature": 0, "max_tokens": tokens, "ignore_eos": True, "logprobs": True, "top_logprobs": 2})
    if status != 200:
        raise RuntimeError(f"POST /v1/chat/completions answers {status}: {told}")
    steps = told["choices"][0]["logprobs"]["content"]
    gaps = [step["top_logprobs"][0]["logprob"] - step["top_logprobs"][1]["logprob"] for step in steps]
    return [step["token"] for step in steps], gaps


def values_moved(rows, size):
    """Values one slot after their keys. (Keys that moved with them would change nothing: they hold their positions, and attention is a sum.)"""
    moved, half = bytearray(rows), size // 2
    for at in range(half, len(rows), size):
        moved[at:at + half] = rows[at - size:at - half] if at >= size else rows[-half:]
    return moved


# Rows that do not come.
FEW = 32
# Ways to spoil rows, given their bytes and those of a row.
SPOILS = {"slots": values_moved, "few": lambda rows, size: rows[:-size * FEW] + bytes(size * FEW)}


class Proxy:
    """Stands between vLLM and the server: its address stays while servers change, it counts rows, and damages what it is told to."""

    def __init__(self, spoil=None):
        self.target = None
        # One of SPOILS, of every layer, with a right hash: a comparison must notice it by the answers.
        self.spoil = spoil
        # By id: (layer, row) whose first bit is flipped.
        self.damage = {}
        # By id: what happens before a layer is fetched.
        self.before = {}
        self.rows, self.lock = 0, threading.Lock()
        self.bytes_of_row = None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_GET(self):
                proxy.forward(self)

            def do_DELETE(self):
                proxy.forward(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def forward(self, handler):
        rows = re.fullmatch(r"/v1/kv/([^/]+)/(\d+)\?first=(\d+)&rows=(\d+)(?:&first_head=\d+&heads=\d+)?", handler.path)
        if rows and (act := self.before.get(rows[1])):
            act(int(rows[2]))
        parts = urllib.parse.urlsplit(self.target)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=600)
        try:
            connection.request(handler.command, handler.path, headers={"Authorization": handler.headers.get("Authorization", "")})
            answer = connection.getresponse()
            body = bytearray(answer.read())
        except OSError as error:
            answer, body = None, bytearray(str(error).encode())
        finally:
            connection.close()
        status = answer.status if answer else 502
        if rows and status == 200:
            layer, first, count = map(int, rows.groups()[1:])
            with self.lock:
                self.rows += count
            if self.spoil:
                body = SPOILS[self.spoil](body[:-HASH_BYTES], (len(body) - HASH_BYTES) // count)
                body += blake3.blake3(body).digest()
            damaged = self.damage.get(rows[1])
            if damaged and damaged[0] == layer and first <= damaged[1] < first + count:
                body[(damaged[1] - first) * ((len(body) - HASH_BYTES) // count)] ^= 1
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        try:
            handler.wfile.write(body)
        except OSError:
            pass


# vLLM.

def engine(model, url=None, **options):
    """vLLM's engine, with the connector where there is a URL. Its scheduler runs in this process, so that a check may look at it."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["PYTHONPATH"] = str(PACKAGE)
    from vllm import LLM

    transfer = {"kv_connector": "TributaryConnector", "kv_connector_module_path": "tributary_vllm", "kv_role": "kv_consumer",
                "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"url": url}}
    return LLM(**{"model": str(model), "skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True, "block_size": 32, "max_model_len": 2048,
                  "kv_transfer_config": transfer if url else None, **options})


def sampling(tokens, told=None, logprobs=None, **params):
    """Greedy decoding, with a hand-over where one is told."""
    from vllm import SamplingParams

    extra = {"kv_transfer_params": {"tributary": {"id": told["id"]}}} if told else None
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=logprobs, extra_args=extra, **params)


def prompt(ids, salt=None):
    return {"prompt_token_ids": ids, **({"cache_salt": salt} if salt else {})}


def print_table(rows):
    widths = [max(len(str(row[at])) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip())
