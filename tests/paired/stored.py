"""What storing chunks costs the requests that come meanwhile: the time to first token of cold requests with and without a chunk store.

    python3 tests/paired/stored.py PROGRAM [--pairs 200] [--ranks 2] [--model examples/models/dummy-25m] [--times 1] [--requests 5] [--chunk-cache 256MiB]

Two services run all the time, one of which stores the chunks of every request after its first token; one at a time is asked. Both keep chunks
in memory, as by default, but no more than a few requests' worth. Every request has new documents. The
time of a block is the median of its requests, so that a moment in which the machine does something else counts for little. A pair is four blocks of requests one after the other, two to each service; the outer two are
of one kind, the inner two of the other, drawn at random, so that a machine that changes its pace evenly counts for nothing. Between blocks
there is a pause, in which the writer comes to its end: it disturbs its own service only, from the second request of a block on. What is printed are the
medians, and the mean of the pairs' differences as a share of the time without a store, with its 95 % interval (Student's t): its upper end must be at
most 2 %. Nothing else should run on the machine meanwhile.
"""

import itertools
import pathlib
import statistics
import subprocess
import tempfile
import time

# The script beside this one: no module of Python's own with that name is used here.
from http import Client
from shares import pair, parser, serving, verdict

# The most that storing may cost, as a share of the time to first token.
ALLOWED_SHARE = 0.02

# Seconds between two blocks.
PAUSE_S = 0.3


class Service:
    """A service, and the requests that it is asked."""

    def __init__(self, serve, request, numbers):
        self.process = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().split("http://")[1].split()[0]
        self.request, self.numbers = request, numbers

    def block(self, count):
        """The median time to first token of `count` requests."""
        samples = []
        for _ in range(count):
            number = next(self.numbers)
            new = [f"{number} {text}" for text in self.request["documents"]]
            samples.append(Client(self.address, {**self.request, "documents": new}).ask()[0])
        time.sleep(PAUSE_S)
        return statistics.median(samples)


def measure(options, scratch):
    """Pairs of milliseconds, with and without a store; and the bytes that were stored."""
    serve, request = serving(options, scratch)
    serve[serve.index("--chunk-cache") + 1] = options.chunk_cache
    serve += ["--self-test-interval", "86400"]
    store, numbers = scratch / "store", itertools.count()
    stores = ["--chunk-store", str(store), "--chunk-store-size", "4GiB"]
    services = {True: Service(serve + stores, request, numbers), False: Service(serve, request, numbers)}
    try:
        for service in services.values():
            service.block(options.requests)
        pairs = [pair(lambda is_stored: services[is_stored].block(options.requests)) for _ in range(options.pairs)]
    finally:
        for service in services.values():
            service.process.terminate()
            service.process.wait()
    return pairs, sum(file.stat().st_size for file in store.rglob("*.safetensors"))


def main():
    options = parser(__doc__)
    options.add_argument("--requests", type=int, default=5, help="requests of a block")
    options.add_argument("--chunk-cache", default="256MiB", help="what a rank keeps of chunks in memory, or off")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        pairs, stored_bytes = measure(options, pathlib.Path(scratch))
    print(f"{options.model.name}, {len(pairs)} pairs, {options.ranks} ranks, {stored_bytes / 2**20:.0f} MiB stored")
    verdict(pairs, "with a store", ALLOWED_SHARE)


if __name__ == "__main__":
    main()
