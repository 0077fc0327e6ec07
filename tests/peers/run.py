"""Full prefill and decoding of Tributary beside vLLM, PyTorch and llama.cpp, one thread each, on a
CPU: `make bench-peers`.

    python3 tests/peers/run.py PROGRAM

Of the environment, with defaults:

    MODELS=25m,135m,0.5b      shapes of examples/models, whose weights are drawn (export.py)
    DTYPES=f32,bf16           types of weights, keys and values; llama.cpp's in 16 bits: LLAMA_DTYPE
    LENGTHS=2048,4096,8192    tokens of a prompt
    DECODE=1024x1,1024x8,8192x1,8192x8
                              context and sequences of decoding, or `none`; 0.5b's default has no 8192x8
    ROUNDS=7                  rounds; 0.5b has at most 3 from 8192 tokens on
    STEPS=32                  steps of decoding in a round
    PEERS=vLLM,PyTorch,llama.cpp
    WARM=METHOD               also Tributary with a method that reuses chunks, all of them cached
    LLAMA_DTYPE=bf16          or f16
    TCMALLOC=no               vLLM and PyTorch without this allocator, which vLLM advises
    CORE=N                    core of all programs, by default the last; `no`: the system's choice

All programs read the same weights and get the same token ids. Their log-probabilities after each
prompt are compared first: nothing is timed of programs that disagree. Each program is a process
that stays loaded; one computes at a time. A round asks each of them once, beginning with another
one than the round before. A ratio is a program's time by Tributary's in the same round: above 1
Tributary is faster. Prints tables, and writes every sample to target/peers/results.json.
"""

import datetime
import json
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys

import programs
from programs import ROOT, TARGET, Tributary, WarmTributary, rival

SHAPES = {"25m": "dummy-25m", "135m": "smollm2-135m", "0.5b": "qwen2.5-0.5b"}
DECODE = ["1024x1", "1024x8", "8192x1", "8192x8"]
# Difference of log-probabilities that is allowed. llama.cpp's flash attention has the largest in
# f32, about 2e-3.
ALLOWED = {"f32": 5e-3, "bf16": 0.2}
TOP = 64
LARGE_ROUNDS = 3
# Two-sided 95 % points of Student's t by degrees of freedom.
STUDENT = [None, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13]


def listed(name: str, default: str) -> list[str]:
    return [one for one in os.environ.get(name, default).split(",") if one]


class Settings:
    def __init__(self):
        self.models, self.dtypes = listed("MODELS", ",".join(SHAPES)), listed("DTYPES", "f32,bf16")
        self.lengths = [int(one) for one in listed("LENGTHS", "2048,4096,8192")]
        self.rounds, self.steps = int(os.environ.get("ROUNDS") or 7), int(os.environ.get("STEPS") or 32)
        self.peers = listed("PEERS", "vLLM,PyTorch,llama.cpp")
        self.warm = os.environ.get("WARM")
        self.llama_dtype = os.environ.get("LLAMA_DTYPE") or "bf16"
        cores, core = sorted(os.sched_getaffinity(0)), os.environ.get("CORE")
        self.core = None if core == "no" else int(core) if core else cores[-1]
        if self.core is not None and len(cores) > 1:
            # The client that reads streams has another core.
            os.sched_setaffinity(0, set(cores) - {self.core})

    def decode(self, model: str) -> list[tuple[int, int]]:
        """Context and sequences."""
        if os.environ.get("DECODE") == "none":
            return []
        usual = [one for one in DECODE if (model, one) != ("0.5b", "8192x8")]
        return [tuple(map(int, one.split("x"))) for one in listed("DECODE", ",".join(usual))]

    def rounds_of(self, model: str, tokens: int) -> int:
        return min(self.rounds, LARGE_ROUNDS) if (model, tokens >= 8192) == ("0.5b", True) else self.rounds


def prompt(vocabulary: int, tokens: int, seed: int) -> list[int]:
    draw = random.Random(f"{tokens}-{seed}")
    return [draw.randrange(vocabulary) for _ in range(tokens)]


