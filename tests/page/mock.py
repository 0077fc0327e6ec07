"""A service that answers as `tributary serve` does and computes nothing, for the page's test: what a real one says seldom or fast is
said here on demand and slowly.

    python3 tests/page/mock.py [--port 0] [--key KEY] [--page service/src/page/index.html]

The first line of its output has its address. A question that begins with one of these words gets what it asks for:

    refuse 400 | 413 | 429 | 500 | 503 | 504    that status, with a parameter or Retry-After where the service gives one
    break                                       an answer that ends in an error after two words
    slow                                        one word in a quarter of a second, without an end in sight
    late                                        nothing for three seconds but comments that keep the stream alive
"""

import argparse
import base64
import hashlib
import json
import pathlib
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXACT = ("full", "ring", "all-gather", "pass-q")
RATIOS = {"random": 0.15, "epic": 0.15, "infoflow": 0.15, "prophetkv": 0.2, "relay": 0.15, "a3": 0.15, "cacheblend": 0.15, "kvshare": 0.2, "trace": 0.15, "ideal": 0.15, "cacheclip": 0.2}
METHODS = [*EXACT, "star", "apb", "none", "ape", *RATIOS, "kv-packet"]
WORLD = 2
STARTED = time.time()
# Requests that have ended, the newest first; methods whose chunks are kept.
RECENT, KEPT = [], set()


def policy(page):
    """The Content-Security-Policy of the page: its own style and script, by their hashes, and nothing else."""
    def hashed(tag):
        inside = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL).group(1)
        return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    return ("default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'; "
            f"style-src 'sha256-{hashed('style')}'; script-src 'sha256-{hashed('script')}'")


def status():
    ranks = [{"rank": rank, "up": True, "heartbeat_age_seconds": 0.1 + 0.2 * rank, "running_sequences": rank,
              "chunk_cache_used_bytes": 600_000 * len(RECENT)} for rank in range(WORLD)]
    methods = [{"name": name, "summary": f"what {name} computes, in one line", "exact": name in EXACT, "default_ratio": RATIOS.get(name)} for name in METHODS]
    return {"schema": "tributary.status/1", "state": "serving", "model": "demo", "method": "infoflow", "world_size": WORLD,
            "methods": methods, "ranks": ranks, "requests": {"waiting": 0, "running": 1},
            "chunk_cache": {"used_bytes": 1_200_000 * len(RECENT), "hits": 8 * len(RECENT), "misses": 8, "tiers": tiers()},
            "recent": RECENT[:50]}


def tiers():
    """Memory, a disk with a damaged chunk, and an object store of unknown content."""
    def tier(name, used, hits, misses, read=0, rate=None, errors=None):
        return {"tier": name, "used_bytes": used, "hits": hits, "misses": misses, "read_bytes": read, "written_bytes": read // 2,
                "read_bytes_per_second": rate, "errors": errors or {}}
    done = len(RECENT)
    return [tier("memory", 1_200_000 * done, 6 * done, 2 * done + 8),
            tier("disk", 64_000_000, 2 * done, 8, 9_600_000 * done, 850_000_000.0, {"corrupt": 1, "full": 12}),
            tier("remote", None, 0, 0)]


