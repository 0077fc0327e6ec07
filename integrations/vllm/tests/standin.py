"""A stand-in for `tributary serve`: its hand-over API over HTTP, with KV from a function. Standard library only.

Faults can be set on a prefill: it fails, its bytes are damaged, cut short or delayed, or other values are told of it.
"""

import hashlib
import json
import re
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tributary_vllm.handover import Part


def blake2(data=b""):
    """Where BLAKE3 is not installed: as long, and as good for a test that both sides use it."""
    return hashlib.blake2s(data)


def rows_of(kv, part, first, rows):
    """Rows of a layer with the heads of a part."""
    head = part.shape.row_bytes // (2 * part.shape.kv_heads)
    kinds = range(2 * first, 2 * (first + rows))
    starts = (kind * part.shape.kv_heads * head for kind in kinds)
    return b"".join(kv[start + part.heads.start * head:start + part.heads.stop * head] for start in starts)


class Prefill:
    """One prefill. `kv(layer)` gives the layer's bytes: `[tokens, 2, kv_heads, head_dim]`."""

    def __init__(self, token_ids, shape, kv, exact=True, method="full", **told):
        self.id = "kv-" + secrets.token_hex(16)
        self.kv, self.shape = kv, shape
        self.salt = None if exact else "tributary-" + secrets.token_hex(32)
        self.told = {
            "id": self.id, "object": "tributary.prefill", "version": 1, "status": "planned", "model": "stand-in", "fingerprint": "0" * 64,
            "method": method, "exact": exact, "token_ids": list(token_ids), "tokens": len(token_ids), "layers": shape.layers,
            "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "dtype": shape.dtype, "cache_salt": self.salt, "expires_in_s": 60, **told,
        }
        # Faults.
        self.fails_at_layer = None
        self.damage = None  # (layer, row): a bit of it is flipped after the hash was made
        self.cut_layer = None
        self.seconds = 0.0  # before each layer
        self.gate = None  # an event that layers wait for


class StandIn:
    """The server, on a free port of loopback; used with `with`."""

    def __init__(self, hasher=blake2, key=None):
        self.hasher, self.key = hasher, key
        self.prefills, self.released, self.asked, self.rows_sent = {}, [], [], 0
        self.lock = threading.Lock()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body go out in two writes.
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_GET(self):
                stand_in.get(self)

            def do_DELETE(self):
                stand_in.delete(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def add(self, prefill):
        with self.lock:
            self.prefills[prefill.id] = prefill
        return prefill

    def drop(self, prefill):
        """It expires."""
        with self.lock:
            self.prefills.pop(prefill.id, None)

    def get(self, handler):
        self.asked.append((handler.path, handler.headers.get("Authorization")))
        if not self.allowed(handler):
            return
        if found := re.fullmatch(r"/v1/prefill/(kv-[0-9a-f]{32})", handler.path):
            if prefill := self.prefills.get(found[1]):
                return self.answer(handler, 200, prefill.told)
        elif found := re.fullmatch(r"/v1/kv/(kv-[0-9a-f]{32})/(\d+)\?first=(\d+)&rows=(\d+)(?:&first_head=(\d+)&heads=(\d+))?", handler.path):
            if prefill := self.prefills.get(found[1]):
                return self.layer(handler, prefill, *(None if one is None else int(one) for one in found.groups()[1:]))
        self.answer(handler, 404, {"error": {"message": "unknown", "type": "not_found"}})

    def layer(self, handler, prefill, layer, first, rows, first_head, heads):
        if prefill.gate is not None:
            prefill.gate.wait(30)
        time.sleep(prefill.seconds)
        if prefill.id not in self.prefills:
            return self.answer(handler, 404, {"error": {"message": "expired", "type": "not_found"}})
        if prefill.fails_at_layer is not None and layer >= prefill.fails_at_layer:
            return self.answer(handler, 502, {"error": {"message": "a rank has died", "type": "prefill_failed"}})
        part = Part(prefill.shape, range(prefill.shape.kv_heads) if heads is None else range(first_head, first_head + heads))
        sent, size = bytearray(rows_of(prefill.kv(layer), part, first, rows)), part.row_bytes
        assert len(sent) == rows * size, (first, rows, len(sent))
        hashed = self.hasher(memoryview(sent)).digest()
        if prefill.damage is not None and prefill.damage[0] == layer and first <= prefill.damage[1] < first + rows:
            sent[(prefill.damage[1] - first) * size] ^= 1
        body = bytes(sent) + hashed
        handler.send_response(200)
        handler.send_header("Content-Type", "application/octet-stream")
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("x-tributary-rows", f"{first}-{first + rows}/{prefill.told['tokens']}")
        handler.end_headers()
        if prefill.cut_layer == layer:
            body = body[:len(body) // 2]
            handler.close_connection = True
        try:
            handler.wfile.write(body)
        except OSError:
            return
        with self.lock:
            self.rows_sent += rows

    def delete(self, handler):
        if not self.allowed(handler):
            return
        id = handler.path.rsplit("/", 1)[1]
        with self.lock:
            known = self.prefills.pop(id, None)
            self.released.append(id)
        handler.send_response(204 if known else 404)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def allowed(self, handler):
        if self.key is None or handler.headers.get("Authorization") == f"Bearer {self.key}":
            return True
        self.answer(handler, 401, {"error": {"message": "no valid key", "type": "authentication"}})
        return False

    def answer(self, handler, status, value):
        body = json.dumps(value).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
