"""Compiles every kernel in kernels/cu with NVIDIA's run-time compiler, for sm_80 (but `*_sm90.cu`) and sm_90a, to machine code.

    compile.py LIBNVRTC [FILE.cu ...]

No GPU is needed. Real architectures, not virtual ones: only then is the inline PTX assembled. Fails with the compiler's words at
an error, and where a kernel that is exported to the tests (`EXPORT`) is not in the code. Prints one line a file.
"""

import ctypes
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "cu"
SUCCESS = 0


def compiled(library, source: Path, architecture: str) -> bytes:
    """The machine code of a file. Exits with the compiler's words where it refuses."""
    program = ctypes.c_void_p()
    text = source.read_bytes()
    result = library.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None)
    if result != SUCCESS:
        sys.exit(f"{source.name}: no program: {result}")
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"--include-path={KERNELS}"]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    result = library.nvrtcCompileProgram(program, len(options), array)
    if result != SUCCESS:
        raise RuntimeError(f"{source.name} for {architecture}:\n{taken(library, program, 'ProgramLog').decode()}")
    code = taken(library, program, "CUBIN")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code


def taken(library, program, what: str) -> bytes:
    """The log or the code of a program."""
    size = ctypes.c_size_t()
    if getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) != SUCCESS:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    if getattr(library, f"nvrtcGet{what}")(program, buffer) != SUCCESS:
        return b""
    return buffer.raw


def checked(library, source: Path, architecture: str) -> str:
    """Compiles, looks for the kernels' names in the code, and says how it went."""
    start = time.monotonic()
    code = compiled(library, source, architecture)
    if not code.startswith(b"\x7fELF"):
        raise RuntimeError(f"{source.name} for {architecture}: no machine code")
    # Names of instances are pasted together by macros: then there is a `##`, and only plain names can be looked for.
    names = [name for name in re.findall(r"^EXPORT\((\w+)\)", source.read_text(), re.MULTILINE)]
    lost = [name for name in names if name.encode() not in code]
    if lost:
        raise RuntimeError(f"{source.name} for {architecture}: not in the code: {', '.join(lost)}")
    return f"{source.name:22} {architecture:7} {len(code):8} bytes, {time.monotonic() - start:.1f} s"


def main() -> None:
    path = Path(sys.argv[1]).resolve()
    for builtins in path.parent.glob("libnvrtc-builtins.so.*"):  # it looks for them by name only
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(path))
    sources = [Path(name) for name in sys.argv[2:]] or sorted(KERNELS.glob("*.cu"))
    if not sources:
        sys.exit(f"no kernels in {KERNELS}")
    jobs = [(source, architecture) for source in sources for architecture in ("sm_80", "sm_90a")]
    jobs = [(source, target) for source, target in jobs if target == "sm_90a" or not source.stem.endswith("_sm90")]
    failures = 0
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(checked, library, *job) for job in jobs]:
            try:
                print(future.result())
            except RuntimeError as error:
                failures += 1
                print(error, file=sys.stderr)
    if failures:
        sys.exit(f"{failures} of {len(jobs)} did not compile")
    print(f"{len(jobs)} compiled")


if __name__ == "__main__":
    main()
