"""A running service for tests of its clients: started, asked for its numbers, ended. Standard library only."""

import json
import pathlib
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/models/demo"


class Service:
    """`tributary serve` with options, on a free port of loopback; used with `with`."""

    def __init__(self, program, model, options=(), log=None, limit=None):
        self.log = open(log, "ab") if log else subprocess.DEVNULL
        command = [str(program), "serve", "--model", str(model), "--listen", "127.0.0.1:0", "--self-test-interval", "0", *map(str, options)]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, preexec_fn=limit)
        line = self.child.stdout.readline()
        if "http://" not in line:
            self.child.wait()
            sys.exit(f"the service does not start: exit code {self.child.returncode}")
        self.url = "http://" + line.split("http://")[1].split()[0]
        self.pid = self.child.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self, patience=20):
        """Asks it to end, and ends it if it does not; its exit code."""
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(patience)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        return self.child.returncode

    def get(self, path, timeout=20):
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            return answer.read().decode()

    def first_tokens(self):
        """Sum in milliseconds and count of `time_to_first_token_seconds`, all label sets together."""
        total = {"sum": 0.0, "count": 0.0}
        for line in self.get("/metrics").splitlines():
            for part in total:
                if line.startswith(f"tributary_time_to_first_token_seconds_{part}"):
                    total[part] += float(line.rsplit(" ", 1)[1])
        return 1e3 * total["sum"], int(total["count"])

    def recent(self, count):
        """Milliseconds to the first token of the last `count` answers (at most 50), as `/v1/status` has them."""
        requests = json.loads(self.get("/v1/status"))["recent"]
        return [request["ttft_ms"] for request in requests[:count] if request["ttft_ms"] is not None]

    def post(self, path, body, timeout=60, headers=()):
        """A status and an answer; the answer is JSON where it can be."""
        return self.exchange(path, body, timeout, headers)[:2]

    def exchange(self, path, body, timeout=60, headers=()):
        """The same, and the answer's headers."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json", **dict(headers)})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, text, told = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            status, text, told = error.code, error.read(), error.headers
        try:
            return status, json.loads(text), told
        except ValueError:
            return status, text.decode(errors="replace"), told


CONSONANTS, VOWELS = "bcdfghjklm", "aeiou"


def tokenizer(size):
    """A byte-level BPE of `size` tokens that encodes any text. Nearly all of its tokens are words of two or three syllables after a space,
    so that tokens that a tool draws are the same tokens again when their text is read."""
    # The 256 bytes as GPT-2's tokenizer writes them.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [*map(chr, printable), *(chr(256 + number) for number in range(len(others)))]
    space = chr(256 + others.index(32))
    words = {word: number for number, word in enumerate(["<unk>", "<bos>", "<eos>", *alphabet])}
    syllables = [a + b for a in CONSONANTS for b in VOWELS]
    merges = [(a, b) for a in CONSONANTS for b in VOWELS]
    merges += [(space, syllable) for syllable in syllables]
    merges += [(space + a, b) for a in syllables for b in syllables]
    longer = [(space + a + b, c) for a in syllables for b in syllables for c in syllables]
    merges += random.Random(7).sample(longer, size - len(words) - len(merges))
    for a, b in merges:
        words[a + b] = len(words)
    special = [{"id": words[name], "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for name in ("<unk>", "<bos>", "<eos>")]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": words, "merges": [f"{a} {b}" for a, b in merges]},
    }


def dummy_folder(folder):
    """The 25 M shape with a tokenizer, so that clients can ask it in text; its weights are drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((ROOT / "examples/models/dummy-25m/config.json").read_text())
    config.update(bos_token_id=1, eos_token_id=2)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config["vocab_size"])))
    settings = json.loads((DEMO / "tokenizer_config.json").read_text())
    settings["model_max_length"] = config["max_position_embeddings"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def wait_until(condition, seconds, step=0.1):
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(step)
    return False
