"""Sinks and windows in a trained model: whether sinks soften the artefact of chunk starts, and what a window leaves to recompute. Four
models of one architecture and one training, with and without a learned sink in each head, with and without a window of 32 tokens in
layers 0 and 2 of five. Prints tables.

    python3 examples/studies/windows.py PROGRAM FOLDER [answers|rows|recompute ..]

FOLDER holds the models `sinks0-window0`, `sinks1-window0`, `sinks0-window32`, `sinks1-window32`. Nothing is trained here; missing models are
named with the command that trains them (10 to 15 minutes each on one thread; it needs torch). `answers` runs `tributary quality`. `rows`
compares keys and values of chunks that were prefilled alone with those of a full prefill, by the row's place in its chunk. `recompute` replaces
some rows by recomputed ones, and by exact ones. The last two need torch and safetensors, and compute in f32 with a forward pass of their own.
"""

import collections
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
DEMO = HERE.parent / "models" / "demo"
sys.path.insert(0, str(DEMO / "recipe"))
import tasks  # noqa: E402

WINDOW = 32
TRAINING = "tok=4096 stages=512:450,0:200 ev=650 warm=30 lr=.009 alr=2.2e-3 ptr=.2 bind=.1 bosdrop=.5 decay=.7 seed=21"
MODELS = [(sinks, window) for window in (0, WINDOW) for sinks in (0, 1)]
NAMES = {(sinks, window): f"{'sinks' if sinks else 'no sinks'}, {'windows' if window else 'no windows'}" for sinks, window in MODELS}
TASKS = ["single", "multikey", "multiquery", "multivalue", "hop2", "vt2", "vt3"]
# Layers 1, 3 and 4 have no window in any of the four models.
METHODS = ["full", "none", "epic", "random", "infoflow:layers=3..4"]
RATIO, SAMPLES = 0.15, 50
PREFIXES = ["bos", "none"]
# Chunks and their tokens, prefix, number of contexts.
SMALL = [((8, 64), prefix, 40) for prefix in PREFIXES]
LARGE = ((4, 256), "none", 16)
BUCKETS = [(0, 8), (8, 32), (32, 64), (64, 128), (128, 256)]


def path(model):
    return os.path.join(folder, f"sinks{model[0]}-window{model[1]}")


def pooled(errors, wholes):
    """The relative difference of the pooled contexts, and half of the interval that holds 95 % of contexts drawn anew."""
    draw, rates = random.Random(0), []
    for _ in range(200):
        some = draw.choices(range(len(errors)), k=len(errors))
        rates.append(math.sqrt(sum(errors[i] for i in some) / sum(wholes[i] for i in some)))
    rates.sort()
    return math.sqrt(sum(errors) / sum(wholes)), (rates[194] - rates[5]) / 2


# ---- Answers, by the program.


