"""Checks a folder of `tributary prefill --export-kv sglang:DIR` against SGLang 0.5.23's own code, without a GPU.

    python check.py DIR                  names, hashes, sizes; SGLang finds and loads every page
    python check.py DIR --kv FILE        also: the bytes that SGLang would have written for these keys and values
    python check.py --self-test          writes folders by the plain rule below, right and wrong, and checks them

FILE is safetensors with one tensor `layers.N` [tokens, 2, kv_heads, head_dim] a layer (keys after RoPE, then values), in
the manifest's dtype. With several prompts in DIR, `--prompt N` (from 0) says which one FILE holds; the default is the last.

manifest.json: the same for every prompt of a folder are `format` ("tributary-sglang"), `version` (1), `sglang`,
`model_name` (the server's --served-model-name), `fingerprint` (of the weights), `tp_size`, `page_size`, `layout`, `dtype`, `layers`, `kv_heads` (of all
ranks), `head_dim` and `suffixes` (one a tensor rank). A prompt in `prompts` has `token_ids`, `cache_salt` (or null),
`exact`, `method` and `pages` (hashes). A page's file for rank r is `<hash><suffixes[r]>.bin`.
"""

import argparse
import copy
import hashlib
import json
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

import pages

SHARED = {
    "format": str, "version": int, "sglang": str, "model_name": str, "fingerprint": str, "tp_size": int, "page_size": int, "layout": str,
    "dtype": str, "layers": int, "kv_heads": int, "head_dim": int, "suffixes": list,
}
PROMPT = {"token_ids": list, "cache_salt": (str, type(None)), "exact": bool, "method": str, "pages": list}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PREFETCH_THRESHOLD = 256  # SGLang's default: shorter lookups are not made


class Wrong(Exception):
    pass


def want(condition, message):
    if not condition:
        raise Wrong(message)


def fields(record, kinds, where):
    want(record.keys() == kinds.keys(), f"{where}: fields {sorted(record)}, expected {sorted(kinds)}")
    for name, kind in kinds.items():
        want(isinstance(record[name], kind), f"{where}: {name} is {record[name]!r}")


def manifest_of(folder):
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    prompts = manifest.pop("prompts", None)
    want(isinstance(prompts, list) and prompts, "manifest: no prompts")
    fields(manifest, SHARED, "manifest")
    want((manifest["format"], manifest["version"]) == ("tributary-sglang", 1), "manifest: unknown format or version")
    from importlib.metadata import version

    want(manifest["sglang"] == version("sglang"), f"manifest: for SGLang {manifest['sglang']}, here is {version('sglang')}")
    want(manifest["layout"] in pages.LAYOUTS, f"manifest: layout {manifest['layout']}")
    want(manifest["dtype"] in DTYPES, f"manifest: dtype {manifest['dtype']}")
    ranks, heads = manifest["tp_size"], manifest["kv_heads"]
    want(ranks >= 1 and max(ranks, heads) % min(ranks, heads) == 0, f"manifest: {heads} heads over {ranks} ranks")
    want(len(manifest["suffixes"]) == ranks, f"manifest: {len(manifest['suffixes'])} suffixes for {ranks} ranks")
    for index, prompt in enumerate(prompts):
        fields(prompt, PROMPT, f"prompt {index}")
        want(prompt["exact"] or prompt["cache_salt"], f"prompt {index}: approximate pages without a cache_salt")
    return manifest, prompts


def server_rank(folder, manifest, rank, page_count):
    heads = pages.heads_of(rank, manifest["tp_size"], manifest["kv_heads"])
    return heads, pages.Rank(
        folder, manifest["model_name"], rank, manifest["tp_size"], manifest["page_size"], manifest["layout"],
        DTYPES[manifest["dtype"]], manifest["layers"], heads.stop - heads.start, manifest["head_dim"], page_count,
    )


