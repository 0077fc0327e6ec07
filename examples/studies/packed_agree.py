"""Next tokens of a GGUF file, in this program and in llama.cpp, and of the same weights unpacked. Prints tables.

    python3 examples/studies/packed_agree.py PROGRAM GGUF FOLDER TEXT .. --llama LIBRARIES [--out FILE.json] [--readers NAME ..]

Each text is cut into windows (4 of 500 tokens, `--windows`, `--tokens`). At every position of a window each reader tells its 20 likeliest next
tokens with their log-probabilities, given the true tokens before it: nothing is generated. Readers, all on `--threads` (1):

    file               PROGRAM serve --dtype f32 on GGUF
    folder             the same on FOLDER, which holds the model as fetch.py (tests/real-models) unpacks it
    llama.cpp          llama.cpp on GGUF; it rounds activations to 8 bits where weights are packed
    llama.cpp-f32      llama.cpp on a copy of GGUF with every tensor unpacked to f32, so that it rounds no activations; it needs the disk for that
    transformers       transformers on FOLDER in f32
    transformers-file  the same with GGUF's own tensors, unpacked to f32

FOLDER is of 16-bit floats, and has one tensor as embedding and head. GGUF may have two: then FOLDER has the head's in both places, and only
`transformers-file` has the same numbers as GGUF. TEXT are plain text files. LIBRARIES is the folder of node-llama-cpp with libllama (npm:
@node-llama-cpp/linux-x64/bins/linux-x64). Needs numpy and tokenizers, and torch and transformers for the last two readers.

The tables have, for pairs of readers, the share of positions at which both name the same token, with Wilson's interval of 95 %; and, at the other
positions, the first reader's margin: by how much the logit of its token exceeds that of its second one. `drift` is the difference of the
log-probability that both give to the first one's token, at all positions. --out keeps everything, and a reader that is there is not asked again.
"""

import argparse
import ctypes
import functools
import importlib.util
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import urllib.request

import numpy as np
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "golden"), str(ROOT / "tests" / "real-models")]
TOP = 20
READERS = ["file", "folder", "llama.cpp", "llama.cpp-f32", "transformers", "transformers-file"]
PAIRS = [
    ("file", "llama.cpp"),
    ("file", "llama.cpp-f32"),
    ("file", "transformers-file"),
    ("file", "folder"),
    ("folder", "transformers"),
    ("file", "transformers"),
    ("llama.cpp", "transformers"),
    ("llama.cpp", "llama.cpp-f32"),
]


def windows_of(tokenizer, path):
    """Windows of a text, each with one token more than it has positions: the last one is only named, not read."""
    ids = tokenizer.encode(pathlib.Path(path).read_text(encoding="utf-8"), add_special_tokens=False).ids
    size = options.tokens + 1
    found = [ids[at : at + size] for at in range(0, len(ids) - size + 1, size)][: options.windows]
    if len(found) < options.windows:
        print(f"{path}: only {len(found)} windows", file=sys.stderr)
    return found


def likeliest(logits):
    """The 20 likeliest tokens at each position, with log-probabilities in f64."""
    found = []
    for row in logits:
        row = np.asarray(row, np.float64)
        top = np.argpartition(row, -TOP)[-TOP:]
        top = top[np.argsort(-row[top], kind="stable")]
        largest = row[top[0]]
        whole = largest + math.log(np.exp(row - largest).sum())
        found.append([[int(token), float(row[token] - whole)] for token in top])
    return found


