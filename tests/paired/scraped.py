"""What scrapes cost: the time to first token of streamed requests with and without a scraper, on this machine.

    python3 tests/paired/scraped.py PROGRAM [--pairs 200] [--ranks 2] [--model examples/models/dummy-25m] [--times 1] [--every 1.0]

One `tributary serve` runs all the time. A pair is four blocks of streamed requests one after the other, two while a client asks for
/metrics every second, the first time at the start of the block, and two while none does; the outer two are of one kind, the inner two of
the other, drawn at random, so that a machine that changes its pace evenly counts for nothing. A block lasts for a second at least and counts with the mean of
its samples: a scrape falls into some of them. The chunk cache is off. What is printed are the medians, and the mean of the pairs'
differences as a share of the time without scrapes, with its 95 % interval (Student's t): its upper end must be at most 1 %. Nothing
else should run on the machine meanwhile.
"""

import contextlib
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

# The script beside this one: no module of Python's own with that name is used here.
from http import Client
from shares import pair, parser, serving, verdict

# The most that scrapes may cost, as a share of the time to first token.
ALLOWED_SHARE = 0.01


class Scraper:
    """Asks for the metrics at regular times while it is entered; keeps how long each took."""

    def __init__(self, address, every_s):
        host, port = address.split(":")
        self.address, self.every_s, self.took_ms = (host, int(port)), every_s, []
        self.bytes = f"GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n".encode()

    def __enter__(self):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def run(self):
        while not self.ended.is_set():
            began = time.perf_counter()
            with socket.create_connection(self.address) as connection:
                connection.sendall(self.bytes)
                parts = list(iter(lambda: connection.recv(65536), b""))
            if not parts or not parts[0].startswith(b"HTTP/1.1 200"):
                sys.exit(f"no metrics came: {parts[:1]}")
            self.received = sum(map(len, parts))
            self.took_ms.append(1e3 * (time.perf_counter() - began))
            self.ended.wait(self.every_s)


def block(client, options):
    """The mean time to first token of as many requests as last for the time of a scrape."""
    until, samples = time.perf_counter() + options.every, []
    while time.perf_counter() < until:
        samples.append(client.ask()[0])
    return statistics.mean(samples)


def measure(options, scratch):
    """Pairs of milliseconds, with and without scrapes; and the scraper."""
    serve, request = serving(options, scratch)
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split("http://")[1].split()[0]
            client, scraper, pairs = Client(address, request), Scraper(address, options.every), []
            block(client, options)
            for _ in range(options.pairs):

                def one(is_scraped):
                    with scraper if is_scraped else contextlib.nullcontext():
                        return block(client, options)

                pairs.append(pair(one))
        finally:
            server.terminate()
    return pairs, scraper


def main():
    options = parser(__doc__)
    options.add_argument("--every", type=float, default=1.0, help="seconds between two scrapes")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        pairs, scraper = measure(options, pathlib.Path(scratch))
    print(f"{options.model.name}, {len(pairs)} pairs, {options.ranks} ranks")
    print(f"a scrape: {scraper.received} bytes in {statistics.median(scraper.took_ms):.1f} ms (median of {len(scraper.took_ms)})")
    verdict(pairs, f"with a scrape every {options.every:g} s", ALLOWED_SHARE)


if __name__ == "__main__":
    main()