def check_prompt(folder, manifest, prompt, kv):
    """Answers the number of files compared. `kv` is (keys, values), each [layers, tokens, kv_heads, head_dim], or None."""
    ids, salt, page_size = prompt["token_ids"], prompt["cache_salt"], manifest["page_size"]
    chain = pages.hashes(ids, page_size, cache_salt=salt)
    want(prompt["pages"] == chain, "hashes differ from SGLang's for these token ids and this cache_salt")
    loadable = pages.RadixKey(ids[:-1], cache_salt=salt).page_aligned(page_size)  # the last token is always computed
    if len(loadable) < PREFETCH_THRESHOLD:
        print(f"note: {len(loadable)} tokens can be loaded, below SGLang's default prefetch_threshold {PREFETCH_THRESHOLD}")
    for rank in range(manifest["tp_size"]):
        heads, server = server_rank(folder, manifest, rank, len(chain))
        suffix = server.storage.config_suffix
        want(manifest["suffixes"][rank] == suffix, f"rank {rank}: suffix {manifest['suffixes'][rank]!r}, SGLang's is {suffix!r}")
        empty = server.host.get_dummy_flat_data_page()
        for name in chain:
            file = folder / f"{name}{suffix}.bin"
            want(file.is_file(), f"{file.name}: missing")
            # SGLang reports a short file and reads a long one without complaint.
            size, expected = file.stat().st_size, empty.numel() * empty.element_size()
            want(size == expected, f"{file.name}: {size} bytes, SGLang's page has {expected}")
        want(server.found(loadable) == chain[: len(loadable) // page_size], f"rank {rank}: SGLang's lookup misses pages")
        want(server.read(chain) == len(chain), f"rank {rank}: SGLang does not load every page")
        tokens = len(chain) * page_size
        taken = server.taken(tokens)
        for name, rows in zip(("keys", "values"), taken):
            want(bool(torch.isfinite(rows).all()), f"rank {rank}: {name} hold a number that is not finite")
        if kv is None:
            continue
        for name, rows, given in zip(("keys", "values"), taken, kv):
            same = rows == given[:, :tokens, heads]
            want(bool(same.all()), f"rank {rank}: loaded {name} differ at [layer, token, head, dim] {(~same).nonzero()[:1].tolist()}")
        with tempfile.TemporaryDirectory() as scratch:
            _, writer = server_rank(scratch, manifest, rank, len(chain))
            writer.fill(kv[0][:, :, heads], kv[1][:, :, heads])
            want(writer.write(chain), f"rank {rank}: SGLang wrote no page")
            for name in chain:
                file = f"{name}{suffix}.bin"
                want((folder / file).read_bytes() == (pathlib.Path(scratch) / file).read_bytes(), f"{file}: bytes differ")
    return len(chain) * manifest["tp_size"]


def load_kv(file, manifest, tokens):
    tensors = load_file(file)
    shape = (tokens, 2, manifest["kv_heads"], manifest["head_dim"])
    layers = []
    for layer in range(manifest["layers"]):
        tensor = tensors.get(f"layers.{layer}")
        want(tensor is not None, f"{file}: no layers.{layer}")
        want(tuple(tensor.shape) == shape, f"{file}: layers.{layer} is {tuple(tensor.shape)}, expected {shape}")
        want(tensor.dtype == DTYPES[manifest["dtype"]], f"{file}: layers.{layer} is {tensor.dtype}, expected {manifest['dtype']}")
        layers.append(tensor)
    both = torch.stack(layers)
    return both[:, :, 0], both[:, :, 1]


def check(folder, kv_file=None, prompt_index=-1):
    folder = pathlib.Path(folder)
    manifest, prompts = manifest_of(folder)
    compared = 0
    chosen = prompt_index % len(prompts)
    for index, prompt in enumerate(prompts):
        kv = load_kv(kv_file, manifest, len(prompt["token_ids"])) if kv_file and index == chosen else None
        compared += check_prompt(folder, manifest, prompt, kv)
    return f"{len(prompts)} prompts, {compared} files, layout {manifest['layout']}, {manifest['dtype']}, hashes by {pages.hasher()}"


def plain_export(folder, manifest, prompt, keys, values):
    """Writes a folder by the rule as Tributary implements it, without SGLang: chain, names and byte order."""
    digest = b""
    if prompt["cache_salt"]:
        salt = prompt["cache_salt"].encode()
        digest = hashlib.sha256(b"sglang-cache-namespace-v1\x00\x01" + len(salt).to_bytes(8, "little") + salt).digest()
    prompt["pages"], size = [], manifest["page_size"]
    for start in range(0, len(prompt["token_ids"]) // size * size, size):
        words = b"".join(i.to_bytes(4, "little") for i in prompt["token_ids"][start : start + size])
        digest = hashlib.sha256(digest + words).digest()
        prompt["pages"].append(digest.hex())
        for rank, suffix in enumerate(manifest["suffixes"]):
            heads = pages.heads_of(rank, manifest["tp_size"], manifest["kv_heads"])
            blob = b""
            for rows in (keys, values):
                page = rows[:, start : start + size, heads]  # [layers, page, heads, head_dim]
                page = page.transpose(0, 1) if manifest["layout"] == "page_first" else page
                blob += page.contiguous().view(torch.uint8).numpy().tobytes()
            (folder / f"{digest.hex()}{suffix}.bin").write_bytes(blob)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "prompts": [prompt]}), encoding="utf-8")
    layers = {f"layers.{n}": torch.stack([k, v], 1).contiguous() for n, (k, v) in enumerate(zip(keys, values))}
    save_file(layers, folder / "kv.safetensors")


