"""Fetches keys and values of an exported prompt from a service: python fetch.py LOG MANIFEST OUT.safetensors

LOG is the output of `tributary serve`, whose first line has its address. The prompt is that of MANIFEST, by its token ids, prefilled by `full`.
"""

import json
import pathlib
import re
import sys
import time
import urllib.request

import torch
from safetensors.torch import save_file

log, manifest, out = (pathlib.Path(name) for name in sys.argv[1:])
told = json.loads(manifest.read_text())
for _ in range(200):
    if found := re.search(r"http://\S+", log.read_text()):
        break
    time.sleep(0.1)
url = found[0]


def ask(path, body=None):
    head = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode() if body else None, head)) as answer:
        return answer.read()


prompt = told["prompts"][-1]
held = json.loads(ask("/v1/prefill", {"prompt": prompt["token_ids"], "tributary": {"method": "full"}}))
assert held["token_ids"] == prompt["token_ids"], "the service computes another prompt"
shape = (held["tokens"], 2, held["kv_heads"], held["head_dim"])
layers = (ask(f"/v1/kv/{held['id']}/{layer}")[:-32] for layer in range(held["layers"]))
save_file({f"layers.{layer}": torch.frombuffer(bytearray(rows), dtype=torch.float32).view(shape) for layer, rows in enumerate(layers)}, out)
