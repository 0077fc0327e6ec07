"""The scheduler's side: which requests take their KV from the server, and how many rows. It never waits for the server.

A request passes through these states:

    asking    a thread asks the server about its id; vLLM asks again at its next step
    usable    the rules allow it; vLLM has not allocated blocks yet
    loading   the workers fetch its rows
    imported  all workers have them
    exact     vLLM computes the prompt itself, for the reason that is logged once
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from .handover import Reference, Refused, Server, Settings, Shape, check

logger = logging.getLogger("vllm.tributary")


class Request(Protocol):
    """What is read of vLLM's request."""

    request_id: str
    prompt_token_ids: list[int] | None
    cache_salt: str | None
    kv_transfer_params: dict[str, Any] | None


@dataclass(frozen=True)
class Load:
    """Rows of a request that the workers fetch: `rows` from row `first` on. Row i belongs in slot i of the blocks."""

    request: str
    reference: Reference
    first: int
    rows: int
    blocks: list[int]


@dataclass
class Entry:
    """A request that came with an id, or with something that should be one."""

    reference: Reference | None
    prompt: list[int]
    state: str = "asking"
    answer: "Future[tuple[int, dict[str, Any]]] | None" = None
    asked_at: float = 0.0
    told: str = ""
    # Rows from the first one on that the server has, and rows that are loaded.
    usable: int = 0
    rows: int = 0
    reason: str | None = None


def refusal(request: Any) -> str | None:
    """Why a request cannot take KV, whatever the server says."""
    if not request.prompt_token_ids or getattr(request, "prompt_embeds", None) is not None:
        return "its prompt holds embeddings"
    if getattr(request, "mm_features", None):
        return "its prompt holds images or other media"
    if getattr(request, "lora_request", None) is not None:
        return "it uses a LoRA adapter"
    if getattr(request, "pooling_params", None) is not None:
        return "it is a pooling request"
    if getattr(request, "resumable", False):
        return "its prompt arrives in parts"
    if getattr(request, "skip_reading_prefix_cache", False):
        return "it must not read cached KV (log-probabilities of its prompt)"
    return None