def self_test():
    def example(layout, dtype, tp_size, salt, tokens=11):
        manifest = dict(
            format="tributary-sglang", version=1, sglang="0.5.23", model_name="tributary/demo", tp_size=tp_size, page_size=4,
            layout=layout, dtype=dtype, layers=3, kv_heads=2, head_dim=8,
            fingerprint="0" * 64, suffixes=[f"_tributary-demo_{rank}_{tp_size}" for rank in range(tp_size)],
        )
        prompt = dict(token_ids=[(7 * i) ** 3 % 151936 for i in range(tokens)], cache_salt=salt, exact=not salt, method="full")
        generator = torch.Generator().manual_seed(1)
        rows = torch.randn(2, 3, tokens, 2, 8, generator=generator).to(DTYPES[dtype])
        return manifest, prompt, rows

    def fails(folder, why, change):
        with tempfile.TemporaryDirectory() as other:
            other = pathlib.Path(other)
            for file in folder.iterdir():
                (other / file.name).write_bytes(file.read_bytes())
            change(other)
            try:
                check(other, other / "kv.safetensors")
            except Wrong as error:
                want(why in str(error), f"expected {why!r}, got {error}")
                return
            raise Wrong(f"passed although: {why}")

    def edit(**changes):
        def change(folder):
            text = json.loads((folder / "manifest.json").read_text())
            for name, value in changes.items():
                (text if name in text else text["prompts"][0])[name] = value
            (folder / "manifest.json").write_text(json.dumps(text))
        return change

    def page_file(change_bytes):
        def change(folder):
            file = sorted(folder.glob("*.bin"))[0]
            file.write_bytes(change_bytes(file.read_bytes()))
        return change

    passed = 0
    for layout in pages.LAYOUTS:
        for dtype in DTYPES:
            for tp_size, salt, tokens in ((1, None, 11), (1, "salt-ü", 12), (2, None, 13), (4, "salt", 8)):
                with tempfile.TemporaryDirectory() as folder:
                    manifest, prompt, rows = example(layout, dtype, tp_size, salt, tokens)
                    plain_export(pathlib.Path(folder), manifest, copy.deepcopy(prompt), rows[0], rows[1])
                    check(folder, pathlib.Path(folder) / "kv.safetensors")
                    passed += 1
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        manifest, prompt, rows = example("page_first", "float32", 1, "salt")
        plain_export(folder, manifest, prompt, rows[0], rows[1])
        wrongs = [
            ("differ at", page_file(lambda page: bytes([page[0] ^ 1]) + page[1:])),
            ("bytes, SGLang's page has", page_file(lambda page: page[:-4])),
            ("bytes, SGLang's page has", page_file(lambda page: page + page)),
            ("missing", lambda other: sorted(other.glob("*.bin"))[0].unlink()),
            ("hashes differ", edit(cache_salt="another")),
            ("without a cache_salt", edit(cache_salt=None)),
            ("suffix", edit(suffixes=["_demo_0_1"])),
            ("differ at", edit(layout="layer_first")),
            ("no layers.3", edit(layers=4)),
            ("hashes differ", edit(page_size=8)),
            ("for SGLang", edit(sglang="0.5.22")),
        ]
        for why, change in wrongs:
            fails(folder, why, change)
    return f"self-test: {passed} right folders pass, {len(wrongs)} wrong ones are refused"


def main():
    parser = argparse.ArgumentParser(description="Check exported pages against SGLang's own code.")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--kv", metavar="FILE", help="keys and values as safetensors")
    parser.add_argument("--prompt", type=int, default=-1, metavar="N", help="prompt that FILE holds; default: the last")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if not options.self_test and options.folder is None:
        parser.error("a folder or --self-test")
    try:
        print(self_test() if options.self_test else check(options.folder, options.kv, options.prompt))
    except Wrong as error:
        sys.exit(f"wrong: {error}")


if __name__ == "__main__":
    main()
