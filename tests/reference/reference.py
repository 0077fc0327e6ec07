"""Checks dumps of `tributary prefill --dump DIR` against an independent implementation (`methods.py`).

Recomputes chunk order, scores, selection, first-token logits, what is kept where rows are evicted (`evict.py`) or chunks compressed (`compress.py`), and the later tokens of a dump and prints one line a quantity; exits 1 where
one is off by more than its tolerance. Llama, Mistral, Qwen2 and Qwen3 folders with plain or llama3 RoPE.

    python reference.py --model MODEL DUMP [DUMP ...]
    python reference.py --model MODEL --self-test
A dump of cacheclip or spec-prefill-like names its auxiliary model, a folder that is looked for where this program runs.
Needs torch and safetensors; the self-test also compares with transformers where it is installed.
"""

import argparse
import contextlib
import copy
import importlib.util
import io
import json
import math
import pathlib
import random
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

import compress
import evict
from methods import DTYPE, Model, Request, top

LOGITS_TOLERANCE = 1e-4  # of the largest |logit|
SCORES_TOLERANCE = 1e-4  # of the largest score
CUT_TOLERANCE = 1e-5  # rows this near to the cut, relative, may be selected or not
EXACT = ("full", "prefix-cache", "context-pilot-like", "ring", "all-gather", "pass-q")
BLOCKS = ("star", "apb")
LAYOUTS = ("global", "hl-hp", "hl-tp", "tl-tp")


def layers_of(text: str) -> list[int]:
    """First layer and the one after the last of `FIRST..END`."""
    return [int(layer) for layer in text.split("..")]


def method_scores(r: Request, s: dict, layout, order, budget, candidates):
    if s["method"] == "infoflow":
        return r.infoflow(layout, order, s["score"], layers_of(s["layers"]), s.get("recency"))
    if s["method"] == "excerpt":
        return r.infoflow(layout, order, s["score"], layers_of(s["layers"]), s.get("recency"))
    if s["method"] == "attn-drift":
        return r.attn_drift(layout, order, s["score"], layers_of(s["layers"]), s["half"], s.get("recency"), candidates)
    if s["method"] == "prophetkv":
        return r.prophetkv(layout, order)
    if s["method"] == "qcfuse-like":
        worth, _ = r.qcfuse(layout, order, s["score"], int(s["layer"]), int(s["anchors"]))
        return worth.repeat_interleave(torch.tensor(r.lengths))
    if s["method"] == "a3":
        return r.a3(layout, order)
    if s["method"] == "cacheblend":
        return r.cacheblend(order, s["drift-of"], s["drift-layers"], budget, candidates)
    if s["method"] == "kvshare":
        return r.kvshare(order, candidates)
    if s["method"] == "ideal":
        return r.ideal(order)
    if s["method"] == "cacheclip":
        return r.cacheclip(s.get("auxiliary") or Model(s["auxiliary_model"]), s["auxiliary_prompts"])
    return r.relay(layout, order, budget, candidates)


def reordered(r: Request, s: dict, budget):
    """Chunks by ascending importance in the HL-TP layout: the best stands next to the query. The importance of
    relay and of attn-drift is their probe's score."""
    order = list(range(len(r.lengths)))
    everyone = torch.cat([r.tokens_of(chunk) - r.P for chunk in order]).tolist()
    probe = {**s, "method": {"relay": "prophetkv", "attn-drift": "infoflow"}.get(s["method"], s["method"])}
    scores = r.of_tokens(method_scores(r, probe, "hl-tp", order, budget, everyone))
    if s["importance"] == "selected":
        mark = torch.zeros(r.T, dtype=DTYPE)
        mark[top(scores, budget, everyone)] = 1.0
    worth = [(mark[rows].mean() if s["importance"] == "selected" else scores[rows].sum()).item()
             for rows in (r.rows_of(chunk) - r.P for chunk in order)]
    return sorted(order, key=lambda chunk: (worth[chunk], chunk))


