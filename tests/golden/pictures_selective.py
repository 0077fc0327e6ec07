"""The selective pipeline on the tiny Qwen3-VL (and Qwen2.5-VL) in plain PyTorch, f64: chunks prefilled alone behind the prefix, keys cached before
RoPE, the query's probe, the best rows, recompute at global positions on three axes with what DeepStack adds, the query's logits.

Writes `FOLDER/selective.safetensors` of the request `pages` and `FOLDER/selective-tiles.safetensors` of `tiles`, and prints what was found of both.
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from pictures_reference import DTYPE, Decoder, extents, patches

HERE = Path(__file__).parent


def top(scores, count, candidates):
    """The best `count` candidates, ties by the lower index, ascending."""
    ranked = sorted(candidates, key=lambda row: (-scores[row].item(), row))
    return torch.tensor(sorted(ranked[:count]), dtype=torch.long)


def budget_of(ratio, tokens):
    return max(1, math.floor(ratio * tokens + 1e-9)) if ratio > 0 else 0


class Request:
    """Rows are numbered prefix, chunks in the request's own order, query. A chunk is a list of token ids with an image pad for each image row.

    `images` = names of the images in the order of their pads, `made` = name -> (features, levels), `grids` = name -> (h, w) in patches.
    `places`: where rows stand that are neither chunk-local nor by extents: for tiles of one image, `[3, rows]` of prefix, context and query, in both
    uses; `raster`: their orders in the whole sequence.
    """

    def __init__(self, model, prefix, chunks, query, images, made, grids, places=None, raster=None, deepstack=True):
        self.model, self.chunks, self.prefix, self.query_ids = model, chunks, prefix, query
        self.lengths = [len(chunk) for chunk in chunks]
        self.P, self.T, self.M = len(prefix), sum(self.lengths), len(query)
        self.ids = torch.tensor(sum(map(list, [prefix, *chunks, query]), []))
        self.starts = [self.P + sum(self.lengths[:i]) for i in range(len(chunks))]
        self.context = torch.arange(self.P, self.P + self.T)
        self.query = torch.arange(self.P + self.T, self.P + self.T + self.M)
        self.places, self.raster = places, raster
        if places is None:
            self.given = model.given(self.ids, [made[name] for name in images])
            pads, left = [chunk.count(model.marks["image"]) for chunk in chunks], list(images)
            self.grids = []
            for count in pads:
                here = []
                while count:
                    here.append(grids[left.pop(0)])
                    count -= here[-1][0] * here[-1][1] // model.tower.merge**2
                self.grids.append(here)
        self.stale = model.empty(len(self.ids))
        if places is None:
            self.prefill_chunks()

    def rows_of(self, chunk):
        return torch.arange(self.starts[chunk], self.starts[chunk] + self.lengths[chunk])

    def run(self, ids, grids, start):
        return extents(ids, grids, self.model.marks, self.model.tower.merge, start)

    def positions(self, layout, order):
        """Positions `[3, rows]` and orders, for chunks standing in `order`."""
        count = self.P + self.T + self.M
        sequence = torch.arange(count)
        at = self.P
        for chunk in order:
            sequence[self.rows_of(chunk)] = torch.arange(at, at + self.lengths[chunk])
            at += self.lengths[chunk]
        if self.places is not None:
            return self.places, (self.raster if layout == "raster" else sequence)
        where, place = torch.zeros(3, count, dtype=torch.long), 0
        where[:, :self.P], behind = self.run(self.prefix, [], 0)
        ends, place = [], behind
        for chunk in order:
            start = place if layout == "global" else behind
            where[:, self.rows_of(chunk)], end = self.run(self.chunks[chunk], self.grids[chunk], start)
            ends.append(end - start)
            place += end - start
        longest, whole = max(ends), sum(ends)
        if layout == "tl-tp":
            for chunk, extent in zip(order, ends):
                where[:, self.rows_of(chunk)], _ = self.run(self.chunks[chunk], self.grids[chunk], behind + whole - extent)
        where[:, self.query], _ = self.run(self.query_ids, [], behind + (longest if layout == "hl-hp" else whole))
        return where, sequence

    def prefill_chunks(self, deepstack=True):
        """Every chunk right behind the prefix, alone."""
        segment = torch.full((len(self.ids),), -1)
        for chunk in range(len(self.lengths)):
            segment[self.rows_of(chunk)] = chunk
        allowed = (segment[:, None] == segment[None, :]) | (segment[None, :] == -1)
        at = self.positions("hl-tp", range(len(self.lengths)))
        self.model.forward(self.given, torch.arange(self.P + self.T), self.stale, at, allowed, deepstack=deepstack)

    def fresh_copy(self):
        return [(k.clone(), v.clone()) for k, v in self.stale]

    def infoflow(self, layout, order, score, layers):
        """Per context row: mean over layers of the norm (or sum) over query rows of the head-mean attention."""
        first, end = layers
        total = torch.zeros(self.T, dtype=DTYPE)

        def watch(layer, attention):
            if layer >= first:
                a = attention.mean(0)[:, self.context]
                total.add_((a.pow(2).sum(0).sqrt() if score == "norm" else a.sum(0)) / (end - first))

        self.model.forward(self.given, self.query, self.fresh_copy(), self.positions(layout, order), None, end, watch)
        return total

    def recompute(self, layout, order, chosen, deepstack=True):
        rows = torch.cat([torch.as_tensor(chosen, dtype=torch.long), self.query])
        cache = self.fresh_copy()
        x = self.model.forward(self.given, rows, cache, self.positions(layout, order), deepstack=deepstack)
        return self.model.logits(x[-self.M:]), cache

    def candidates(self, order, include_first):
        barred = set() if include_first else set(self.rows_of(order[0]).tolist())
        return [row for row in range(self.P, self.P + self.T) if row not in barred]


def layers_of(count):
    """InfoFlow's layers by default: depth 0.55 to 0.65, rounded outwards."""
    return 55 * count // 100, -(-65 * count // 100)


