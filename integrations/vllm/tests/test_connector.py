"""The connector itself against stand-ins of the few names of vLLM that it imports. What writes tensors needs torch, and is skipped without."""

import importlib
import pathlib
import random
import struct
import sys
import time
import types
import unittest
from dataclasses import dataclass, field
from types import SimpleNamespace

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parent)]

from standin import Prefill, StandIn, blake2
from tributary_vllm import handover
from tributary_vllm.handover import Reference, Shape
from tributary_vllm.scheduler import Load
from tributary_vllm.worker import Piece

try:
    import torch
except ImportError:
    torch = None

IDS = list(range(50, 71))


class Base:
    def __init__(self, vllm_config, role, kv_cache_config):
        self._vllm_config, self._kv_transfer_config, self._kv_cache_config = vllm_config, vllm_config.kv_transfer_config, kv_cache_config

    def bind_connector_metadata(self, metadata):
        self._metadata = metadata

    def _get_connector_metadata(self):
        return self._metadata


@dataclass
class Results:
    finished_sending: set = field(default_factory=set)
    finished_recving: set = field(default_factory=set)
    failed_recving: set = field(default_factory=set)


@dataclass
class BaseStats:
    data: dict = field(default_factory=dict)


class FullAttentionSpec(SimpleNamespace):
    pass


class SlidingWindowSpec(SimpleNamespace):
    pass


rank_of_this_worker = 0


def load_connector(version):
    """The module, with `vllm` and, where it is not installed, `torch` replaced while it is imported."""
    role = SimpleNamespace(SCHEDULER="scheduler", WORKER="worker")
    stubs = {
        "vllm": {"__version__": version, "__path__": []},
        "vllm.distributed": {"get_tensor_model_parallel_rank": lambda: rank_of_this_worker, "__path__": []},
        "vllm.distributed.kv_transfer.kv_connector.v1.base": {
            "KVConnectorBase_V1": Base, "KVConnectorMetadata": object, "KVConnectorRole": role, "KVConnectorTransferResults": Results},
        "vllm.distributed.kv_transfer.kv_connector.v1.metrics": {"KVConnectorStats": BaseStats},
        "vllm.logger": {"init_logger": lambda name: None},
        "vllm.model_executor.models.utils": {"extract_layer_index": lambda name: int(name.split(".")[2])},
        "vllm.v1.kv_cache_interface": {"FullAttentionSpec": FullAttentionSpec},
    }
    if torch is None:
        stubs["torch"] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "Tensor": object}
    replaced = {name: sys.modules.get(name) for name in stubs}
    for name, values in stubs.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(values)
    sys.modules.pop("tributary_vllm.connector", None)
    try:
        return importlib.import_module("tributary_vllm.connector")
    finally:
        for name, module in replaced.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class Layer:
    """An attention layer whose cache keeps, by slot, what its back-end is told to write."""

    kv_sharing_target_layer_name = None

    def __init__(self):
        self.slots, self.impl = {}, self
        self.kv_cache = SimpleNamespace(device="cpu")

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        assert layer is self and cache is self.kv_cache and key[0].is_contiguous() and value[0].is_contiguous()
        for slot, k, v in zip(slots.tolist(), key.tolist(), value.tolist(), strict=True):
            self.slots[slot] = k, v


