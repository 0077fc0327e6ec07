"""Folders that somebody else made: models, adapters, chunk stores, key files."""

import json
import os
import shutil
import struct

from kit import DEMO, MIB, Command, Row, Victim, chat

BYTES, SECONDS = 1 << 30, 10
TOLD = (0, 64, 65)


def model(context, change=None):
    """A copy of the demo model without what is not needed; `change` gets its folder."""
    folder = context.scratch() / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder)
    if change:
        change(folder)
    return folder


def rewrite(name, **values):
    def change(folder):
        path = folder / name
        found = json.loads(path.read_text()) if path.exists() else {}
        found.update(values)
        path.write_text(json.dumps(found))

    return change


def prefill(context, folder, *more):
    document = folder / "document.txt"
    # The long word is one over which a pattern of a tokenizer may backtrack.
    document.write_text(f"code of purse is 4 7 1 . {'a' * 64}!")
    return Command(context, ["prefill", "--model", folder, "--documents", document, "--query", "code of purse is", "--max-tokens", 2, *more], seconds=SECONDS)


def row(name, runs, codes=TOLD):
    """One line for a kind of folder: how many were told well, and the worst."""
    def right(run):
        return run.told(codes) and run.peak <= BYTES and run.seconds <= SECONDS

    wrong = {which: run for which, run in runs.items() if not right(run)}
    said = f"{len(runs) - len(wrong)} of {len(runs)}"
    if wrong:
        said += "; " + "; ".join(f"{which}: {run.say()}" for which, run in list(wrong.items())[:4]) + ("; .." if len(wrong) > 4 else "")
    return Row(name, said, f"exit {' or '.join(map(str, codes))}, one line, {SECONDS} s, 1 GiB", not wrong)


def templates(context):
    """E8: chat templates are programs of somebody else."""
    many = 20000
    forms = {
        "a loop of 10^9": "{% for i in range(1000000000) %}{% endfor %}",
        "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "10^9 letters": "{{ 'a' * 1000000000 }}",
        "a text that doubles": "{% set ns = namespace(t='aaaaaaaa') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
        "a macro that calls itself": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "deep parentheses": "{{ " + "(" * many + "1" + ")" * many + " }}",
        "deep lists": "{{ " + "[" * many + "]" * many + " }}",
        "deep not": "{{ " + "not " * many + "1 }}",
        "deep minus": "{{ " + "-" * many + "1 }}",
        "deep if": "{% if 1 %}" * many + "{% endif %}" * many,
        "deep for": "{% for a in [1] %}" * many + "{% endfor %}" * many,
        "deep attributes": "{{ a" + ".a" * many + " }}",
        "deep filters": "{{ 'a'" + "|trim" * many + " }}",
        "deep ternary": "{{ " + "1 if 1 else " * many + "1 }}",
        "deep sums": "{{ 1" + " + 1" * many + " }}",
    }
    if context.short:
        forms = {name: forms[name] for name in ("a loop of 10^9", "10^9 letters", "a macro that calls itself", "deep parentheses")}
    yield row("E8 chat templates", {name: prefill(context, model(context, rewrite("tokenizer_config.json", chat_template=text))) for name, text in forms.items()})


def special_files(context):
    """E8: files that are none."""
    names = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", "model.safetensors", "model.safetensors.index.json"]
    kinds = {"a FIFO": os.mkfifo, "a link to /dev/zero": lambda path: os.symlink("/dev/zero", path), "a folder": os.mkdir}
    runs = {}
    for name in names[:3] if context.short else names:
        for kind, make in list(kinds.items())[:2 if context.short else 3]:
            def change(folder, name=name, make=make):
                (folder / name).unlink(missing_ok=True)
                make(folder / name)

            runs[f"{name} is {kind}"] = prefill(context, model(context, change))
    yield row("E8 files that are none", runs)


