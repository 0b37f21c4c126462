"""`python -m bench`: our work side by side with the field's and with the limit.

Everyone does the same work inside each repetition, one after the other, so that a noisy minute
hurts all alike; medians over the repetitions are compared, as ratios inside this one run.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import report, roster
from bench.roster import ROOT, Peer
from bench.work import FULL, ITEMS, QUICK, Scale


def main() -> None:
    arguments = _arguments()
    scale = QUICK if arguments.quick else FULL
    keys = arguments.only.split(",") if arguments.only else list(ITEMS)
    if unknown := set(keys) - set(ITEMS):
        raise SystemExit(f"no such work: {', '.join(unknown)}; there is {', '.join(ITEMS)}")
    if arguments.repetitions:
        scale = Scale(**{**vars(scale), "repetitions": arguments.repetitions})
    with contextlib.ExitStack() as stack:
        if arguments.compare:
            peers = [*roster.ours(), *stack.enter_context(_revision(arguments.compare))]
        else:
            peers = [*roster.ours(), *roster.peers()]
            if arguments.quick and not arguments.peers:
                peers = [peer for peer in peers if peer.slowness < 5 or peer.kind == "ours"]
        if arguments.peers:
            wanted = arguments.peers.split(",")
            peers = [peer for peer in peers if any(peer.name.startswith(word) for word in wanted)]
        roles = {ITEMS[key].role for key in keys}
        peers = [peer for peer in peers if roles & peer.roles]
        for line in roster.set_up(peers):
            _say(line)
        results = _run(_usable(peers), keys, scale)
    print(report.summary(results))
    partial = arguments.quick or arguments.only or arguments.peers or arguments.compare
    if not partial:
        report.write(results, scale, Path(ROOT, "bench", "results"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute, the quick peers only")
    parser.add_argument("--only", metavar="W3,W7", default="", help="some of the work items")
    parser.add_argument("--peers", metavar="NAMES", default="", help="names that begin like these")
    parser.add_argument("--repetitions", type=int, metavar="N", help="how often each is measured")
    parser.add_argument("--compare", metavar="REV", help="our own code against another revision")
    return parser.parse_args()


@contextlib.contextmanager
def _revision(name: str) -> Iterator[list[Peer]]:
    """Our columns from a checkout of another revision, with its own adapter."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), name], check=True)
        try:
            yield roster.ours(tree, f"at {name}")
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _usable(peers: list[Peer]) -> list[Peer]:
    usable = [peer for peer in peers if peer.usable()]
    for peer in peers:
        if peer not in usable:
            _say(f"{peer.name} cannot be loaded and is left out")
    return usable


def _run(peers: list[Peer], keys: list[str], scale: Scale) -> report.Results:
    results = report.Results(peers)
    for repetition in range(1, scale.repetitions + 1):
        for key in keys:
            start = time.perf_counter()
            slowest = 0.0, ""
            for peer in peers:
                if ITEMS[key].role in peer.roles:
                    begun = time.perf_counter()
                    try:
                        results.add(key, peer, ITEMS[key].run(peer, scale))
                    except (SystemExit, OSError, ValueError) as failure:
                        # Another revision may not know every role; everyone else must.
                        if ROOT in peer.path:
                            raise
                        _say(f"{peer.name} is left out of {key}: {failure}")
                    slowest = max(slowest, (time.perf_counter() - begun, peer.name))
            taken = f"{time.perf_counter() - start:.0f} s ({slowest[1]} {slowest[0]:.0f} s)"
            _say(f"{repetition}/{scale.repetitions} {key} {taken}")
    return results


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


main()
