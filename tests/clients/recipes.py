"""The recipes of docs/recipes.md, run as they stand there, each twice, with the real packages; used by run.py.

A recipe is the first fenced block of a section. It must print the demo's answer both times, and more cached tokens the second time.
"""

import pathlib
import re
import subprocess
import tempfile

from clients import INSTALLED, ROOT

PAGE = ROOT / "docs/recipes.md"
DOCUMENTED = "http://127.0.0.1:8080"
# The folder of target/clients that has a section's package.
PACKAGES = {"curl": None, "OpenAI's package for Python": "openai", "OpenAI's package for JavaScript": "node", "LangChain": "langchain", "LlamaIndex": "llamaindex",
            "litellm": "litellm", "Haystack": "haystack", "Vercel's AI SDK": "node"}
SUFFIX = {"sh": ".sh", "python": ".py", "javascript": ".mjs"}


def recipes():
    """Sections of the page that hold a recipe: name, language, program."""
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        if found := re.search(r"^```(\w+)\n(.*?)^```", section, flags=re.M | re.S):
            yield section.splitlines()[0], found[1], found[2]


def command(folder, language, file):
    if language == "sh":
        return ["sh", file]
    if language == "javascript":
        return ["node", file]
    return [INSTALLED / folder / "bin/python", file]


def cached(words):
    """The count at the end of what a recipe printed, or in curl's JSON."""
    found = re.search(r'"cached_tokens":(\d+)', words) or re.search(r"(\d+)\s*$", words)
    return int(found[1]) if found else 0


def outcome(name, language, program, url, environment):
    """Whether it did what the page says, and if not what it said."""
    folder = PACKAGES[name]
    # A text of its own in each recipe, so that no other has made it warm. The demo knows the animals.
    program = program.replace(DOCUMENTED, url).replace("a cat walks", ("a dog rests", "a fox rests", "a cat walks", "a rabbit runs", "a sheep sleeps", "a rabbit sings", "a dog sits", "a dog sleeps")[list(PACKAGES).index(name)])
    where = INSTALLED / "node" if language == "javascript" else None
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        file = pathlib.Path(scratch) / f"recipe{SUFFIX[language]}"
        file.write_text(program)
        counts = []
        for _ in range(2):
            done = subprocess.run([str(word) for word in command(folder, language, file)], env=environment, capture_output=True, text=True, timeout=120)
            words = done.stdout.strip()
            if done.returncode or "lyon" not in words:
                return False, " ".join((done.stderr.strip() or words or "nothing said").split())[-250:]
            counts.append(cached(words))
    return counts[1] > counts[0], f"cached tokens {counts[0]}, then {counts[1]}"


def rows(url, environment):
    """One row of the table for each recipe."""
    for name, language, program in recipes():
        folder = PACKAGES[name]
        if folder and not (INSTALLED / folder / "packages").exists():
            right, note = False, "not installed"
        else:
            right, note = outcome(name, language, program, url, environment)
        yield {"client": f"recipe {name}", "version": "-", "requests": 2, "failures": 0 if right else 1, "note": note, "right": right}
