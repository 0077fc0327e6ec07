"""Long prefills: whether the service can let go of one, end in time with one under way, and outlive one that is slow."""

import threading
import time

import kit
from kit import Row, Victim, chat, dumped, dummy_folder
from sharing import text, timed

# A prompt that takes a small machine long: each of its layers some seconds.
TOKENS = {True: 12288, False: 32768}


def long(context, share=1.0):
    return dumped(chat(text(1, int(share * TOKENS[context.short])), max_tokens=1, tributary={"method": "full"}))


def started(context, *options):
    folder = dummy_folder(context.scratch() / "demo")
    victim = Victim(context, folder, ["--load-format", "dummy", *options])
    timed(victim, chat("ba be", max_tokens=1), 20)
    return victim


def begin(victim, body):
    """A connection on which the request has been sent and is being computed."""
    connection = victim.connect()
    connection.sendall(kit.head("/v1/chat/completions", len(body)) + body)
    time.sleep(1.5)
    return connection


def gone(context):
    """E3: a prefill whose client has left is let go of."""
    with started(context) as victim:
        begin(victim, long(context)).close()
        status, seconds = timed(victim, chat("ba be", max_tokens=1), 120)
        yield Row(f"E3 a client leaves a prefill of {TOKENS[context.short]} tokens, then a short request", f"{status} after {seconds:.1f} s", "8 s", status == 200 and seconds <= 8)


def drained(context):
    """E3: `--drain-timeout` bounds the end, whatever is being computed."""
    with started(context, "--drain-timeout", 2) as victim:
        connection = begin(victim, long(context))
        began = time.monotonic()
        code = victim.end(patience=120)
        seconds = time.monotonic() - began
        connection.close()
        yield Row("E3 SIGTERM during a long prefill, --drain-timeout 2", f"exit {code} after {seconds:.1f} s", "exit 0 within 4 s", code == 0 and seconds <= 4.5)


def timeout(context):
    """E2: a prompt whose layers take longer than `--collective-timeout` ends for its client alone, or is computed, or is told at admission."""
    with started(context, "--collective-timeout", 1, "--world-size", 2) as victim:
        found = []
        asking = threading.Thread(target=lambda: found.append(timed(victim, long(context, 2 / 3), 180)), daemon=True)
        asking.start()
        asking.join(180)
        status, _ = timed(victim, chat("ba be", max_tokens=1), 20)
        said = f"{found[0][0] if found else 'no answer'} after {found[0][1]:.0f} s" if found else "no answer"
        yield Row("E2 a prompt slower than --collective-timeout 1, then a short request", f"{said}, then {status}" if victim.alive() else f"{said}, then the service is gone", "200 for the short one", victim.alive() and status == 200)