def tokenizers(context):
    """E8: tokenizers that panic, hang or take memory."""
    base = json.loads((DEMO / "tokenizer.json").read_text())
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}
    forms = {
        "a pattern that backtracks": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+(b+)+$"}, "behavior": "Isolated", "invert": False}},
        "a pattern of 10^6 letters": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a{1,1000}){1,1000}"}, "behavior": "Isolated", "invert": False}},
        "nested groups": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(" * 5000 + "a" + ")" * 5000}, "behavior": "Isolated", "invert": False}},
        "an id of 2^32 - 1": {"added_tokens": [*base["added_tokens"], {"id": 4294967295, "content": "<far>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}]},
        "a vocabulary of nothing": {"model": {**base["model"], "vocab": {}}, "added_tokens": []},
        "an unknown token that is none": {"model": {**base["model"], "unk_token": "<none>"}},
        "unigram, unknown id beyond its vocabulary": {"model": {**unigram, "unk_id": 99}},
        "unigram, scores that are no numbers": {"model": {**unigram, "vocab": [["<unk>", 0.0], ["a", -1e308], ["", 0.0]]}},
        "BPE, merges of words that are none": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"], "unk_token": None}},
        "WordPiece, no prefix, no letters": {"model": {"type": "WordPiece", "vocab": {"<unk>": 0}, "unk_token": "<unk>", "continuing_subword_prefix": "", "max_input_chars_per_word": 0}},
        "a normalizer that doubles": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaaaaaaaa"}] * 9}},
        "a table of characters that is none": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
        "truncation to nothing": {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 1000}},
        "padding to 2^40": {"padding": {"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"}},
        "a post-processor of tokens that are none": {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}], "pair": [], "special_tokens": {}}},
        "JSON 10^5 deep": None,
    }
    if context.short:
        forms = {name: forms[name] for name in ("a pattern that backtracks", "an id of 2^32 - 1", "unigram, unknown id beyond its vocabulary", "padding to 2^40")}
    runs = {}
    for name, values in forms.items():
        def change(folder, values=values):
            text = json.dumps({**base, **values}) if values else "[" * 100000
            (folder / "tokenizer.json").write_text(text)

        runs[name] = prefill(context, model(context, change))
    yield row("E8 tokenizers", runs)


def numbers(context):
    """E8, E15: configs with numbers that cannot be."""
    forms = {"rope_theta 0": {"rope_theta": 0}, "rope_theta -1": {"rope_theta": -1}, "head_dim 15": {"head_dim": 15}, "hidden_size 2^60": {"hidden_size": 1 << 60},
             "num_hidden_layers 10^9": {"num_hidden_layers": 10**9}, "num_attention_heads 0": {"num_attention_heads": 0}, "vocab_size 2^40": {"vocab_size": 1 << 40},
             "rms_norm_eps -1": {"rms_norm_eps": -1}, "a factor of 0": {"rope_scaling": {"rope_type": "linear", "factor": 0}},
             "a factor of -2": {"rope_scaling": {"rope_type": "linear", "factor": -2.0}},
             "an architecture with escapes": {"architectures": ["\u001b[31mEvil\u0007"]}}
    runs = {name: prefill(context, model(context, rewrite("config.json", **values))) for name, values in forms.items()}
    yield row("E15 configs with numbers that cannot be", runs, (64, 65))
    escapes = any("\u001b" in run.errors + run.out for run in runs.values())
    yield Row("E15 escapes of a folder on the terminal", "shown" if escapes else "none", "none", not escapes)


def safetensors(tensors):
    """A safetensors file of (name, dtype, shape, bytes)."""
    header, data = {}, b""
    for name, dtype, shape, values in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def adapters(context):
    """E9: adapters whose numbers wrap, whose types are others, whose factors are absurd."""
    def packet(head, tail, dtype="F32", value=0.0):
        rows = struct.pack("<f", value) * (16 * 128)
        return "kv-packet", {"head": head, "tail": tail}, lambda _: safetensors([("embeddings", dtype, [16, 128], rows)])

    def lookahead(**values):
        return "lookahead", {"rows": 32, "rank": 8, "alpha": 32.0, **values}, None

    forms = {"head + tail that wrap": packet(2**64 - 8, 24), "a head of 2^40": packet(1 << 40, 8), "rows of I32": packet(8, 8, "I32", 1.0), "rows that are no numbers": packet(8, 8, "F32", float("nan")),
             "rows without bound": packet(8, 8, "F32", float("inf")), "alpha 1e30": lookahead(alpha=1e30), "alpha -1e30": lookahead(alpha=-1e30), "rank 2^60": lookahead(rank=1 << 60),
             "rows 2^62": lookahead(rows=1 << 62)}
    runs = {}
    for name, (kind, values, data) in forms.items():
        folder = context.scratch() / "adapter"
        shutil.copytree(DEMO / "adapters" / kind, folder)
        found = json.loads((folder / "adapter.json").read_text())
        found["kind"] = {kind: values}
        (folder / "adapter.json").write_text(json.dumps(found))
        if data:
            (folder / "adapter.safetensors").write_bytes(data(None))
        how = ["--method", "kv-packet"] if kind == "kv-packet" else ["--evict", "lookahead", "--keep", "50%"]
        runs[name] = prefill(context, model(context), "--adapter", folder, *how)
    yield row("E9 adapters", runs, (64, 65))


def stored(context, folder):
    """A store with chunks in it; its files."""
    texts = context.scratch()
    for number in range(4):
        (texts / f"{number}.txt").write_text(f"code of purse is {number} 7 1 . " * 8)
    done = Command(context, ["store", "warm", "--model", DEMO, "--documents", texts, "--chunk-store", folder], seconds=60)
    assert done.code == 0, done.errors
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 4096)


