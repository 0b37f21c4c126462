"""Starting programs where they belong, feeding them, and reading what they used."""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import wire
from bench.roster import HERE, Peer

CORES = sorted(os.sched_getaffinity(0))
CLIENT_CORE, SERVER_CORE = CORES[0], CORES[-1]
"""Where the two ends run when each has a core of its own; the same one on a single core."""

PATIENCE = 300.0
"""Seconds after which a program that does not come to an end is a failure of the run."""


@dataclass(frozen=True)
class Used:
    """Processor seconds and peak bytes of a server, from its birth to its end."""

    cpu: float
    memory: float


class Report:
    """A server's command line with `usage.py` before it, and what that wrote."""

    def __init__(self, folder: str, program: tuple[str, ...], core: int) -> None:
        self._file = Path(folder, "usage")
        usage = [sys.executable, "-ISE", str(HERE / "usage.py"), str(self._file), str(core)]
        self.program = [*usage, *program]

    def read(self) -> Used:
        deadline = time.monotonic() + 10
        while not self._file.exists() or not self._file.stat().st_size:
            if time.monotonic() > deadline:
                raise SystemExit("a server did not end when its client did")
            time.sleep(0.005)
        cpu, memory = self._file.read_text(encoding="utf-8").split()
        return Used(float(cpu), float(memory))


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keep this process, and what it starts, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(peer: Peer, *words: str, core: int = CLIENT_CORE) -> dict[str, float]:
    """Run a program in a role that prints one JSON line."""
    with pinned(core):
        done = subprocess.run(
            [*peer.program, *words],
            env=peer.environment,
            stdout=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{peer.name} failed as {words[0]}")
    measures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measures


def call(
    peer: Peer,
    plan: dict[str, Any],
    *,
    server: tuple[str, ...] = (),
    client_core: int = CLIENT_CORE,
    server_core: int = SERVER_CORE,
) -> tuple[dict[str, float], Used]:
    """Let a peer's client make calls to its own server, or to another."""
    with tempfile.TemporaryDirectory() as folder:
        report = Report(folder, server or peer.server or peer.program, server_core)
        words = ["call", json.dumps(plan), *report.program]
        return measure(peer, *words, core=client_core), report.read()


def feed(peer: Peer, data: bytes, answers: int) -> tuple[bytes, Used]:
    """Push a prepared stream through a server and read until every answer is there."""
    with tempfile.TemporaryDirectory() as folder, pinned(CLIENT_CORE):
        report = Report(folder, peer.program, SERVER_CORE)
        with serving(peer, report.program) as (reading, writing):
            feeder = threading.Thread(target=_write_all, args=(writing, data))
            feeder.start()
            got = read_answers(reading, wire.end_mark(peer), answers)
            feeder.join()
        return got, report.read()


@contextmanager
def serving(peer: Peer, program: list[str]) -> Iterator[tuple[int, int]]:
    """A server on stdio, as descriptors to read from and to write to."""
    if peer.link == "socket":
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = _start(peer, program, theirs.fileno(), theirs.fileno())
            yield ours.fileno(), ours.fileno()
    else:
        reading, server_writes = os.pipe()
        server_reads, writing = os.pipe()
        process = _start(peer, program, server_reads, server_writes)
        os.close(server_reads)
        os.close(server_writes)
        yield reading, writing
        os.close(writing)
        os.close(reading)
    process.wait(PATIENCE)


def _start(peer: Peer, program: list[str], stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*program, "serve"], stdin=stdin, stdout=stdout, env=peer.environment)


@contextmanager
def listening(peer: Peer) -> Iterator[tuple[str, int]]:
    """A server on a unix socket: its path and its process id."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s")
        program = [*peer.program, "listen", path]
        with pinned(SERVER_CORE):
            process = subprocess.Popen(program, env=peer.environment)
        try:
            deadline = time.monotonic() + 20
            while not os.path.exists(path):
                if time.monotonic() > deadline or process.poll() is not None:
                    raise SystemExit(f"{peer.name} does not listen")
                time.sleep(0.01)
            yield path, process.pid
        finally:
            process.kill()
            process.wait()


def connect(path: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    for _ in range(100):
        try:
            found.connect(path)
            return found
        except (BlockingIOError, ConnectionRefusedError):
            time.sleep(0.01)
    raise SystemExit("the server takes no more connections")


def resident(pid: int) -> int:
    """Bytes of memory that a process has now."""
    status = Path("/proc", str(pid), "status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def _write_all(writing: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(writing, view[: 1 << 16]) :]


def read_answers(reading: int, mark: bytes, count: int) -> bytes:
    """Read until `count` messages are whole."""
    data = bytearray()
    searched = 0
    while count > 0 or not _whole(data, mark):
        part = os.read(reading, 1 << 16)
        if not part:
            raise SystemExit("a server ended before its last answer")
        data += part
        count -= data.count(mark, searched)
        # A mark that this read has cut is found with the next one.
        searched = max(searched, len(data) - len(mark) + 1)
    return bytes(data)


def _whole(data: bytearray, mark: bytes) -> bool:
    """Whether the last message is there to its end; its mark is."""
    if mark == b"\n":
        return data.endswith(mark)
    start = data.rindex(mark)
    end = data.find(b"\r\n\r\n", start)
    if end == -1:
        return False
    length = int(data[start + len(mark) : end].split(b"\r\n")[0])
    return len(data) == end + 4 + length
