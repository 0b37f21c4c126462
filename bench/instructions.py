"""Instructions per request on our hot paths, counted, not timed: a gate that no load can move.

`callgrind` runs a program twice, with few requests and with many; the difference, divided, is what
one request costs. It is judged as a multiple of what the hand-tuned minimum (`limits/minimum.py`)
costs for the same work on the same Python, because such a ratio hardly depends on the build: where
the build is the tracked one, it may rise by TOLERANCE, on another by the wider TOLERANCE_ELSEWHERE.

Under callgrind a program is fifty times slower, and its clocks are not: a queue that stays full is
refused, and what is not answered soon after the end of the input never is. So requests that wait
for a handler come as an agent sends them, a window at a time, and every answer is checked.

    python bench/instructions.py             compare with instructions.json
    python bench/instructions.py --update    track what is found now

Exit status: 0 within the tolerance, 1 above it, 2 if nothing could be counted.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from bench import roster, wire  # noqa: E402

TRACKED = HERE / "instructions.json"
TOLERANCE = 0.03
TOLERANCE_ELSEWHERE = 0.10
ATTEMPTS = 3
"""How often everything is counted before it is believed to cost more, or tracked."""
FEW, MANY = 200, 1_200
ROUND = 50
WINDOW = 16
"""Requests that are in flight together, where they can be."""
_OURS = roster.ours()[0]
_LINES = replace(_OURS, framing="line")
_TOOLS = replace(_LINES, tools=True)
_MODERN = replace(_TOOLS, is_modern=True)
"""Peers are spoken to in this way."""
_INITIALIZED = b'"method":"notifications/initialized"'
"""In what is not answered."""
_MINIMUM = "limits/minimum.py"
_DUET = "ours/duet_peer.py"


class Program(NamedTuple):
    """A command line for a number of requests, and what it reads."""

    script: str
    words: Callable[[int], list[str]]
    reads: Callable[[int], list[bytes]] = lambda requests: []
    """Requests that are sent together; the next when all of them are answered."""
    repeats: int = 1
    """How often it does what it is told."""
    spoken: roster.Peer = _OURS
    """How it is spoken to, if it is a server."""


def _dispatch(script: str, kind: str, *variant: str) -> Program:
    # The driver runs its loop five times.
    return Program(script, lambda requests: [*variant, "dispatch", kind, str(requests)], repeats=5)


def _serve(script: str, *variant: str, window: int = 0, spoken: roster.Peer = _OURS) -> Program:
    """A server, fed with everything at once or with a window at a time."""

    def reads(requests: int) -> list[bytes]:
        frames = wire.frames(spoken, requests, keys="command" in variant)
        frames[0] = wire.handshake(spoken) + frames[0]
        size = window or requests
        return [b"".join(frames[start : start + size]) for start in range(0, requests, size)]

    return Program(script, lambda requests: [*variant, "serve"], reads, spoken=spoken)


def _serve_lines(*variant: str, window: int = 0, spoken: roster.Peer) -> Program:
    return _serve(_DUET, "counted", *variant, window=window, spoken=spoken)


def _call(script: str, work: str, width: int, *variant: str) -> Program:
    """A client, and natively beside it a peer that answers what belongs together in one write."""
    peer = [sys.executable, str(HERE / "limits" / "grouped.py"), str(width)]
    # How long the peer takes to end can be seen in the count of calls that are made one by one.
    repeats = 4 if width == 1 else 1

    def words(requests: int) -> list[str]:
        plan = {"work": work, "width": width, "warmup": 0, "count": requests * repeats}
        return [*variant, "call", json.dumps(plan), *peer]

    return Program(script, words, repeats=repeats)


_MINIMA = {
    "dispatch": _dispatch(_MINIMUM, "request"),
    "serve": _serve(_MINIMUM),
    "call": _call(_MINIMUM, "one", 1),
    "round": _call(_MINIMUM, "rounds", ROUND),
}
_PROGRAMS = {
    "dispatch a request": ("dispatch", _dispatch(_DUET, "request")),
    "dispatch a batch item": ("dispatch", _dispatch(_DUET, "batch")),
    "dispatch a request on a message link": ("dispatch", _dispatch(_DUET, "request", "link")),
    "dispatch an exchange": ("dispatch", _dispatch(_DUET, "request", "exchange")),
    "serve a request": ("serve", _serve(_DUET)),
    "serve a request on the loop": ("serve", _serve(_DUET, "counted", "concurrent")),
    "serve a method with a Context": ("serve", _serve(_DUET, "counted", "context")),
    "serve an async def": ("serve", _serve(_DUET, "counted", "async", window=WINDOW)),
    "serve from a worker thread": ("serve", _serve(_DUET, "counted", "worker", window=WINDOW)),
    "serve a command in memory": ("serve", _serve(_DUET, "counted", "command", window=WINDOW)),
    "serve a request on the loop, a line": ("serve", _serve_lines("lines", spoken=_LINES)),
    "serve a call of a tool": ("serve", _serve_lines("tools", spoken=_TOOLS)),
    "serve a call of a tool, 2026-07-28": ("serve", _serve_lines("tools", spoken=_MODERN)),
    "serve a call of a tool from a worker thread": (
        "serve",
        _serve_lines("tools", "worker", window=WINDOW, spoken=_TOOLS),
    ),
    "call": ("call", _call(_DUET, "one", 1)),
    "call, blocking client": ("call", _call(_DUET, "one", 1, "blocking")),
    f"call, one of {ROUND} at once": ("round", _call(_DUET, "rounds", ROUND)),
}


class Found(NamedTuple):
    instructions: int
    ratio: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="track what is found now")
    update = parser.parse_args().update
    if shutil.which("valgrind") is None:
        print(
            "Nothing was counted: valgrind is not installed (on Debian: apt-get install valgrind)"
        )
        return 2
    tracked = json.loads(TRACKED.read_text(encoding="utf-8"))
    builds = _builds()
    tolerance = TOLERANCE if tracked["builds"] == builds else TOLERANCE_ELSEWHERE
    if tolerance > TOLERANCE:
        print(f"tracked on {tracked['builds']}, this is {builds}")

    def rises(found: dict[str, Found]) -> list[str]:
        return [
            name
            for name, (_, ratio) in found.items()
            if ratio > tracked["ratios"].get(name, ratio) * (1 + tolerance)
        ]

    counts = Counts()
    for _ in range(ATTEMPTS):
        found = counts.take()
        if not update and not rises(found):
            break
    for name, (instructions, ratio) in found.items():
        before = tracked["ratios"].get(name, ratio)
        print(
            f"{name}: {instructions:,} instructions, {ratio:.3f} of the minimum,"
            f" tracked {before:.3f}, {ratio / before - 1:+.1%}"
        )
        if ratio < before * (1 - TOLERANCE) and tolerance == TOLERANCE and not update:
            print("  A gain that is not tracked can be lost unseen: keep it with --update.")
    if update:
        ratios = {name: round(ratio, 3) for name, (_, ratio) in found.items()}
        text = json.dumps({"builds": builds, "ratios": ratios}, indent=2) + "\n"
        TRACKED.write_text(text, encoding="utf-8")
    elif failed := rises(found):
        print(f"FAILED: more than {tolerance:.0%} above what is tracked: {', '.join(failed)}")
        return 1
    return 0


def _builds() -> dict[str, str]:
    import msgspec

    compiler = platform.python_compiler()
    return {
        "python": f"{platform.python_version()} {compiler}",
        "msgspec": msgspec.__version__,
        "machine": platform.machine(),
    }


class Counts:
    """The least that each run has taken so far.

    A thread that was not scheduled in time, and another that stands in for it, can only add.
    """

    def __init__(self) -> None:
        self._least: dict[tuple[Program, int], int] = {}

    def take(self) -> dict[str, Found]:
        """Run everything once more."""
        programs = [*_MINIMA.values(), *(program for _, program in _PROGRAMS.values())]
        for program in programs:
            # Not counted: writes the bytecode of whatever it imports. Compiling the benchmark's own
            # modules in the first run of a fresh checkout was a sixth of what a request cost.
            _run(program, FEW, [])
        runs = [(program, requests) for program in programs for requests in (FEW, MANY)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for run, count in zip(runs, pool.map(lambda run: _count(*run), runs), strict=True):
                self._least[run] = min(count, self._least.get(run, count))
        minima = {name: self._cost(program) for name, program in _MINIMA.items()}
        return {
            name: Found(self._cost(program), self._cost(program) / minima[minimum])
            for name, (minimum, program) in _PROGRAMS.items()
        }

    def _cost(self, program: Program) -> int:
        difference = self._least[program, MANY] - self._least[program, FEW]
        return round(difference / (MANY - FEW) / program.repeats)


def _count(program: Program, requests: int) -> int:
    """Instructions of one run, from its first to its last."""
    # Addresses decide how caches collide: they are held still.
    still = ["setarch", "--addr-no-randomize"] if shutil.which("setarch") else []
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={os.devnull}"]
    told = _run(program, requests, [*still, *valgrind])
    found = re.search(rb"Collected : (\d+)", told)
    if not found:
        sys.stderr.buffer.write(told)
        raise SystemExit("the run under callgrind counted nothing")
    return int(found[1])


def _run(program: Program, requests: int, under: list[str]) -> bytes:
    """Run a program to its end; return what stands on its stderr."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": _OURS.environment["PYTHONPATH"],
    }
    command = [*under, sys.executable, str(HERE / program.script), *program.words(requests)]
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as whole:
        groups = program.reads(requests)
        if len(groups) == 1:  # of a file, all that there is room for is read at once
            whole.write(groups.pop())
            whole.seek(0)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if groups else whole,
            stdout=subprocess.PIPE,
            stderr=told,
            env=environment,
        )
        with process:
            answers = _feed(process, groups, wire.end_mark(program.spoken))
        told.seek(0)
        stderr = told.read()
    if process.returncode:
        sys.stderr.buffer.write(stderr)
        raise SystemExit(f"exit status {process.returncode}: {' '.join(command)}")
    if program.words(requests)[-1] == "serve":
        wire.check(program.spoken, answers, requests)
    return stderr


def _feed(process: "subprocess.Popen[bytes]", groups: list[bytes], mark: bytes) -> bytes:
    """Send each group when the one before it is answered; return all that was answered."""
    asked, answers = 0, bytearray()
    assert process.stdout is not None, "it is a pipe"
    output = process.stdout.fileno()
    for group in groups:
        assert process.stdin is not None, "so is this"
        process.stdin.write(group)
        process.stdin.flush()
        asked += group.count(mark) - group.count(_INITIALIZED)
        while answers.count(mark) < asked and (data := os.read(output, 65536)):
            answers += data
    if process.stdin is not None:
        process.stdin.close()
    return bytes(answers + process.stdout.read())


if __name__ == "__main__":
    sys.exit(main())
