"""Chunks that keep some of their rows before they are cached, in plain PyTorch, from the definition: which rows each KV head keeps, by layer.

A chunk is prefilled after the prefix, alone. Its last tokens look at it, or the rows of an adapter after its tokens; those rows are kept
in any case, and rows of an adapter too. Scores are dense, in f64.
"""

import math

import torch

from evict import POOLED, SINKS, drawn
from methods import DTYPE, Request


def contests(r: Request, s: dict):
    """For every layer and KV head, chunk by chunk: the rows that are kept, and of those that compete their first, their scores and the cut."""
    group, found = r.model.heads // r.model.kv_heads, []
    r.prefill_chunks(lambda _layer, attention: found.append(attention.view(r.model.kv_heads, group, attention.shape[1], -1).mean(1)))
    return [[[of_chunk(r, s, chunk, layer, head, attention) for chunk in range(len(r.lengths))]
             for head in range(r.model.kv_heads)] for layer, attention in enumerate(found)]


def of_chunk(r: Request, s: dict, chunk, layer, head, attention):
    own, tokens, keep = r.rows_of(chunk).tolist(), r.tokens_of(chunk).tolist(), s["kept_tokens"][chunk]
    if keep == len(tokens):
        return own, (0, torch.zeros(0, dtype=DTYPE), math.inf)
    window = 0 if r.tail else min(s.get("window") or 0, max(1, keep // 2))
    looking = own[len(own) - r.tail:] if r.tail else tokens[len(tokens) - window:]
    if s["method"] == "snapkv":
        scores, head_rows, tail_rows = attention[head, looking].sum(0)[tokens], 0, window
    elif s["method"] == "tova":
        scores, head_rows, tail_rows = attention[:, own[-1]].mean(0)[tokens], 0, 1
    elif s["method"] == "h2o":
        scores, head_rows, tail_rows = attention[head, own].sum(0)[tokens], 0, keep - keep // 2
    elif s["method"] == "streamingllm":
        head_rows = min(SINKS, keep - 1)
        scores, tail_rows = torch.zeros(len(tokens), dtype=DTYPE), keep - head_rows
    else:
        scores, head_rows, tail_rows = drawn(0, layer, head, [row - own[0] for row in tokens]), 0, 0
    between = scores[head_rows:len(tokens) - tail_rows]
    if s["method"] == "snapkv" and len(between):
        between = torch.nn.functional.max_pool1d(between[None, None], POOLED, 1, POOLED // 2)[0, 0]
    ranked = sorted(range(len(between)), key=lambda place: (-between[place].item(), place))[:keep - head_rows - tail_rows]
    chosen = {*range(head_rows), *(head_rows + place for place in ranked), *range(len(tokens) - tail_rows, len(tokens))}
    kept = {tokens[place] for place in chosen} | (set(own) - set(tokens))
    return sorted(kept), (tokens[0] + head_rows, between, between[ranked[-1]].item() if ranked else math.inf)


def lines_of(r: Request, s: dict, dump, cut_tolerance):
    """Compares what a dump's chunks hold; from then on the request's chunks hold what the dump says."""
    of_all, flat = contests(r, s), iter(dump["kept_of_chunks"].tolist())
    found = [[[next(flat) for _ in range(s["kept_rows"])] for _ in range(r.model.kv_heads)] for _ in range(r.model.layers)]
    worst, differ, wrong = 0.0, 0, len(list(flat))
    there = torch.zeros(r.model.layers, r.model.kv_heads, len(r.ids), dtype=torch.bool)
    there[:, :, :r.P] = True
    for layer, heads in enumerate(of_all):
        for head, chunks in enumerate(heads):
            rows = found[layer][head]
            there[layer, head, rows] = True
            for chunk, (expected, (first, scores, cut)) in enumerate(chunks):
                own = set(r.rows_of(chunk).tolist()) & set(rows)
                wrong += len(own) != len(expected)
                for row in own ^ set(expected):
                    differ += 1
                    inside = 0 <= row - first < len(scores)
                    worst = max(worst, abs(scores[row - first].item() - cut) / cut if inside else math.inf)
    r.model.there = there
    count = s["kept_rows"] * r.model.layers * r.model.kv_heads
    return [("kept of chunks", worst, cut_tolerance, f"{s['method']}: {count} rows, {differ} differ"),
            ("kept counts", float(wrong), 0.0, f"{s['kept_rows']} of {s['rows']} rows in every layer and KV head")]
