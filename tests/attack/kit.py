"""What attacks share: services and commands that cannot take the machine down, rows of the table, raw connections. Standard library only.

Everything stays on loopback and in a temporary folder. A watcher ends a service that takes more memory than it may, and every request and
every command has a deadline.
"""

import dataclasses
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
from service import DEMO, Service, dummy_folder, wait_until  # noqa: E402, F401

MIB = 1 << 20
# What a service and a command may take before they are ended: far above every bound, and below what the machine has.
SERVICE_BYTES, COMMAND_BYTES = 10 << 30, 4 << 30


@dataclasses.dataclass
class Row:
    """One line of the table: what was tried, what was measured, what must be, and whether it is."""

    attack: str
    measured: str
    bound: str
    right: bool


@dataclasses.dataclass
class Context:
    """What attacks are given: the command, whether little time is left, and a folder of their own."""

    program: pathlib.Path
    short: bool
    folder: pathlib.Path

    def options(self):
        """The long options that `serve` has, so that attacks on what an option guards can name it."""
        said = subprocess.run([str(self.program), "serve", "--help-all"], capture_output=True, text=True, timeout=20).stdout
        return {word.split("=")[0] for word in said.split() if word.startswith("--")}

    def scratch(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))


def available_bytes():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def capped(limit):
    """For a child before it runs: its private memory is bounded, and it writes no core."""
    limit = int(min(limit, max(available_bytes() - (3 << 30), 1 << 30)))

    def apply():
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    return apply


class Victim(Service):
    """A service with a bound on its memory, whose use is read from /proc."""

    def __init__(self, context, model=DEMO, options=()):
        self.errors = context.scratch() / "stderr"
        super().__init__(context.program, model, options, log=self.errors, limit=capped(SERVICE_BYTES))
        host, port = self.url.removeprefix("http://").split(":")
        self.address = (host, int(port))

    def __exit__(self, *_):
        # What it still computes is of no interest.
        self.child.kill()
        self.child.wait()

    def status(self, name):
        """A line of /proc/PID/status in bytes; 0 where the process is gone."""
        try:
            for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) << 10
        except OSError:
            pass
        return 0

    def alive(self):
        return self.child.poll() is None

    def peak_from_here(self):
        """Begins a new peak; returns what is resident now."""
        pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.status("VmRSS")

    def peak(self):
        return self.status("VmHWM")

    def connect(self, timeout=20):
        return socket.create_connection(self.address, timeout)

    def health_seconds(self, patience):
        """Seconds until a new connection has its answer from /health; None where it has none by then."""
        began = time.monotonic()
        try:
            self.get("/health", patience)
        except OSError:
            return None
        return time.monotonic() - began

    def raw(self, data, timeout=20):
        """What comes back for bytes as they are; at most 1 MiB of it."""
        got = b""
        with self.connect(timeout) as connection:
            try:
                connection.sendall(data)
                while len(got) < MIB and (part := connection.recv(65536)):
                    got += part
                    if b"\r\n\r\n" in got and complete(got):
                        break
            except OSError:
                pass
        return got


def complete(answer):
    """Whether an answer with a length is whole."""
    head, body = answer.split(b"\r\n\r\n", 1)
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return False


def head(path, length, more="", host="localhost", method="POST"):
    """The head of a request whose body has this length."""
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n".encode()


def chat(text, **more):
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


def status_of(answer):
    """The status of a raw answer; 0 for none."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


class Command:
    """A run of the command to its end or its deadline: its exit code (None: ended at the deadline), words, seconds and peak bytes."""

    def __init__(self, context, arguments, seconds=20, limit=COMMAND_BYTES):
        began = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            child = subprocess.Popen([str(context.program), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=out, stderr=errors, preexec_fn=capped(limit))
            killer = threading.Timer(seconds, child.kill)
            killer.start()
            _, state, usage = os.wait4(child.pid, 0)
            killer.cancel()
            child.returncode = os.waitstatus_to_exitcode(state)
            self.seconds = time.monotonic() - began
            self.code = None if child.returncode == -signal.SIGKILL else child.returncode
            self.peak = usage.ru_maxrss << 10
            out.seek(0), errors.seek(0)
            self.out, self.errors = out.read(MIB).decode(errors="replace"), errors.read(MIB).decode(errors="replace")

    def told(self, codes):
        """Whether it ended with one of these codes and one short line."""
        return self.code in codes and self.errors.count("\n") <= 2 and len(self.errors) < 1000 and "panicked" not in self.errors

    def say(self):
        way = "was ended at its deadline" if self.code is None else f"exit {self.code}"
        return f"{way}, {self.seconds:.1f} s, {self.peak / MIB:.0f} MiB"


def parallel(count, action):
    """Runs an action many times at once; gives each result, or its error."""
    results = [None] * count

    def run(number):
        try:
            results[number] = action(number)
        except Exception as error:  # noqa: BLE001 - a connection that the service cuts is a result
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def joined(threads, seconds):
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))


def dumped(value):
    return json.dumps(value).encode()
