"""The worker's side: threads fetch rows, the worker's own thread writes them into the cache between two forward passes.

Only the worker's thread touches the cache: on a CPU nothing else orders a write with a running forward pass, and on a GPU it is the
thread whose stream the next pass runs on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .handover import Part, Refused, Server, Settings, pieces
from .scheduler import Load

logger = logging.getLogger("vllm.tributary")

# Rows come in pieces of this size, and a load holds at most this many of them: memory is bounded, whatever a prompt's length.
PIECE_BYTES = 16 << 20
PIECES_HELD = 4
FETCHERS = 2


@dataclass(frozen=True)
class Piece:
    layer: int
    first: int
    rows: int
    data: memoryview


class Rooms:
    """Memory of pieces that have been written, for the next ones: as much as one load holds."""

    def __init__(self) -> None:
        self._rooms: deque[bytearray] = deque(maxlen=PIECES_HELD)

    def take(self) -> bytearray | None:
        try:
            return self._rooms.pop()
        except IndexError:
            return None

    def give(self, data: memoryview) -> None:
        self._rooms.append(data.obj)


class Loading:
    """Fetches one load, layer after layer, a few pieces at a time: the server gathers one while another is on its way."""

    def __init__(self, load: Load, server: Callable[[], Server], part: Part, layers: Iterable[int], deadline: float, piece_bytes: int,
                 came: Callable[[], None], rooms: Rooms):
        self.load = load
        self._came, self._rooms = came, rooms
        self._part, self._deadline = part, deadline
        rows_at_once = max(1, piece_bytes // part.row_bytes)
        self._wanted = deque((layer, *piece) for layer in layers for piece in pieces(load.first, load.rows, rows_at_once))
        self._ready: deque[Piece] = deque()
        # Pieces that are asked for and not there.
        self._coming = 0
        self._changed = threading.Condition()
        self._stopped = False
        self.failure: str | None = None
        self._servers = [server() for _ in range(min(FETCHERS, len(self._wanted)))]
        self._running = len(self._servers)
        self.threads = [threading.Thread(target=self._fetch, args=(each,), name=f"tributary-{load.request}", daemon=True) for each in self._servers]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def _fetch(self, server: Server) -> None:
        failure = None
        try:
            while (wanted := self._next()) is not None:
                layer, first, rows = wanted
                data = server.layer(self.load.reference.id, layer, range(first, first + rows), self._part, self._deadline, self._rooms.take())
                with self._changed:
                    self._coming -= 1
                    self._ready.append(Piece(layer, first, rows, data))
                self._came()
        except Refused as why:
            failure = str(why)
        except Exception as error:  # noqa: BLE001 - whatever it is, vLLM can compute the prompt
            failure = f"{type(error).__name__}: {error}"
        finally:
            server.close()
            with self._changed:
                # The first failure is the reason; those of other threads follow from it.
                self.failure = self.failure or failure
                self._running -= 1
            self._came()

    def _next(self) -> tuple[int, int, int] | None:
        """Waits for room for one more piece, and takes it from the list; None where there is none, and once stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._ready) + self._coming < PIECES_HELD)
            if self._stopped or self.failure is not None or not self._wanted:
                return None
            self._coming += 1
            return self._wanted.popleft()

    def take(self) -> Piece | None:
        with self._changed:
            if not self._ready or self.failure is not None:
                return None
            self._changed.notify_all()
            return self._ready.popleft()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._ready.clear()
            self._changed.notify_all()
        for server in self._servers:
            server.close()

    def complete(self) -> bool:
        with self._changed:
            return self.failure is not None or (self._running == 0 and not self._ready)


class Loads:
    """The loads of one worker."""

    def __init__(self, settings: Settings, part: Part, layers: Iterable[int], server: Callable[[str, str | None], Server] = Server,
                 piece_bytes: int = PIECE_BYTES):
        self._settings, self._part, self._layers = settings, part, list(layers)
        self._server, self._piece_bytes = server, piece_bytes
        self._key = settings.api_key()
        self._loading: dict[str, Loading] = {}
        self._stopped: set[str] = set()
        # Set when a piece has come and when a thread has ended.
        self._came = threading.Event()
        self._rooms = Rooms()

    def start(self, load: Load) -> None:
        url = load.reference.url
        key = self._key if url == self._settings.url else None
        deadline = time.monotonic() + self._settings.load_seconds
        loading = Loading(load, lambda: self._server(url, key), self._part, self._layers, deadline, self._piece_bytes, self._came.set, self._rooms)
        self._loading[load.request] = loading
        loading.start()

    def write(self, budget: int, write: Callable[[Load, Piece], None]) -> int:
        """Writes pieces that have come, until they are `budget` bytes; the number of bytes."""
        written, some = 0, True
        while some and written < budget:
            some = False
            for loading in self._loading.values():
                piece = loading.take()
                if piece is None:
                    continue
                try:
                    write(loading.load, piece)
                except Exception as error:  # noqa: BLE001 - as above; the engine must live
                    loading.stop()
                    loading.failure = f"layer {piece.layer}: {type(error).__name__}: {error}"
                written, some = written + len(piece.data), True
                self._rooms.give(piece.data)
        return written

    def write_for(self, seconds: float, budget: int, write: Callable[[Load, Piece], None]) -> int:
        """As `write`, and waits for pieces for this long, until a load has ended: the threads that fetch have the processor to themselves."""
        written, end = 0, time.monotonic() + seconds
        while True:
            self._came.clear()
            written += self.write(budget - written, write)
            left = end - time.monotonic()
            if written >= budget or left <= 0 or not self._loading or any(loading.complete() for loading in self._loading.values()):
                return written
            self._came.wait(left)

    def stop(self, requests: Iterable[str]) -> None:
        """These requests have ended. Loads that still go on end without another write; they are reported as finished once."""
        for name in requests:
            if name in self._loading:
                self._loading.pop(name).stop()
                self._stopped.add(name)

    def take_finished(self) -> tuple[set[str], set[str]]:
        """Loads that have ended since the last call, and those of them that failed."""
        finished, self._stopped = self._stopped, set()
        failed = set()
        for name, loading in list(self._loading.items()):
            if not loading.complete():
                continue
            del self._loading[name]
            finished.add(name)
            if loading.failure is not None:
                failed.add(name)
                loading.stop()
                logger.warning("tributary: request %s: its KV did not come: %s", name, loading.failure)
        return finished, failed

    def close(self) -> None:
        self.stop(list(self._loading))
