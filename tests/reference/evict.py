"""Eviction in plain PyTorch, from its formulas: which rows each KV head keeps of a filled cache, and what is generated from them.

A cache is dense and holds every row of the prompt; rows that are asked look at it as it is. Scores are dense too, in f64.
"""

import math

import torch

from methods import DTYPE, Model, Request

WINDOW, POOLED, SINKS, BETA, PSEUDO = 32, 7, 4, 20, 32
MASK = (1 << 64) - 1


def mixed(state):
    """A step of splitmix64."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def drawn(seed, layer, head, rows):
    of = mixed((mixed((mixed(seed) + layer) & MASK) + head) & MASK)
    return torch.tensor([(mixed((of + row) & MASK) >> 40) / (1 << 24) for row in rows], dtype=DTYPE)


def written(draft: Model, r: Request, first, count):
    """The first token and those that a draft model writes after prompt and first token, each the likeliest that the main model knows."""
    prompt, tokens = r.ids[:r.P + r.T + r.M].tolist(), [first]
    while len(tokens) < count:
        ids = torch.tensor(prompt + tokens)
        rows = torch.arange(len(ids))
        shape = (len(ids), draft.kv_heads, draft.head_dim)
        cache = [(torch.zeros(shape, dtype=DTYPE), torch.zeros(shape, dtype=DTYPE)) for _ in range(draft.layers)]
        x = draft.forward(ids, rows, cache, (rows, rows))
        tokens.append(draft.logits(x[-1])[:r.model.vocab].argmax().item())
    return tokens


class Eviction:
    """The eviction of a request whose cache is filled; `at` = (positions, orders) of all rows, `settings` those of the dump."""

    def __init__(self, r: Request, cache, at, s):
        self.r, self.model, self.cache, self.at = r, r.model, cache, at
        self.method, self.keep, self.seed = s["evict"], s["keep"], s.get("seed", 0)
        total = r.P + r.T + r.M
        self.draft = (s.get("draft") or Model(s["draft_model"])) if self.method == "speckv" else None
        self.there = sorted(range(total), key=lambda row: at[1][row].item())
        self.tokens = s.get("evict_tokens", PSEUDO)
        self.window = s.get("evict_window") or min(WINDOW, max(1, self.keep // 2))
        self.group = self.model.heads // self.model.kv_heads

    def received(self, rows):
        """`[layer][kv_head, place]`: what keys in causal order receive from these rows, the mean over a group's heads."""
        found = []

        def watch(_, attention):
            grouped = attention.view(self.model.kv_heads, self.group, len(rows), -1).mean(1).sum(1)
            found.append(grouped[:, self.there])
        self.model.forward(self.r.ids, torch.tensor(rows), self.cache, self.at, watch=watch, frozen=True)
        return found

    def budgets(self):
        layers, rows, w = self.model.layers, len(self.there), self.window
        if self.method != "pyramidkv":
            return [self.keep] * layers
        last = (self.keep - w) / BETA
        first = 2 * (self.keep - w) - last
        if first > rows - w:
            first = rows - w
            last = 2 * (self.keep - w) - first
        exact = [first - (first - last) * layer / (layers - 1) + 1e-9 for layer in range(layers)] if layers > 1 else [self.keep - w]
        whole = [math.floor(value) for value in exact]
        by_loss = sorted(range(layers), key=lambda layer: (-(exact[layer] - whole[layer]), layer))
        for layer in by_loss[:layers * (self.keep - w) - sum(whole)]:
            whole[layer] += 1
        return [value + w for value in whole]

    def scores(self, first):
        """Scores `[layer][kv_head, place]`, and how many of the first and of the last rows are kept unasked."""
        layers, heads, count = self.model.layers, self.model.kv_heads, len(self.there)
        none = [torch.zeros(heads, count, dtype=DTYPE) for _ in range(layers)]
        if self.method == "streamingllm":
            sinks = min(SINKS, self.keep - 1)
            return none, (sinks, self.keep - sinks)
        if self.method == "random":
            return [torch.stack([drawn(self.seed, layer, head, self.there) for head in range(heads)]) for layer in range(layers)], (0, 0)
        if self.method in ("snapkv", "pyramidkv"):
            return self.received(self.there[-self.window:]), (0, self.window)
        if self.method == "tova":
            return [layer.mean(0, keepdim=True).expand(heads, -1) for layer in self.received(self.there[-1:])], (0, 1)
        if self.method == "h2o":
            return self.received(self.there), (0, self.keep - self.keep // 2)
        if self.method == "laq":
            draft = Eviction(self.r, self.cache, self.at, {"evict": "snapkv", "keep": self.keep})
            return self.behind(draft.generate(draft.kept(first)[0], first, self.tokens)), (0, 0)
        if self.method == "ideal":
            whole = [[list(self.there)] * heads] * layers
            return self.behind(self.generate(whole, first, self.tokens)), (0, 0)
        if self.method == "speckv":
            return self.behind(written(self.draft, self.r, first, self.tokens)), (0, 0)
        raise SystemExit(f"eviction `{self.method}` is not in this reference")

    def behind(self, tokens):
        """Attention that keys receive from tokens after the query, which see each other."""
        begin = len(self.there)
        rows = torch.arange(begin, begin + len(tokens))
        cache = [(k.clone(), v.clone()) for k, v in self.cache]
        self.r.ids[rows] = torch.tensor(tokens)
        found = []

        def watch(_, attention):
            found.append(attention.view(self.model.kv_heads, self.group, len(rows), -1).mean(1).sum(1)[:, self.there])
        self.model.forward(self.r.ids, rows, cache, self.at, watch=watch)
        return found

    def kept(self, first):
        """Rows kept by layer and KV head in causal order; for each the pooled scores of the places that compete, their first place and the cut."""
        scores, (head_rows, tail_rows) = self.scores(first)
        kept, contests = [], []
        for layer, budget in enumerate(self.budgets()):
            kept.append([])
            contests.append([])
            for numbers in scores[layer]:
                end = len(self.there) - tail_rows
                between = numbers[head_rows:end]
                if self.method in ("snapkv", "pyramidkv", "laq", "speckv") and len(between):
                    pooled = torch.nn.functional.max_pool1d(between[None, None], POOLED, 1, POOLED // 2)[0, 0]
                else:
                    pooled = between
                count = budget - head_rows - tail_rows
                ranked = sorted(range(len(pooled)), key=lambda place: (-pooled[place].item(), place))[:count]
                places = [*range(head_rows), *sorted(head_rows + place for place in ranked), *range(end, len(self.there))]
                kept[-1].append([self.there[place] for place in places])
                cut = pooled[ranked[-1]].item() if ranked else math.inf
                contests[-1].append((pooled, head_rows, cut))
        return kept, contests

    def slack(self, found, expected, contests):
        """How far the scores of rows that differ lie from the cut, relative; and how many rows differ."""
        worst, differ, place = 0.0, 0, {row: place for place, row in enumerate(self.there)}
        for layer, heads in enumerate(expected):
            for head, rows in enumerate(heads):
                pooled, first, cut = contests[layer][head]
                for row in set(rows) ^ set(found[layer][head]):
                    differ += 1
                    at = place[row] - first
                    inside = 0 <= at < len(pooled)
                    worst = max(worst, abs(pooled[at].item() - cut) / cut if inside else math.inf)
        return worst, differ

    def generate(self, kept, first, count):
        """The first token and those that follow it from the kept rows, each the likeliest."""
        begin = len(self.there)
        rope, order = self.at
        masks = torch.zeros(self.model.layers, self.model.heads, len(self.r.ids), dtype=torch.bool)
        for layer, heads in enumerate(kept):
            for head, rows in enumerate(heads):
                masks[layer, head * self.group:(head + 1) * self.group, rows] = True
        masks[:, :, begin:] = True
        if self.method == "streamingllm":
            rope = rope.clone()
            rope[kept[0][0]] = torch.arange(len(kept[0][0]))
            rope[begin:] = len(kept[0][0]) + torch.arange(len(self.r.ids) - begin)
        cache, tokens = [(k.clone(), v.clone()) for k, v in self.cache], [first]
        while len(tokens) < count:
            layer = iter(range(self.model.layers))

            def soften(scores):
                return scores.masked_fill(~masks[next(layer)][:, None, :], -math.inf).softmax(-1)
            row = torch.tensor([begin + len(tokens) - 1])
            self.r.ids[row] = tokens[-1]
            x = self.model.forward(self.r.ids, row, cache, (rope, order), soften=soften)
            tokens.append(self.model.logits(x[-1]).argmax().item())
        return tokens


def lines_of(r: Request, s, dump, cache, at, cut_tolerance):
    """What a dump with an eviction is checked for: a line a quantity, as `reference.check` prints them."""
    eviction = Eviction(r, cache, at, s)
    first = s["generated"][0]
    kept, contests = eviction.kept(first)
    flat, found = iter(dump["kept"].tolist()), []
    for count in dump["kept_counts"].tolist():
        found.append([[next(flat) for _ in range(count)] for _ in range(r.model.kv_heads)])
    slack, differ = eviction.slack(found, kept, contests)
    counts = [len(heads[0]) for heads in kept]
    tokens = eviction.generate(found, first, len(s["generated"]))
    wrong = sum(a != b for a, b in zip(tokens, s["generated"]))
    return [("kept rows", slack, cut_tolerance, f"{s['evict']}: {sum(counts) * r.model.kv_heads} rows, {differ} differ"),
            ("kept counts", float(counts != dump["kept_counts"].tolist()), 0.0, f"{counts} by layer"),
            ("generated", float(wrong), 0.0, f"{len(tokens)} tokens, {wrong} differ")]
