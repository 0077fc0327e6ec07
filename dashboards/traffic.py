#!/usr/bin/env python3
"""Requests of all sorts to a service of the demo model, so that every panel has something to show: cold and warm, by several
methods, streamed, refused, given up by their clients, and more at once than it takes.

    traffic.py URL SECONDS

Fails unless each sort met with the answer that it should. It is no measurement: `tributary load` is."""

import http.client
import json
import random
import sys
import threading
import time
import urllib.parse
from collections import Counter

METHODS = ("infoflow", "relay", "epic", "prophetkv", "full", "ring", "none")
EVICTIONS = ("snapkv", "tova", "streamingllm", "laq")
NAMES = ("mary", "hugo", "zack", "susan", "vince", "teresa", "simon", "irene", "jonas", "clara")
CITIES = ("lyon", "dallas", "austin", "miami", "boston", "manila", "london", "hanoi")
CROWD = 24
NO_ANSWER = 599  # stands for a connection that was refused or cut


def document(chance):
    """A text in the demo model's words."""
    sentences = [f"{chance.choice(NAMES)} stays with {chance.choice(NAMES)} ." for _ in range(6)]
    return " ".join(["passage", f"house of {chance.choice(NAMES)} in {chance.choice(CITIES)} .", *sentences])


class Clients:
    """Sends requests and counts what came of them."""

    def __init__(self, url, until):
        self.host = urllib.parse.urlsplit(url).netloc
        self.until = until
        self.seen = Counter()
        self.lock = threading.Lock()

    def body(self, chance, documents, tokens=8, **choices):
        question = f"question : {chance.choice(NAMES)} stays in"
        request = {"messages": [{"role": "user", "content": question}], "documents": documents, "max_tokens": tokens}
        return request | ({"tributary": choices} if choices else {})

    def send(self, body):
        """The status of an answer, read to its end."""
        try:
            connection, answer = self.ask(body)
            answer.read()
            connection.close()
        except (OSError, http.client.HTTPException):
            return NO_ANSWER
        return answer.status

    def ask(self, body):
        """A connection, and an answer that has begun."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def count(self, sort, status):
        with self.lock:
            self.seen[(sort, status)] += 1

    def repeat(self, work, pause_s):
        """Does it again and again until the time is up."""
        chance = random.Random(work.__name__)
        while time.monotonic() < self.until:
            work(chance)
            time.sleep(pause_s)

    def cold(self, chance):
        self.count("cold", self.send(self.body(chance, [document(chance) for _ in range(6)])))

    def warm(self, chance):
        kept = random.Random("kept")
        self.count("warm", self.send(self.body(chance, [document(kept) for _ in range(8)])))

    def partly_warm(self, chance):
        kept = random.Random("kept")
        documents = [*(document(kept) for _ in range(8)), document(chance)]
        self.count("partly warm", self.send(self.body(chance, documents)))

    def methods(self, chance):
        documents = [document(chance) for _ in range(4)]
        self.count("methods", self.send(self.body(chance, documents, method=chance.choice(METHODS))))

    def forgetting(self, chance):
        body = self.body(chance, [document(chance) for _ in range(4)], evict=chance.choice(EVICTIONS), keep=chance.choice([40, "30%"]))
        self.count("forgetting", self.send(body))

    def streamed(self, chance):
        body = self.body(chance, [document(chance) for _ in range(4)], tokens=60) | {"stream": True}
        self.count("streamed", self.send(body))

    def refused(self, chance):
        wrong = chance.choice([{"messages": []}, {"messages": [{"role": "user", "content": "question"}], "n": 3}])
        self.count("refused", self.send(wrong))

    def given_up(self, chance):
        """Leaves while the answer streams."""
        body = self.body(chance, [document(chance)], tokens=3000) | {"stream": True}
        try:
            connection, answer = self.ask(body)
            answer.read(64)
        except (OSError, http.client.HTTPException):
            self.count("given up", NO_ANSWER)
            return
        self.count("given up", answer.status)
        answer.close()
        connection.close()

    def crowd(self, chance):
        """More at once than may wait."""
        bodies = [self.body(chance, [document(chance) for _ in range(8)]) for _ in range(CROWD)]
        threads = [threading.Thread(target=lambda body=body: self.count("crowd", self.send(body))) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


# What each sort has to be answered at least once.
WANTED = [
    *((sort, 200) for sort in ("cold", "warm", "partly warm", "methods", "forgetting", "streamed", "given up", "crowd")),
    ("refused", 400),
    ("crowd", 429),
]


def main(url, seconds):
    clients = Clients(url, time.monotonic() + float(seconds))
    pauses = [
        (clients.cold, 0.3),
        (clients.warm, 0.2),
        (clients.partly_warm, 0.4),
        (clients.methods, 0.2),
        (clients.forgetting, 0.3),
        (clients.streamed, 0.5),
        (clients.refused, 1.0),
        (clients.given_up, 1.5),
        (clients.crowd, 2.0),
    ]
    threads = [threading.Thread(target=clients.repeat, args=pause) for pause in pauses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = sorted((sort, status, count) for (sort, status), count in clients.seen.items())
    print("traffic:", ", ".join(f"{count} {sort} {status}" for sort, status, count in seen))
    failed = [f"{sort} was answered {status}" for sort, status, _ in seen if status >= 500]
    failed += [f"{sort} was never answered {status}" for sort, status in WANTED if not clients.seen[(sort, status)]]
    print(*failed, sep="\n", end="\n" if failed else "")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
