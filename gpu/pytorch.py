"""Attention and matrix products of PyTorch on this machine's GPU, for the table of `make gpu`.

Shapes are those of kernels/benches/gpu: 32 query heads, 8 KV heads of 128, bf16, 32768 keys. Prints one JSON object a line, as each case
ends: its name and the median in milliseconds, of attention that of the fastest backend. A case that PyTorch cannot run says why, and the
others go on. Copies run before every timed run, as in kernels/benches/gpu, so that the host is ahead of the GPU and launches do not
count.
"""

import json
import statistics

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, DIM, KEYS, SIDE = 32, 8, 128, 32768, 8192
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
COPIES = 4
BEFORE = []  # a tensor of 1 GiB and its copy


def copy():
    if not BEFORE:
        BEFORE.extend(torch.empty(1 << 30, device="cuda", dtype=torch.uint8) for _ in range(2))
    BEFORE[1].copy_(BEFORE[0])


def median_ms(work, runs=7):
    for _ in range(2):
        work()
    times = []
    for _ in range(runs):
        for _ in range(COPIES):
            copy()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def first_line(error):
    return f"{type(error).__name__}: {error}".splitlines()[0]


def heads(count, rows):
    return torch.randn(1, count, rows, DIM, device="cuda", dtype=torch.bfloat16)


def attention(rows, mask=None, causal=False):
    """The fastest backend and its time; keys are repeated for backends without grouped queries."""
    q, k, v = heads(HEADS, rows), heads(KV_HEADS, KEYS), heads(KV_HEADS, KEYS)
    best = None
    failures = {}
    for name, backend in BACKENDS.items():
        for grouped in (True, False):
            try:
                keys, values = (k, v) if grouped else (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
                with sdpa_kernel(backend):
                    ms = median_ms(
                        lambda: functional.scaled_dot_product_attention(
                            q, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=grouped
                        )
                    )
            except Exception as error:  # whatever it is, other backends may do it
                failures[name] = first_line(error)
                continue
            if best is None or ms < best["ms"]:
                best = {"ms": ms, "backend": name, "grouped": grouped}
            break
    return best or {"failed": failures}


def staircase():
    chosen = torch.randperm(KEYS, device="cuda")[: KEYS * 15 // 100].sort().values
    mask = torch.arange(KEYS, device="cuda")[None, :] <= chosen[:, None]
    return attention(mask.shape[0], mask=mask)


def matmul():
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return {"ms": median_ms(lambda: a @ b)}


CASES = {
    "machine": lambda: {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()},
    "matmul_8192": matmul,
    "copy_1gib": lambda: {"ms": median_ms(copy)},
    "dense_causal": lambda: attention(KEYS, causal=True),
    "staircase": staircase,
    "probe_64": lambda: attention(64),
    "decode_1": lambda: attention(1),
}


def main():
    torch.manual_seed(0)
    for name, case in CASES.items():
        try:
            result = case()
        except Exception as error:  # the result of this case
            result = {"failed": first_line(error)}
        print(json.dumps({"case": name, **result}), flush=True)


if __name__ == "__main__":
    main()