@functools.cache
def unpacking():
    """tests/real-models/gguf.py; not by its name, which a package has too."""
    spec = importlib.util.spec_from_file_location("unpacking", ROOT / "tests" / "real-models" / "gguf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- The readers: windows in, the likeliest tokens of every position out.


def program(model, windows):
    command = [options.program, "serve", "--model", model, "--method", "full", "--dtype", "f32", "--threads", str(options.threads)]
    service = subprocess.Popen(command + ["--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        line = service.stdout.readline()
        address = next((word.rstrip(",.") for word in line.split() if "127.0.0.1:" in word), None)
        if address is None:
            raise SystemExit(f"{' '.join(command)}: {line}")
        address = address if address.startswith("http") else f"http://{address}"
        for window in windows:
            asked = {"prompt": window, "prompt_logprobs": TOP, "max_tokens": 0}
            asked = urllib.request.Request(f"{address}/v1/completions", json.dumps(asked).encode(), {"content-type": "application/json"})
            told = json.load(urllib.request.urlopen(asked))["choices"][0]["prompt_logprobs"]
            if len(told) != len(window) or told[0] is not None:
                raise SystemExit(f"{model}: {len(told)} positions for {len(window)} tokens")
            # The true token is there as well, wherever it stands.
            yield [sorted(([int(token), its["logprob"]] for token, its in at.items()), key=lambda its: -its[1])[:TOP] for at in told[1:]]
    finally:
        service.terminate()
        service.wait()


@functools.cache  # one a process: it lends llama.cpp a function for its messages
def judge():
    from llama_judge import Llama

    made = Llama(options.llama)
    made.lib.llama_set_n_threads.restype = None
    made.lib.llama_set_n_threads.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    return made


def llama(path, windows):
    from llama_judge import Batch

    library = judge().lib
    model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
    if not model:
        raise SystemExit(f"{path}: llama.cpp does not read it")
    words = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    params = library.llama_context_default_params()
    rows = -(-options.tokens // 256) * 256
    ctypes.memmove(ctypes.addressof(params), (ctypes.c_uint32 * 2)(rows, rows), 8)  # n_ctx, n_batch
    context = library.llama_init_from_model(model, params)
    library.llama_set_n_threads(context, options.threads, options.threads)
    for window in windows:
        count = len(window) - 1
        tokens, wanted = (ctypes.c_int32 * count)(*window[:-1]), (ctypes.c_int8 * count)(*[1] * count)
        batch = Batch(n_tokens=count, token=ctypes.addressof(tokens), logits=ctypes.addressof(wanted))
        library.llama_memory_clear(library.llama_get_memory(context), True)
        if library.llama_decode(context, batch) != 0:
            raise SystemExit(f"{path}: llama_decode failed")
        yield likeliest(np.ctypeslib.as_array(library.llama_get_logits_ith(context, at), (words,)) for at in range(count))
    library.llama_free(context)
    library.llama_model_free(model)


def unpacked(path, out):
    """Writes a copy of a GGUF file whose tensors are all of f32."""
    file, f32 = unpacking().Gguf(path), unpacking().F32
    # Name with its length, number of dimensions, dimensions, type, offset.
    infos = sum(8 + len(name.encode()) + 4 + 8 * len(shape) + 4 + 8 for name, (shape, _, _) in file.tensors.items())
    with open(out, "wb") as whole:
        whole.write(file.map[: file.at - infos].tobytes())
        at = 0
        for name, (shape, _, _) in file.tensors.items():
            whole.write(struct.pack("<Q", len(name.encode())) + name.encode() + struct.pack("<I", len(shape)))
            whole.write(struct.pack(f"<{len(shape)}Q", *shape[::-1]) + struct.pack("<IQ", f32, at))
            at += -(-4 * int(np.prod(shape)) // 32) * 32
        for name in file.tensors:
            whole.write(bytes(-whole.tell() % 32))
            whole.write(np.ascontiguousarray(file[name], np.float32).tobytes())


def llama_f32(path, windows):
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        copy = os.path.join(folder, "f32.gguf")
        unpacked(path, copy)
        yield from llama(copy, windows)


def transformers(path, windows):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    if path == options.folder:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    else:
        file, config = unpacking().Gguf(path), AutoConfig.from_pretrained(options.folder)
        arch, heads = file.keys["general.architecture"], (config.num_attention_heads, config.num_key_value_heads)
        weights = {name: make() for name, _, make in unpacking().tensors(file, arch, *heads)}
        embedding, head = "model.embed_tokens.weight", "lm_head.weight"
        weights[head], weights[embedding] = weights[embedding], file["token_embd.weight"]
        config.tie_word_embeddings = False
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict({name: torch.from_numpy(np.array(weight, np.float32)) for name, weight in weights.items()})
    model.eval()
    for window in windows:
        with torch.no_grad():
            logits = model(torch.tensor([window[:-1]]), use_cache=False).logits[0]
        yield likeliest(logits.numpy())


def ask(name, windows):
    path = options.folder if name in ("folder", "transformers") else options.gguf
    reader = {"llama.cpp": llama, "llama.cpp-f32": llama_f32, "transformers": transformers, "transformers-file": transformers}.get(name, program)
    found = []
    for tops in reader(path, windows):
        found.append(tops)
        print(f"\r{name}: {len(found)} of {len(windows)} windows", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


# ---- The tables.


def wilson(hits, count):
    z = 1.96
    share, room = hits / count, z * z / count
    middle, half = share + room / 2, z * math.sqrt(share * (1 - share) / count + room / (4 * count))
    return (middle - half) / (1 + room), (middle + half) / (1 + room)


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def compared(first, second):
    """Whether both name the same token, the first one's margin, and the drift where it is known, for each position."""
    found = []
    for window, other in zip(first, second):
        for at, beside in zip(window, other):
            theirs = dict(beside).get(at[0][0])
            found.append((at[0][0] == beside[0][0], at[0][1] - at[1][1], None if theirs is None else abs(at[0][1] - theirs)))
    return found


def line(title, found):
    same = sum(equal for equal, _, _ in found)
    margins = [margin for equal, margin, _ in found if not equal]
    drifts = [drift for _, _, drift in found if drift is not None]
    low, high = wilson(same, len(found))
    cells = [title, str(len(found)), f"{100 * same / len(found):.2f} % ({100 * low:.2f} to {100 * high:.2f})", str(len(margins))]
    cells += [f"{quantile(margins, share):.3g}" for share in (0.5, 0.9, 1)] if margins else ["-"] * 3
    cells += [f"{quantile(drifts, share):.2g}" for share in (0.5, 0.99, 1)]
    print(f"| {' | '.join(cells)} |")


def tables(kept):
    head = "positions | same token | others | margin: median | 90 % | largest | drift: median | 99 % | largest |\n|" + " --- |" * 10
    print("\n| readers | " + head)
    pairs = [pair for pair in PAIRS if all(name in kept["readers"] for name in pair)]
    for first, second in pairs:
        line(f"{first}, {second}", compared(kept["readers"][first], kept["readers"][second]))
    if ("file", "llama.cpp") not in pairs:
        return
    print("\nfile, llama.cpp:\n\n| text | " + head)
    first, second = kept["readers"]["file"], kept["readers"]["llama.cpp"]
    for text in dict.fromkeys(kept["texts"]):
        mine = [at for at, of in enumerate(kept["texts"]) if of == text]
        line(text, compared([first[at] for at in mine], [second[at] for at in mine]))
    print("\n| margin of file, at least | positions | same token as llama.cpp |\n| --- | --- | --- |")
    found = compared(first, second)
    for least in (0, 0.05, 0.1, 0.2, 0.5, 1):
        some = [equal for equal, margin, _ in found if margin >= least]
        print(f"| {least} | {len(some)} | {100 * sum(some) / len(some):.2f} % ({len(some) - sum(some)} others) |")


def main():
    tokenizer = Tokenizer.from_file(os.path.join(options.folder, "tokenizer.json"))
    windows, texts = [], []
    for path in options.texts:
        some = windows_of(tokenizer, path)
        windows += some
        texts += [os.path.basename(path)] * len(some)
    if not windows:
        raise SystemExit("no text is as long as a window")
    kept = {"windows": windows, "texts": texts, "readers": {}}
    if options.out and os.path.exists(options.out):
        before = json.load(open(options.out))
        if before["windows"] != windows:
            raise SystemExit(f"{options.out}: of other windows")
        kept["readers"] = before["readers"]
    for name in options.readers:
        if name in kept["readers"] or (name.startswith("llama") and not options.llama):
            continue
        kept["readers"][name] = ask(name, windows)
        if options.out:
            with open(options.out + ".part", "w") as part:
                json.dump(kept, part)
            os.replace(options.out + ".part", options.out)
    tables(kept)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program", type=os.path.abspath)
parser.add_argument("gguf")
parser.add_argument("folder")
parser.add_argument("texts", nargs="+")
parser.add_argument("--llama")
parser.add_argument("--out")
parser.add_argument("--scratch", help="folder for the unpacked copy")
parser.add_argument("--readers", nargs="+", choices=READERS, default=READERS)
parser.add_argument("--windows", type=int, default=4)
parser.add_argument("--tokens", type=int, default=500)
parser.add_argument("--threads", type=int, default=1)
options = parser.parse_args()
if __name__ == "__main__":
    main()
