"""The hand-over API: settings, the rules of what vLLM may take, and the HTTP calls. Knows neither vLLM nor torch."""

import http.client
import json
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

VERSION = 1
HASH_BYTES = 32
# Read, and hashed, at a time.
READ_BYTES = 1 << 20
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
# What the description of a prefill may take: the ids of a million tokens and more.
DESCRIPTION_BYTES = 32 << 20


class Refused(Exception):
    """The reason why KV is not taken from the server. vLLM computes the prompt itself then."""


@dataclass(frozen=True)
class Shape:
    """What the server's KV and vLLM's cache must agree on; `kv_heads` counts those of all tensor-parallel ranks."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of a token in one layer: its keys and its values."""
        return 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Part:
    """The KV heads of a row that a worker holds."""

    shape: Shape
    heads: range

    @property
    def row_bytes(self) -> int:
        """Bytes of a token in one layer."""
        return self.shape.row_bytes // self.shape.kv_heads * len(self.heads)

    @property
    def query(self) -> str:
        """How the server is asked for them; nothing where they are all."""
        return "" if len(self.heads) == self.shape.kv_heads else f"&first_head={self.heads.start}&heads={len(self.heads)}"


@dataclass(frozen=True)
class Settings:
    """`kv_connector_extra_config` of vLLM's `--kv-transfer-config`."""

    url: str
    # A file with the API key; else the environment variable TRIBUTARY_API_KEY. vLLM logs its config, so the key is not in it.
    api_key_file: str | None = None
    # The server must answer with this fingerprint of weights and config.
    fingerprint: str | None = None
    # Whether a request may name another server than `url`.
    allow_url: bool = False
    # Whether to start on versions of vLLM that were not tested.
    allow_untested: bool = False
    ask_seconds: float = 5.0
    load_seconds: float = 600.0

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "Settings":
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(f"tributary: unknown kv_connector_extra_config: {', '.join(unknown)} (known: {', '.join(sorted(known))})")
        if not isinstance(given.get("url"), str):
            raise ValueError('tributary: kv_connector_extra_config needs the server\'s "url"')
        return cls(**given)

    def api_key(self) -> str | None:
        if self.api_key_file is None:
            return os.environ.get("TRIBUTARY_API_KEY") or None
        with open(self.api_key_file, encoding="ascii") as file:
            return next((line for line in map(str.strip, file) if line and not line.startswith("#")), None)


@dataclass(frozen=True)
class Reference:
    """The id of a prefill and the server that has it."""

    id: str
    url: str

    @classmethod
    def read(cls, params: Mapping[str, Any] | None, settings: Settings) -> "Reference | None":
        """The reference in a request's `kv_transfer_params`, if there is one."""
        given = (params or {}).get("tributary")
        if given is None:
            return None
        if not isinstance(given, Mapping) or not re.fullmatch(r"kv-[0-9a-f]{32}", str(given.get("id"))):
            raise Refused("its kv_transfer_params hold no valid id")
        url = given.get("url") or settings.url
        if url != settings.url and not settings.allow_url:
            raise Refused("it names another server, and allow_url is not set")
        return cls(given["id"], str(url))


def check(told: Mapping[str, Any], prompt: Sequence[int], salt: str | None, shape: Shape, fingerprint: str | None = None) -> int:
    """Rows that a prompt may take of the KV that the server describes as `told`; raises `Refused` with the reason why none.

    The prompt is the prefilled one, or goes on from it, as where the server has drawn the first token already. The prompt's last token is
    computed by vLLM in any case: its logits are needed.
    """
    if told.get("version") != VERSION:
        raise Refused(f"the server hands over version {told.get('version')}, not {VERSION}")
    if told.get("status") == "failed":
        error = told.get("error")
        raise Refused(f"the prefill failed: {error.get('message') if isinstance(error, Mapping) else error}")
    if told.get("status") not in ("planned", "done"):
        raise Refused(f"the prefill is {told.get('status')}")
    for name in ("layers", "kv_heads", "head_dim", "dtype"):
        if told.get(name) != getattr(shape, name):
            raise Refused(f"the server's {name} is {told.get(name)}, vLLM's is {getattr(shape, name)}")
    if fingerprint is not None and told.get("fingerprint") != fingerprint:
        raise Refused("the server's fingerprint is not the one in kv_connector_extra_config")
    ids = told.get("token_ids")
    if not isinstance(ids, list) or told.get("tokens") != len(ids):
        raise Refused("the server's token ids and their count differ")
    if not ids or len(ids) > len(prompt) or any(a != b for a, b in zip(ids, prompt)):
        raise Refused("the prompt does not begin with the prefilled one")
    # Approximate KV belongs under a key of its own in vLLM's prefix cache. A connector cannot set it; the request must bring it.
    if told.get("exact") is not True:
        expected = told.get("cache_salt")
        if not isinstance(expected, str) or not expected:
            raise Refused("the server tells no cache_salt for approximate KV")
        if salt != expected:
            raise Refused("its cache_salt is not that of the approximate KV")
    return min(len(ids), len(prompt) - 1)