def off(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


def cut(scores, chosen, candidates, first):
    """How far the last chosen row is from the first that is not, relative to the last chosen one."""
    rest = [scores[row - first].item() for row in candidates if row not in set(chosen.tolist())]
    last = min(scores[row - first].item() for row in chosen.tolist())
    return (last - max(rest)) / last if rest else math.inf


class Folder:
    def __init__(self, name):
        self.folder = HERE / name
        self.model = Decoder(self.folder)
        self.tok = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        found = load_file(self.folder / "images.safetensors")
        tower = self.model.tower
        self.grids, self.made = {}, {}
        for image in "abcdef":
            self.grids[image] = tuple(found[f"{image}.grid_thw"][0, 1:].tolist())
            pixels = patches(found[f"{image}.resized"], tower.p["image_mean"], tower.p["image_std"], tower.size, tower.merge, tower.frames)
            self.made[image] = tower.features(pixels, self.grids[image])

    def text(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def pads(self, image):
        h, w = self.grids[image]
        return [self.model.marks["image"]] * (h * w // self.model.tower.merge**2)

    def image(self, image):
        return [self.model.marks["vision_start"], *self.pads(image), self.model.marks["vision_end"]]


def pages(of):
    """Text, an image alone, a page of both, an image alone, text."""
    model = of.model
    prefix = of.text("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    chunks = [of.text("Page 1: the total is 19. "), of.image("a"), of.text("Page 3. ") + of.image("b") + of.text(" see the figure "), of.image("d"),
              of.text(" Page 5 ends.")]
    query = of.text("what number is under the red square?<|im_end|>\n<|im_start|>assistant\n")
    images = ["a", "b", "d"]
    r = Request(model, prefix, chunks, query, images, of.made, of.grids)
    given, layers = list(range(len(chunks))), layers_of(model.layers)
    all_ids, all_grids = r.ids, [of.grids[name] for name in images]
    full, _ = model.full(all_ids, [of.made[name] for name in images], all_grids)
    full = full[-r.M:]
    out = {"ids": r.ids, "chunk_lengths": torch.tensor(r.lengths), "logits.full": full}
    about = {"prefix": r.P, "context": r.T, "query": r.M, "chunks": ["text", "image a", "text, image b, text", "image d", "text"], "score_layers": layers}
    reading = {"layouts": {}}
    for layout in ("global", "hl-hp", "hl-tp", "tl-tp"):
        where, sequence = r.positions(layout, given)
        out[f"positions.{layout}"], out["orders"] = where, sequence
    order = [4, 2, 0, 3, 1]
    out["positions.global.moved"], out["orders.moved"] = r.positions("global", order)
    for layer in (0, model.layers - 1):
        out[f"stale.{layer}.key"], out[f"stale.{layer}.value"] = (t[:r.P + r.T] for t in r.stale[layer])
    scores = r.infoflow("global", given, "norm", layers)
    out["scores.norm"], out["scores.mass"] = scores, r.infoflow("global", given, "mass", layers)
    out["scores.norm.all_layers"] = r.infoflow("global", given, "norm", (0, model.layers))
    n = budget_of(0.15, r.T)
    for name, first in (("", False), (".first", True)):
        allowed = r.candidates(given, first)
        by_row = torch.zeros(r.P + r.T, dtype=DTYPE)
        by_row[r.context] = scores
        chosen = top(by_row, n, allowed)
        out["selected" + name], out["logits.0.15" + name] = chosen, r.recompute("global", given, chosen)[0]
        about["cut" + name] = cut(scores, chosen, allowed, r.P)
    by_row[r.context] = out["scores.norm.all_layers"]
    out["selected.all_layers"] = top(by_row, n, r.candidates(given, False))
    out["logits.0.15.all_layers"] = r.recompute("global", given, out["selected.all_layers"])[0]
    out["logits.0"] = r.recompute("global", given, [])[0]
    everyone = r.context
    out["logits.1"], cache = r.recompute("global", given, everyone)
    # What goes wrong where something is left out: a test that passes with one of these is no test.
    out["wrong.recompute_without_deepstack.1"] = r.recompute("global", given, everyone, deepstack=False)[0]
    out["wrong.recompute_without_deepstack.0.15"] = r.recompute("global", given, out["selected"], deepstack=False)[0]
    flat = r.positions("global", given)
    line = torch.arange(r.P + r.T + r.M).expand(3, -1).contiguous()
    x = model.forward(r.given, torch.arange(len(r.ids)), model.empty(len(r.ids)), (line, flat[1]))
    out["wrong.one_position_a_row"] = model.logits(x[-r.M:])
    # Another order, by importance: the sum of what each chunk is paid in HL-TP, the best next to the query.
    paid = r.infoflow("hl-tp", given, "norm", layers)
    worth = [paid[rows - r.P].sum().item() for rows in map(r.rows_of, given)]
    reordered = sorted(given, key=lambda chunk: (worth[chunk], chunk))
    again = r.infoflow("global", reordered, "norm", layers)
    by_row[r.context] = again
    chosen = top(by_row, n, r.candidates(reordered, False))
    out |= {"reorder.worth": torch.tensor(worth, dtype=DTYPE), "reorder.order": torch.tensor(reordered), "reorder.scores": again, "reorder.selected": chosen,
            "reorder.logits.0.15": r.recompute("global", reordered, chosen)[0], "reorder.logits.1": r.recompute("global", reordered, everyone)[0]}
    about |= {"budget": n, "selected image rows": int((r.ids[out["selected"]] == model.marks["image"]).sum()),
              "ratio 1 off full": off(out["logits.1"], full), "ratio 0 off full": off(out["logits.0"], full), "ratio 0.15 off full": off(out["logits.0.15"], full),
              "without deepstack at ratio 1 off full": off(out["wrong.recompute_without_deepstack.1"], full),
              "without deepstack at 0.15 off the right 0.15": off(out["wrong.recompute_without_deepstack.0.15"], out["logits.0.15"]),
              "one position a row off full": off(out["wrong.one_position_a_row"], full), "reorder cut": cut(again, chosen, r.candidates(reordered, False), r.P)}
    return out, about


def tiles(of, k=2):
    """One image cut into k x k tiles, each a chunk, at the positions of the whole image (InfoFlow KV's experiments)."""
    model, name = of.model, "c"
    prefix = of.text("<|im_start|>user\n") + [model.marks["vision_start"]]
    query = [model.marks["vision_end"]] + of.text("which bar is the highest?<|im_end|>\n<|im_start|>assistant\n")
    h, w = (side // model.tower.merge for side in of.grids[name])
    high, wide = -(-h // k), -(-w // k)
    raster = torch.arange(h * w).reshape(h, w)
    cells = [raster[i * high:(i + 1) * high, j * wide:(j + 1) * wide].flatten() for i in range(k) for j in range(k)]
    cells = [cell for cell in cells if len(cell)]
    moved = torch.cat(cells)  # row in the chunks' order -> place in the image
    ids = prefix + of.pads(name) + query
    whole, _ = extents(ids, [of.grids[name]], model.marks, model.tower.merge)
    P, T = len(prefix), h * w
    pick = torch.cat([torch.arange(P), P + moved, torch.arange(P + T, len(ids))])
    places, orders = whole[:, pick], pick.clone()  # raster order: where the row stands in the image
    r = Request(model, prefix, [[model.marks["image"]] * len(cell) for cell in cells], query, [], of.made, of.grids, places, orders)
    features, levels = of.made[name]
    x, deep = model.given(torch.tensor(ids), [(features, levels)])
    r.given = x[pick], [level[pick] for level in deep]
    r.prefill_chunks()
    full, _ = model.full(ids, [of.made[name]], [of.grids[name]])
    full, given, layers = full[-r.M:], list(range(len(cells))), layers_of(model.layers)
    out = {"ids": r.ids, "chunk_lengths": torch.tensor(r.lengths), "image_places": moved, "positions": places, "orders.raster": orders, "logits.full": full}
    n, allowed = budget_of(0.15, r.T), r.candidates(given, False)
    about = {"k": k, "grid": [h, w], "budget": n, "score_layers": layers}
    for layout in ("tiles", "raster"):
        scores = r.infoflow(layout, given, "norm", layers)
        by_row = torch.zeros(r.P + r.T, dtype=DTYPE)
        by_row[r.context] = scores
        chosen = top(by_row, n, allowed if layout == "tiles" else r.candidates(given, True))
        out |= {f"{layout}.scores": scores, f"{layout}.selected": chosen, f"{layout}.logits.0": r.recompute(layout, given, [])[0],
                f"{layout}.logits.0.15": r.recompute(layout, given, chosen)[0], f"{layout}.logits.1": r.recompute(layout, given, r.context)[0]}
        about[layout] = {"cut": cut(scores, chosen, allowed if layout == "tiles" else r.candidates(given, True), r.P)} | {
            f"ratio {ratio} off full": off(out[f"{layout}.logits.{ratio}"], full) for ratio in ("0", "0.15", "1")}
    out |= as_published(r, of, given)
    about["as published"] = {"0 off full": off(out["published.logits.0"], full[-1]), "0.15 off full": off(out["published.logits.0.15"], full[-1]),
                             "0.15 with deepstack off full": off(out["published.logits.0.15.deepstack"], full[-1])}
    return out, about


def as_published(r, of, given):
    """What the authors' program for images does, step by step, for comparison: it differs from the paper and from the pipeline here.

    1. Tiles see prefix and themselves, at the whole image's positions; what follows the image is prefilled behind all tiles, and is cached like them.
    2. The last token runs once more behind the cache, at the *row's number* on all three axes; in the last two layers every cached row's score is
       -sum over heads of a * ln(a + 1e-10) (or the norm), the mean over both layers.
    3. The best max(1, int(0.15 rows)) of *all* rows, those of prefix and text behind the image among them.
    4. Those run through all layers in the tiles' order; DeepStack adds nothing to them.
    5. The last token runs once more, in the place of its own cached row.
    """
    model, rows = r.model, r.P + r.T + r.M
    places, sequence = r.positions("tiles", given)
    cache = r.fresh_copy()
    model.forward(r.given, r.query, cache, (places, sequence))
    again = torch.cat([places, torch.full((3, 1), rows)], 1), torch.cat([sequence, torch.tensor([rows])])
    last = r.given[0][-1:]
    given_again = torch.cat([r.given[0], last]), [torch.cat([level, torch.zeros_like(last)]) for level in r.given[1]]
    wide = [tuple(torch.cat([t, torch.zeros_like(t[:1])]) for t in pair) for pair in cache]
    entropy, norm = torch.zeros(rows, dtype=DTYPE), torch.zeros(rows, dtype=DTYPE)

    def watch(layer, attention):
        if layer >= model.layers - 2:
            a = attention[:, 0, :rows]
            entropy.add_(-(a * (a + 1e-10).log()).sum(0) / 2)
            norm.add_(a.pow(2).sum(0).sqrt() / 2)

    model.forward(given_again, torch.tensor([rows]), wide, again, watch=watch)
    n = max(1, int(rows * 0.15))
    chosen = top(entropy, n, range(rows))

    def answer(chosen, deepstack):
        after = [(k.clone(), v.clone()) for k, v in cache]
        if len(chosen):
            model.forward(r.given, chosen, after, (places, sequence), deepstack=deepstack)
        x = model.forward(r.given, torch.tensor([rows - 1]), after, (places, sequence))
        return model.logits(x)[0]

    return {"published.entropy": entropy, "published.norm": norm, "published.selected": chosen, "published.logits.0": answer([], False),
            "published.logits.0.15": answer(chosen, False), "published.logits.0.15.deepstack": answer(chosen, True)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ["qwen3vl-tiny", "qwen25vl-tiny"]:
        of, about = Folder(name), {}
        out, about["pages"] = pages(of)
        kept = {}
        for key, value in out.items():
            if key.startswith(("stale", "orders")):
                continue
            # Of logits the last row: that of the first token.
            value = value[-1] if "logits" in key or key.startswith("wrong") else value
            kept[key] = value.to(torch.float32 if value.dtype == DTYPE else torch.int32).contiguous().clone()
        save_file(kept, of.folder / "selective.safetensors")
        out, about["tiles"] = tiles(of)
        kept = {}
        for key, value in out.items():
            if not key.startswith("published"):
                value = value[-1] if "logits" in key else value
                kept[key] = value.to(torch.float32 if value.dtype == DTYPE else torch.int32).contiguous().clone()
        save_file(kept, of.folder / "selective-tiles.safetensors")
        print(name, json.dumps(about, indent=1))
