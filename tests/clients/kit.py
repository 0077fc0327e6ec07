"""What the clients of this folder share: their task on the command line, their result, and the clock of a stream.

A client is a program `CLIENT.py`. It runs in the virtual environment that has the real package, asks the service that it is
told, and prints one line of JSON last: a `Result`. It knows nothing of how the service was started.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.executable).parent
# Tokens of an answer while times are measured: a few, so that the first one is what takes time.
ANSWER_TOKENS = 4


@dataclasses.dataclass
class Result:
    """What a client found.

    `requests` and `failures` are counts. `ttft_ms` are the times to first token that the client itself reports, one a request;
    a tool that tells no single times leaves it empty and gives `mean_ms` and `median_ms`. `note` says in a line what failed.
    """

    version: str = ""
    requests: int = 0
    failures: int = 0
    ttft_ms: list = dataclasses.field(default_factory=list)
    mean_ms: float | None = None
    median_ms: float | None = None
    note: str = ""

    def check(self, name, right, detail=""):
        """Counts one expectation; the first that fails is the note."""
        self.requests += 1
        if not right:
            self.failures += 1
            self.note = self.note or f"{name}: {detail}"[:300]

    def attempt(self, name, action):
        """Runs one check, which raises when it fails; the framework's own error is the detail."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever a framework raises is a failure of this client
            self.check(name, False, " ".join(f"{type(error).__name__}: {error}".split()))
        else:
            self.check(name, True)

    def print(self):
        print(json.dumps(dataclasses.asdict(self)), flush=True)


def task(argv=None):
    """The client's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="of the service, without /v1")
    parser.add_argument("part", choices=["answers", "ttft"], help="answers: of the demo model; ttft: times of long prompts")
    parser.add_argument("--model", default="demo", help="the served name")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "examples/models/demo", help="the model's folder, for tokenizers")
    parser.add_argument("--scratch", type=pathlib.Path, required=True, help="folder for what tools write")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=4096, help="of a prompt, where times are measured")
    parser.add_argument("--style", default="", help="which interface of a tool is used, where it has several")
    return parser.parse_args(argv)


def version(package):
    return importlib.metadata.version(package)


def tool(command, scratch, timeout=900, without=()):
    """Runs a tool's own program; its output stands in SCRATCH/output.txt. Returns its exit code and its last words. `without`: variables
    of the environment that it must not see."""
    output, environment = scratch / "output.txt", {name: value for name, value in os.environ.items() if name not in without}
    with output.open("w") as file:
        done = subprocess.run([str(part) for part in command], stdout=file, stderr=subprocess.STDOUT, cwd=scratch, env=environment, timeout=timeout)
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    # What went wrong seldom stands last.
    told = [line for line in lines if "rror" in line] or lines
    return done.returncode, (told[-1] if told else "")


def prompts(job):
    """Texts of `job.tokens` tokens, all different: each word is a token of the measured model's tokenizer (service.py)."""
    for number in range(job.requests):
        draw = random.Random(number)
        words = ["".join(draw.choice("bcdfghjklm") + draw.choice("aeiou") for _ in range(2)) for _ in range(job.tokens)]
        yield " ".join(words)


def clocked(pieces):
    """Milliseconds until the first piece of text of a stream, which is read to its end; `pieces` is called to ask."""
    began, first = time.perf_counter(), None
    for text in pieces():
        if text and first is None:
            first = time.perf_counter()
    if first is None:
        raise RuntimeError("the stream had no text")
    return 1e3 * (first - began)


def times(job, result, ask):
    """Times every prompt; `ask(prompt)` yields the stream's texts. The first request, which also loads the client's own code, is not timed."""
    result.attempt("first request", lambda: clocked(lambda: ask("the first request")))
    for prompt in prompts(job):
        def one(prompt=prompt):
            result.ttft_ms.append(clocked(lambda: ask(prompt)))
        result.attempt("stream", one)


def example():
    """The demo's request, whose answer begins with `lyon`: query and documents."""
    chat = json.loads((ROOT / "examples/models/demo/chat.json").read_text())
    return chat["messages"][0]["content"], chat["documents"]


def main(answers, measured, package):
    """A client in Python: its two parts, and the package whose version counts."""
    job = task()
    result = Result(version=version(package))
    {"answers": answers, "ttft": measured}[job.part](job, result)
    result.print()