def heads_of_rank(kv_heads: int, ranks: int, rank: int) -> range:
    """The KV heads of a tensor-parallel rank. Where there are more ranks than heads, several ranks hold the same head."""
    if ranks >= kv_heads:
        head = rank // (ranks // kv_heads)
        return range(head, head + 1)
    each = kv_heads // ranks
    return range(rank * each, (rank + 1) * each)


def pieces(first: int, rows: int, at_once: int) -> Iterator[tuple[int, int]]:
    """The rows from `first` on as pairs of a first row and a count of at most `at_once`."""
    for start in range(first, first + rows, at_once):
        yield start, min(at_once, first + rows - start)


class Hasher(Protocol):
    def update(self, data: memoryview, /) -> Any: ...

    def digest(self) -> bytes: ...


def blake3() -> Hasher:
    import blake3 as library

    hasher: Hasher = library.blake3()
    return hasher


class Server:
    """One server. A connection serves one thread; `layer` keeps it open between pieces."""

    def __init__(self, url: str, key: str | None, hasher: Callable[[], Hasher] = blake3):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise Refused(f"not the URL of a server: {url}")
        self._class = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._hasher = hasher
        self._connection: http.client.HTTPConnection | None = None
        self._closed = False

    def describe(self, id: str, seconds: float) -> dict[str, Any]:
        """What the server tells of a prefill."""
        try:
            answer = self._request("GET", f"/v1/prefill/{id}", seconds)
            text = answer.read(DESCRIPTION_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"the server does not answer: {error or type(error).__name__}") from error
        finally:
            self.close()
        if answer.status == 404:
            raise Refused("the server does not know its id: expired, released or never given")
        if answer.status != 200:
            raise Refused(f"the server answers {answer.status}")
        try:
            told = json.loads(text)
        except ValueError as error:
            raise Refused("the server's answer is not JSON") from error
        if not isinstance(told, dict) or told.get("id") != id:
            raise Refused("the server's answer is of another id")
        return told

    def layer(self, id: str, layer: int, rows: range, part: Part, deadline: float, room: bytearray | None = None) -> memoryview:
        """Rows of one layer, of some KV heads or all, their hash checked. Waits until the server has computed the layer.

        They lie in `room` if that is large enough: new memory costs as much time as the copy into it.
        """
        size = len(rows) * part.row_bytes
        length = size + HASH_BYTES
        data = memoryview(room if room is not None and len(room) >= length else bytearray(length))[:length]
        where = f"layer {layer}, rows {rows.start}-{rows.stop}"
        try:
            answer = self._request("GET", f"/v1/kv/{id}/{layer}?first={rows.start}&rows={len(rows)}{part.query}", deadline - time.monotonic())
            if answer.status != 200:
                raise Refused(f"{where}: the server answers {answer.status}: {answer.read(300).decode(errors='replace')}")
            read, hasher = 0, self._hasher()
            while read < length:
                if time.monotonic() > deadline:
                    raise Refused(f"{where}: not there in time")
                count = answer.readinto(data[read : read + READ_BYTES])
                if not count:
                    raise Refused(f"{where}: {read} of {length} bytes came")
                # While the server sends the next ones.
                hasher.update(data[read : min(read + count, size)])
                read += count
            if answer.read(1):
                raise Refused(f"{where}: more bytes came than {length}")
        except TimeoutError as error:
            raise Refused(f"{where}: not there in time") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Refused(f"{where}: {error or type(error).__name__}") from error
        if hasher.digest() != data[size:]:
            raise Refused(f"{where}: damaged, the hash is another")
        return data[:size]

    def release(self, id: str, seconds: float) -> None:
        """Lets the server forget a prefill. A failure is no loss: the id expires."""
        try:
            self._request("DELETE", f"/v1/prefill/{id}", seconds).read(1)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Ends the connection; a read that waits in another thread ends with an error."""
        self._closed = True
        connection = self._connection
        if connection is None:
            return
        if connection.sock is not None:
            try:
                connection.sock.shutdown(2)
            except OSError:
                pass
        connection.close()

    def _request(self, method: str, path: str, seconds: float) -> http.client.HTTPResponse:
        if seconds <= 0:
            raise TimeoutError
        # A server may have closed a connection that waited between two pieces: one more try, on a fresh one.
        for last in (self._connection is None, True):
            if self._closed:
                raise OSError("stopped")
            if self._connection is None:
                self._connection = self._class(self._host, self._port, timeout=seconds)
            try:
                self._connection.timeout = seconds
                if self._connection.sock is not None:
                    self._connection.sock.settimeout(seconds)
                self._connection.request(method, self._path + path, headers=self._headers)
                return self._connection.getresponse()
            except (ConnectionError, http.client.RemoteDisconnected):
                self._connection.close()
                self._connection = None
                if last:
                    raise
        raise AssertionError("the last try returns or raises")
