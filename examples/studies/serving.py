"""Shared by studies of the service: the 25 M shape with a tokenizer, and a service of it."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def make_model(model):
    """The shape's config beside a tokenizer of one word a token; the words are also the vocabulary of the texts."""
    os.makedirs(model, exist_ok=True)
    shutil.copy(os.path.join(root, "examples/models/dummy-25m/config.json"), model)
    size = json.load(open(os.path.join(model, "config.json")))["vocab_size"]
    draw, words = random.Random(7), {"<unk>": 0}
    while len(words) < size:
        words.setdefault("".join(draw.choice("bdfgklmnprstv") + draw.choice("aeiou") for _ in range(draw.randint(2, 4))), len(words))
    unknown = {"id": 0, "content": "<unk>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [unknown], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    json.dump(tokenizer, open(os.path.join(model, "tokenizer.json"), "w"))
    vocabulary = os.path.join(model, "words.txt")
    open(vocabulary, "w").write("\n".join(list(words)[1:]) + "\n")
    return vocabulary


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def serve(program, model, url, *options):
    """A service of the model that is ready."""
    command = [program, "serve", "--model", model, "--load-format", "dummy", "--self-test-interval", "0", *options]
    server = subprocess.Popen(command + ["--listen", url.removeprefix("http://")], stdout=subprocess.DEVNULL)
    for _ in range(600):
        try:
            get(url + "/ready")
            return server
        except OSError:
            if server.poll() is not None:
                sys.exit("the service has ended")
            time.sleep(0.1)
    sys.exit("the service does not become ready")
