"""Registers, spills and loops of CUDA kernels: sass.py NVCC NVDISASM FILE.cu ...

Prints a row a kernel and architecture, then for each kernel of sm_90a its innermost loops: how many instructions they have, and of which
kinds. Exit code 1 if a kernel spills.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

TARGETS = {"sm_80": "-gencode=arch=compute_80,code=sm_80", "sm_90a": "-gencode=arch=compute_90a,code=sm_90a"}
HOPPER_ONLY = ("attend_sm90", "pack_sm90")
KINDS = ("HGMMA", "HMMA", "MUFU", "LDG", "STG", "LDS", "STS", "LDSM", "BAR", "SYNCS", "FFMA", "FMUL", "FADD", "FMNMX", "ISETP", "BRA")


def compile(nvcc, source, target, cubin):
    """ptxas' report of a file."""
    flags = ["--cubin", "-O3", "-std=c++17", "-Xptxas=-v", TARGETS[target], "-o", cubin, source]
    done = subprocess.run([nvcc, *map(str, flags)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{source} for {target}:\n{done.stderr}")
    return done.stderr


def kernels(report):
    """Name, registers, spilled bytes and shared bytes of each kernel in a report."""
    name, spilled = None, 0
    for line in report.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name, spilled = found[1], 0
        elif found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(found[1]) + int(found[2])
        elif name and (found := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            yield name, int(found[1]), spilled, int(shared[1]) if shared else 0
            name = None


def functions(listing):
    """Instructions and labels of each function: (label or None, operation, where it branches to or None)."""
    found, name = {}, None
    for line in listing.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            name = section[1]
            found[name] = []
        elif name and (label := re.match(r"(\.L\w*):", line)):
            found[name].append((label[1], None, None))
        elif name and (code := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*)", line)):
            to = re.search(r"`\((\.L\w+)\)", code[2])
            found[name].append((None, code[1].split(".")[0], to[1] if to and code[1].startswith("BRA") else None))
    return found


def innermost(lines):
    """The operations of each loop that has none within it."""
    at = {label: place for place, (label, _, _) in enumerate(lines) if label}
    loops = {(at[to], place) for place, (_, _, to) in enumerate(lines) if to in at and at[to] < place}
    whole = {}
    for begin, end in loops:  # several branches may go back to one place
        whole[begin] = max(end, whole.get(begin, 0))
    whole = {begin: end for begin, end in whole.items() if end - begin > 1}  # the last branch of a function goes to itself
    for begin, end in sorted(whole.items()):
        if not any(begin < other <= last <= end or begin <= other <= last < end for other, last in whole.items() if (other, last) != (begin, end)):
            yield [operation for _, operation, _ in lines[begin : end + 1] if operation]


def main():
    nvcc, nvdisasm, *sources = sys.argv[1:]
    spills = False
    with tempfile.TemporaryDirectory() as folder:
        cubin, listings = pathlib.Path(folder) / "code.cubin", {}
        print("kernel | target | registers | spilled bytes | static shared bytes")
        for source in map(pathlib.Path, sources):
            for target in TARGETS:
                if target == "sm_80" and source.stem in HOPPER_ONLY:
                    continue
                for row in sorted(kernels(compile(nvcc, source, target, cubin))):
                    spills |= row[2] > 0
                    print(row[0], target, *row[1:], sep=" | ", flush=True)
            done = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True)
            listings.update(functions(done.stdout))
    print("\nkernel | loop | instructions | of which")
    for name, lines in sorted(listings.items()):
        loops = [operations for operations in innermost(lines) if len(operations) >= 16]  # shorter ones wait for a barrier
        for number, operations in enumerate(loops, 1):
            counts = collections.Counter(operations)
            kinds = ", ".join(f"{kind} {counts[kind]}" for kind in KINDS if counts[kind])
            print(name, number, len(operations), kinds, sep=" | ")
    sys.exit(1 if spills else 0)


if __name__ == "__main__":
    main()
