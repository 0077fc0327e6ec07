"""Trains the demo VLM: the demo model's language with passages as pages.

    python3 train.py OUT [steps=600] [threads=2] [tokens=4096] [until=0]

A Qwen3-VL decoder begins with the demo model's weights: norms of queries and keys get the mean sizes
that these have in the demo, and text keeps its meaning, because a token stands at one position on all
three axes. First the tower alone learns to give the embedding of a word's glyph: every second number
of it as the feature, the others as the level after the first decoder layer, so that the model depends
on both. Then all weights learn the demo's tasks with passages as text, as pages, and as blocks of one
large page. OUT gets `checkpoint.pt` and `log.txt`; `export.py` makes the model's folder of the
checkpoint.

Seeds: 1 (contexts), 2 (noise of pixels), 3 (words of the first part), 0 (weights); checks on the way
have contexts of their own (`check-..`), and `tributary quality` draws others by its own generator.
"""
import math
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

HERE = Path(__file__).parent
DEMO = Path(os.environ.get("DEMO", HERE.parent.parent / "demo"))
sys.path[:0] = [str(HERE), str(DEMO / "recipe")]
import pages
import tasks

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, MLP, THETA, EPS = 384, 128, 5, 4, 2, 32, 256, 1e4, 1e-5
START, END, PAD, VIDEO = 378, 379, 380, 381
SECTIONS = [6, 5, 5]
TOWER, TOWER_HEADS, TOWER_MLP, TOWER_LAYERS, TABLE, PATCH = 64, 2, 128, 2, 8, 8
# How often each kind of fact is drawn: code, house, stay, let, reference, like, repetition.
SKILL = (1., 1., 1.6, .8, 1.8, .3, .4)
# Share of batches by form: passages as pages (some stay text), as one large page, as text alone.
FORMS = {"pages": .55, "sheet": .35, "text": .1}
GLYPHS = pages.glyphs()


