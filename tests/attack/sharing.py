"""What clients do to each other: queues, reservations, turns, and what the cache tells."""

import random
import threading
import time

import kit
from kit import MIB, Row, Victim, chat, dumped, dummy_folder, parallel


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def two_keys(context):
    keys = context.scratch() / "keys"
    keys.write_text("key-of-a\nkey-of-b\n")
    keys.chmod(0o600)
    return keys


def timed(victim, body, patience, headers=()):
    """Status and seconds of a request."""
    began = time.monotonic()
    try:
        status, _ = victim.post("/v1/chat/completions", body, timeout=patience, headers=headers)
    except OSError as error:
        status = type(error).__name__
    return status, time.monotonic() - began


def tokenizing(context):
    """E5: long texts that are read do not hold up short requests."""
    count, size, patience = (8, 1, 30) if context.short else (8, 2, 120)
    small = chat("code of purse is", documents=["code of purse is 4 7 1 ."])
    with Victim(context, options=["--max-body-size", "64MiB"]) as victim:
        timed(victim, small, 30)
        alone = min(timed(victim, small, 30)[1] for _ in range(3))
        body = dumped(chat("hugo stays with mary . " * (size * MIB // 23)))
        threads, _ = parallel(count, lambda _: victim.post("/v1/chat/completions", body, timeout=patience))
        time.sleep(0.3)
        status, seconds = timed(victim, small, patience)
        kit.joined(threads, patience)
        bound = 1 + 10 * alone
        yield Row(f"E5 {count} texts of {size} MiB, then a warm request", f"{status} after {seconds:.2f} s ({alone:.3f} alone)", f"{bound:.1f} s", status == 200 and seconds <= bound)
    if context.short:
        return
    with Victim(context, options=["--max-body-size", "64MiB", "--max-waiting", 4]) as victim:
        body = dumped(chat("hugo stays with mary . " * (8 * MIB // 23)))
        before = victim.peak_from_here()
        threads, results = parallel(24, lambda _: victim.post("/v1/chat/completions", body, timeout=120)[0])
        kit.joined(threads, 180)
        turned = sum(result == 429 for result in results)
        grown = victim.peak() - before
        yield Row("E5 24 texts of 8 MiB where 4 may wait", f"{turned} turned away, +{grown / MIB:.0f} MiB", "some with 429; 512 MiB", victim.alive() and turned > 0 and grown <= 512 * MIB)


def reserving(context):
    """E6: requests that could become long do not keep short ones out."""
    folder = dummy_folder(context.scratch() / "demo")
    patience = 20 if context.short else 60
    with Victim(context, folder, ["--load-format", "dummy", "--max-tokens-limit", 131072]) as victim:
        stop = threading.Event()

        def hold(_):
            import socket

            body = dumped(chat("a b c", max_tokens=131000, stream=True))
            with victim.connect(patience) as connection:
                connection.sendall(kit.head("/v1/chat/completions", len(body)) + body)
                connection.settimeout(1)
                got = b""
                while not stop.is_set():
                    try:
                        part = connection.recv(65536)
                    except socket.timeout:
                        continue
                    if not part:
                        break
                    got = got or part[:200]
                return got

        _, results = parallel(24, hold)
        time.sleep(2)
        status, seconds = timed(victim, chat("d e f", max_tokens=1), patience)
        stop.set()
        yield Row("E6 24 requests with max_tokens 131000, then a short one", f"{status} after {seconds:.1f} s", "answered within 10 s", status == 200 and seconds <= 10)


def text(number, tokens):
    """A text of `tokens` tokens of the 25 M shape's tokenizer, another one for each number."""
    draw = random.Random(number)
    return " ".join("".join(draw.choice("bcdfghjklm") + draw.choice("aeiou") for _ in range(2)) for _ in range(tokens))


def turns(context):
    """E7: one key's requests do not keep another's waiting, and Retry-After tells what is predicted."""
    folder = dummy_folder(context.scratch() / "demo")
    count, tokens, patience = (10, 512, 40) if context.short else (50, 1024, 180)
    options = ["--load-format", "dummy", "--api-key-file", two_keys(context), "--max-waiting", count]
    with Victim(context, folder, options) as victim:
        long = [chat(text(number, tokens), max_tokens=2) for number in range(3 * count + 2)]
        alone = max(timed(victim, long[-1 - number], patience, bearer("key-of-a"))[1] for number in range(2))
        threads, _ = parallel(count, lambda number: victim.post("/v1/chat/completions", long[number], timeout=patience, headers=bearer("key-of-a")))
        time.sleep(0.5)
        status, seconds = timed(victim, chat("ab ac", max_tokens=1), patience, bearer("key-of-b"))
        bound = 3 * alone + 1
        yield Row(f"E7 {count} requests of one key, then another's", f"{status} after {seconds:.1f} s (one takes {alone:.2f})", f"{bound:.1f} s", status == 200 and seconds <= bound)
        _, seen = parallel(2 * count, lambda number: victim.exchange("/v1/chat/completions", long[count + number], timeout=patience, headers=bearer("key-of-a")))
        time.sleep(0.7)
        told = [int(result[2]["retry-after"]) for result in seen if isinstance(result, tuple) and result[0] == 429 and result[2]["retry-after"]]
        waiting = float(next((line.rsplit(" ", 1)[1] for line in victim_metrics(victim) if line.startswith("tributary_requests_waiting")), 0))
        wait = waiting * alone
        right = bool(told) and max(told) >= min(max(wait / 4, 1), 60)
        yield Row("E7 Retry-After of refused clients", f"{max(told, default=None)} s where {waiting:.0f} wait, {wait:.0f} s by their times" if told else "no client was refused", "a quarter of that at least", right)


def victim_metrics(victim):
    import urllib.request

    request = urllib.request.Request(victim.url + "/metrics", headers=bearer("key-of-a"))
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode().splitlines()


def cached(context):
    """E11: what one key has asked does not show in another's counts."""
    has = "--cache-per-key" in context.options()
    options = ["--api-key-file", two_keys(context)] + (["--cache-per-key"] if has else [])
    body = chat("code of purse is", documents=["code of purse is 4 7 1 . " * 8, "a cat walks . " * 8])
    with Victim(context, options=options) as victim:
        counts = []
        for key in ("key-of-a", "key-of-a", "key-of-b"):
            _, answer = victim.post("/v1/chat/completions", body, headers=bearer(key))
            counts.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        said = f"{counts[2]} tokens of a's tell b, {counts[1]} tell a" + ("" if has else " (no --cache-per-key)")
        yield Row("E11 another key's documents", said, "0 tell b with --cache-per-key", has and counts[2] == 0 and counts[1] > 0)
