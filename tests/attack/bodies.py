"""Bodies of requests: how much memory they take, who may send them, and what they may hold."""

import json
import time

import kit
from kit import MIB, Row, Victim, chat, dummy_folder, dumped, head, parallel, status_of

# Words, single digits, signs and blanks, as many published tokenizers split them.
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def forms(size):
    """Bodies of about `size` bytes whose parsed form, or whose tokens, take far more than their bytes."""
    user = b'"messages":[{"role":"user","content":"a"}],"max_tokens":1'
    yield "chat of `a a a ..`", dumped(chat("a " * (size // 2), max_tokens=1))
    yield "`tools` of empty objects", b'{"tools":[' + b"{}," * (size // 3) + b"{}]," + user + b"}"
    yield "`documents` of one letter", b'{"documents":[' + b'"a",' * (size // 4) + b'"a"],' + user + b"}"
    yield "nested lists", b'{"metadata":' + b"[[],[]," * (size // 14) + b"1" + b"]" * (size // 14) + b"," + user + b"}"
    yield "lists of numbers in `prompt`", b'{"prompt":[' + b"1," * (size // 2) + b"1]}"
    yield "content in parts", b'{"messages":[{"role":"user","content":[' + b'{"type":"text","text":"a"},' * (size // 27) + b'{"type":"text","text":"a"}]}]}'
    yield "`metadata` of many keys", b'{"metadata":{' + b",".join(b'"%x":0' % number for number in range(size // 13)) + b"}," + user + b"}"
    yield "one word without a space", dumped(chat("a" * size, max_tokens=1))


def memory(context):
    """E1: memory follows the body, within a bound in all."""
    sizes = [2] if context.short else [2, 16, 40]
    for size in sizes:
        for name, body in forms(size * MIB):
            # Each has a separate service: memory that an earlier body left would hide that of this one.
            victim = Victim(context, options=["--max-body-size", f"{size + 1}MiB"])
            path = "/v1/completions" if b'"prompt"' in body[:12] else "/v1/chat/completions"
            before, began = victim.peak_from_here(), time.monotonic()
            try:
                status, _ = victim.post(path, body, timeout=90)
            except OSError as error:
                status = type(error).__name__
            grown, seconds = victim.peak() - before, time.monotonic() - began
            time.sleep(0.1)
            alive = victim.alive()
            times = grown / len(body)
            # A few MiB are a thread's stacks and buffers, whatever the body.
            right = alive and status in (200, 400, 413, 422, 429) and grown <= min(max(40 * len(body), 16 * MIB), 512 * MIB)
            said = f"{status}, +{grown / MIB:.0f} MiB ({times:.0f} x), {seconds:.1f} s" if alive else "the service is gone"
            yield Row(f"E1 {size} MiB: {name}", said, "40 x the body, 512 MiB in all", right)
            victim.end()


def together(context):
    """E1: bodies that arrive at once share one budget."""
    size, count = (2, 6) if context.short else (8, 16)
    with Victim(context, options=["--max-body-size", f"{size + 1}MiB"]) as victim:
        body = dumped(chat("a " * (size * MIB // 2), max_tokens=1))
        before = victim.peak_from_here()
        threads, _ = parallel(count, lambda _: victim.post("/v1/chat/completions", body, timeout=120))
        kit.joined(threads, 120)
        grown = victim.peak() - before
        yield Row(f"E1 {count} bodies of {size} MiB at once", f"+{grown / MIB:.0f} MiB" if victim.alive() else "the service is gone", "512 MiB in all", victim.alive() and grown <= 512 * MIB)


def announced(context):
    """E4: a route that takes no body does not wait for one."""
    count = 600 if context.short else 4000
    with Victim(context, options=["--max-connections", 8192]) as victim:
        alone = victim.health_seconds(10)
        connections = []
        try:
            for _ in range(count):
                connection = victim.connect()
                connection.sendall(head("/health", 64 * MIB))
                connections.append(connection)
            found = victim.health_seconds(15 if context.short else 60)
        except OSError as error:
            found, alone = None, error
        said = f"/health after {found:.2f} s" if found is not None else f"/health silent ({alone})"
        yield Row(f"E4 {count} x `POST /health` that announces 64 MiB", said, "1 s", found is not None and found <= 1)
        for connection in connections:
            connection.close()


def keyless(context):
    """E4: bodies of a service with a key are not read without it, and small bodies are counted."""
    keys = context.scratch() / "keys"
    keys.write_text("secret-of-a\n")
    keys.chmod(0o600)
    count = 300 if context.short else 1500
    with Victim(context, options=["--api-key-file", keys, "--max-connections", 8192]) as victim:
        began = time.monotonic()
        with victim.connect() as connection:
            connection.settimeout(5)
            connection.sendall(head("/v1/chat/completions", MIB))
            try:
                status = status_of(connection.recv(4096))
            except OSError:
                status = "silent"
        seconds = time.monotonic() - began
        yield Row("E4 a body announced without a key", f"{status} after {seconds:.2f} s", "401 within 1 s", status == 401 and seconds <= 1)
        before, connections = victim.peak_from_here(), []
        half = b"x" * (MIB - 1)
        for path in ("/health", "/v1/chat/completions"):
            for _ in range(count // 2):
                try:
                    connection = victim.connect(5)
                    connection.settimeout(0.5)
                    connections.append(connection)
                    connection.sendall(head(path, MIB) + half)
                except OSError:
                    pass
        grown = victim.peak() - before
        alive = victim.health_seconds(10)
        right = victim.alive() and grown <= 128 * MIB and alive is not None
        yield Row(f"E4 {count} x 1 MiB without a key", f"+{grown / MIB:.0f} MiB, /health {'silent' if alive is None else f'after {alive:.2f} s'}", "128 MiB", right)
        for connection in connections:
            connection.close()


def slow(context):
    """E4: bodies that dribble do not lock out others."""
    with Victim(context, options=["--max-body-size", "8MiB"]) as victim:
        connections = []
        for _ in range(24):
            connection = victim.connect()
            connection.sendall(head("/v1/chat/completions", 7 * MIB) + b'{"documents":["' + b"x" * (5 * MIB // 4))
            connections.append(connection)
        time.sleep(0.5)
        began = time.monotonic()
        try:
            status, answer = victim.post("/v1/chat/completions", chat("code of purse is", max_tokens=1, documents=["x" * 2 * MIB]), timeout=20)
        except OSError as error:
            status, answer = type(error).__name__, ""
        seconds = time.monotonic() - began
        # A body that is not let in may be told so, with 429 or 503, but not that it came too slowly.
        right = status in (200, 400, 429, 503) and seconds <= 8
        yield Row("E4 24 slow bodies of 7 MiB, then one of 2 MiB that comes at once", f"{status} after {seconds:.1f} s", "answered within 8 s, not 408", right)
        for connection in connections:
            connection.close()


def whitespace(context):
    """E12: texts that a tokenizer's patterns may give up on are the client's mistake, not a failure of ours."""
    size = 12
    # A tokenizer with a pattern of today's kind, which looks ahead of blanks.
    folder = dummy_folder(context.scratch() / "demo")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    level = {**tokenizer["pre_tokenizer"], "use_regex": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Victim(context, folder, ["--load-format", "dummy", "--max-body-size", "64MiB"]) as victim:
        blanks = (("spaces", " "), ("newlines", "\n"), ("tabs", "\t"), ("no-break spaces", "\u00a0"), ("combining marks", "\u0301"), ("zero-width joiners", "\u200d"))
        for name, text in blanks[:1] if context.short else blanks:
            try:
                status, answer = victim.post("/v1/chat/completions", chat(text * (size * MIB // len(text.encode()))), timeout=60)
            except OSError as error:
                status, answer = type(error).__name__, ""
            right = status in (200, 400, 413) and victim.alive()
            yield Row(f"E12 {size} MiB of {name}", str(status), "400 or 413", right)
            if not victim.alive():
                return


def keys(context):
    """E10: unknown keys, and keys that come twice, are refused by name."""
    user = '"messages":[{"role":"user","content":"code of purse is"}],"max_tokens":1'
    unknown = {
        "tittle": '{%s,"documents":[{"text":"a cat walks .","tittle":"b"}]}' % user,
        "documnets": '{%s,"documnets":["a cat walks ."]}' % user,
        "contnet": '{"messages":[{"role":"user","content":"code of purse is","contnet":"b"}]}',
        "txet": '{"messages":[{"role":"user","content":[{"type":"text","text":"code of purse is","txet":"b"}]}]}',
        "metod": '{%s,"tributary":{"metod":"full"}}' % user,
        "include_usgae": '{%s,"stream":true,"stream_options":{"include_usgae":true}}' % user,
    }
    twice = {
        "documents": '{%s,"documents":["a cat walks ."],"documents":["a dog rests ."]}' % user,
        "temperature": '{%s,"temperature":0,"temperature":1}' % user,
        "text": '{%s,"documents":[{"text":"code of purse is","text":"b"}]}' % user,
        "content": '{"messages":[{"role":"user","content":"code of purse is","content":"code of kite is"}]}',
        "method": '{%s,"tributary":{"method":"full","method":"none"}}' % user,
        "messages": '{%s,"messages":[]}' % user,
    }
    options = ["--unknown-fields", "refuse"] if "--unknown-fields" in context.options() else []
    with Victim(context, options=options) as victim:
        for what, bodies in (("unknown", unknown), ("repeated", twice)):
            passed = []
            for key, body in bodies.items():
                status, answer = victim.post("/v1/chat/completions", body.encode())
                if status != 400 or key not in str(answer):
                    passed.append(f"{key} ({status})")
            said = f"not refused: {', '.join(passed)}" if passed else f"{len(bodies)} of {len(bodies)} refused"
            yield Row(f"E10 {what} keys", said, "all refused by name", not passed)


def http(context):
    """E15: heads that HTTP/1.1 forbids, and answers that repeat what was sent."""
    with Victim(context) as victim:
        for name, request in (("no Host", b"GET /health HTTP/1.1\r\n\r\n"), ("two Hosts", b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")):
            status = status_of(victim.raw(request, 3))
            yield Row(f"E15 HTTP/1.1 with {name}", str(status or "silent"), "400", status == 400)
        long = "m" * (256 << 10)
        longest, where = 0, ""
        for name, body in (("model", {**chat("a"), "model": long}), ("method", chat("a", tributary={"method": long})), ("key", chat("a", **{long: 1})),
                           ("role", {"messages": [{"role": long, "content": "a"}]}), ("type", {"messages": [{"role": "user", "content": [{"type": long}]}]}),
                           ("temperature", chat("a", temperature=long)), ("response_format", chat("a", response_format={"type": long}))):
            _, answer = victim.post("/v1/chat/completions", body)
            if len(str(answer)) > longest:
                longest, where = len(str(answer)), name
        yield Row("E15 values of 256 KiB in errors", f"longest answer {longest} B ({where})", "4096 B", longest <= 4096)
        status = status_of(victim.raw(head("/v1/models/" + "m" * 4000, 0, method="GET"), 3))
        yield Row("E15 a path of 4000 letters", str(status or "silent"), "404 or 414", status in (404, 414))