def solve(r: Request, s: dict, selected=None, order=None):
    """Order, scores of context rows (or None), selected rows, the cut's slack and logits, for the settings `s`. A given
    order or selection is used where they are drawn at random or tied."""
    if s["method"] in EXACT:
        # The order of which most is cached depends on earlier requests: the dump's is taken.
        everyone = order if s["method"] == "context-pilot-like" and order else list(range(len(r.lengths)))
        return everyone, None, torch.tensor([]), None, r.recompute(everyone, torch.arange(r.P + r.T))[0]
    if s["method"] in BLOCKS:
        rows = s["block_rows"]
        logits = r.blocks(rows["block"], rows["anchor"], rows["passed"])
        return list(range(len(r.lengths))), None, torch.tensor([], dtype=torch.long), None, logits
    if s["method"] == "ape":
        logits = r.ape(s["temperature"], s["scale"])[0]
        return list(range(len(r.lengths))), None, torch.tensor([], dtype=torch.long), None, logits
    if s["method"] == "samkv":
        scores, kept, logits = r.samkv(s["variant"], s["blocks"], s["theta"])
        return list(range(len(r.lengths))), scores, kept, 1e-9, logits  # whole blocks go: no row is near the cut
    ratio = s["ratio"] if s["method"] not in ("none", "kv-packet") else 0.0
    tokens = r.T - len(r.lengths) * (r.head + r.tail)
    budget = max(1, math.floor(ratio * tokens + 1e-9)) if ratio > 0 else 0
    if s["method"] == "excerpt":
        order = list(range(len(r.lengths)))
        scores = r.of_tokens(method_scores(r, s, s["layout"], order, budget, list(range(r.T))))
        ends, named = s.get("sentence_ends", []), s.get("named_chunks", [])[:s["named"]]
        hops = s["hops"] == 2 and budget >= 2
        if s["named"] > 0 and s.get("shared_words"):
            scores = scores / scores.sum() + r.words(s["shared_words"])
        elif hops:
            scores = scores / scores.sum()
        if hops:
            scores = r.second_hop(scores, r.excerpt(scores, ends, s["longest"], budget // 2) - r.P, order)
        kept = r.excerpt(scores, ends, s["longest"], budget, s["unit"], named)
        return order, scores, kept, 1e-9, r.alone(kept)  # whole sentences go: no row is near the cut
    if s["method"] == "spec-prefill-like":
        auxiliary, scores = s.get("auxiliary") or Model(s["auxiliary_model"]), None
        if budget > 0:
            scores = r.spec_prefill(auxiliary, s["auxiliary_prompts"], s["tokens"])
        kept = r.best_spans(torch.zeros(r.T) if scores is None else scores, s["pool"], s["span"], budget)
        return list(range(len(r.lengths))), scores, kept, 1e-9, r.alone(kept)  # whole spans go: no row is near the cut
    asks = s["method"] in ("infoflow", "attn-drift", "prophetkv", "qcfuse-like", "relay", "a3", "ideal")
    scored = asks or s["method"] in ("cacheblend", "kvshare", "trace", "cacheclip")
    found_order = reordered(r, s, budget) if asks and s["reorder"] else list(range(len(r.lengths)))
    if s["method"] == "trace" and budget > 0:
        traced, found_order = r.trace(budget, s["alpha"], s.get("keep-order") or False, s.get("sharpest"))
    order = found_order if order is None else order
    barred = set() if s["include_first_chunk"] or r.lead else set((r.rows_of(order[0]) - r.P).tolist())
    context = set(torch.cat([r.tokens_of(chunk) - r.P for chunk in range(len(r.lengths))]).tolist())
    candidates = [row for row in range(r.T) if row in context and row not in barred]
    scores, cut, chosen = None, None, torch.tensor([], dtype=torch.long)
    if s["method"] == "qcfuse-like" and budget > 0:
        worth, read = r.qcfuse(s["layout"], order, s["score"], int(s["layer"]), int(s["anchors"]))
        chunks = [chunk for chunk in range(len(r.lengths)) if r.rows_of(chunk)[0].item() - r.P not in barred]
        scores, best, chosen = r.best_of_chunks(worth, read, float(s["share"]), budget, chunks)
        cut = scores[best].min().item() if best else None
    elif scored and budget > 0:
        scores = traced if s["method"] == "trace" else method_scores(r, s, s.get("layout", "global"), order, budget, candidates)
        scores = r.of_tokens(scores)
        chosen = top(scores, budget, candidates) + r.P
        cut = scores[chosen - r.P].min().item() if len(chosen) else None
        if s["method"] == "cacheclip":
            chosen = r.together(order, chosen)
    elif s["method"] == "epic":
        chosen = r.epic(s.get("rows") or budget // max(1, len(order) - (0 if r.lead else 1)))
    elif s["method"] == "random" and selected is not None:
        assert len(selected) == min(budget, len(candidates)) and not barred & set((selected - r.P).tolist())
        chosen = selected
    read = list(range(len(r.lengths))) if s.get("order_for") == "selection" else None
    return found_order, scores, chosen, cut, r.recompute(order, chosen if selected is None else selected, read)[0]


def relative(found, expected):
    return ((found.to(DTYPE) - expected).abs().max() / expected.abs().max()).item()


def with_rows(model: Model, s: dict):
    """The model with the rows of the adapter after its embeddings, where chunks of a dump are between such rows, and the ids that
    represent those before and after a chunk's tokens."""
    packets = s.get("packets")
    if not packets:
        return model, None
    folder = next(name.rsplit(" (", 1)[0] for name in s["adapters"] if name.endswith(f"({packets['adapter']})"))
    rows = load_file(pathlib.Path(folder) / "adapter.safetensors")["embeddings"].to(DTYPE)
    model, name = copy.copy(model), "model.embed_tokens.weight"
    model.weights = {"lm_head.weight": model.weights[name], **model.weights, name: torch.cat([model.weights[name], rows])}
    first, head = model.vocab, packets["head"]
    return model, (list(range(first, first + head)), list(range(first + head, first + head + packets["tail"])))


def check(model: Model, folder: str) -> bool:
    """Compares a dump with this implementation; says how far each quantity is off."""
    s = json.loads((pathlib.Path(folder) / "request.json").read_text())
    settings = s.get("settings", {})
    options = settings.get("options", {})
    s = {**settings, **options, "share": options.get("chunks"), **s}  # `chunks` are the request's
    if s["dtype"] != "f32":
        raise SystemExit(f"{folder}: dtype {s['dtype']}; the tolerances are f32's")
    dump = load_file(pathlib.Path(folder) / "result.safetensors")
    model, around = with_rows(copy.copy(model), s)
    room = max(32, len(s["generated"])) if "kept" in dump else 0
    r = Request(model, s["prefix"], s["chunks"], s["query"], room, around, s.get("lead", 0))
    selected = dump["selected"].to(torch.long) if "selected" in dump else torch.tensor([], dtype=torch.long)
    exact = s["method"] in EXACT
    # From here on chunks hold what the dump says, where they were compressed.
    lines = compress.lines_of(r, s["compressed"], dump, CUT_TOLERANCE) if "kept_of_chunks" in dump else []
    order, scores, chosen, cut, logits = solve(r, s, None if exact else selected, s["order"])
    lines.append(("order", float(order != s["order"]), 0.0, f"{s['order']}"))
    if scores is not None and "scores" in dump:
        given = dump["scores"].to(DTYPE)
        lines.append(("scores", relative(given[r.P:], scores), SCORES_TOLERANCE, f"{r.T} context rows"))
        lines.append(("prefix scores", given[:r.P].abs().sum().item(), 0.0, f"{r.P} rows, all 0"))
    if not exact:
        differ = sorted(set(chosen.tolist()) ^ set(selected.tolist()))
        count = abs(len(chosen) - len(selected))
        slack = max([abs(scores[row - r.P].item() - cut) / cut for row in differ], default=0.0) if scores is not None else len(differ)
        lines.append(("selection", slack, CUT_TOLERANCE, f"{len(selected)} rows, {len(differ)} differ"))
        lines.append(("selected rows", float(count), 0.0, f"{len(chosen)} expected"))
    tolerance = math.inf if s["exchange"] == "selected" and s.get("world", 1) > 1 and not exact else LOGITS_TOLERANCE
    found = dump["first_token_logits"]
    lines.append(("logits", relative(found, logits), tolerance, f"best {found.argmax().item()}, here {logits.argmax().item()}"))
    if "kept" in dump:
        if s["method"] in BLOCKS + ("ape", "samkv", "excerpt", "spec-prefill-like"):
            raise SystemExit(f"{folder}: rows kept after {s['method']} are not in this reference")
        read = list(range(len(r.lengths))) if s.get("order_for") == "selection" else None
        rows = torch.arange(r.P + r.T) if exact else selected
        cache = r.recompute(s["order"], rows, read)[1]
        lines += evict.lines_of(r, s, dump, cache, r.positions("global", read or s["order"]), CUT_TOLERANCE)
    good = all(error <= bound for _, error, bound, _ in lines)
    print(f"{folder}: {s['method']} ratio {s['ratio']} reorder {s['reorder']} exchange {s['exchange']}")
    for name, error, bound, note in lines:
        print(f"  {name:14} {error:.2e} of {bound:.0e}  {'ok ' if error <= bound else 'BAD'}  ({note})")
    return good


def settings(model: Model, **changes) -> dict:
    base = {"method": "infoflow", "ratio": 0.15, "score": "norm", "layers": f"{model.layers - 1}..{model.layers}",
            "layout": "global", "reorder": False, "importance": "mass", "include_first_chunk": False,
            "variant": "small", "blocks": 2, "theta": 0.9, "temperature": 0.9, "scale": 0.9, "drift-of": "values", "drift-layers": 1, "half": 32, "longest": 48, "unit": "sentence", "hops": 1, "named": 2, "layer": 3 * model.layers // 5, "anchors": 4, "share": 0.5, "alpha": 0.18, "dtype": "f32", "exchange": "replicate", "world": 1, "generated": []}
    return {**base, **changes}


def self_test(model: Model, folder: str) -> bool:
    """Ratio 1 and a single chunk equal full prefill, full equals transformers, a dump of ours passes, a spoilt one fails."""
    draw = random.Random(7)
    ids = lambda count: [draw.randrange(model.vocab) for _ in range(count)]
    good = True

    def expect(name, error, bound=1e-9):
        nonlocal good
        good &= error <= bound
        print(f"  {name:46} {error:.2e} of {bound:.0e}  {'ok' if error <= bound else 'BAD'}")

    for prefix, lead, lengths, query in [(1, 0, [16, 33, 5, 20], 6), (3, 0, [9, 1, 40], 2), (0, 0, [12, 30], 4), (6, 5, [9, 1, 40], 2)]:
        request = {"prefix": ids(prefix), "lead": lead, "chunks": [ids(n) for n in lengths], "query": ids(query)}
        r = Request(model, **request)
        run = lambda **changes: solve(r, settings(model, **changes))
        full = run(method="full")[4]
        print(f"prefix {prefix}, lead {lead}, chunks {lengths}, query {query}")
        for method in ("infoflow", "attn-drift", "prophetkv", "qcfuse-like", "relay", "a3"):
            for layout in LAYOUTS:
                expect(f"{method} {layout} at ratio 1 = full", relative(run(method=method, layout=layout, ratio=1.0)[4], full))
        expect("excerpt at ratio 1 = full", relative(run(method="excerpt", ratio=1.0)[4], full))
        for of, layers in [("values", 1), ("keys", min(2, model.layers - 1))]:
            changes = {"method": "cacheblend", "drift-of": of, "drift-layers": layers}
            expect(f"cacheblend {of} {layers} at ratio 1 = full", relative(run(**changes, ratio=1.0)[4], full))
        expect("kvshare at ratio 1 = full", relative(run(method="kvshare", ratio=1.0)[4], full))
        expect("ideal at ratio 1 = full", relative(run(method="ideal", ratio=1.0)[4], full))
        expect("cacheclip at ratio 1 = full", relative(run(**read_by(model, folder, r, request), ratio=1.0)[4], full))
        expect("spec-prefill-like at ratio 1 = full", relative(run(**written_by(folder, request), ratio=1.0)[4], full))
        order, _, _, _, logits = run(method="trace", ratio=1.0, alpha=0.001)
        moved = Request(model, request["prefix"], [request["chunks"][c] for c in order], request["query"])
        expect(f"trace at ratio 1 = full in the order {order}", relative(logits, solve(moved, settings(model, method="full"))[4]))
        expect("first chunk recomputed too, ratio 1 = full", relative(run(ratio=1.0, include_first_chunk=True)[4], full))
        one = Request(model, request["prefix"], [sum(request["chunks"], [])], request["query"])
        expect("one chunk, nothing recomputed = full", relative(solve(one, settings(model, method="none"))[4], full))
        changes = {"method": "samkv", "variant": "large", "theta": 1.0}
        expect("samkv, nothing dropped, theta 1 = full", relative(run(**changes)[4], full))
        total = prefix - lead + sum(lengths)
        for name, block, anchor, passed in [("star, two blocks", -(-total // 2), total + lead, 0), ("apb, all passed on", 7, 3 + lead, 7)]:
            changes = {"method": "apb", "block_rows": {"block": block, "anchor": anchor, "passed": passed}}
            expect(f"{name} = full", relative(run(**changes)[4], full))
        plain = settings(model, method="ape", temperature=1.0, scale=1.0)
        expect("one chunk, ape at temperature and scale 1 = full", relative(solve(one, plain)[4], full))
        expect("none differs from full", -relative(run(method="none")[4], full), -1e-3)
        if importlib.util.find_spec("transformers"):
            from transformers import AutoModelForCausalLM
            theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPE)
            with torch.no_grad():
                expect("full = transformers", relative(theirs(r.ids[None]).logits[0, -1], full), 1e-5)
        for changes in ({}, {"reorder": True}, {"reorder": True, "importance": "selected", "score": "mass"},
                        {"method": "relay", "layout": "tl-tp"}, {"method": "attn-drift", "reorder": True, "half": 3, "recency": 1.5}, {"method": "excerpt", "ratio": 0.5, "sentence_ends": [4, 9, 15, 22]}, {"method": "excerpt", "longest": 4}, {"method": "excerpt", "ratio": 0.5, "unit": "chunk"}, {"method": "excerpt", "ratio": 0.5, "hops": 2},
                        {"method": "excerpt", "ratio": 0.5, "shared_words": [[prefix + 3, 0.5], [prefix + 11, 1.0]], "named_chunks": [prefix, prefix + lengths[0]]}, {"method": "qcfuse-like"}, {"method": "qcfuse-like", "ratio": 0.7, "anchors": 1, "share": 0.2, "score": "mass"}, {"method": "qcfuse-like", "reorder": True, "layout": "hl-tp"}, {"method": "a3"}, {"method": "cacheblend"}, {"method": "kvshare"}, {"method": "ideal"}, {"method": "ape"}, {"method": "samkv", "blocks": 1},
                        {"method": "trace"}, {"method": "trace", "alpha": 0.001}, {"method": "trace", "alpha": 0.001, "keep-order": True}, {"method": "trace", "alpha": 0.005, "sharpest": 0.25}, {"reorder": True, "order_for": "selection"},
                        {"method": "apb", "block_rows": {"block": 9, "anchor": 2, "passed": 2}}, {"method": "epic"}, {"method": "none"}, {**read_by(model, folder, r, request), "ratio": 0.8},
                        {**written_by(folder, request), "ratio": 0.4}, {**written_by(folder, request), "ratio": 0.0}):
            name = {key: value for key, value in changes.items() if not key.startswith("auxiliary")}
            expect(f"dump {name}", float(not round_trip(model, r, {**settings(model, **changes), **request})), 0.0)
        for name in ("snapkv", "pyramidkv", "tova", "h2o", "streamingllm", "random", "laq", "speckv", "ideal"):
            expect(f"eviction {name}: all kept = nothing evicted; dump", float(not evicted_trip(model, folder, request, name)), 0.0)
        for name in ("snapkv", "tova", "h2o", "streamingllm", "random"):
            expect(f"chunks compressed by {name}; dump", float(not compressed_trip(model, request, name)), 0.0)
    return good


def evicted_trip(model: Model, model_folder, request: dict, name: str) -> bool:
    """Whether tokens are the same where all rows are kept, a dump made here passes, and fails once a kept row or a token is another."""
    r = Request(model, **request, room=32)
    cache = r.recompute(list(range(len(r.lengths))), torch.arange(r.P + r.T))[1]
    at, total = r.positions("global", list(range(len(r.lengths)))), r.P + r.T + r.M
    logits = solve(r, settings(model, method="full"))[4]
    first, verdicts = logits.argmax().item(), []
    plain = evict.Eviction(r, cache, at, {"evict": "tova", "keep": total}).generate([[list(range(total))] * model.kv_heads] * model.layers, first, 4)
    for keep in (total, 12):
        s = settings(model, method="full", evict=name, keep=keep, seed=3)
        s |= {"draft_model": str(model_folder)} if name == "speckv" else {}
        of = evict.Eviction(r, cache, at, s)
        kept = of.kept(first)[0]
        tokens = of.generate(kept, first, 4)
        if keep == total:
            verdicts.append(tokens == plain)
            continue
        flat = torch.tensor(sum((rows for heads in kept for rows in heads), []), dtype=torch.int32)
        counts = torch.tensor([len(heads[0]) for heads in kept], dtype=torch.int32)
        gone = next(row for row in range(total) if row not in kept[0][0])
        for spoilt in (None, "kept", "generated"):
            rows = flat.clone()
            if spoilt == "kept":
                rows[len(kept[0][0]) // 2] = gone
            said = [*tokens[:-1], (tokens[-1] + 1) % model.vocab] if spoilt == "generated" else tokens
            dump = {"first_token_logits": logits.float(), "kept": rows, "kept_counts": counts}
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                (pathlib.Path(folder) / "request.json").write_text(json.dumps({**s, **request, "generated": said, "order": list(range(len(r.lengths)))}))
                save_file(dump, pathlib.Path(folder) / "result.safetensors")
                verdicts.append(check(model, folder) == (spoilt is None))
    return all(verdicts)


def compressed_trip(model: Model, request: dict, name: str) -> bool:
    """Whether a dump made here of chunks that keep a half passes, and fails once a kept row or a logit is another."""
    r = Request(copy.copy(model), **request)
    kept_tokens = [max(1, n // 2) for n in r.lengths]
    said = {"method": name, "window": 8, "kept_tokens": kept_tokens, "rows": r.T, "kept_rows": sum(kept_tokens)}
    held = [[sorted(row for rows, _ in chunks for row in rows) for chunks in heads] for heads in compress.contests(r, said)]
    r.model.there = torch.zeros(model.layers, model.kv_heads, len(r.ids), dtype=torch.bool)
    r.model.there[:, :, :r.P] = True
    for layer, heads in enumerate(held):
        for head, rows in enumerate(heads):
            r.model.there[layer, head, rows] = True
    s, verdicts = settings(model, method="none"), []
    order, _, chosen, _, logits = solve(r, s)
    flat = torch.tensor(sum((rows for heads in held for rows in heads), []), dtype=torch.int32)
    gone = next(row for row in range(r.P, r.P + r.T) if row not in held[0][0])
    for spoilt in (None, "kept_of_chunks", "first_token_logits"):
        dump = {"first_token_logits": logits.float(), "selected": chosen.to(torch.int32), "kept_of_chunks": flat.clone()}
        if spoilt == "kept_of_chunks":
            dump[spoilt][0] = gone
        elif spoilt:
            dump[spoilt][-1] += dump[spoilt].abs().max() * 1e-3
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            (pathlib.Path(folder) / "request.json").write_text(json.dumps({**s, **request, "order": order, "compressed": said}))
            save_file(dump, pathlib.Path(folder) / "result.safetensors")
            verdicts.append(check(model, folder) == (spoilt is None))
    return all(verdicts)


def read_by(model: Model, folder: str, r: Request, request: dict) -> dict:
    """Settings of cacheclip with the model as its own auxiliary."""
    prompts = [{"ids": chunk + request["query"], "query": len(request["query"]),
                "stands_for": [[row, row + 1] for row in r.rows_of(number).tolist()]} for number, chunk in enumerate(request["chunks"])]
    return {"method": "cacheclip", "auxiliary_model": str(folder), "auxiliary_prompts": prompts}


def written_by(folder: str, request: dict) -> dict:
    """Settings of spec-prefill-like with the model as its own auxiliary."""
    before, context = request["prefix"], sum(request["chunks"], [])
    rows = [[0, 0]] * len(before) + [[row, row + 1] for row in range(len(before), len(before) + len(context))]
    prompts = [{"ids": before + context + request["query"], "query": len(request["query"]), "stands_for": rows}]
    return {"method": "spec-prefill-like", "auxiliary_model": str(folder), "auxiliary_prompts": prompts, "tokens": 3, "pool": 3, "span": 4}


def round_trip(model: Model, r: Request, s: dict) -> bool:
    """Whether a dump made here passes, and fails once a logit, a score or the selection is spoilt."""
    order, scores, chosen, _, logits = solve(r, s)
    dump = {"first_token_logits": logits.float(), "selected": chosen.to(torch.int32)}
    if scores is not None:
        dump["scores"] = torch.cat([torch.zeros(r.P), scores.float()])
    verdicts = []
    for spoilt in (None, *dump):
        tensors = copy.deepcopy(dump)
        left = [row for row in range(r.P, r.P + r.T)[::-1] if row not in chosen]
        if spoilt == "selected" and len(chosen) and left:
            tensors[spoilt][0] = left[0]
        elif spoilt == "selected" and len(chosen):
            tensors[spoilt] = tensors[spoilt][1:].clone()
        elif spoilt == "selected":
            tensors[spoilt] = torch.tensor([r.P], dtype=torch.int32)
        elif spoilt:
            tensors[spoilt][-1] += tensors[spoilt].abs().max() * 1e-3
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            (pathlib.Path(folder) / "request.json").write_text(json.dumps({**s, "order": order}))
            save_file(tensors, pathlib.Path(folder) / "result.safetensors")
            verdicts.append(check(model, folder) == (spoilt is None))
    return all(verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face folder of the model")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("dumps", nargs="*")
    args = parser.parse_args()
    if not args.dumps and not args.self_test:
        parser.error("give dump folders or --self-test")
    torch.set_num_threads(1)
    model = Model(args.model)
    good = [check(model, folder) for folder in args.dumps]
    if args.self_test:
        good.append(self_test(model, args.model))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