def head(settings: Settings):
    def said(*command):
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    fields = dict(line.split(":", 1) for line in said("lscpu").splitlines() if ":" in line)
    wanted = [one for one in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if one in fields.get("Flags", "").split()]
    core = "no core of its own" if settings.core is None else f"core {settings.core} for all programs"
    print(f"{fields.get('Model name', '?').strip()} (family {fields.get('CPU family', '?').strip()}, model {fields.get('Model', '?').strip()}, "
          f"{' '.join(wanted)}), {os.cpu_count()} cores; {core}")
    print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, commit {said('git', 'describe', '--always', '--dirty', '--abbrev=8')}, "
          f"load average {os.getloadavg()[0]:.1f}; one thread each; {settings.rounds} rounds", flush=True)


def exported(model: str) -> pathlib.Path:
    folder = TARGET / "models" / model
    command = [str(programs.ENVIRONMENT / "bin/python"), str(programs.HERE / "export.py"), str(ROOT / "examples/models" / SHAPES[model] / "config.json"), str(folder)]
    subprocess.run(command, check=True, env=programs.python_environment())
    return folder


def disagreement(ours: list, theirs: list) -> tuple[float, float]:
    """Largest difference of log-probabilities, and the gap of the two first tokens in our list."""
    known, found = dict(map(tuple, ours)), dict(map(tuple, theirs))
    both = known.keys() & found.keys()
    missing = [token for token, _ in ours[:5] if token not in found]
    if missing or theirs[0][0] not in known:
        return math.inf, math.inf
    return max(abs(known[token] - found[token]) for token in both), ours[0][1] - known[theirs[0][0]]


