"""Where the time goes in the work whose goals are hard: `perf` samples of one of our own processes.

    python bench/profiles.py          print a table for each, and write results/profiles.md

Each process runs under `perf record` (Debian: linux-perf) while it does the work, start-up and
all, so there is enough work that the start hardly counts; its children and threads are not looked
at. What the samples fall on is told in five parts, for a profile is to say who would have to become
quicker: the kernel, msgspec, what drives the event loop, the interpreter's loop, or the rest of
Python (objects, memory, calls).
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from bench import processes, report, roster, wire, work  # noqa: E402
from bench.processes import CLIENT_CORE, SERVER_CORE  # noqa: E402
from bench.roster import Peer  # noqa: E402

Command = tuple[str, ...]
Under = Callable[[Command], Command]
"""Puts the profiler before a command."""

PARTS = {
    "kernel": r"kernel",
    "msgspec": r"_core\.cpython",
    "event loop": r"_asyncio\.cpython|uvloop|loop\.cpython|select\.cpython",
    "interpreter's loop": r"_PyEval_EvalFrameDefault",
    "rest of Python": r".",
}
LINE = re.compile(r"\s*([\d.]+)%\s+(\S+)\s+\[[.k]\]\s+(\S+)")


@dataclass(frozen=True)
class Profile:
    """One process at one kind of work."""

    title: str
    requests: int
    run: Callable[[Under], Any]


def profiles() -> Iterator[Profile]:
    ours = {peer.variant: peer for peer in roster.ours()}
    usual = ours[""]
    yield Profile("W3, sequential server", 400_000, lambda under: _feed(usual, under, 400_000, 0))
    yield Profile("W4, sequential server, per item", 1_000_000,
                  lambda under: _feed(usual, under, 1_000_000, 50))  # fmt: skip
    for variant, name in ("blocking", "blocking"), ("on uvloop", "uvloop"):
        plan = {"work": "one", "width": 1, "count": 100_000, "warmup": 100}
        for end in "client", "server":
            yield Profile(f"W1 on one core, {name}, {end}", 100_000,
                          _calls(ours[variant], plan, end, CLIENT_CORE))  # fmt: skip
    plan = {"work": "window", "width": 64, "count": 300_000, "warmup": 100}
    yield Profile("W2 on uvloop, client", 300_000,
                  _calls(ours["on uvloop"], plan, "client", SERVER_CORE))  # fmt: skip
    plan = {"work": "echo", "width": 1, "count": 20, "warmup": 1}
    plan["payload"] = str(work.payload("records", 9_000_000))
    for end in "client", "server":
        yield Profile(f"W5, 9 MB of records, {end}", 20, _calls(usual, plan, end, SERVER_CORE))
    plan = {"work": "rounds", "width": 1_000, "count": 300_000, "warmup": 1_000}
    script = (roster.OURS_PYTHON, str(HERE / "limits" / "shuffle.py"), usual.framing)
    yield Profile("W6, client", 300_000,
                  _calls(usual, plan, "client", SERVER_CORE, server=script))  # fmt: skip
    dispatcher = ours["dispatcher"]
    yield Profile("W7, dispatcher", 5_000_000, lambda under: processes.measure(
        replace(dispatcher, program=under(dispatcher.program)), "dispatch", "request", "1000000",
    ))  # fmt: skip


def _feed(peer: Peer, under: Under, count: int, batch: int) -> None:
    data = wire.stream(peer, count, batch)
    answers = count // batch if batch else count
    processes.feed(replace(peer, program=under(peer.program)), data, answers)


def _calls(
    peer: Peer, plan: dict[str, Any], end: str, server_core: int, server: Command = ()
) -> Callable[[Under], None]:
    def run(under: Under) -> None:
        called = server or peer.program
        client = peer
        if end == "client":
            client = replace(peer, program=under(peer.program))
        else:
            called = under(called)
        processes.call(
            client, plan, server=called, client_core=CLIENT_CORE, server_core=server_core
        )

    return run


def main() -> None:
    if shutil.which("perf") is None:
        raise SystemExit("perf is not installed; on Debian it is in the package linux-perf")
    parts = [["work", "samples", *PARTS]]
    tops = []
    with tempfile.TemporaryDirectory() as folder:
        for profile in profiles():
            out = Path(folder, "perf.data")
            record = ("perf", "record", "-q", "--no-inherit", "-F", "1999", "-o", str(out), "--")
            profile.run(lambda command, record=record: (*record, *command))  # type: ignore[misc]
            samples, found = _samples(out)
            shares = dict.fromkeys(PARTS, 0.0)
            for share, library, symbol in found:
                part = next(
                    p for p, sign in PARTS.items() if re.search(sign, f"{library} {symbol}")
                )
                shares[part] += share
            row = [profile.title, f"{samples:,}", *(f"{share:.0f} %" for share in shares.values())]
            parts.append(row)
            print("  ".join(row), file=sys.stderr, flush=True)
            names = ", ".join(f"`{symbol}` {share:.1f} %" for share, _, symbol in found[:10])
            tops.append(f"- **{profile.title}**: {names}")
    machine = ". ".join(report.machine()[:2])
    text = f"""# Where the time goes

{machine}. Samples of `perf`, made by `make bench-profiles`. What they mean for the
goals that are not reached stands in [the page about the bench](../README.md).

{report.markdown(parts)}

The functions with the most samples:

{chr(10).join(tops)}
"""
    Path(HERE, "results", "profiles.md").write_text(text, encoding="utf-8")
    print(text)


def _samples(out: Path) -> tuple[int, list[tuple[float, str, str]]]:
    """How many samples there are, and the share of each function, most first."""
    command = ["perf", "report", "-i", str(out), "--no-children", "--sort", "dso,sym", "--stdio"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    total = re.search(r"# Samples: (\S+)", text)
    found = [(float(m[1]), m[2], m[3]) for m in map(LINE.match, text.splitlines()) if m]
    count = total[1] if total else "0"
    scale = {"K": 1_000, "M": 1_000_000}.get(count[-1], 1)
    return int(float(count.rstrip("KM")) * scale), found


if __name__ == "__main__":
    main()
