"""Decoder and selective methods in plain PyTorch, the independent implementation for `reference.py`.

Written from the methods' formulas, not from the Rust code, with dense masks and no blocks, ranks or overlays, in f64.
"""

import json
import math
import pathlib

import torch
from safetensors.torch import load_file

DTYPE = torch.float64


class Model:
    """A decoder as plain functions on `[rows, ...]` tensors."""

    def __init__(self, folder: str):
        folder = pathlib.Path(folder)
        c = json.loads((folder / "config.json").read_text())
        self.weights = {name: value.to(DTYPE) for path in sorted(folder.glob("*.safetensors"))
                        for name, value in load_file(path).items()}
        self.layers, self.heads = c["num_hidden_layers"], c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads") or self.heads
        self.head_dim = c.get("head_dim") or c["hidden_size"] // self.heads
        self.eps, self.vocab = c["rms_norm_eps"], c["vocab_size"]
        more = folder / "generation_config.json"
        ends = [of.get("eos_token_id") for of in (c, json.loads(more.read_text()) if more.is_file() else {})]
        self.ends = {end for of in ends for end in (of if isinstance(of, list) else [of])}
        scaling = c.get("rope_parameters") or c.get("rope_scaling") or {}
        theta = c.get("rope_theta") or scaling.get("rope_theta") or 10000.0
        turns = theta ** (-torch.arange(0, self.head_dim, 2, dtype=DTYPE) / self.head_dim)
        self.frequencies = self.scaled(turns, scaling)
        self.there = None  # [layers, kv_heads, rows]: which rows each KV head holds, where chunks were compressed

    @staticmethod
    def scaled(turns, scaling):
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "llama3":
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            count = scaling["original_max_position_embeddings"] * turns / (2 * math.pi)
            kept = ((count - low) / (high - low)).clamp(0, 1)
            return turns * kept + turns / scaling["factor"] * (1 - kept)
        if kind != "default":
            raise SystemExit(f"rope `{kind}` is not in this reference")
        return turns

    def norm(self, x, name):
        return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weights[name]

    def linear(self, x, name):
        out = x @ self.weights[name + ".weight"].T
        return out + self.weights[name + ".bias"] if name + ".bias" in self.weights else out

    def rotate(self, x, positions):
        angles = positions[:, None, None].to(DTYPE) * self.frequencies
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def logits(self, x):
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return self.norm(x, "model.norm.weight") @ head.T

    def forward(self, ids, rows, cache, at, allowed=None, until=None, watch=None, narrow=None, also=None, soften=None, peek=None, frozen=False, fresh=()):
        """Runs `rows` (indices into `ids`) through layers `0..until`. Each layer first puts their keys and values into
        `cache`, then attends to every row of a lower or equal order (and, where given, only to `allowed[row, key]`).
        `at` = (rope positions, orders) of all rows. `watch(layer, A)` sees the attention `[heads, rows, keys]`.
        `narrow(layer, rows, cache)`, between keys and attention, says which of the rows go on and leaves their keys and values
        in the cache. `also` = (positions, which[row, key]): these pairs meet with the rows at other RoPE positions.
        `soften(scores)` stands for the softmax over keys. `peek(layer, q)` sees queries before RoPE. A `frozen` cache stays as it is. Rows that are
        `fresh` in it are held by every head."""
        rope, order = at
        fresh = torch.as_tensor(fresh, dtype=torch.long)
        x = self.weights["model.embed_tokens.weight"][ids[rows]]
        seen = order[None, :] <= order[rows][:, None]
        if allowed is not None:
            seen = seen & allowed[rows]
        for layer in range(self.layers if until is None else until):
            name = f"model.layers.{layer}."
            y = self.norm(x, name + "input_layernorm.weight")
            q, k, v = (self.linear(y, name + f"self_attn.{part}_proj").view(len(rows), -1, self.head_dim) for part in "qkv")
            if name + "self_attn.q_norm.weight" in self.weights:
                q, k = (self.norm(t, name + f"self_attn.{part}_norm.weight") for part, t in (("q", q), ("k", k)))
            if not frozen:
                cache[layer][0][rows], cache[layer][1][rows] = k, v
            if narrow is not None:
                places = narrow(layer, rows, cache)
                rows, x, q, seen = rows[places], x[places], q[places], seen[places]
            if peek is not None:
                peek(layer, q)
            keys, values = (t.repeat_interleave(self.heads // self.kv_heads, 1)
                            for t in (self.rotate(cache[layer][0], rope), cache[layer][1]))
            scores = torch.einsum("qhd,khd->hqk", self.rotate(q, rope[rows]), keys) / math.sqrt(self.head_dim)
            if also is not None:
                elsewhere = torch.einsum("qhd,khd->hqk", self.rotate(q, also[0]), keys) / math.sqrt(self.head_dim)
                scores = torch.where(also[1], elsewhere, scores)
            seen_here = seen
            if self.there is not None:
                held = self.there[layer].clone()
                held[:, rows] = held[:, fresh] = True
                seen_here = seen & held.repeat_interleave(self.heads // self.kv_heads, 0)[:, None, :]
            scores = scores.masked_fill(~seen_here, -math.inf)
            attention = scores.softmax(-1) if soften is None else soften(scores)
            if watch is not None:
                watch(layer, attention)
            out = torch.einsum("hqk,khd->qhd", attention, values).reshape(len(rows), -1)
            x = x + self.linear(out, name + "self_attn.o_proj")
            y = self.norm(x, name + "post_attention_layernorm.weight")
            gate = torch.nn.functional.silu(self.linear(y, name + "mlp.gate_proj"))
            x = x + self.linear(gate * self.linear(y, name + "mlp.up_proj"), name + "mlp.down_proj")
        return x


def top(scores, count, candidates):
    """The best `count` candidates, ties by the lower index, ascending."""
    ranked = sorted(candidates, key=lambda row: (-scores[row].item(), row))
    return torch.tensor(sorted(ranked[:count]), dtype=torch.long)


class Request:
    """Rows are numbered prefix, chunks in the request's own order, query; `room` more rows are kept for generation."""

    def __init__(self, model: Model, prefix, chunks, query, room=0, around=None, lead=0):
        """`lead` = number of prefix rows, the last ones, that chunks are prefilled without.
        `around` = (rows before a chunk's tokens, rows after them): ids beyond the vocabulary, which represent an adapter's rows."""
        head, tail = around or ([], [])
        self.head, self.tail, chunks = len(head), len(tail), [[*head, *chunk, *tail] for chunk in chunks]
        self.model, self.lengths = model, [len(chunk) for chunk in chunks]
        self.P, self.T, self.M, self.lead = len(prefix), sum(self.lengths), len(query), lead
        self.ids = torch.tensor(sum(map(list, [prefix, *chunks, query]), []) + [0] * room)
        self.starts = [self.P + sum(self.lengths[:i]) for i in range(len(chunks))]
        self.context = torch.arange(self.P, self.P + self.T)
        self.query = torch.arange(self.P + self.T, self.P + self.T + self.M)
        shape = (len(self.ids), model.kv_heads, model.head_dim)
        self.stale = [(torch.zeros(shape, dtype=DTYPE), torch.zeros(shape, dtype=DTYPE)) for _ in range(model.layers)]
        self.prefill_chunks()

    def rows_of(self, chunk):
        return torch.arange(self.starts[chunk], self.starts[chunk] + self.lengths[chunk])

    def tokens_of(self, chunk):
        """Its rows but the adapter's around them."""
        return self.rows_of(chunk)[self.head:self.lengths[chunk] - self.tail]

    def of_tokens(self, scores):
        """Scores of context rows, 0 for an adapter's."""
        tokens = torch.cat([self.tokens_of(chunk) - self.P for chunk in range(len(self.lengths))])
        return scores * torch.zeros(self.T, dtype=DTYPE).index_fill_(0, tokens, 1.0)

    def positions(self, layout, order):
        """RoPE positions in a layout and orders in the sequence, for chunks standing in `order`."""
        sequence = torch.arange(len(self.ids))
        at = self.P
        for chunk in order:
            sequence[self.rows_of(chunk)] = torch.arange(at, at + self.lengths[chunk])
            at += self.lengths[chunk]
        rope = sequence.clone()
        if layout != "global":
            for chunk, length in enumerate(self.lengths):
                first = self.P + self.T - length if layout == "tl-tp" else self.P
                rope[self.rows_of(chunk)] = torch.arange(first, first + length)
        if layout == "hl-hp":
            rope[self.query] = self.P + max(self.lengths) + torch.arange(self.M)
        return rope, sequence

    def prefill_chunks(self, watch=None):
        """Every chunk right after the head of the prefix, alone; so too the lead, the rest of it."""
        segment = torch.full((len(self.ids),), -1)
        segment[self.P - self.lead:self.P] = len(self.lengths)
        for chunk in range(len(self.lengths)):
            segment[self.rows_of(chunk)] = chunk
        allowed = (segment[:, None] == segment[None, :]) | (segment[None, :] == -1)
        rope, order = self.positions("hl-tp", range(len(self.lengths)))
        rope[self.context] -= self.lead
        rows = torch.arange(self.P + self.T)
        self.model.forward(self.ids, rows, self.stale, (rope, order), allowed, watch=watch)

    def fresh_copy(self):
        return [(k.clone(), v.clone()) for k, v in self.stale]

    def probe(self, layout, order, until, watch):
        self.model.forward(self.ids, self.query, self.fresh_copy(), self.positions(layout, order), None, until, watch)

    def infoflow(self, layout, order, score, layers, recency=None):
        """Per context row: mean over layers of the norm (or sum) over query rows of the head-mean attention,
        which `recency` rows before the last counts 1/e."""
        first, end = layers
        total = torch.zeros(self.T, dtype=DTYPE)
        before_last = torch.arange(self.M - 1, -1, -1, dtype=DTYPE)[:, None]
        weight = torch.exp(-before_last / recency) if recency else 1.0

        def watch(layer, attention):
            if layer >= first:
                a = attention.mean(0)[:, self.context] * weight
                total.add_((a.pow(2).sum(0).sqrt() if score == "norm" else a.sum(0)) / (end - first))

        self.probe(layout, order, end, watch)
        return total

    def attn_drift(self, layout, order, score, layers, half, recency, candidates):
        """InfoFlow's score, for a candidate at place j of its chunk times half / (half + j)."""
        place = torch.cat([torch.arange(length) for length in self.lengths])
        scores = self.infoflow(layout, order, score, layers, recency)
        scores[candidates] *= half / (half + place[candidates])
        return scores

    def prophetkv(self, layout, order):
        total = torch.zeros(self.T, dtype=DTYPE)

        def watch(_layer, attention):
            a = attention[:, :, self.context]
            total.add_((a / a.sum(-1, keepdim=True)).mean((0, 1)) / self.model.layers)

        self.probe(layout, order, self.model.layers, watch)
        return total

    def a3(self, layout, order):
        """Per context row: sum over heads and query rows of softmax(q kᵀ / √d) over the context, in layer 0."""
        total = torch.zeros(self.T, dtype=DTYPE)

        def watch(_layer, attention):
            a = attention[:, :, self.context]
            total.add_((a / a.sum(-1, keepdim=True)).sum((0, 1)))

        self.probe(layout, order, 1, watch)
        return total

    def relay(self, layout, order, budget, candidates):
        first = self.of_tokens(self.prophetkv(layout, order))
        first = first / first.sum()
        return self.second_hop(first, top(first, budget // 3, candidates), order)

    def second_hop(self, first, chosen, order):
        """Normalised scores, and beside them those of the attention of `chosen` rows after their recompute."""
        if len(chosen) == 0:
            return first
        weight = first[chosen] / first[chosen].sum()
        total = torch.zeros(self.T, dtype=DTYPE)

        def watch(_layer, attention):
            total.add_(weight @ attention.mean(0)[:, self.context] / self.model.layers)

        self.model.forward(self.ids, chosen + self.P, self.fresh_copy(), self.positions("global", order), watch=watch)
        total = self.of_tokens(total)
        return first + total / total.sum()

    def free_probe(self, rows, chunk, offset, sharpest=None):
        """A[i, t], the mean over layers and heads, of context rows `rows` to all context rows: row i at offset j of its chunk meets that
        chunk at P + j, causally, and the prefix and all other chunks at P + longest chunk + j. Keys stand at P + offset. With `sharpest`
        the mean is over that share of all heads of all layers which pay most to one row of another chunk."""
        P, ids = self.P, len(self.ids)
        rope, segment = torch.zeros(ids, dtype=torch.long), torch.full((ids,), -1)
        rope[:P] = torch.arange(P)
        rope[self.context], segment[self.context] = P + offset, chunk
        own = segment[:, None] == segment[None, :]
        sees = torch.where(own, rope[None, :] <= rope[:, None], True)
        sees[:, :P], sees[:, P + self.T:] = True, False
        also = (rope[rows + P] + max(self.lengths), ~own[rows + P])
        read = []

        def watch(_layer, attention):
            read.append(attention[:, :, self.context])

        at = (rope, torch.zeros(ids, dtype=torch.long))
        self.model.forward(self.ids, rows + P, self.fresh_copy(), at, sees, watch=watch, also=also)
        read = torch.cat(read)  # heads of all layers, rows, context
        if sharpest is None:
            return read.mean(0)
        peaks = read.masked_fill(own[rows + P][:, self.context], 0.0).max(-1).values
        best = peaks.topk(max(1, round(sharpest * len(read))), 0).indices
        return read.gather(0, best[:, :, None].expand(-1, -1, self.T)).mean(0)

    def trace(self, budget, alpha=0.18, keep_order=False, sharpest=None, g=0.4, gamma=0.9, rounds=4):
        """One score a context row, and the order of chunks."""
        K, T, given = len(self.lengths), self.T, list(range(len(self.lengths)))
        tokens = torch.cat([self.tokens_of(c) - self.P for c in range(K)])
        s = self.of_tokens(self.prophetkv("global", given))
        s = s / s.sum()
        rows = top(s, budget // 3, tokens.tolist())
        if len(rows) == 0 or K == 1:
            return s, given
        chunk = torch.cat([torch.full((n,), c) for c, n in enumerate(self.lengths)])
        offset = torch.cat([torch.arange(n) for n in self.lengths])
        A, probed = torch.zeros(T, T, dtype=DTYPE), []
        for number in range(rounds):
            A[rows] = self.of_tokens(self.free_probe(rows, chunk, offset, sharpest))
            probed += rows.tolist()
            X = A - A.T
            X[(X < alpha) | (chunk[:, None] == chunk[None, :])] = 0
            omega = s
            for _ in range(K):
                from_others = torch.where((X > 0) & (omega >= g * omega.max())[:, None], gamma * omega[:, None], 0.0)
                omega = torch.maximum(s, from_others.max(0).values)
            relevant = omega >= g * omega.max()
            frontier = [t for t in tokens.tolist() if t not in probed and omega[t] > s[t] and relevant[t]]
            rows = top(omega, min(budget // 3, budget // 2 - len(probed)), frontier)
            if len(rows) == 0:
                break
        order = given if keep_order else self.order_of_needs(X * (omega * relevant)[:, None], chunk)
        place = torch.tensor([order.index(c) for c in chunk.tolist()])
        a = omega @ (A * (place[None, :] <= place[:, None]))
        return s + (a / a.sum() if a.sum() > 0 else a), order

    def order_of_needs(self, weight, chunk):
        """Ranked pairs over N = E - E^T, where E sums `weight` of rows over pairs of chunks; then the request's order as far as it may be."""
        K = len(self.lengths)
        member = torch.nn.functional.one_hot(chunk, K).to(DTYPE)
        E = member.T @ weight @ member
        N = E - E.T
        before = [[False] * K for _ in range(K)]  # before[a][b]: a stands before b, by way of others too
        pairs = sorted((-N[c, d].item(), c, d) for c in range(K) for d in range(K) if N[c, d] > 0)
        for _, c, d in pairs:
            if not before[c][d]:
                for a in range(K):
                    for b in range(K):
                        before[a][b] |= (a == d or before[a][d]) and (b == c or before[c][b])
        order = []
        while len(order) < K:
            order.append(next(c for c in range(K) if c not in order and all(d in order for d in range(K) if before[d][c])))
        return order

    def cacheblend(self, order, of, layers, budget, candidates):
        """Per context row: the squared difference of its values (or keys before RoPE) from the cached ones in layer `layers`,
        once rows know the whole context. From each layer before it the most different go on: the budget and as many of
        `layers` parts of it as layers follow. 0 for rows that did not come so far."""
        which, total = (0 if of == "keys" else 1), torch.zeros(self.T, dtype=DTYPE)

        def narrow(layer, rows, cache):
            if layer == 0:
                return torch.arange(len(rows))
            difference = (cache[layer][which] - self.stale[layer][which])[rows].pow(2).sum((1, 2))
            total.zero_()
            total[rows - self.P] = difference
            stay = top(total, budget + budget * (layers - layer) // layers, (rows - self.P).tolist()) + self.P
            for part in (0, 1):
                fresh = cache[layer][part][stay]
                cache[layer][part].copy_(self.stale[layer][part])
                cache[layer][part][stay] = fresh
            return torch.isin(rows, stay).nonzero()[:, 0]

        rows = torch.tensor(candidates, dtype=torch.long) + self.P
        self.model.forward(self.ids, rows, self.fresh_copy(), self.positions("global", order), until=layers + 1, narrow=narrow)
        return total

    def kvshare(self, order, candidates):
        """Per context row: the attention that all context rows pay it in layer 1, mean over heads, times the absolute difference of
        its values from the cached ones there, once rows know the whole context. 0 for rows that may not be selected."""
        total, cache = torch.zeros(self.T, dtype=DTYPE), self.fresh_copy()

        def watch(layer, attention):
            if layer == 1:
                total.copy_(attention.mean(0)[:, self.context].sum(0))

        self.model.forward(self.ids, self.context, cache, self.positions("global", order), until=2, watch=watch)
        total.mul_((cache[1][1] - self.stale[1][1])[self.context].abs().sum((1, 2)))
        barred = torch.ones(self.T, dtype=DTYPE)
        barred[candidates] = 0.0
        return total * (1.0 - barred)

    def ideal(self, order):
        """Per context row: mean over layers of the norm of (mean attention of the query's rows) x (values), in a full prefill less in
        the cache as it is."""
        at, taken = self.positions("global", order), []
        for rows in (torch.cat([self.context, self.query]), self.query):
            paid, cache = [], self.fresh_copy()
            self.model.forward(self.ids, rows, cache, at, watch=lambda _, a: paid.append(a[:, -self.M:].mean((0, 1))))
            taken.append([p[self.context, None, None] * v[self.context] for p, (_, v) in zip(paid, cache)])
        return sum((new - old).pow(2).sum((1, 2)).sqrt() for new, old in zip(*taken)) / self.model.layers

    def ape(self, temperature, scale):
        """The query's rows over chunks that stand beside each other. Returns the last row's logits and the cache."""
        cache, order = self.fresh_copy(), list(range(len(self.lengths)))

        def soften(scores):
            rest = scores.clone()
            rest[..., self.context] = -math.inf
            context = scores[..., self.context] / temperature
            pair = torch.stack([scale * temperature * context.logsumexp(-1), rest.logsumexp(-1)], -1).softmax(-1)
            attention = rest.softmax(-1) * pair[..., 1:]
            attention[..., self.context] = context.softmax(-1) * pair[..., :1]
            return attention

        x = self.model.forward(self.ids, self.query, cache, self.positions("hl-hp", order), soften=soften)
        return self.model.logits(x[-1]), cache

    def samkv(self, variant, blocks, theta):
        """One score a context row, the rows that are kept, and the last row's logits."""
        sinks, local, block = {"large": (64, 128, 64), "small": (8, 16, 8)}[variant]
        at, total, group = self.positions("global", list(range(len(self.lengths)))), torch.zeros(self.T, dtype=DTYPE), self.model.heads // self.model.kv_heads
        documents = [self.rows_of(chunk) for chunk in range(len(self.lengths))]
        ends = [torch.cat([rows[:sinks], rows[max(min(sinks, len(rows)), len(rows) - local):]]) for rows in documents]
        seen = torch.zeros(len(self.ids), len(self.ids), dtype=torch.bool)
        seen[:, torch.cat([torch.arange(self.P), *ends, self.query])] = True
        first = 28 * self.model.layers // 32

        def peek(layer, q):
            for rows, corner in zip(documents, ends):
                if layer < first:
                    return
                along = self.stale[layer][0][corner].mean(0).repeat_interleave(group, 0)
                lean = q + (q * along).sum(-1, keepdim=True) / along.pow(2).sum(-1)[None, :, None] * along
                keys = self.model.rotate(self.stale[layer][0][rows], at[0][rows]).repeat_interleave(group, 1)
                scores = torch.einsum("qhd,khd->hqk", self.model.rotate(lean, at[0][self.query]), keys)
                paid = (scores / math.sqrt(self.model.head_dim)).softmax(-1).mean(0).sum(0)
                total[rows - self.P] += paid / (self.model.layers - first)

        self.model.forward(self.ids, self.query, self.fresh_copy(), at, seen, peek=peek)
        kept = []
        for rows, corner in zip(documents, ends):
            between = rows[sinks:max(sinks, len(rows) - local)] if len(rows) > sinks + local else rows[:0]
            parts = between.split(block) if len(between) else []
            best = sorted(range(len(parts)), key=lambda i: (-total[parts[i] - self.P].sum().item(), i))[:blocks]
            kept += [corner, *(parts[i] for i in best)]
        kept = torch.cat(kept).sort().values
        rows, seen = torch.cat([kept, self.query]), torch.zeros(len(self.ids), len(self.ids), dtype=torch.bool)
        seen[:, torch.cat([torch.arange(self.P), rows])] = True

        def mix(layer, rows, cache):
            for old, new in zip(self.stale[layer], cache[layer]):
                new[kept] = (1 - theta) * old[kept] + theta * new[kept]
            return torch.arange(len(rows))

        x = self.model.forward(self.ids, rows, self.fresh_copy(), at, seen, narrow=mix)
        return total, kept, self.model.logits(x[-1])

    def typical_query(self, layer):
        """The mean query before RoPE in `layer`, `[heads, head_dim]`, over 64 tokens that SplitMix64 draws with the seed 0."""
        mask, state, ids = (1 << 64) - 1, 0, []
        for _ in range(64):
            state = (state + 0x9E3779B97F4A7C15) & mask
            bits = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
            bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & mask
            ids.append((bits ^ bits >> 31) % self.model.vocab)
        rows, shape, queries = torch.arange(64), (64, self.model.kv_heads, self.model.head_dim), {}
        cache = [(torch.zeros(shape, dtype=DTYPE), torch.zeros(shape, dtype=DTYPE)) for _ in range(layer + 1)]
        peek = lambda at, q: queries.update({at: q.mean(0)})
        self.model.forward(torch.tensor(ids), rows, cache, (rows, rows), until=layer + 1, peek=peek)
        return queries[layer]

    def anchors(self, layer, count):
        """Per chunk its first row, its last row and the `count` others that a typical query attends to most in `layer`, before RoPE:
        softmax over the chunk, mean over heads."""
        found, query, group = [], self.typical_query(layer), self.model.heads // self.model.kv_heads
        for chunk in range(len(self.lengths)):
            rows = self.rows_of(chunk)
            keys = self.stale[layer][0][rows].repeat_interleave(group, 1)
            paid = (torch.einsum("hd,khd->hk", query, keys) / math.sqrt(self.model.head_dim)).softmax(-1).mean(0)
            inner = top(paid, count, range(1, len(rows) - 1))
            found.append(rows[sorted({0, len(rows) - 1, *inner.tolist()})])
        return found

    def qcfuse(self, layout, order, score, layer, count):
        """Per chunk the mean attention of the query's rows to its anchors in `layer`, where they see nothing else of the context; and
        a function from chunks to one score a context row: the norm (or sum) over query rows of the head-mean attention there, once they
        see those chunks whole, 0 for the other rows."""
        anchors, (rope, sequence) = self.anchors(layer, count), self.positions(layout, order)
        cache, kept, group = self.fresh_copy(), {}, self.model.heads // self.model.kv_heads
        seen = torch.zeros(len(self.ids), len(self.ids), dtype=torch.bool)
        seen[:, torch.cat([torch.arange(self.P), *anchors, self.query])] = True
        peek = lambda at, q: kept.update({at: q})
        watch = lambda at, attention: kept.update(attention=attention.mean((0, 1)))
        self.model.forward(self.ids, self.query, cache, (rope, sequence), seen, layer + 1, watch, peek=peek)
        worth = torch.stack([kept["attention"][rows].mean() for rows in anchors])

        def read(chunks):
            keys = self.model.rotate(cache[layer][0], rope).repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", self.model.rotate(kept[layer], rope[self.query]), keys) / math.sqrt(self.model.head_dim)
            sees = torch.zeros(len(self.ids), dtype=torch.bool)
            sees[torch.cat([torch.arange(self.P), *(self.rows_of(chunk) for chunk in chunks), self.query])] = True
            sees = sees[None, :] & (sequence[None, :] <= sequence[self.query][:, None])
            a = scores.masked_fill(~sees, -math.inf).softmax(-1).mean(0)[:, self.context]
            return a.pow(2).sum(0).sqrt() if score == "norm" else a.sum(0)

        return worth, read

    def best_of_chunks(self, worth, read, share, budget, chunks):
        """Scores, and the rows that are selected: the best of the `share` of `chunks` with the highest worth; where those have fewer rows
        than the budget, all of them, all of the next ones that fit, and the best of the next."""
        ranked = sorted(chunks, key=lambda chunk: (-worth[chunk].item(), chunk))
        count = math.ceil(share * len(ranked) - 1e-6)
        whole = 0
        while count < len(ranked) and sum(self.lengths[chunk] for chunk in ranked[:count]) < budget:
            whole, count = count, count + 1
        scores = read(ranked[:count])
        rows = lambda chunks: [row for chunk in chunks for row in (self.rows_of(chunk) - self.P).tolist()]
        sure = rows(ranked[:whole])
        best = top(scores, budget - len(sure), rows(ranked[whole:count])).tolist()
        return scores, best, torch.tensor(sorted(sure + best), dtype=torch.long) + self.P

    def sentences(self, ends, longest):
        """The rows of each sentence: chunks cut behind the rows `ends`, and long ones into almost equal runs of at most `longest`."""
        whole = []
        for chunk in range(len(self.lengths)):
            whole.append([])
            for row in self.rows_of(chunk).tolist():
                whole[-1].append(row)
                if row in ends:
                    whole.append([])
        runs = []
        for rows in filter(None, whole):
            count = -(-len(rows) // longest)
            runs += [rows[run * len(rows) // count:(run + 1) * len(rows) // count] for run in range(count)]
        return runs

    def words(self, shared):
        """The weights of rows in which a word of the query ends, as shares of their sum."""
        weights = torch.zeros(self.T, dtype=DTYPE)
        for row, weight in shared:
            weights[row - self.P] = weight
        return weights / weights.sum()

    def excerpt(self, scores, ends, longest, budget, unit="sentence", named=()):
        """Kept rows: the openings of the named chunks, then the sentences with the highest means that fit, or the chunks with the best rows."""
        mean = lambda run: scores[torch.tensor(run) - self.P].mean().item()
        best = lambda run: scores[torch.tensor(run) - self.P].max().item()
        chunks = [self.tokens_of(chunk).tolist() for chunk in range(len(self.lengths))]
        runs, worth = (self.sentences(set(ends), longest), mean) if unit == "sentence" else (chunks, best)
        kept, other = [], None
        opened = sorted((run for run in chunks if run[0] in named), key=lambda run: (len(run), run[0]))
        for place, run in enumerate(opened):
            kept += run[:(budget // 2 - len(kept)) // (len(opened) - place)]
        runs = [left for run in runs if (left := [row for row in run if row not in kept])]
        for run in sorted(runs, key=lambda run: (-worth(run), run[0])):
            if len(kept) + len(run) <= budget:
                kept += run
            else:
                other = other or run
        if other and len(kept) < budget:
            left = budget - len(kept)
            runs = [other[at:at + left] for at in range(len(other) - left + 1)]
            kept += min(runs, key=lambda run: (-mean(run), run[0]))
        return torch.tensor(kept, dtype=torch.long).sort().values

    def alone(self, kept):
        """The last row's logits where prefix, these context rows and the query see each other, and nothing else is seen."""
        rows, seen = torch.cat([kept, self.query]), torch.zeros(len(self.ids), len(self.ids), dtype=torch.bool)
        seen[:, torch.cat([torch.arange(self.P), rows])] = True
        x = self.model.forward(self.ids, rows, self.fresh_copy(), self.positions("global", list(range(len(self.lengths)))), seen)
        return self.model.logits(x[-1])

    def recompute(self, order, selected, read=None):
        """Selected rows, then the query's, at global positions. With `read` the query's rows find chunks in that order. Returns
        the last row's logits and the cache."""
        cache = self.fresh_copy()
        for rows, at in [(torch.cat([selected, self.query]), order)] if read is None else [(selected, order), (self.query, read)]:
            x = self.model.forward(self.ids, rows, cache, self.positions("global", at), fresh=selected)
        return self.model.logits(x[-1]), cache

    def blocks(self, length, anchor, passed):
        """Blocks of the sequence after an anchor, which pass on the rows that rows of the query beside each attend to most (star
        where none are passed on); then the query over all blocks. Every block has copies of the anchor and of the query after the
        sequence, so that one pass computes all of them. Returns the last row's logits."""
        first = length + self.lead
        starts = [0, *range(first, self.P + self.T, length)]
        anchor, ends = min(anchor, first, self.P + self.T), [*starts[1:], self.P + self.T]
        origin, group, kind = [torch.arange(len(self.ids))], [torch.full((len(self.ids),), -1)], ["context"] * (self.P + self.T)
        kind += ["query"] * (len(self.ids) - len(kind))
        for index, start in enumerate(starts):
            group[0][start:ends[index]] = index
            for what, rows in [("anchor", torch.arange(anchor if start > 0 else 0)), ("asks", self.query)]:
                origin.append(rows)
                group.append(torch.full((len(rows),), index))
                kind += [what] * len(rows)
        origin, group = torch.cat(origin), torch.cat(group)
        of = lambda *kinds: torch.tensor([what in kinds for what in kind])
        together = group[:, None] == group[None, :]
        shape = (len(origin), self.model.kv_heads, self.model.head_dim)
        cache = [(torch.zeros(shape, dtype=DTYPE), torch.zeros(shape, dtype=DTYPE)) for _ in range(self.model.layers)]
        rows = torch.arange(len(origin))[of("context", "anchor", "asks")]

        def soften(scores):
            local = scores.masked_fill(~together[rows], -math.inf).softmax(-1)
            sees = together.clone()
            for index, start in enumerate(starts):
                asking = (of("asks") & (group == index))[rows]
                free = [row for row in range(start, ends[index]) if row >= anchor]
                best = top(local[:, asking].sum((0, 1)), passed, free)
                others = (group != index) & of("context", "asks")
                sees[others.nonzero(), best[None, :]] = True
            return scores.masked_fill(~sees[rows], -math.inf).softmax(-1)

        self.model.forward(self.ids[origin], rows, cache, (origin, origin), soften=soften)
        real = torch.arange(len(origin)) < len(self.ids)
        x = self.model.forward(self.ids[origin], self.query, cache, (origin, origin), real[None, :].expand(len(origin), -1))
        return self.model.logits(x[-1])

    def cacheclip(self, auxiliary, prompts):
        """Per context row: the attention of a prompt's query rows in the auxiliary model's last layer, mean over them and over heads,
        softmax over all that a row sees. A prompt's row shares its attention among the rows that it stands for."""
        total = torch.zeros(len(self.ids), dtype=DTYPE)
        for prompt in prompts:
            ids, paid = torch.tensor(prompt["ids"]), []
            shape = (len(ids), auxiliary.kv_heads, auxiliary.head_dim)
            cache = [(torch.zeros(shape, dtype=DTYPE), torch.zeros(shape, dtype=DTYPE)) for _ in range(auxiliary.layers)]
            rows = torch.arange(len(ids))
            auxiliary.forward(ids, rows, cache, (rows, rows), watch=lambda layer, a: paid.append(a[:, -prompt["query"]:].mean((0, 1))))
            for (start, end), attention in zip(prompt["stands_for"], paid[-1]):
                total[start:end] += attention / max(1, end - start)
        return total[self.context]

    def spec_prefill(self, auxiliary, prompts, tokens):
        """Per context row: the attention of the rows of a prompt that write the auxiliary model's likeliest tokens, up to the end of
        its answer; the largest over layers and heads, mean over these rows. Shares as for cacheclip."""
        total = torch.zeros(len(self.ids), dtype=DTYPE)
        for prompt in prompts:
            ids, paid, count = torch.tensor(prompt["ids"]), [], len(prompt["ids"])
            while len(paid) < tokens and not (paid and ids[-1].item() in auxiliary.ends):
                shape, largest = (len(ids), auxiliary.kv_heads, auxiliary.head_dim), []
                cache = [(torch.zeros(shape, dtype=DTYPE), torch.zeros(shape, dtype=DTYPE)) for _ in range(auxiliary.layers)]
                rows = torch.arange(len(ids))
                x = auxiliary.forward(ids, rows, cache, (rows, rows), watch=lambda layer, a: largest.append(a[:, -1, :count].amax(0)))
                paid.append(torch.stack(largest).amax(0))
                ids = torch.cat([ids, auxiliary.logits(x[-1]).argmax()[None]])
            for (start, end), attention in zip(prompt["stands_for"], torch.stack(paid).mean(0)):
                total[start:end] += attention / max(1, end - start)
        return total[self.context]

    def best_spans(self, scores, pool, span, budget):
        """Context rows in spans with the highest means of scores that are averaged over `pool` neighbours; the last one is cut."""
        near = [scores[max(0, row - pool // 2):row + pool // 2 + 1].mean() for row in range(self.T)]
        spans = [list(range(first, min(self.T, first + span))) for first in range(0, self.T, span)]
        spans.sort(key=lambda rows: (-(sum(near[row] for row in rows) / len(rows)).item(), rows[0]))
        return torch.tensor(sum(spans, [])[:budget], dtype=torch.long).sort().values + self.P

    def together(self, order, chosen):
        """Those of the rows `chosen` that stand in windows of 8 tokens of a chunk of which more than 5 in 8 are chosen."""
        windows = [window for chunk in order for window in self.rows_of(chunk).split(8)]
        kept = [window[torch.isin(window, chosen)] for window in windows if 8 * torch.isin(window, chosen).sum() > 5 * len(window)]
        return torch.cat([torch.tensor([], dtype=torch.long), *kept]).sort()[0]

    def epic(self, per_chunk):
        """The first tokens of each chunk; of the first only after a lead."""
        rows = [self.tokens_of(chunk)[:per_chunk] for chunk in range(0 if self.lead else 1, len(self.lengths))]
        return torch.cat([torch.tensor([], dtype=torch.long), *rows])