class Table:
    def __init__(self, *columns: str):
        print("\n| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns), flush=True)

    def row(self, *cells):
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def checked(setup: list, running: dict, prompts: dict, dtype: str):
    """Compares all programs with Tributary on each prompt, a warm-up too; ends if one disagrees."""
    table, failed = Table("model", "type", "tokens", "program", "first token", "largest difference of log-probabilities"), []
    for tokens, ids in prompts.items():
        ours = None
        for name, one in running.items():
            found = one.ask("check", ids=ids, top=TOP)["logprobs"]
            ours = ours or found
            largest, behind = disagreement(ours, found)
            same = "the same" if behind == 0 else f"another, {behind:.1e} behind"
            table.row(*setup, tokens, name, found[0][0] if name == "Tributary" else same, "-" if name == "Tributary" else f"{largest:.1e}")
            # Another first token is a near tie where differences of that size explain it.
            if not (largest <= ALLOWED[dtype] and behind <= 2 * largest):
                failed.append(f"{name} at {tokens} tokens")
    if failed:
        sys.exit(f"these disagree with Tributary, and nothing is timed: {', '.join(failed)}")


def ratio(samples: list, ours: list) -> str:
    """Geometric mean of the rounds' ratios, and its interval."""
    logs = [math.log(theirs / own) for theirs, own in zip(samples, ours)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.2f}"
    half = STUDENT[min(len(logs), len(STUDENT)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.2f} ({math.exp(mean - half):.2f} to {math.exp(mean + half):.2f})"


def interleaved(running: dict, rounds: int, act) -> dict:
    """Samples of each program, in rounds that begin with another one each."""
    names, samples = list(running), {name: [] for name in running}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(act(running[name]))
    return samples


def prefills(setup: list, running: dict, prompts: dict, settings: Settings, results: list):
    table = Table("model", "type", "tokens", "program", "first token, s", "least", "most", "tokens/s", "by Tributary's (95 % interval)", "rounds")
    beside = []
    for tokens, ids in prompts.items():
        samples = interleaved(running, settings.rounds_of(setup[0], tokens), lambda one: one.ask("prefill", ids=ids)["seconds"])
        for name, seconds in samples.items():
            median = statistics.median(seconds)
            times = [f"{value:.3f}" for value in (median, min(seconds), max(seconds))]
            compared = "1" if name == "Tributary" else ratio(seconds, samples["Tributary"])
            table.row(*setup, tokens, name, *times, f"{tokens / median:.0f}", compared, len(seconds))
        results.append({"model": setup[0], "dtype": setup[1], "prefill": tokens, "seconds": samples})
        warm = f"warm {settings.warm}"
        if warm in samples:
            ratios = [f"{name}'s {ratio(seconds, samples[warm])}" for name, seconds in samples.items() if name != warm]
            beside.append(f"- {tokens} tokens, times by {warm}'s (95 % interval): {', '.join(ratios)}")
    if beside:
        print("\n" + "\n".join(beside), flush=True)


def equal_tokens(ours: list, theirs: list) -> int:
    """Tokens of both until they differ, all sequences together."""
    total = 0
    for own, other in zip(ours, theirs):
        pairs = list(zip(own, other))
        total += next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return total


def decodings(setup: list, running: dict, vocabulary: int, settings: Settings, results: list):
    table = Table("model", "type", "context", "sequences", "program", "step, ms", "least", "most", "tokens/s", "by Tributary's (95 % interval)", "rounds", "equal tokens")
    for tokens, count in settings.decode(setup[0]):
        prompts = [prompt(vocabulary, tokens, 1 + number) for number in range(count)]
        for one in running.values():
            one.ask("begin", prompts=prompts)
            one.ask("decode", steps=settings.steps)
        rounds = settings.rounds_of(setup[0], tokens)
        samples = interleaved(running, rounds, lambda one: one.ask("decode", steps=settings.steps)["seconds"] / settings.steps * 1e3)
        drawn = {name: one.ask("end")["tokens"] for name, one in running.items()}
        for name, step_ms in samples.items():
            median = statistics.median(step_ms)
            times = [f"{value:.2f}" for value in (median, min(step_ms), max(step_ms))]
            compared = "1" if name == "Tributary" else ratio(step_ms, samples["Tributary"])
            known = sum(min(len(a), len(b)) for a, b in zip(drawn["Tributary"], drawn[name]))
            equal = "-" if name == "Tributary" else f"{equal_tokens(drawn['Tributary'], drawn[name])} of {known}"
            table.row(*setup, tokens, count, name, *times, f"{count * 1e3 / median:.1f}", compared, rounds, equal)
        results.append({"model": setup[0], "dtype": setup[1], "context": tokens, "sequences": count, "step_ms": samples})


def compared(program: str, settings: Settings, model: str, dtype: str, results: list):
    """All programs on a shape in a type."""
    folder = exported(model)
    vocabulary = json.loads((folder / dtype / "config.json").read_text())["vocab_size"]
    kind = dtype if dtype == "f32" else settings.llama_dtype
    cases = settings.decode(model)
    # What decoding adds to a context, the sequences' lead over each other included.
    grown = (settings.rounds + 1) * (settings.steps + programs.EXTRA_STEPS + 1) + 64
    room = max([tokens + grown for tokens, _ in cases] + [tokens + 64 for tokens in settings.lengths])
    order = {"folder": str(folder / dtype), "dtype": dtype, "gguf": str(folder / f"{kind}.gguf"), "kind": kind, "room": room,
             "sequences": max([count for _, count in cases] + [1]), "held": max([room] + [(tokens + grown) * count for tokens, count in cases])}
    running, warm = {}, {}
    try:
        running["Tributary"] = Tributary(program, settings.core, TARGET)
        for name in settings.peers:
            running[name] = rival(name, settings.core, TARGET)
        print()
        for name, one in running.items():
            told = one.ask("load", **order)
            print(f"- {name}: {told['versions']}: {told['settings']}", flush=True)
        prompts = {tokens: prompt(vocabulary, tokens, 0) for tokens in settings.lengths}
        checked([model, dtype], running, prompts, dtype)
        if settings.warm:
            one = WarmTributary(program, settings.core, TARGET, settings.warm)
            warm[one.name] = one
            told = one.ask("load", **order)
            print(f"\n- {one.name}: {told['versions']}: {told['settings']}", flush=True)
        prefills([model, dtype], {**running, **warm}, prompts, settings, results)
        if cases:
            decodings([model, dtype], running, vocabulary, settings, results)
    finally:
        for one in [*running.values(), *warm.values()]:
            one.close()


def main():
    settings, results = Settings(), []
    # The programs end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    TARGET.mkdir(parents=True, exist_ok=True)
    head(settings)
    for model in settings.models:
        for dtype in settings.dtypes:
            compared(os.path.abspath(sys.argv[1]), settings, model, dtype, results)
            (TARGET / "results.json").write_text(json.dumps(results, indent=1))


main()
