"""Attention and matrix products of PyTorch on this machine's GPU, for the table of `make gpu`.

Shapes are those of kernels/benches/gpu: 32 query heads, 8 KV heads of 128, bf16, 32768 keys. Prints one JSON object:
milliseconds (median) per case. A case that PyTorch cannot run says why. Copies run in front of every timed case, as in kernels/benches/gpu,
so that the host is ahead of the GPU and launches do not count.
"""

import json
import statistics

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, DIM, KEYS = 32, 8, 128, 32768
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


COPIES = 4
BEFORE = []  # a tensor of 1 GiB and its copy


def copies():
    if not BEFORE:
        BEFORE.extend(torch.empty(1 << 30, device="cuda", dtype=torch.uint8) for _ in range(2))
    for _ in range(COPIES):
        BEFORE[1].copy_(BEFORE[0])


def median_ms(work, runs=7):
    for _ in range(2):
        work()
    times = []
    for _ in range(runs):
        copies()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def heads(count, rows):
    return torch.randn(1, count, rows, DIM, device="cuda", dtype=torch.bfloat16)


def attention(rows, mask=None, causal=False):
    """Milliseconds of the fastest backend, and its name; keys are repeated for backends without grouped queries."""
    q, k, v = heads(HEADS, rows), heads(KV_HEADS, KEYS), heads(KV_HEADS, KEYS)
    best = None
    failures = {}
    for name, backend in BACKENDS.items():
        for grouped in (True, False):
            keys, values = (k, v) if grouped else (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
            try:
                with sdpa_kernel(backend):
                    ms = median_ms(
                        lambda: functional.scaled_dot_product_attention(
                            q, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=grouped
                        )
                    )
            except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                failures[name] = str(error).splitlines()[0]
                continue
            if best is None or ms < best["ms"]:
                best = {"ms": ms, "backend": name, "grouped": grouped}
            break
    return best or {"failed": failures}


def staircase_mask():
    chosen = torch.randperm(KEYS, device="cuda")[: KEYS * 15 // 100].sort().values
    return torch.arange(KEYS, device="cuda")[None, :] <= chosen[:, None]


def main():
    torch.manual_seed(0)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    copies()
    x, y = BEFORE
    mask = staircase_mask()
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "gpu": torch.cuda.get_device_name(),
                "matmul_8192": {"ms": median_ms(lambda: a @ b)},
                "copy_1gib": {"ms": median_ms(lambda: y.copy_(x))},
                "dense_causal": attention(KEYS, causal=True),
                "staircase": attention(mask.shape[0], mask=mask),
                "probe_64": attention(64),
                "decode_1": attention(1),
            }
        )
    )


if __name__ == "__main__":
    main()
