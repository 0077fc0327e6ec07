"""Writes an NCCL with device code for sm_90 alone, a tenth of the original once compressed, which can be carried to a GPU machine.

    python3 gpu/trim_nccl.py libnccl.so.2 TRIMMED

Device code lies in fat binaries: containers with one entry an architecture. Nothing is moved: the payloads of all other entries become
zeros, and so do those of the containers for linking (`__nv_relfatbin`), which the driver reads only where no linked code fits the GPU.
The result must have the symbols of the original, must be loaded by `dlopen` and must tell the same version; otherwise there is none, and
the exit code is 1. Whether it runs only a GPU can say; an H200 has run 2.30.7.
"""

import os
import struct
import subprocess
import sys

ARCHITECTURE = 90
CONTAINER = struct.Struct("<IHHQ")  # mark, version, bytes of this head, bytes of the entries
MARK = 0xBA55ED50
ENTRY = struct.Struct("<HHIQ")  # kind, attributes, bytes of this head, bytes of the payload
ARCHITECTURE_AT = 28  # in an entry's head
MACHINE_CODE = 2


def sections(path):
    """Offset and size of each section by its name."""
    found = {}
    listed = subprocess.run(["readelf", "--wide", "--section-headers", path], check=True, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        words = line.partition("]")[2].split()
        if len(words) > 4 and words[0].startswith((".nv", "__nv")):
            found[words[0]] = (int(words[3], 16), int(words[4], 16))
    return found


def blank(data, begin, size, kept):
    """Blanks the payloads of all entries of a section but those for the architecture `kept`; gives how many bytes stay."""
    stay, at, end = 0, begin, begin + size
    while at + CONTAINER.size <= end:
        mark, _, head, bytes_of_entries = CONTAINER.unpack_from(data, at)
        if mark != MARK:
            at += 8  # containers begin at multiples of eight
            continue
        entry, at = at + head, at + head + bytes_of_entries
        if at > end:
            raise SystemExit("a container ends beyond its section: this is another format")
        while entry < at:
            kind, _, head, payload = ENTRY.unpack_from(data, entry)
            (architecture,) = struct.unpack_from("<I", data, entry + ARCHITECTURE_AT)
            begin_of_payload, entry = entry + head, entry + head + payload
            if kind == MACHINE_CODE and architecture == kept:
                stay += payload
            else:
                data[begin_of_payload:entry] = bytes(payload)
    return stay


def symbols(path):
    listed = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True)
    return sorted(line.split(maxsplit=1)[1] for line in listed.stdout.splitlines())


def version(path):
    """The version of the library; in a separate process, since two such libraries do not fit into one."""
    program = "import ctypes, sys; v = ctypes.c_int(); assert ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)) == 0; print(v.value)"
    told = subprocess.run([sys.executable, "-c", program, os.path.abspath(path)], capture_output=True, text=True)
    return told.stdout.strip() if told.returncode == 0 else f"not loaded: {told.stderr.strip().splitlines()[-1]}"


def main(original, trimmed):
    with open(original, "rb") as file:
        data = bytearray(file.read())
    of = sections(original)
    stay = blank(data, *of[".nv_fatbin"], kept=ARCHITECTURE)
    if "__nv_relfatbin" in of:
        blank(data, *of["__nv_relfatbin"], kept=None)
    if not stay:
        raise SystemExit(f"{original} has no code for sm_{ARCHITECTURE}")
    new = trimmed + ".new"
    with open(new, "wb") as file:
        file.write(data)
    subprocess.run(["strip", "--strip-unneeded", new], check=True)
    if symbols(new) != symbols(original):
        raise SystemExit(f"{new} lacks symbols of {original}")
    if not version(new).isdigit() or version(new) != version(original):
        raise SystemExit(f"{new}: {version(new)}; {original}: {version(original)}")
    os.replace(new, trimmed)
    print(f"NCCL {version(trimmed)}: {stay} bytes of device code for sm_{ARCHITECTURE} stay, {len(symbols(trimmed))} symbols")


if __name__ == "__main__":
    main(*sys.argv[1:])
