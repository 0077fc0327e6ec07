"""Records golden/pages.json: hashes, file names and pages by SGLang 0.5.23's own code, without a GPU.

Run from anywhere: python record.py. Needs the environment of requirements.txt.

K[layer, token, head, dim] = ((layer * tokens + token) * kv_heads + head) * head_dim + dim, and V = -1 - K: at most 176, so
every number is exact in bf16. A page's bytes are hex. Pages do not depend on a salt; only their names do.
"""

import array
import json
import pathlib
import tempfile

import torch
from sglang.srt.mem_cache.rust_tree_core.extension import bindings as rust
from sglang.srt.mem_cache.utils import storage_namespace_seed

import pages

FOLDER = pathlib.Path(__file__).parent / "golden"
LAYERS, HEADS, DIM, PAGE = 2, 2, 4, 4
IDS = [1, 17, 300, 65535, 65536, 128255, 7, 7, 0, 151643, 42]
MODEL = "tributary/demo"
SALT = "tributary-0123456789abcdef"


def numbers(dtype):
    keys = torch.arange(LAYERS * len(IDS) * HEADS * DIM).reshape(LAYERS, len(IDS), HEADS, DIM)
    return keys.to(dtype), (-1 - keys).to(dtype)


def chains():
    """Hash chains: what seeds them, page sizes, prompts of 0, 1, 2 and more pages."""
    long = [(i * 7919) % 151936 for i in range(130)]
    cases = [
        dict(ids=IDS, page_size=4), dict(ids=IDS, page_size=4, cache_salt=SALT), dict(ids=IDS, page_size=4, extra_key="team-a"),
        dict(ids=IDS, page_size=4, extra_key="team-a", cache_salt=SALT), dict(ids=IDS, page_size=4, cache_salt=""),
        dict(ids=IDS, page_size=4, cache_salt="Zürich 東京"), dict(ids=IDS[:8], page_size=4), dict(ids=IDS[:3], page_size=4),
        dict(ids=IDS[:3], page_size=1), dict(ids=IDS, page_size=16), dict(ids=[4294967295, 4294967294], page_size=2),
        dict(ids=long, page_size=64),
        dict(ids=IDS[4:], page_size=4, prior=pages.hashes(IDS[:4], 4)[0]),
    ]
    chains = []
    for case in cases:
        chain = pages.hashes(**case)
        assert rust_hashes(**case) == chain, case
        chains.append({**case, "hashes": chain})
    return chains


def rust_hashes(ids, page_size, extra_key=None, cache_salt=None, prior=None):
    """The same by the Rust code with which SGLang's tree of cached prefixes hashes."""
    whole = array.array("q", ids[: len(ids) // page_size * page_size])
    return rust.get_hash_str(whole, prior or storage_namespace_seed(extra_key, cache_salt or None), page_size)


def names(folder):
    """File names of the page "HASH" under settings of a server."""
    cases = [
        dict(model_name=MODEL), dict(model_name=MODEL, tp_rank=1, tp_size=2), dict(model_name="/srv/models/demo"),
        dict(model_name="./demo/"), dict(model_name="demo"), dict(model_name=""), dict(model_name=MODEL, pp=[1, 2]),
        dict(model_name=MODEL, cp=[1, 2]), dict(model_name=MODEL, tp_rank=1, tp_size=2, pp=[0, 2], cp=[1, 2]),
        dict(model_name=MODEL, tp_rank=1, tp_size=2, mla=True), dict(model_name=MODEL, mla=True, pp=[1, 2]),
    ]
    return [{**case, "name": pages.backend(folder, **case)._get_suffixed_key("HASH") + ".bin"} for case in cases]


def written(folder, dtype, layout, tp_size, salt):
    """{file name: hex} of what SGLang writes for IDS, over all tensor ranks."""
    folder = pages.fresh(folder)
    keys, values = numbers(dtype)
    chain = pages.hashes(IDS, PAGE, cache_salt=salt)
    for rank in range(tp_size):
        heads = pages.heads_of(rank, tp_size, HEADS)
        server = pages.Rank(folder, MODEL, rank, tp_size, PAGE, layout, dtype, LAYERS, heads.stop - heads.start, DIM, len(chain))
        server.fill(keys[:, :, heads], values[:, :, heads])
        assert server.write(chain), "SGLang wrote no page"
        assert server.read(chain) == len(chain), "SGLang does not read its own pages"
        for taken, given in zip(server.taken(len(chain) * PAGE), (keys, values)):
            assert torch.equal(taken, given[:, : len(chain) * PAGE, heads]), (dtype, layout, rank)
    return {file.name: file.read_bytes().hex() for file in sorted(pathlib.Path(folder).iterdir())}


def main():
    with tempfile.TemporaryDirectory() as scratch:
        cases = []
        for dtype in (torch.float32, torch.bfloat16):
            for layout in pages.LAYOUTS:
                files = written(f"{scratch}/pages", dtype, layout, 1, None)
                salted = written(f"{scratch}/pages", dtype, layout, 1, SALT)
                assert sorted(files.values()) == sorted(salted.values()) and not files.keys() & salted.keys()
                cases.append((dtype, layout, 1, None, files))
        cases.append((torch.bfloat16, "page_first", 1, SALT, written(f"{scratch}/pages", torch.bfloat16, "page_first", 1, SALT)))
        cases.append((torch.bfloat16, "page_first", 2, None, written(f"{scratch}/pages", torch.bfloat16, "page_first", 2, None)))
        golden = {
            "sglang": "0.5.23",
            "hasher": pages.hasher(),
            "formula": "K[layer, token, head, dim] = ((layer * 11 + token) * 2 + head) * 4 + dim; V = -1 - K",
            "layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM, "page_size": PAGE, "model_name": MODEL, "token_ids": IDS,
            "chains": chains(),
            "names": names(scratch),
            "pages": [
                {"dtype": str(dtype).removeprefix("torch."), "layout": layout, "tp_size": tp_size, "cache_salt": salt, "files": files}
                for dtype, layout, tp_size, salt, files in cases
            ],
        }
    FOLDER.mkdir(exist_ok=True)
    lines = []
    for key, value in golden.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value)
            lines.append(f'{json.dumps(key)}: [\n  {rows}\n ]')
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    (FOLDER / "pages.json").write_text("{\n " + ",\n ".join(lines) + "\n}\n", encoding="utf-8")
    print(f"hashes by {golden['hasher']}; {(FOLDER / 'pages.json').stat().st_size} bytes")


if __name__ == "__main__":
    main()