class Connector(unittest.TestCase):
    def setUp(self):
        self.stand_in = StandIn()
        self.stand_in.__enter__()
        self.addCleanup(self.stand_in.__exit__)

    def make(self, role="scheduler", version="0.32.0", *, extra=None, ranks=1, kv_heads=2, layers=3, specs=None, transfer=None, model=None, parallel=None, **config):
        module = load_connector(version)
        dtype = module.torch.float32
        spec = FullAttentionSpec(sliding_window=None, attention_chunk_size=None, dtype=dtype, head_size=4, head_size_v=4, block_size=16)
        names = [f"model.layers.{index}.attn" for index in range(layers)]
        cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=names) for spec in (specs or [spec])])
        self.layers = {name: Layer() for name in names}
        vllm_config = SimpleNamespace(
            kv_transfer_config=SimpleNamespace(**{"kv_load_failure_policy": "recompute", "kv_role": "kv_consumer",
                                                  "kv_connector_extra_config": {"url": self.stand_in.url, **(extra or {})}, **(transfer or {})}),
            parallel_config=SimpleNamespace(**{"pipeline_parallel_size": 1, "tensor_parallel_size": ranks, **(parallel or {})}),
            model_config=SimpleNamespace(**{"dtype": dtype, "use_mla": False, "get_total_num_kv_heads": lambda: kv_heads, **(model or {})}),
            speculative_config=config.get("speculative_config"), compilation_config=SimpleNamespace(static_forward_context=self.layers),
        )
        made = module.TributaryConnector(vllm_config, role, cache)
        self.addCleanup(made.shutdown)
        if role == "worker":
            made.register_kv_caches(dict.fromkeys(names))
        return made

    def test_it_starts_on_tested_versions(self):
        for version in ("0.31.0", "0.32.0", "0.32.0+cpu"):
            self.make(version=version)
        for version in ("0.30.0", "0.32.1", "0.33.0", "0.32.0rc1"):
            with self.assertRaisesRegex(ValueError, f"vLLM {version} is not among the tested"):
                self.make(version=version)
            self.make(version=version, extra={"allow_untested": True})

    def test_it_refuses_to_start_in_one_line(self):
        two = [FullAttentionSpec(sliding_window=None, attention_chunk_size=None), SlidingWindowSpec()]
        windowed = [FullAttentionSpec(sliding_window=128, attention_chunk_size=None)]
        chunked = [FullAttentionSpec(sliding_window=None, attention_chunk_size=128)]
        narrow = [FullAttentionSpec(sliding_window=None, attention_chunk_size=None, dtype="fp8", head_size=4, head_size_v=4, block_size=16)]
        for pattern, options in (
            ('must be "recompute", not "fail"', {"transfer": {"kv_load_failure_policy": "fail"}}),
            ("kv_consumer only", {"transfer": {"kv_role": "kv_both"}}),
            ("pipeline and context", {"parallel": {"pipeline_parallel_size": 2}}),
            ("pipeline and context", {"parallel": {"decode_context_parallel_size": 2}}),
            ("speculative", {"speculative_config": object()}),
            ("latent", {"model": {"use_mla": True}}),
            ("hybrid.*SlidingWindowSpec", {"specs": two}),
            ("hybrid", {"specs": [SlidingWindowSpec()]}),
            ("hybrid", {"specs": windowed}),
            ("hybrid", {"specs": chunked}),
            ("KV cache of fp8", {"specs": narrow}),
            ("unknown kv_connector_extra_config: retries", {"extra": {"retries": 3}}),
        ):
            with self.subTest(pattern), self.assertRaisesRegex(ValueError, pattern) as raised:
                self.make(**options)
            self.assertNotIn("\n", str(raised.exception))

    def test_layers_that_cannot_be_written_are_refused(self):
        made = self.make("worker")
        self.layers["model.layers.1.attn"].kv_sharing_target_layer_name = "model.layers.0.attn"
        with self.assertRaisesRegex(ValueError, "layer 1 has no KV cache of its own"):
            made.register_kv_caches(dict.fromkeys(self.layers))
        self.layers["model.layers.1.attn"].kv_sharing_target_layer_name = None
        with self.assertRaisesRegex(ValueError, "layer 2 has no KV cache"):
            made.register_kv_caches(dict.fromkeys(list(self.layers)[:2]))

    def test_from_the_request_to_the_answer(self):
        made = self.make()
        prefill = self.stand_in.add(Prefill(IDS, Shape(3, 2, 4, "f32"), None, exact=False))
        request = SimpleNamespace(request_id="r", prompt_token_ids=list(IDS), cache_salt=prefill.salt, kv_transfer_params={"tributary": {"id": prefill.id}})
        made.on_new_request(request)
        end = time.monotonic() + 5
        while (told := made.get_num_new_matched_tokens(request, 16)) == (None, False) and time.monotonic() < end:
            time.sleep(0.005)
        self.assertEqual(told, (4, True))
        made.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: ([3, 9],)), 4)
        meta = made.build_connector_meta(SimpleNamespace(total_num_scheduled_tokens=0))
        (load,) = meta.loads
        self.assertEqual((load.first, load.rows, load.blocks, meta.idle), (16, 4, [3, 9], True))
        meta = made.build_connector_meta(SimpleNamespace(total_num_scheduled_tokens=1))
        self.assertEqual((meta.loads, meta.idle), ([], False))
        self.assertIsNone(made.get_kv_connector_stats())
        made.update_connector_output(SimpleNamespace(finished_recving={"r"}, failed_recving=set()))
        stats = made.get_kv_connector_stats()
        self.assertEqual(stats.data, {"imports": 1, "imported_tokens": 4})
        sums = type(made).build_kv_connector_stats({"imports": 2}).aggregate(stats)
        self.assertEqual(sums.reduce(), {"imports": 3, "imported_tokens": 4})
        self.assertEqual(made.request_finished(request, []), (False, {"tributary": {"id": prefill.id, "imported_tokens": 4}}))

    @unittest.skipIf(torch is None, "needs torch")
    def test_rows_go_to_the_slots_of_their_blocks(self):
        global rank_of_this_worker
        # [rows, 2, kv_heads, head_dim]: the value tells row, kind, head and dimension.
        value = lambda row, kind, head, dim: 1000 * row + 100 * kind + 10 * head + dim  # noqa: E731
        for kv_heads, ranks, rank, heads in ((2, 1, 0, [0, 1]), (2, 2, 0, [0]), (2, 2, 1, [1]), (4, 2, 1, [2, 3]), (2, 4, 1, [0]), (2, 4, 2, [1])):
            with self.subTest(kv_heads=kv_heads, ranks=ranks, rank=rank):
                rank_of_this_worker = rank
                made = self.make("worker", ranks=ranks, kv_heads=kv_heads)
                self.assertEqual(list(made._part.heads), heads)
                rows = range(14, 19)
                data = [value(row, kind, head, dim) for row in rows for kind in range(2) for head in heads for dim in range(4)]
                piece = Piece(1, 14, len(rows), bytearray(struct.pack(f"<{len(data)}f", *data)))
                made._write(Load("r", Reference("id", "url"), 14, 5, [3, 9]), piece)
                expected = {
                    [3, 9][row // 16] * 16 + row % 16: tuple([[float(value(row, kind, head, dim)) for dim in range(4)] for head in heads] for kind in range(2))
                    for row in rows}
                self.assertEqual(self.layers["model.layers.1.attn"].slots, expected)
                self.assertEqual(self.layers["model.layers.0.attn"].slots, {})
        rank_of_this_worker = 0

    @unittest.skipIf(torch is None, "needs torch")
    def test_from_the_load_to_the_report(self):
        shape = Shape(3, 2, 4, "f32")
        kv = lambda layer: random.Random(layer).randbytes(len(IDS) * shape.row_bytes)  # noqa: E731
        real, handover.blake3 = handover.blake3, blake2
        handover.Server.__init__.__defaults__ = (blake2,)
        self.addCleanup(setattr, handover, "blake3", real)
        self.addCleanup(setattr, handover.Server.__init__, "__defaults__", (real,))
        for damage, failed in ((None, set()), ((2, 3), {"r"})):
            made = self.make("worker")
            prefill = self.stand_in.add(Prefill(IDS, shape, kv))
            prefill.damage = damage
            meta = type(made).build_connector_meta.__globals__["Metadata"]
            made.bind_connector_metadata(meta([Load("r", Reference(prefill.id, self.stand_in.url), 0, 20, [3, 9])]))
            end = time.monotonic() + 5
            while time.monotonic() < end:
                made.start_load_kv(None)
                made.bind_connector_metadata(meta([]))
                results = made.get_transfer_results(set())
                if results.finished_recving:
                    break
                time.sleep(0.005)
            self.assertEqual((results.finished_recving, results.failed_recving), ({"r"}, failed))
            if not failed:
                for name, layer in self.layers.items():
                    self.assertEqual(sorted(layer.slots), [*range(48, 64), *range(144, 148)], name)


if __name__ == "__main__":
    unittest.main()
