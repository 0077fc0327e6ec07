"""Decoding by PyTorch on one core, beside `make bench-decode`: the shapes of examples/models/dummy-25m, random weights, one thread.

Keys and values stand in storage that was made for them, as in a static cache; attention is scaled_dot_product_attention. Prints
one line a case: milliseconds a step (median, min, max) and tokens a second. It is no part of continuous integration.

    usage: taskset -c 0 python decode.py
"""

import statistics
import time

import torch
import torch.nn.functional as functional

HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, MLP, VOCAB = 512, 8, 8, 2, 64, 1408, 4096
ROUNDS = 25


def weight(outputs, inputs, dtype):
    return (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)


class Layer:
    def __init__(self, dtype):
        self.norms = torch.ones(2, HIDDEN, dtype=dtype)
        self.qkv = weight((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, dtype)
        self.output = weight(HIDDEN, HEADS * DIM, dtype)
        self.gate_up = weight(2 * MLP, HIDDEN, dtype)
        self.down = weight(HIDDEN, MLP, dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def step(layers, head, x, caches, length):
    """One row of every sequence, at position `length`; `caches` [layers] of (k, v) [sequences, kv_heads, room, dim]."""
    count = x.shape[0]
    angles = length * 500000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    for layer, (k, v) in zip(layers, caches):
        y = functional.rms_norm(x, (HIDDEN,), layer.norms[0])
        qkv = functional.linear(y, layer.qkv).view(count, HEADS + 2 * KV_HEADS, 1, DIM)
        q, new_k, new_v = qkv.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        k[:, :, length] = rotate(new_k, cos, sin)[:, :, 0]
        v[:, :, length] = new_v[:, :, 0]
        keys, values = k[:, :, : length + 1], v[:, :, : length + 1]
        out = functional.scaled_dot_product_attention(rotate(q, cos, sin), keys, values, enable_gqa=True)
        x = x + functional.linear(out.reshape(count, HEADS * DIM), layer.output)
        gate, up = functional.linear(functional.rms_norm(x, (HIDDEN,), layer.norms[1]), layer.gate_up).chunk(2, dim=-1)
        x = x + functional.linear(functional.silu(gate) * up, layer.down)
    return functional.linear(x, head).argmax(dim=-1)


@torch.inference_mode()
def measure(dtype, context, sequences):
    torch.manual_seed(0)
    layers, head = [Layer(dtype) for _ in range(LAYERS)], weight(VOCAB, HIDDEN, dtype)
    room = (sequences, KV_HEADS, context + ROUNDS + 3, DIM)
    caches = [(torch.randn(room).to(dtype), torch.randn(room).to(dtype)) for _ in layers]
    x, times = torch.randn(sequences, HIDDEN).to(dtype), []
    for i in range(ROUNDS + 3):
        start = time.perf_counter()
        step(layers, head, x, caches, context + i)
        times.append((time.perf_counter() - start) * 1e3)
    times = sorted(times[3:])
    median = statistics.median(times)
    name = str(dtype).removeprefix("torch.")
    print(f"{name:9} {context:6} {sequences:3} {median:8.2f} {times[0]:8.2f} {times[-1]:8.2f} {sequences * 1e3 / median:9.1f}", flush=True)


def main():
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, one thread, {ROUNDS} steps")
    print("dtype     tokens seq       ms      min      max  tokens/s")
    for dtype in (torch.float32, torch.bfloat16):
        for context in (1024, 8192):
            for sequences in (1, 8):
                measure(dtype, context, sequences)


if __name__ == "__main__":
    main()
