"""Runs SGLang's own HiCache code on a CPU: hash chain, file names, host pool and file back-end.

Nothing here states the format. Names come from `HiCacheFile`, hashes from `get_storage_hash_str`, byte order from the
host pool's per-layer views and `get_data_page`; pages are written and read by the cache controller's own methods.
Deliberately absent: a server, a GPU, transfers between device and host.
"""

import functools
import os
import shutil
import sys
import types

# SGLang builds its native hash with ninja at the first use; both belong into this environment.
os.environ["PATH"] = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{sys.prefix}/extensions")
# A folder set there goes before ours, and a size limit would let the back-end delete the files under test.
for name in [name for name in os.environ if name.startswith("SGLANG_HICACHE_FILE_BACKEND_")]:
    del os.environ[name]

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str

LAYOUTS = ("layer_first", "page_first", "page_first_direct")


@functools.lru_cache(maxsize=1)
def hasher() -> str:
    """Says which code hashes: SGLang's C++ extension, or hashlib where the extension cannot be built."""
    try:
        get_storage_hash_str([1], page_size=1)
        return "native"
    except RuntimeError as error:
        import hashlib

        from sglang.srt.mem_cache import utils

        def plain(token_ids, prior_digest, page_size=None):
            ids, digest, pages = list(token_ids), prior_digest or b"", []
            for start in range(0, len(ids), page_size):
                words = b"".join(int(i).to_bytes(4, "little") for i in ids[start : start + page_size])
                digest = hashlib.sha256(digest + words).digest()
                pages.append(digest.hex())
            return pages

        utils.get_native_hash = plain
        return f"hashlib ({error.__cause__ or error})"


def hashes(ids, page_size, extra_key=None, cache_salt=None, prior=None) -> list[str]:
    """Hashes of the full pages of `ids`, as the prefetch of a request computes them."""
    hasher()
    key = RadixKey(list(ids), extra_key=extra_key, cache_salt=cache_salt).page_aligned(page_size)
    return get_storage_hash_str(key, prior, page_size=page_size)


def backend(folder, model_name, tp_rank=0, tp_size=1, mla=False, pp=(0, 1), cp=(0, 1)) -> HiCacheFile:
    return HiCacheFile(
        HiCacheStorageConfig(
            tp_rank=tp_rank, tp_size=tp_size, pp_rank=pp[0], pp_size=pp[1], attn_cp_rank=cp[0], attn_cp_size=cp[1],
            is_mla_model=mla, enable_storage_metrics=False, is_page_first_layout=False, model_name=model_name,
            extra_config={"file_storage_path": str(folder)},
        )
    )


class Rank:
    """One tensor rank of an SGLang server: its host pool, its file back-end and the controller between the two."""

    def __init__(self, folder, model_name, tp_rank, tp_size, page_size, layout, dtype, layers, heads, head_dim, pages):
        assert layout in LAYOUTS, layout
        device_pool = MHATokenToKVPool(page_size, page_size, dtype, heads, head_dim, layers, "cpu", False)
        info = device_pool.get_device_pool_infos()[0].buffer_info
        with host_memory_budget_scope(1 << 60):  # SGLang keeps 10 GiB free otherwise
            self.host = get_mha_host_pool_cls(info)(
                info, host_to_device_ratio=1.0, host_size=0, page_size=page_size, layout=layout, pin_memory=False,
                device="cpu", device_capacity_tokens=page_size, start_layer=0, end_layer=layers,
                host_token_capacity=max(pages, 1) * page_size,
            )
        self.page_size = page_size
        self.storage = backend(folder, model_name, tp_rank, tp_size)
        self.controller = HiCacheController.__new__(HiCacheController)
        self.controller.storage_host_pool = self.host
        self.controller.storage_backend = self.storage
        self.controller.page_size = page_size

    def rows(self, per_layer, layer):
        """[tokens, heads, head_dim] of one layer, a view in every layout."""
        view = per_layer[layer]
        return view if view.dim() == 3 else view.flatten(0, 1)  # page_first_direct: [pages, page, heads, head_dim]

    def fill(self, keys, values) -> None:
        """Copies [layers, tokens, heads, head_dim] into the host pool by its per-layer views."""
        self.host.kv_buffer.zero_()
        tokens = keys.shape[1] // self.page_size * self.page_size
        pages = tokens // self.page_size
        for layer in range(keys.shape[0]):
            for views, source in ((self.host.k_data_refs, keys), (self.host.v_data_refs, values)):
                view = views[layer]
                if view.dim() == 3:
                    view[:tokens].copy_(source[layer, :tokens])
                else:
                    view[:pages].copy_(source[layer, :tokens].unflatten(0, (pages, self.page_size)))

    def taken(self, tokens):
        """(keys, values), each [layers, tokens, heads, head_dim], out of the host pool."""
        return tuple(
            torch.stack([self.rows(views, layer)[:tokens] for layer in range(len(views))])
            for views in (self.host.k_data_refs, self.host.v_data_refs)
        )

    def write(self, names) -> bool:
        return self.controller._generic_page_set(names, torch.arange(len(names) * self.page_size))

    def found(self, key) -> list[str]:
        """Hashes of the pages that a request with this RadixKey is told to fetch."""
        operation = types.SimpleNamespace(last_hash=None, token_ids=key, prefix_keys=None)
        return self.controller._storage_hit_query(operation)[0]

    def read(self, names) -> int:
        """Loads pages into the host pool. Answers how many were loaded before the first failure."""
        operation = types.SimpleNamespace(request_id="check", is_terminated=lambda: False)
        self.host.kv_buffer.zero_()
        return self.controller._generic_page_get(operation, names, torch.arange(len(names) * self.page_size))


def heads_of(tp_rank, tp_size, kv_heads) -> slice:
    """The KV heads that a tensor rank holds: equal shares, or one head each where ranks outnumber heads."""
    if tp_size <= kv_heads:
        share = kv_heads // tp_size
        return slice(tp_rank * share, (tp_rank + 1) * share)
    head = tp_rank // (tp_size // kv_heads)
    return slice(head, head + 1)


def fresh(folder) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return str(folder)