def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def patches(images):
    """`[n, patches, 3 * 2 * 8 * 8]` of n pictures of one size, as Qwen3-VL's preprocessor cuts them."""
    n, h, w = images.shape[0], images.shape[1] // PATCH, images.shape[2] // PATCH
    x = (images.float() / 127.5 - 1).reshape(n, h // 2, 2, PATCH, w // 2, 2, PATCH, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
    return x[..., None, :, :].expand(*x.shape[:6], 2, PATCH, PATCH).reshape(n, h * w, -1)


class TowerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(TOWER, eps=1e-6), nn.LayerNorm(TOWER, eps=1e-6)
        self.qkv, self.proj = nn.Linear(TOWER, 3 * TOWER), nn.Linear(TOWER, TOWER)
        self.fc1, self.fc2 = nn.Linear(TOWER, TOWER_MLP), nn.Linear(TOWER_MLP, TOWER)

    def forward(self, x, cos, sin):
        n, rows, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, rows, 3, TOWER_HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v)
        x = x + self.proj(seen.transpose(1, 2).reshape(n, rows, TOWER))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Merger(nn.Module):
    def __init__(self, norm_of_four):
        super().__init__()
        self.norm_of_four = norm_of_four
        self.norm = nn.LayerNorm(4 * TOWER if norm_of_four else TOWER, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(4 * TOWER, 4 * TOWER), nn.Linear(4 * TOWER, HIDDEN)

    def forward(self, x):
        four = (x.shape[0], x.shape[1] // 4, 4 * TOWER)
        x = self.norm(x.reshape(four)) if self.norm_of_four else self.norm(x).reshape(four)
        return self.fc2(F.gelu(self.fc1(x)))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.table = nn.Linear(3 * 2 * PATCH * PATCH, TOWER), nn.Embedding(TABLE * TABLE, TOWER)
        self.blocks = nn.ModuleList(TowerBlock() for _ in range(TOWER_LAYERS))
        self.merger, self.deep = Merger(False), Merger(True)
        nn.init.normal_(self.table.weight, std=.02)
        nn.init.zeros_(self.deep.fc2.weight), nn.init.zeros_(self.deep.fc2.bias)

    def forward(self, x, h, w):
        """Features and the level after the first block, `[n, h * w / 4, hidden]` each."""
        order = lambda at: at.reshape(h // 2, 2, w // 2, 2).transpose(1, 2).flatten()
        r, c = order(torch.arange(h)[:, None].expand(h, w)), order(torch.arange(w)[None].expand(h, w))

        def corners(place, count):
            at = place.float() * (TABLE - 1) / max(count - 1, 1)
            low = at.floor().long()
            return low, (low + 1).clamp(max=TABLE - 1), at - low

        (r0, r1, dr), (c0, c1, dc) = corners(r, h), corners(c, w)
        four = ((r0, c0, (1 - dr) * (1 - dc)), (r0, c1, (1 - dr) * dc), (r1, c0, dr * (1 - dc)), (r1, c1, dr * dc))
        half = TOWER // TOWER_HEADS // 2
        frequency = 10000.0 ** -(torch.arange(0, half, 2).float() / half)
        angle = torch.cat([r[:, None] * frequency, c[:, None] * frequency], 1)
        x = self.embed(x) + sum(self.table(a * TABLE + b) * share[:, None] for a, b, share in four)
        x = self.blocks[0](x, angle.cos(), angle.sin())
        deep = self.deep(x)
        for block in self.blocks[1:]:
            x = block(x, angle.cos(), angle.sin())
        return self.merger(x), deep


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda rows, columns: nn.Linear(rows, columns, bias=False)
        self.q, self.k, self.v = (linear(HIDDEN, heads * HEAD) for heads in (HEADS, KV_HEADS, KV_HEADS))
        self.o = linear(HEADS * HEAD, HIDDEN)
        self.gate, self.up, self.down = linear(HIDDEN, MLP), linear(HIDDEN, MLP), linear(MLP, HIDDEN)
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, eps=EPS), nn.RMSNorm(HIDDEN, eps=EPS)
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD, eps=EPS), nn.RMSNorm(HEAD, eps=EPS)
        self.sizes = None

    def forward(self, x, cos, sin, pointers=None, losses=None):
        n, rows, _ = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(n, rows, -1, HEAD) for f in (self.q, self.k, self.v))
        if self.sizes is not None:
            self.sizes.append([t.pow(2).mean(-1).sqrt().mean().item() for t in (q, k)])
        q, k = turned(self.q_norm(q).transpose(1, 2), cos, sin), turned(self.k_norm(k).transpose(1, 2), cos, sin)
        if pointers is not None:
            losses.append(pointed(q, k, *pointers))
        seen = F.scaled_dot_product_attention(
            q, k.repeat_interleave(HEADS // KV_HEADS, 1), v.transpose(1, 2).repeat_interleave(HEADS // KV_HEADS, 1), is_causal=True)
        x = x + self.o(seen.transpose(1, 2).reshape(n, rows, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def pointed(q, k, sample, row, right):
    """Loss of head 0 that does not look at the fact that a row needs; `right` `[pointers, rows]`."""
    scores = torch.einsum("nd,nkd->nk", q[sample, 0, row], k[sample, 0]) * HEAD ** -.5
    log = scores.masked_fill(torch.arange(k.shape[2])[None] > row[:, None], -1e9).log_softmax(-1)
    return -log.masked_fill(~right, -1e9).logsumexp(-1).mean()


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(VOCAB, HIDDEN), nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.tower = nn.RMSNorm(HIDDEN, eps=EPS), Tower()
        self.axis = torch.zeros(HEAD // 2, dtype=torch.long)
        for axis in (1, 2):
            self.axis[axis:3 * SECTIONS[axis]:3] = axis

    def begin_with(self, folder):
        """The demo model's weights."""
        demo = load_file(folder / "model.safetensors")
        names = {"self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o", "mlp.gate_proj": "gate",
                 "mlp.up_proj": "up", "mlp.down_proj": "down", "input_layernorm": "norm1", "post_attention_layernorm": "norm2"}
        with torch.no_grad():
            self.embed.weight.normal_(std=.05)
            self.embed.weight[:len(tasks.VOCAB)] = demo["model.embed_tokens.weight"]
            self.norm.weight.copy_(demo["model.norm.weight"])
            for number, block in enumerate(self.blocks):
                for name, own in names.items():
                    getattr(block, own).weight.copy_(demo[f"model.layers.{number}.{name}.weight"])

    def forward(self, x, deep, places, asked, pointers=None, losses=None):
        """Logits of the flat rows `asked`; x, deep `[n, rows, hidden]`, places `[n, 3, rows]`."""
        frequency = THETA ** -(torch.arange(0, HEAD, 2).float() / HEAD)
        angle = places[:, self.axis].transpose(1, 2).float() * frequency
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        for number, block in enumerate(self.blocks):
            x = block(x, cos, sin, pointers if number > 0 else None, losses)
            if number == 0:
                x = x + deep
        return F.linear(self.norm(x.reshape(-1, HIDDEN)[asked]), self.embed.weight)


class Prompt:
    """A context with some of its passages as pictures. `where` maps the place of a word to its row."""

    def __init__(self):
        self.ids, self.places, self.where, self.pictures, self.next = [], [], {}, [], 0

    def words(self, ids, at):
        for number, word in enumerate(ids):
            self.where[at + number] = len(self.ids)
            self.ids.append(word), self.places.append((self.next,) * 3)
            self.next += 1

    def mark(self, token):
        self.ids.append(token), self.places.append((self.next,) * 3)
        self.next += 1

    def picture(self, cells, words):
        """`words` has the cells of each word, (line, column, its place)."""
        self.mark(START)
        first, (high, wide) = len(self.ids), cells.shape
        self.ids += [PAD] * (high * wide)
        self.places += [(self.next, self.next + line, self.next + column) for line in range(high) for column in range(wide)]
        for line, column, place in words:
            self.where[place] = first + line * wide + column
        self.next += max(high, wide)
        self.mark(END)
        self.pictures.append(cells)


def stands(words, at, top=0, left=0):
    """Line, column and place of each word of a passage whose first word has the place `at`."""
    cells, found = pages.lines(words), []
    for line, column in zip(*np.nonzero(cells != pages.BLANK)):
        found.append((top + line, left + column, at + len(found)))
    return found


def prompt(ids, spans, form, r, side=2):
    """The prompt of a context: `form` is a share of pages, or `sheet` for one large page of the
    first `side` x `side` passages."""
    made = Prompt()
    if form == "sheet":
        on_sheet, rest = spans[:side * side], spans[side * side:]
        made.words(ids[:spans[0][0]], 0)
        passages = [ids[a:b] for a, b in on_sheet]
        cells = pages.sheet(passages, side)
        height = len(cells) // side
        words = []
        for number, ((a, _), passage) in enumerate(zip(on_sheet, passages)):
            words += stands(passage, a, number // side * height, number % side * pages.WIDE)
        made.picture(cells, words)
        at = on_sheet[-1][1]
        made.words(ids[at:], at)
        return made
    at = 0
    for number, (a, b) in enumerate(spans):
        if form == "mixed" and number % 2 or form == "text" or form == "drawn" and r.random() > .7:
            continue
        made.words(ids[at:a], at)
        made.picture(pages.page(ids[a:b]), stands(ids[a:b], a))
        at = b
    made.words(ids[at:], at)
    return made


def unknowable(pointers, where):
    """Places whose fact stands after them on a large page: nothing that reads forward can know it."""
    needs, bad = {}, set()
    for place, fact in pointers:
        needs.setdefault(place, []).append(fact)
    for _ in range(4):  # chains of references
        for place, facts in needs.items():
            if place in where and all(fact not in where or where[fact] >= where[place] or fact in bad for fact in facts):
                bad.add(place)
    return bad


def passages_of(ids):
    """Begin and end of each passage."""
    starts = [place for place, word in enumerate(ids) if word == tasks.VOCAB["passage"]]
    first = ids.index(tasks.VOCAB["question"])
    return list(zip(starts, starts[1:] + [first]))


def training_sample(r, length, form):
    while True:
        ids, targets, weights, _, pointers = tasks.train_sample(r, length, skill=SKILL)
        if tasks.VOCAB["question"] in ids:
            break
    end = len(ids) - next(i for i, word in enumerate(reversed(ids)) if word != tasks.EOS)
    ids, spans = ids[:end], passages_of(ids)
    side = 2 if r.random() < .4 else max(2, min(4, math.ceil(len(spans) ** .5)))
    if form == "pages":  # the rest of a longer passage stays text
        spans = [(a, min(b, a + 64)) for a, b in spans]
    made = prompt(ids, spans, {"pages": "drawn"}.get(form, form), r, side)
    bad = unknowable(pointers, made.where) if form == "sheet" else set()
    wanted = {made.where[i]: (targets[i], weights[i]) for i in range(end) if targets[i] >= 0 and i not in bad}
    seen = [(made.where[a], made.where[b]) for a, b in pointers if a in made.where and b in made.where and a not in bad]
    return made, wanted, [(a, b) for a, b in seen if b < a]


def assembled(model, prompts, wanted, generator):
    """Rows, levels and places of a batch, and its targets."""
    n, rows = len(prompts), max(len(made.ids) for made in prompts)
    ids, places = torch.zeros(n, rows, dtype=torch.long), torch.zeros(n, 3, rows, dtype=torch.long)
    by_size = {}
    for sample, made in enumerate(prompts):
        ids[sample, :len(made.ids)] = torch.tensor(made.ids)
        places[sample, :, :len(made.ids)] = torch.tensor(made.places).T
        at = (ids[sample] == PAD).nonzero()[:, 0]
        for cells in made.pictures:
            by_size.setdefault(cells.shape, []).append((sample, at[:cells.size], cells))
            at = at[cells.size:]
    x, deep = model.embed(ids), torch.zeros(n, rows, HIDDEN)
    samples, at, features, levels = [], [], [], []
    for (high, wide), found in by_size.items():
        drawn = [pages.picture(cells, GLYPHS, 12, generator) for _, _, cells in found]
        f, d = model.tower(patches(torch.from_numpy(np.stack(drawn))), 2 * high, 2 * wide)
        features.append(f.reshape(-1, HIDDEN)), levels.append(d.reshape(-1, HIDDEN))
        for sample, place, _ in found:
            samples.append(torch.full_like(place, sample)), at.append(place)
    if samples:
        index = (torch.cat(samples), torch.cat(at))
        x, deep = x.index_put(index, torch.cat(features)), deep.index_put(index, torch.cat(levels))
    flat = sorted((sample * rows + row, token, weight) for sample, of in enumerate(wanted) for row, (token, weight) in of.items())
    return x, deep, places, *map(torch.tensor, zip(*flat))


def batch(model, r, samples, length, generator):
    form = r.choices(list(FORMS), list(FORMS.values()))[0]
    made = [training_sample(r, length, form) for _ in range(samples)]
    x, *rest = assembled(model, [prompt for prompt, _, _ in made], [wanted for _, wanted, _ in made], generator)
    facts = {}
    for sample, (_, _, seen) in enumerate(made):
        for row, fact in seen:
            facts.setdefault((sample, row), []).append(fact)
    kept = r.sample(sorted(facts), min(len(facts), 192))
    if not kept:
        return x, *rest, None
    right = torch.zeros(len(kept), x.shape[1], dtype=torch.bool)
    for number, key in enumerate(kept):
        right[number, facts[key]] = True
    return x, *rest, (torch.tensor([s for s, _ in kept]), torch.tensor([row for _, row in kept]), right)


def accuracy(model, task, count, form, passages=8, words=64, side=2):
    """Share of answers that are right, word by word, with the right words before them."""
    right = 0
    with torch.no_grad():
        for number in range(count):
            s = tasks.eval_sample(random.Random(f"check-{task}-{number}"), task, passages, words)
            ids, spans = [tasks.BOS], []
            for chunk in s["chunks"]:
                spans.append((len(ids), len(ids) + len(chunk)))
                ids += chunk
            ids += s["question"]
            first = len(ids) - 1
            made = prompt(ids + s["answer"][:-1], spans, form, random.Random(0), side)
            wanted = {made.where[first + i]: (token, 1.) for i, token in enumerate(s["answer"])}
            x, deep, places, asked, _, _ = assembled(model, [made], [wanted], np.random.default_rng(number))
            right += model(x, deep, places, asked).argmax(-1).tolist() == s["answer"]
    return right / count


def reading(model, steps, generator, say):
    """The tower learns to give the embedding of a word's glyph, one half of it by each of its outputs."""
    optimiser, r, begun = torch.optim.AdamW(model.tower.parameters(), lr=3e-3), random.Random(3), time.time()
    words = len(tasks.VOCAB)
    target = model.embed.weight.detach()[:words]
    for step in range(1, steps + 1):
        high, wide = r.choice([(8, 8), (8, 8), (4, 16), (16, 16)])
        count = max(1, 512 // (high * wide))
        cells = np.array([[r.randrange(words) for _ in range(high * wide)] for _ in range(count)]).reshape(count, high, wide)
        drawn = np.stack([pages.picture(one, GLYPHS, 12, generator) for one in cells])
        halves = model.tower(patches(torch.from_numpy(drawn)), 2 * high, 2 * wide)
        feature, level = (half.reshape(-1, HIDDEN) for half in halves)
        even = torch.arange(HIDDEN) % 2 == 0
        apart = feature[:, ~even].pow(2).mean() + level[:, even].pow(2).mean()
        features, truth = torch.where(even, feature, level), torch.from_numpy(cells).flatten()
        near = F.cross_entropy(F.linear(F.normalize(features), F.normalize(target)) * 20, truth)
        loss = ((features - target[truth]).pow(2).mean() + apart) / target.pow(2).mean() + .1 * near
        optimiser.zero_grad(), loss.backward(), optimiser.step()
        if step % 50 == 0:
            nearest = (torch.cdist(features, target).argmin(1) == truth).float().mean().item()
            say(f"reading {step} loss {loss.item():.4f} nearest word {nearest:.3f} seconds {time.time() - begun:.0f}")


def main():
    out, given = Path(sys.argv[1]), dict(option.split("=") for option in sys.argv[2:])
    steps, tokens, until = int(given.get("steps", 600)), int(given.get("tokens", 4096)), int(given.get("until", 0))
    torch.set_num_threads(int(given.get("threads", 2))), torch.manual_seed(0)
    out.mkdir(exist_ok=True, parents=True)
    log = open(out / "log.txt", "w")

    def say(line):
        print(line, flush=True), print(line, file=log, flush=True)

    model, r, generator = Reader(), random.Random(1), np.random.default_rng(2)
    model.begin_with(DEMO)
    say(f"parameters {sum(p.numel() for p in model.parameters())}, of the tower {sum(p.numel() for p in model.tower.parameters())}")
    with torch.no_grad():  # norms of queries and keys keep the sizes that the demo model has
        for block in model.blocks:
            block.sizes = []
        model(*batch(model, r, 8, 256, generator)[:4])
        for block in model.blocks:
            (q, k), block.sizes = block.sizes[0], None
            block.q_norm.weight.fill_(q), block.k_norm.weight.fill_(k)
    reading(model, int(given.get("reading", 300)), generator, say)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(.9, .98), weight_decay=0.)
    begun, smooth, done = time.time(), None, 0
    for step in range(1, (until or steps) + 1):
        share = step / steps
        for group in optimiser.param_groups:
            group["lr"] = 1.5e-3 * min(1, step / 20) * min(1, max(0, 1 - share) / .5 + .01)
        length = r.choice([96, 128, 192] if share < .2 else [128, 256, 384] if share < .7 else [256, 512])
        x, deep, places, asked, targets, weights, pointers = batch(model, r, max(1, tokens // length), length, generator)
        losses, done = [], done + x.shape[0] * x.shape[1]
        logits = model(x, deep, places, asked, pointers, losses)
        loss = (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()
        pointing = sum(losses) / len(losses) if losses else torch.zeros(())
        optimiser.zero_grad(), (loss + .3 * pointing).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimiser.step()
        smooth = loss.item() if smooth is None else .95 * smooth + .05 * loss.item()
        if step % 25 == 0:
            right = (logits.argmax(-1) == targets)[weights == 1.].float().mean().item()
            say(f"step {step} rows {done} length {length} loss {smooth:.3f} pointing {pointing.item():.3f} "
                f"answers {right:.3f} seconds {time.time() - begun:.0f}")
        if step % 150 == 0:
            check = lambda form, names, **shape: {task: accuracy(model, task, 20, form, **shape) for task in names}
            say(f"  pages {check('pages', ('single', 'hop2', 'vt2'))} large page "
                f"{check('sheet', ('single', 'hop2'), passages=16, words=40, side=4)}")
            torch.save(model.state_dict(), out / "checkpoint.pt")
    torch.save(model.state_dict(), out / "checkpoint.pt")
    for form in ("pages", "mixed", "text"):
        say(f"{form} {({task: accuracy(model, task, 40, form) for task in ('single', 'multikey', 'hop2', 'vt2', 'vt3')})}")
    say(f"large page {({task: accuracy(model, task, 40, 'sheet', 16, 40, 4) for task in ('single', 'hop2', 'vt2')})}")


if __name__ == "__main__":
    main()