def draw(*what):
    """A number from 0 to 1 that is always the same for the same things."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=6).digest(), "big") / 2**48


def explained(body, method):
    """Which tokens were computed again, and what the ranks did."""
    ratio = body["tributary"].get("ratio", RATIOS.get(method, 0))
    context = []
    for number, document in enumerate(body.get("documents") or []):
        text, title = (document, None) if isinstance(document, str) else (document["text"], document.get("title"))
        tokens = []
        for at, word in enumerate(re.findall(r"\S+\s*", text)):
            chance = draw(method, number, at, word)
            scored = method in RATIOS and method not in ("random", "epic")
            tokens.append({"text": word, "selected": method in RATIOS and chance < ratio, "score": (1 - chance) ** 4 if scored else None})
        context.append({"chunk": number, "title": title, "tokens": tokens})
    order = list(range(len(context)))
    if body["tributary"].get("reorder"):
        order.reverse()
    timeline = []
    for rank in range(WORLD):
        start = 0.02
        for phase, ms in [("chunk_prefill", 4.0), ("probe", 1.6), ("select", 0.3), ("recompute", 3.1), ("first_token", 0.4)]:
            if method in EXACT and phase not in ("chunk_prefill", "first_token"):
                continue
            ms *= 1 + 0.4 * draw(method, rank, phase) + 3 * (method in EXACT)
            timeline.append({"rank": rank, "phase": phase, "start_ms": start, "ms": ms, "waited_ms": 0.3 * ms * ((phase == "probe") == rank)})
            start += ms
    return {"context": context, "order": order, "timeline": timeline}


def error(kind, message, param=None):
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def refused(body, question):
    """The status, the error and the headers of a request that gets no answer; none of one that does."""
    if question.startswith("refuse"):
        number = int(question.split()[1])
        kind = {429: "rate_limit_error", 400: "invalid_request_error"}.get(number, "server_error")
        headers = {"Retry-After": "7"} if number in (429, 503) else {}
        return number, error(kind, f"the mock was asked for {number}", "documents[3].text" if number == 400 else None), headers
    temperature = body.get("temperature") or 0
    if temperature < 0:
        return 400, error("invalid_request_error", f"temperature {temperature}: must not be negative", "temperature"), {}
    return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Nothing is logged: the test reads what the browser says."""

    def say(self, number, kind, text, headers=()):
        data = text.encode()
        self.send_response(number)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def json(self, number, value, headers=()):
        self.say(number, "application/json", json.dumps(value), headers)

    def is_let_in(self):
        key = self.server.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.json(401, error("authentication_error", "this service wants an API key"))
        return False

    def do_GET(self):
        if self.path == "/":
            page = self.server.page.read_text()
            self.say(200, "text/html; charset=utf-8", page, {"Content-Security-Policy": policy(page), "X-Content-Type-Options": "nosniff"})
        elif self.path == "/v1/status":
            if self.is_let_in():
                self.json(200, status())
        else:
            self.json(404, error("invalid_request_error", "there is nothing here"))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_let_in():
            return
        question = body["messages"][-1]["content"]
        refusal = refused(body, question)
        if refusal:
            number, value, headers = refusal
            return self.json(number, value, headers)
        try:
            self.stream(body, question)
        except OSError:
            self.ended(body["tributary"]["method"], "cancelled")

    def event(self, value):
        data = value if isinstance(value, str) else "data: " + json.dumps(value)
        piece = f"{data}\n\n".encode()
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.flush()

    def stream(self, body, question):
        method = body["tributary"].get("method", "infoflow")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if question.startswith("late"):
            for _ in range(3):
                self.event(": keep-alive")
                time.sleep(1)
        part = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": int(STARTED), "model": "demo"}
        place = {"none": "boston", "epic": "austin"}.get(method, "lyon")
        text = [f"{place} ", ". ", "is ", place]
        if question.startswith("slow"):
            text *= 200
        if question.startswith("break"):
            text = text[:2]
        for word in text:
            time.sleep(0.25 if question.startswith("slow") else 0.05)
            self.event({**part, "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
        if question.startswith("break"):
            self.event(error("server_error", "rank 1 has failed"))
        else:
            self.closing(body, method, part, len(text))
        self.wfile.write(b"0\r\n\r\n")

    def closing(self, body, method, part, generated):
        told = explained(body, method)
        tokens = [token for chunk in told["context"] for token in chunk["tokens"]]
        ttft_ms = sum(span["ms"] for span in told["timeline"]) / WORLD
        cache = "cold" if method in EXACT or method not in KEPT else "warm"
        KEPT.add(method)
        selected = sum(token["selected"] for token in tokens)
        phases = {"tokenize": 0.5, "queue": 0.1, "dispatch": 0.01} | {span["phase"]: span["ms"] for span in told["timeline"]}
        metrics = {"ttft_ms": ttft_ms, "total_ms": ttft_ms + 50 * generated, "method": method, "exact": method in EXACT, "cache": cache,
                   "phases_ms": phases, "selected_tokens": selected, "recomputed_tokens": selected + 5,
                   "tensor_bytes_received": 1_482_304, "world_size": WORLD}
        self.event({**part, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "metrics": metrics, "tributary": told})
        usage = {"prompt_tokens": len(tokens) + 6, "completion_tokens": generated, "total_tokens": len(tokens) + 6 + generated,
                 "prompt_tokens_details": {"cached_tokens": len(tokens) if cache == "warm" else 0}}
        self.event({**part, "choices": [], "usage": usage})
        self.event("data: [DONE]")
        self.ended(method, "answered", cache=cache, ttft_ms=ttft_ms, total_ms=metrics["total_ms"], prompt_tokens=usage["prompt_tokens"],
                   generated_tokens=generated)

    def ended(self, method, outcome, **more):
        unknown = {"cache": None, "ttft_ms": None, "total_ms": None, "prompt_tokens": None, "generated_tokens": None}
        RECENT.insert(0, {"id": f"chatcmpl-{len(RECENT)}", "finished_unix_seconds": time.time(), "method": method, **unknown,
                          "outcome": outcome, **more})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "service/src/page/index.html")
    arguments = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    server.daemon_threads = True
    server.key, server.page = arguments.key, arguments.page
    print(f"serving on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
