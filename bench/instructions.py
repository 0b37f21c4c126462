"""Instructions per request on our hot path, counted, not timed: a gate that no load can move.

`callgrind` runs a program twice, with few requests and with many; the difference, divided, is what
one request costs. Two programs: the dispatcher in process, and the whole server reading a prepared
stream from a file. The counts depend on the builds of Python and msgspec, so they are tracked with
those versions; with others the gate cannot judge and says so.

    python bench/instructions.py             compare with instructions.json
    python bench/instructions.py --update    track what is found now

Exit status: 0 within the tolerance or nothing to compare with, 1 above it.
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from bench import roster, wire  # noqa: E402

TRACKED = HERE / "instructions.json"
TOLERANCE = 0.10
FEW, MANY = 200, 1_200
_OURS = roster.ours()[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="track what is found now")
    update = parser.parse_args().update
    if shutil.which("valgrind") is None:
        print("SKIPPED: valgrind is not installed; nothing was counted")
        return 0
    tracked = json.loads(TRACKED.read_text(encoding="utf-8")) if TRACKED.exists() else {}
    builds = _builds()
    if not update and tracked.get("builds") != builds:
        print(f"SKIPPED: tracked for {tracked.get('builds')}, this is {builds}")
        print("Nothing was compared. Run with --update to track the counts of this build.")
        return 0
    # A first run that had to compile modules would count that as work.
    source = Path(roster.ROOT, "src")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(source)], check=True)
    found = {
        "dispatch a request": _difference(_dispatch, "request"),
        "dispatch a batch item": _difference(_dispatch, "batch"),
        "serve a request": _difference(_serve),
    }
    if update:
        text = json.dumps({"builds": builds, "instructions": found}, indent=2) + "\n"
        TRACKED.write_text(text, encoding="utf-8")
    rises = []
    for name, count in found.items():
        before = tracked.get("instructions", {}).get(name, count)
        change = count / before - 1
        print(f"{name}: {count:,} instructions, tracked {before:,}, {change:+.1%}")
        if change > TOLERANCE:
            rises.append(f"{name} by {count - before:,} ({change:+.1%})")
        elif change < -TOLERANCE and not update:
            print("  A gain that is not tracked can be lost unseen: keep it with --update.")
    if rises and not update:
        print(f"FAILED: above the tolerance of {TOLERANCE:.0%}: {', '.join(rises)}")
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


def _difference(count: Callable[..., int], *words: str) -> int:
    return round((count(MANY, *words) - count(FEW, *words)) / (MANY - FEW))


def _dispatch(requests: int, kind: str) -> int:
    # The driver runs its loop five times.
    return _count(["dispatch", kind, str(requests)], b"") // 5


def _serve(requests: int) -> int:
    return _count(["serve"], wire.stream(_OURS, requests))


def _count(words: list[str], data: bytes) -> int:
    """Instructions of one run of our program, from its first to its last."""
    # Hashes and addresses decide how dictionaries collide: both are held still.
    environment = _OURS.environment | {"PYTHONHASHSEED": "0"}
    still = ["setarch", "--addr-no-randomize"] if shutil.which("setarch") else []
    with tempfile.TemporaryDirectory() as folder:
        stream = Path(folder, "stream")
        stream.write_bytes(data)
        out = Path(folder, "callgrind.out")
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
        with stream.open("rb") as stdin:
            done = subprocess.run(
                [*still, *valgrind, *_OURS.program, *words],
                stdin=stdin,
                capture_output=True,
                env=environment,
                check=False,
            )
        found = re.search(rb"Collected : (\d+)", done.stderr)
        if done.returncode or not found:
            sys.stderr.buffer.write(done.stderr)
            raise SystemExit("the run under callgrind failed")
        return int(found[1])


if __name__ == "__main__":
    sys.exit(main())