def answers():
    print(f"\n{SAMPLES} requests of each of {', '.join(TASKS)}; 8 documents of 64 tokens, seed 0, one rank, ratio {RATIO}\n")
    print("| model | prefix | method | score | first token as full's | KL(full ‖ method) [nats] | hop2, vt2, vt3 alone: score | KL |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for prefix in PREFIXES:
        for model in MODELS:
            out = os.path.join(folder, f"quality-{model[0]}-{model[1]}-{prefix}")
            command = [program, "quality", "--model", path(model), "--suite", "hops", "--tasks", ",".join(TASKS), "--samples", str(SAMPLES)]
            command += ["--methods", *METHODS, "--ratios", str(RATIO), "--prefix", prefix, "--out", out, "--force"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            of = collections.defaultdict(dict)
            for line in open(os.path.join(out, "answers.jsonl")):
                answer = json.loads(line)
                of[answer["method"]][answer["task"], answer["sample"]] = answer
            for method in METHODS:
                line_of(model, prefix, method, of[method], of["full"])


def line_of(model, prefix, method, found, full):
    cells = []
    for some in (TASKS, [task for task in TASKS if task[:-1] in ("hop", "vt")]):
        keys = [key for key in full if key[0] in some]
        score = statistics.mean(found[key]["score"] for key in keys)
        kls = [found[key]["kl_nats"] or 0.0 for key in keys]
        half = 1.96 * statistics.stdev(kls) / math.sqrt(len(kls))
        agrees = statistics.mean(found[key]["first_token"] == full[key]["first_token"] for key in keys)
        kl = "-" if method == "full" else f"{statistics.mean(kls):.2f} ± {half:.2f}"
        cells += [f"{score:.2f}", "-" if method == "full" else f"{100 * agrees:.0f} %", kl]
    del cells[4]
    print(f"| {NAMES[model]} | {prefix} | `{method}` | {' | '.join(cells)} |", flush=True)


# ---- Rows, by a forward pass in which a mask says what a row sees.


class Decoder:
    """A GptOssForCausalLM with one expert and plain RoPE."""

    def __init__(self, where):
        import torch
        from safetensors.torch import load_file

        self.torch, self.config = torch, json.load(open(os.path.join(where, "config.json")))
        self.weights = load_file(os.path.join(where, "model.safetensors"))
        self.layers = self.config["num_hidden_layers"]
        kinds = self.config["layer_types"]
        self.windows = [self.config["sliding_window"] if kind == "sliding_attention" else None for kind in kinds]

    def norm(self, x, name):
        scale = self.torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[name + ".weight"]

    def heads(self, x, name, count):
        x = x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]
        return x.view(len(x), count, self.config["head_dim"]).transpose(0, 1)

    def turned(self, x):
        torch, half = self.torch, self.config["head_dim"] // 2
        speeds = self.config["rope_theta"] ** -(torch.arange(half) / half)
        angles = torch.arange(x.shape[1])[:, None] * speeds
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)

    def within(self, layer, see):
        """What rows see in a layer."""
        rows = self.torch.arange(len(see))
        window = self.windows[layer]
        return see if window is None else see & (rows[:, None] - rows < window)

    def layer(self, number, x, see, stale=None, fresh=None):
        """A layer's keys before RoPE, values, attention (no sink in it) and output. Rows that are not `fresh` have stale keys and values."""
        torch, config, prefix = self.torch, self.config, f"model.layers.{number}."
        queries, groups = config["num_attention_heads"], config["num_key_value_heads"]
        h = self.norm(x, prefix + "input_layernorm")
        q, k, v = (self.heads(h, f"{prefix}self_attn.{p}_proj", n) for p, n in (("q", queries), ("k", groups), ("v", groups)))
        if stale is not None:
            k, v = (torch.where(fresh[:, None], new, old) for new, old in zip((k, v), stale))
        every = [side.repeat_interleave(queries // groups, 0) for side in (self.turned(k), v)]
        logits = self.turned(q) @ every[0].mT * config["head_dim"] ** -0.5
        logits = logits.masked_fill(~self.within(number, see), -math.inf)
        sinks = self.weights[prefix + "self_attn.sinks"][:, None, None].expand(-1, len(x), 1)
        attention = torch.cat((logits, sinks), -1).softmax(-1)[..., :-1]
        out = (attention @ every[1]).transpose(0, 1).reshape(len(x), -1)
        x = x + out @ self.weights[prefix + "self_attn.o_proj.weight"].T + self.weights[prefix + "self_attn.o_proj.bias"]
        return k, v, attention, x + self.mlp(self.norm(x, prefix + "post_attention_layernorm"), prefix + "mlp.experts.")

    def mlp(self, h, name):
        both = h @ self.weights[name + "gate_up_proj"][0] + self.weights[name + "gate_up_proj_bias"][0]
        limit = self.config["swiglu_limit"]
        gate, up = both[:, ::2].clamp(max=limit), both[:, 1::2].clamp(-limit, limit)
        down = self.weights[name + "down_proj"][0]
        return (gate * self.torch.sigmoid(1.702 * gate) * (up + 1)) @ down + self.weights[name + "down_proj_bias"][0]

    def run(self, ids, see, stale=None, fresh=None):
        """Keys and values, attention and inputs of all layers, and the last row's log-probabilities."""
        x, kv, attentions, inputs = self.weights["model.embed_tokens.weight"][ids], [], [], []
        for number in range(self.layers):
            inputs.append(x)
            k, v, attention, x = self.layer(number, x, see, stale and stale[number], fresh)
            kv.append((k, v))
            attentions.append(attention)
        last = self.norm(x[-1:], "model.norm") @ self.weights["lm_head.weight"].T
        return kv, attentions, inputs, last[0].log_softmax(-1)


class Request:
    """A request's ids, each row's chunk (-1: prefix, -2: query) and its place in the chunk; and masks."""

    def __init__(self, torch, task, number, shape, prefix):
        sample = tasks.eval_sample(random.Random(f"{task} {number}"), task, *shape)
        parts = [(-1, [tasks.BOS] if prefix == "bos" else []), *enumerate(sample["chunks"]), (-2, sample["question"])]
        self.ids = torch.tensor([token for _, part in parts for token in part])
        self.chunk = torch.tensor([number for number, part in parts for _ in part])
        self.place = torch.tensor([place for _, part in parts for place in range(len(part))])
        rows = torch.arange(len(self.ids))
        self.causal = rows[:, None] >= rows
        self.alone = self.causal & ((self.chunk[:, None] == self.chunk) | (self.chunk == -1) | (self.chunk[:, None] == -2))
        # The first chunk has lost nothing.
        self.context = self.chunk >= 1
        self.query = self.chunk == -2

    def bucket(self, low, high):
        return self.context & (self.place >= low) & (self.place < high)


def requests(torch, shape, prefix, count):
    return [Request(torch, ("hop2", "vt2")[number % 2], number, shape, prefix) for number in range(count)]


def differences(pairs, rows):
    """Squared difference of such rows of keys and values from the full pass, and their square."""
    error = sum(float((a[:, rows] - b[:, rows]).pow(2).sum()) for a, b in pairs)
    return error, sum(float(b[:, rows].pow(2).sum()) for _, b in pairs)


def rows():
    import torch

    for case in [*SMALL, LARGE]:
        table_of_rows(torch, *case)
    table_of_causes(torch, *LARGE)
    for case in SMALL:
        table_of_attention(torch, *case)


def table_of_rows(torch, shape, prefix, count):
    buckets = [bucket for bucket in BUCKETS if bucket[0] < shape[1]]
    print(f"\nKeys and values of chunks prefilled alone, {shape[0]} chunks of {shape[1]} tokens, prefix {prefix}, {count} contexts:")
    print("relative L2 difference from a full prefill, by the row's place in its chunk; chunks after the first\n")
    print("| model | layer | " + " | ".join(f"{low} to {high - 1}" for low, high in buckets) + " | all |")
    print("| --- | --- |" + " --- |" * (len(buckets) + 1))
    most = 0.0
    for model in MODELS:
        decoder, found = Decoder(path(model)), collections.defaultdict(list)
        for request in requests(torch, shape, prefix, count):
            full, alone = (decoder.run(request.ids, see)[0] for see in (request.causal, request.alone))
            for layer in range(1, decoder.layers):
                for bucket in [*buckets, (0, 1 << 20)]:
                    found[layer, bucket].append(differences([*zip(alone[layer], full[layer])], request.bucket(*bucket)))
        for layer in range(1, decoder.layers):
            cells = [pooled(*zip(*found[layer, bucket])) for bucket in [*buckets, (0, 1 << 20)]]
            most = max([most, *(half for _, half in cells)])
            window = " (window)" if decoder.windows[layer] else ""
            print(f"| {NAMES[model]} | {layer}{window} | " + " | ".join(f"{rate:.3f}" for rate, _ in cells) + " |", flush=True)
    print(f"\nhalf of the widest 95 % interval: {most:.3f}. Layer 0 has no difference: its inputs are the tokens.")


def table_of_causes(torch, shape, prefix, count):
    """A layer's output where only its keys are those of the chunk, and where only its inputs are stale."""
    buckets = [bucket for bucket in BUCKETS if bucket[0] < shape[1]]
    print(f"\nWhat a layer's attention and MLP add to a row, {shape[0]} chunks of {shape[1]} tokens, prefix {prefix}: relative L2 difference from")
    print("a full prefill if keys outside the chunk are missing and inputs are exact, and if inputs are stale and no key is missing\n")
    print("| model | layer | cause | " + " | ".join(f"{low} to {high - 1}" for low, high in buckets) + " |")
    print("| --- | --- | --- |" + " --- |" * len(buckets))
    for model in MODELS:
        decoder, found = Decoder(path(model)), collections.defaultdict(list)
        for request in requests(torch, shape, prefix, count):
            full, alone = (decoder.run(request.ids, see)[2] for see in (request.causal, request.alone))
            for layer in range(decoder.layers):
                added = lambda inputs, see: decoder.layer(layer, inputs, see)[3] - inputs
                exact = added(full[layer], request.causal)
                for cause, out in (("keys", added(full[layer], request.alone)), ("inputs", added(alone[layer], request.causal))):
                    for bucket in buckets:
                        found[layer, cause, bucket].append(differences([(out[None], exact[None])], request.bucket(*bucket)))
        for layer in range(decoder.layers):
            for cause in ("keys", "inputs"):
                cells = [pooled(*zip(*found[layer, cause, bucket]))[0] for bucket in buckets]
                window = " (window)" if decoder.windows[layer] else ""
                print(f"| {NAMES[model]} | {layer}{window} | {cause} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |", flush=True)


def table_of_attention(torch, shape, prefix, count):
    print(f"\nAttention of rows 8 to 63 of a chunk, {shape[0]} chunks of {shape[1]} tokens, prefix {prefix}: share of the first token that")
    print("they see (of the context, or alone the prefix, else the chunk's), of their chunk's first token, of the sink, mean over heads\n")
    print("| model | layer | first token of all: full | alone | chunk's first token: full | alone | most of a head, alone | sink: full | alone |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for model in MODELS:
        decoder, found = Decoder(path(model)), collections.defaultdict(list)
        for request in requests(torch, shape, prefix, count):
            some = request.bucket(8, 64)
            first = (request.place == 0) & (request.chunk >= 0)
            own = first & (request.chunk[some][:, None] == request.chunk)
            for name, see in (("full", request.causal), ("alone", request.alone)):
                for layer, attention in enumerate(decoder.run(request.ids, see)[1]):
                    attention = attention[:, some]
                    to_own = (attention * own).sum(-1).mean(-1)
                    found[layer, "sink", name].append(1 - float(attention.sum(-1).mean()))
                    found[layer, "all", name].append(float(attention[..., 0].mean()))
                    found[layer, "own", name].append(to_own)
        for layer in range(decoder.layers):
            mean = lambda what, name: statistics.mean(float(share.mean()) if what == "own" else share for share in found[layer, what, name])
            most = float(sum(found[layer, "own", "alone"]).max()) / count
            cells = [mean("all", "full"), mean("all", "alone"), mean("own", "full"), mean("own", "alone"), most, mean("sink", "full"), mean("sink", "alone")]
            print(f"| {NAMES[model]} | {layer} | " + " | ".join(f"{abs(cell):.3f}" for cell in cells) + " |", flush=True)


# ---- Recompute.


def recompute():
    import torch

    for case in [*SMALL, LARGE]:
        table_of_recompute(torch, *case)


def table_of_recompute(torch, shape, prefix, count):
    share = WINDOW // 4 if shape[1] == 64 else WINDOW
    print(f"\nThe same number of rows of each context, {share} of {shape[1]}, after a prefill of {shape[0]} chunks, prefix {prefix}, {count} contexts")
    print("of hop2 and vt2:", end=" ")
    print("what is left of the relative L2 difference of keys and values of layers 1 to 4, KL of the first token from full prefill's [nats], and")
    print("the probability of the likeliest first token\n")
    print("| model | rows | recomputed: left | KL | likeliest | exact: left | KL | likeliest |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for model in MODELS:
        decoder, found = Decoder(path(model)), collections.defaultdict(list)
        for number, request in enumerate(requests(torch, shape, prefix, count)):
            one_context(torch, decoder, request, share, number, found)
        for kind in ("none", "first of each chunk", "random", "query's attention"):
            cells = []
            for way in ("recomputed", "exact"):
                rate = pooled(*zip(*found[kind, way, "kv"]))[0]
                kls = found[kind, way, "kl"]
                half = 1.96 * statistics.stdev(kls) / math.sqrt(len(kls))
                cells += [f"{rate:.3f}", f"{statistics.mean(kls):.2f} ± {half:.2f}", f"{statistics.mean(found[kind, way, 'top']):.2f}"]
            print(f"| {NAMES[model]} | {kind} | " + " | ".join(cells) + " |", flush=True)


def one_context(torch, decoder, request, share, number, found):
    full, _, _, expected = decoder.run(request.ids, request.causal)
    alone = decoder.run(request.ids, request.alone)[0]
    _, probe, _, _ = decoder.run(request.ids, request.causal, alone, request.query)
    starts = request.bucket(0, share)
    count = int(starts.sum())
    drawn = random.Random(number).sample(request.context.nonzero()[:, 0].tolist(), count)
    score = probe[3][:, request.query].pow(2).sum((0, 1)).masked_fill(~request.context, -1)
    chosen = {"none": [], "first of each chunk": starts.nonzero()[:, 0], "random": drawn, "query's attention": score.topk(count).indices}
    for kind, some in chosen.items():
        selected = torch.zeros_like(starts)
        selected[some] = True
        mixed = [tuple(torch.where(selected[:, None], new, old) for new, old in zip(*pair)) for pair in zip(full, alone)]
        for way, stale, fresh in (("recomputed", alone, selected | request.query), ("exact", mixed, request.query)):
            after, _, _, got = decoder.run(request.ids, request.causal, stale, fresh)
            pairs = [pair for layer in range(1, decoder.layers) for pair in zip(after[layer], full[layer])]
            found[kind, way, "kv"].append(differences(pairs, request.context))
            found[kind, way, "top"].append(float(got.max().exp()))
            found[kind, way, "kl"].append(float((expected.exp() * (expected - got)).sum()))


if __name__ == "__main__":
    program, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    missing = [model for model in MODELS if not os.path.exists(os.path.join(path(model), "model.safetensors"))]
    for sinks, window in missing:
        print(f"OMP_NUM_THREADS=1 python3 {DEMO}/recipe/train.py {path((sinks, window))} init={DEMO} arch=gpt-oss sinks={sinks} window={window} {TRAINING}")
    if missing:
        sys.exit("models are missing; the commands above train them")
    for part in sys.argv[3:] or ["answers", "rows", "recompute"]:
        if "torch" in sys.modules or part != "answers":
            import torch

            torch.set_num_threads(1)
            torch.set_grad_enabled(False)
        {"answers": answers, "rows": rows, "recompute": recompute}[part]()
