"""The connector that vLLM loads. It binds the rules of `scheduler` and the threads of `worker` to vLLM's base class."""

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.logger import init_logger
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.kv_cache_interface import FullAttentionSpec

from .handover import Part, Settings, Shape, heads_of_rank
from .scheduler import Handovers, Load
from .worker import Loads, Piece

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.tributary")

TESTED = ("0.31.0", "0.32.0")
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# Bytes written into the cache between two forward passes, so that streams of other requests do not stall.
STEP_BYTES = 64 << 20
# Time for which a worker that has nothing else to compute waits for pieces: a request that arrives meanwhile begins this much later at most.
IDLE_SECONDS = 0.02


@dataclass
class Metadata(KVConnectorMetadata):
    loads: list[Load] = field(default_factory=list)
    # Whether this step computes no token.
    idle: bool = False


@dataclass
class Stats(KVConnectorStats):
    """Counts of an interval: `imports`, `imported_tokens`, `computed_by_vllm`."""

    def reset(self) -> None:
        self.data = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        names = {*self.data, *other.data}
        return Stats({name: self.data.get(name, 0) + other.data.get(name, 0) for name in names})

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)


def shape_of(config: "VllmConfig", cache: "KVCacheConfig") -> Shape:
    """The shape of vLLM's KV; raises ValueError where this connector cannot fill its cache."""
    model, parallel = config.model_config, config.parallel_config
    policy = config.kv_transfer_config.kv_load_failure_policy if config.kv_transfer_config else None
    for reason, refused in (
        (f'kv_load_failure_policy must be "recompute", not "{policy}": what does not come is computed by vLLM', policy != "recompute"),
        ("it is a kv_consumer only", config.kv_transfer_config is not None and config.kv_transfer_config.kv_role != "kv_consumer"),
        ("pipeline and context parallelism are not supported", parallel.pipeline_parallel_size > 1
         or getattr(parallel, "decode_context_parallel_size", 1) > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1),
        ("speculative decoding is not supported: a draft model's KV would be missing", config.speculative_config is not None),
        ("latent attention (MLA) is not supported", model.use_mla),
        ("hosts with big-endian numbers are not supported", sys.byteorder != "little"),
    ):
        if refused:
            raise ValueError(f"tributary: {reason}")
    groups = cache.kv_cache_groups
    specs = [group.kv_cache_spec for group in groups]
    if len(specs) != 1 or type(specs[0]) is not FullAttentionSpec or specs[0].sliding_window or specs[0].attention_chunk_size:
        raise ValueError(f"tributary: hybrid and windowed KV caches are not supported: {', '.join(type(spec).__name__ for spec in specs) or 'none'}")
    spec = specs[0]
    if spec.dtype not in DTYPES or spec.dtype != model.dtype or spec.head_size_v != spec.head_size:
        raise ValueError(f"tributary: a KV cache of {spec.dtype} beside a model of {model.dtype} is not supported")
    return Shape(len(groups[0].layer_names), model.get_total_num_kv_heads(), spec.head_size, DTYPES[spec.dtype])


class TributaryConnector(KVConnectorBase_V1):
    """Fills vLLM's cache from `GET /v1/kv/ID/LAYER`, asynchronously: other requests run while Tributary prefills."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        settings = Settings.read(self._kv_transfer_config.kv_connector_extra_config)
        version = vllm.__version__.split("+")[0]
        if version not in TESTED and not settings.allow_untested:
            raise ValueError(f"tributary: vLLM {version} is not among the tested versions ({', '.join(TESTED)}); "
                             'kv_connector_extra_config {"allow_untested": true} starts it nevertheless')
        self._settings = settings
        self._shape = shape_of(vllm_config, kv_cache_config)
        self._block_size: int = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._handovers = Handovers(settings, self._shape) if role == KVConnectorRole.SCHEDULER else None
        self._loads: Loads | None = None
        self._failed: set[str] = set()

    # The scheduler's side.

    @property
    def _scheduler(self) -> Handovers:
        assert self._handovers is not None
        return self._handovers

    def on_new_request(self, request: "Request") -> None:
        self._scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.rows(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        return Metadata(self._scheduler.take_loads(), idle=scheduler_output.total_num_scheduled_tokens == 0)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        self._scheduler.received(connector_output.finished_recving or (), connector_output.failed_recving)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return False, self._scheduler.finished(request)

    # Both sides have it; only the scheduler's counts, so that several ranks do not count a token twice.
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        counts = self._handovers.take_counts() if self._handovers else None
        return Stats(counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return Stats(data or {})

    def shutdown(self) -> None:
        for side in (self._handovers, self._loads):
            if side is not None:
                side.close()

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        known = self._vllm_config.compilation_config.static_forward_context
        self._attention = {extract_layer_index(name): known[name] for name in kv_caches}
        for index in range(self._shape.layers):
            layer = self._attention.get(index)
            if not hasattr(getattr(layer, "impl", None), "do_kv_cache_update") or getattr(layer, "kv_sharing_target_layer_name", None):
                raise ValueError(f"tributary: layer {index} has no KV cache of its own that can be written ({type(layer).__name__})")
        ranks = self._vllm_config.parallel_config.tensor_parallel_size
        heads = heads_of_rank(self._shape.kv_heads, ranks, get_tensor_model_parallel_rank())
        self._part = Part(self._shape, heads)
        self._dtype = next(dtype for dtype, name in DTYPES.items() if name == self._shape.dtype)
        self._loads = Loads(self._settings, self._part, range(self._shape.layers))

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, Metadata)
        assert self._loads is not None
        for load in metadata.loads:
            self._loads.start(load)
        self._loads.write_for(IDLE_SECONDS if metadata.idle else 0, STEP_BYTES, self._write)

    def _write(self, load: Load, piece: Piece) -> None:
        """Writes rows as the model's own forward pass does: keys and values are parts of wider rows there too, and the layout of a page
        belongs to the attention back-end."""
        layer = self._attention[piece.layer]
        cache = layer.kv_cache
        rows = torch.frombuffer(piece.data, dtype=self._dtype)
        rows = rows.view(piece.rows, 2, len(self._part.heads), self._shape.head_dim).to(cache.device)
        places = torch.arange(piece.first, piece.first + piece.rows)
        slots = torch.tensor(load.blocks)[places // self._block_size] * self._block_size + places % self._block_size
        layer.impl.do_kv_cache_update(layer, rows[:, 0], rows[:, 1], cache, slots.to(cache.device))

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Failures go by request and not by block: vLLM then computes the whole prompt, with nothing that came before the failure."""
        assert self._loads is not None
        self._loads.stop(finished_req_ids)
        finished, failed = self._loads.take_finished()
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=failed)

    # Loads are complete before vLLM schedules their request, and nothing is saved.

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: "AttentionMetadata", **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return