def store(context):
    """E13: what lies among chunk files is none."""
    body = chat("code of purse is", documents=[f"code of purse is {number} 7 1 . " * 8 for number in range(4)])
    for kind, make in (("a FIFO", os.mkfifo), ("a link to /dev/zero", lambda path: os.symlink("/dev/zero", path)), ("a link to /etc/hostname", lambda path: os.symlink("/etc/hostname", path))):
        folder = context.scratch() / "store"
        files = stored(context, folder)
        files[0].unlink()
        make(files[0])
        runs = {command: Command(context, ["store", command, folder], seconds=10) for command in ("ls", "verify", "stat")}
        ended = all(run.code is not None and run.peak <= BYTES for run in runs.values())
        told = ", ".join(f"{command}: {run.say()}" for command, run in runs.items())
        yield Row(f"E13 {kind} among chunk files: store ls, verify, stat", told, "each ends within 10 s", ended)
        with Victim(context, options=["--chunk-store", folder]) as victim:
            try:
                status, answer = victim.post("/v1/chat/completions", body, timeout=15)
                fresh, answer = victim.post("/v1/chat/completions", {**body, "documents": ["a dog rests . " * 8]}, timeout=15)
                hits = [line for line in victim.get("/metrics").splitlines() if line.startswith("tributary_chunk_cache_lookups_total") and 'tier="disk"' in line and 'result="hit"' in line]
                count = sum(float(line.rsplit(" ", 1)[1]) for line in hits)
            except OSError as error:
                status, fresh, count = type(error).__name__, "-", 0
        yield Row(f"E13 {kind} among chunk files: a request", f"{status}, {count:.0f} other chunks read from disk, then {fresh}", "200, 3 read, 200", (status, fresh) == (200, 200) and count >= 3)
        if context.short:
            return


def remote(context):
    """E14: a remote store is a store, and nowhere else."""
    texts, outside = context.scratch(), context.scratch()
    (texts / "0.txt").write_text("code of purse is 4 7 1 . " * 8)
    (outside / "letter.txt").write_text("not a store")
    (outside / "inner").mkdir()
    for name, url in (("`..` in its path", f"file://{outside}/inner/../other"), ("`%2e%2e` in its path", f"file://{outside}/inner/%2e%2e/other"), ("a folder with other files", f"file://{outside}")):
        before = sorted(path.name for path in outside.rglob("*"))
        done = Command(context, ["store", "warm", "--model", DEMO, "--documents", texts, "--chunk-store", context.scratch() / "store", "--chunk-store-remote", url], seconds=30)
        written = sorted(path.name for path in outside.rglob("*")) != before
        yield Row(f"E14 a remote store with {name}", f"exit {done.code}, {'wrote there' if written else 'wrote nothing'}", "exit 64 or 78, nothing written", done.code in (64, 78) and not written)


def key_files(context):
    """E15: key files as editors and tired people leave them."""
    for name, data, mode, bound in (("a byte order mark", b"\xef\xbb\xbfkey-of-a\n", 0o600, "its key is known, or exit 64"), ("letters beyond ASCII", "schlüssel-of-a\n".encode(), 0o600, "exit 64"),
                                    ("mode 0644", b"key-of-a\n", 0o644, "told, or exit 64")):
        path = context.scratch() / "keys"
        path.write_bytes(data)
        path.chmod(mode)
        try:
            with Victim(context, options=["--api-key-file", path]) as victim:
                status, _ = victim.post("/v1/chat/completions", chat("code of purse is"), headers={"authorization": "Bearer key-of-a"})
                said = victim.errors.read_text().strip()
            right = {"a byte order mark": status == 200, "letters beyond ASCII": False, "mode 0644": bool(said)}[name]
            yield Row(f"E15 a key file with {name}", f"serves; the key gets {status}; said {'something' if said else 'nothing'}", bound, right)
        except SystemExit as error:
            yield Row(f"E15 a key file with {name}", str(error), bound, str(error).endswith("code 64"))
    shown = Command(context, ["serve", "--model", DEMO, "--chunk-store-remote", "s3://user:hunter2@bucket/prefix", "--chunk-store", context.scratch(), "--print-config"])
    yield Row("E15 --print-config with credentials in a URL", "shown" if "hunter2" in shown.out + shown.errors else "not shown", "not shown", "hunter2" not in shown.out + shown.errors)
    if context.short:
        return
    line = context.scratch() / "requests.jsonl"
    with line.open("wb") as file:
        file.write(b'{"documents": ["')
        for _ in range(200):
            file.write(b"a " * (MIB // 2))
        file.write(b'"], "query": "b"}\n')
    done = Command(context, ["prefill", "--model", DEMO, "--requests", line], seconds=30)
    yield Row("E15 a line of 200 MiB", done.say(), "exit 64 or 65, 1 GiB", done.code in (64, 65) and done.peak <= BYTES)
