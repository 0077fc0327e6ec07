"""Makes launch/tests/recorded anew: what each real client sends, one file a client and interface.

    python3 tests/clients/recorded.py FOLDER [CLIENT...]

Each client runs against the recorder; requests that differ in nothing but their texts are kept once.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import record
from clients import CLIENTS, INSTALLED, ROOT
from run import environment, prepare_node


def shape(value):
    """A body without what differs from one request of a kind to the next: texts of prompts."""
    if isinstance(value, dict):
        return {key: ("" if key in ("content", "text", "prompt") and isinstance(item, str) else shape(item)) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, int) for item in value):
            return "tokens"
        return [shape(item) for item in value]
    return value


def client(one, style, folder):
    """Records one client; the number of kinds of requests."""
    name = one.name + (f"-{style.strip('/').replace('/', '-').removeprefix('v1-')}" if style else "")
    with tempfile.TemporaryDirectory() as scratch:
        raw = pathlib.Path(scratch) / "raw.jsonl"
        recorder = record.start(raw)
        parts = (["answers"] if one.answers else []) + (["ttft"] if one.streams else [])
        for part in parts:
            command = [*one.command(), f"http://127.0.0.1:{recorder.server_port}", part, "--scratch", scratch, "--requests", "2", "--tokens", "48"]
            command += ["--style", style] if style else []
            done = subprocess.run([str(word) for word in command], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=600)
            if done.returncode:
                print(done.stderr[-2000:], file=sys.stderr)
        recorder.shutdown()
        seen, kept = set(), []
        for line in raw.read_text().splitlines() if raw.exists() else []:
            request = json.loads(line.replace(scratch, "/scratch").replace(str(ROOT), "/project"))
            kind = json.dumps([request["method"], request["path"], shape(request["body"])], sort_keys=True)
            if kind not in seen:
                seen.add(kind)
                kept.append(json.dumps(request, ensure_ascii=False))
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in kept))
    return name, len(kept)


def main():
    folder, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    prepare_node()
    for one in CLIENTS:
        if wanted and one.name not in wanted:
            continue
        if one.command() is None:
            print(f"{one.name}: not installed: {one.why_not()}")
            continue
        for style in one.styles:
            print("{}: {} kinds of requests".format(*client(one, style, folder)), flush=True)


if __name__ == "__main__":
    main()