class Handovers:
    """All requests that came with an id, from their arrival until they finish."""

    def __init__(self, settings: Settings, shape: Shape, server: Callable[[str, str | None], Server] = Server, threads: int = 8):
        self._settings, self._shape, self._server = settings, shape, server
        self._key = settings.api_key()
        self._entries: dict[str, Entry] = {}
        self._loads: list[Load] = []
        # Requests that may still load from an id; the last one lets the server forget it.
        self._users: Counter[Reference] = Counter()
        self._spent: set[Reference] = set()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tributary-ask")
        # Counted since the last `take_counts`, and since the start.
        self.counts: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()

    def arrived(self, request: Request) -> None:
        """Asks the server about the id of a new request."""
        if request.request_id in self._entries:
            return
        try:
            reference = Reference.read(request.kv_transfer_params, self._settings)
        except Refused as why:
            return self._compute(request.request_id, None, str(why))
        if reference is None:
            return
        if reason := refusal(request):
            return self._compute(request.request_id, None, reason)
        entry = Entry(reference, list(request.prompt_token_ids or ()), asked_at=time.monotonic())
        self._entries[request.request_id] = entry
        self._users[reference] += 1
        entry.answer = self._pool.submit(self._ask, reference, entry.prompt, request.cache_salt)

    def rows(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Rows to load after the `computed` ones, or None while that is not known."""
        self.arrived(request)
        entry = self._entries.get(request.request_id)
        if entry is None or entry.state in ("exact", "loading"):
            return 0, False
        if entry.state == "imported":
            # Preempted: its blocks are gone, and the server has forgotten the id.
            self._leave(request.request_id, entry, "it was preempted after its import")
            return 0, False
        if entry.state == "asking" and not self._answered(request.request_id, entry):
            return (None, False) if entry.state == "asking" else (0, False)
        rows = entry.usable - computed
        if rows <= 0:
            self._leave(request.request_id, entry, "vLLM's prefix cache holds its prompt", spent=True)
            return 0, False
        return rows, True

    def allocated(self, request: Request, blocks: Sequence[int], rows: int) -> None:
        """vLLM has allocated blocks for `rows` rows to load; 0 when it goes on after a load."""
        entry = self._entries.get(request.request_id)
        if rows <= 0 or entry is None or entry.reference is None:
            return
        entry.state, entry.rows = "loading", rows
        self._loads.append(Load(request.request_id, entry.reference, entry.usable - rows, rows, list(blocks)))

    def take_loads(self) -> list[Load]:
        loads, self._loads = self._loads, []
        return loads

    def received(self, finished: Iterable[str], failed: Iterable[str]) -> None:
        """All workers have ended these loads; some of them without success."""
        failed = set(failed)
        for name in finished:
            entry = self._entries.get(name)
            if entry is None or entry.state != "loading":
                continue
            if name in failed:
                entry.rows = 0
                self._leave(name, entry, "its KV did not come; the worker's log has the reason", spent=True)
                continue
            entry.state = "imported"
            self._count("imports", 1)
            self._count("imported_tokens", entry.rows)
            logger.info("tributary: request %s: %d of %d tokens imported (%s)", name, entry.rows, len(entry.prompt), entry.told)
            self._forget(entry, spent=True)

    def finished(self, request: Request) -> dict[str, Any] | None:
        """A request has ended, perhaps early; what its answer says of the import."""
        entry = self._entries.pop(request.request_id, None)
        if entry is None:
            return None
        if entry.state in ("asking", "usable", "loading"):
            if entry.answer is not None:
                entry.answer.cancel()
            self._forget(entry, spent=entry.state == "loading")
            entry.rows = 0
        answer: dict[str, Any] = {"id": entry.reference.id if entry.reference else None, "imported_tokens": entry.rows}
        if entry.reason:
            answer["reason"] = entry.reason
        return {"tributary": answer}

    def take_counts(self) -> dict[str, int]:
        counts, self.counts = dict(self.counts), Counter()
        return counts

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, reference: Reference, prompt: list[int], salt: str | None) -> tuple[int, dict[str, Any]]:
        told = self._connect(reference).describe(reference.id, self._settings.ask_seconds)
        return check(told, prompt, salt, self._shape, self._settings.fingerprint), told

    def _connect(self, reference: Reference) -> Server:
        # The key belongs to the configured server and goes to no other.
        return self._server(reference.url, self._key if reference.url == self._settings.url else None)

    def _answered(self, name: str, entry: Entry) -> bool:
        """Whether the server has answered and the rules allow the import."""
        assert entry.answer is not None
        if not entry.answer.done():
            # The thread has a time limit itself, but others may stand before it.
            if time.monotonic() - entry.asked_at > 2 * self._settings.ask_seconds:
                entry.answer.cancel()
                self._leave(name, entry, "the server did not answer in time")
            return False
        try:
            entry.usable, told = entry.answer.result()
        except Refused as why:
            self._leave(name, entry, str(why))
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, vLLM can compute the prompt
            self._leave(name, entry, f"{type(error).__name__}: {error}")
            return False
        entry.state = "usable"
        entry.told = f"{told.get('method')}, {'exact' if told.get('exact') is True else 'approximate'}"
        return True

    def _leave(self, name: str, entry: Entry, reason: str, spent: bool = False) -> None:
        """vLLM computes what it lacks of this request."""
        if entry.state != "imported":
            self._forget(entry, spent)
        entry.state, entry.reason = "exact", reason
        self._compute(name, entry, reason)

    def _compute(self, name: str, entry: Entry | None, reason: str) -> None:
        if entry is None:
            # Remembered, so that the reason is logged once and stands in the answer.
            self._entries[name] = Entry(None, [], "exact", reason=reason)
        self._count("computed_by_vllm", 1)
        logger.info("tributary: request %s is computed by vLLM: %s", name, reason)

    def _forget(self, entry: Entry, spent: bool) -> None:
        reference = entry.reference
        assert reference is not None
        self._users[reference] -= 1
        if spent:
            self._spent.add(reference)
        if self._users[reference] > 0:
            return
        del self._users[reference]
        if reference in self._spent:
            self._spent.discard(reference)
            self._pool.submit(self._connect(reference).release, reference.id, self._settings.ask_seconds)

    def _count(self, name: str, number: int) -> None:
        self.counts[name] += number
        self.totals[name] += number
