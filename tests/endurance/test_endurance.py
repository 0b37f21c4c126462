"""Endurance: minutes of mixed load on a unix socket, and nothing that stays behind.

A server, an asyncio client, a blocking client, a peer that keeps to no rule, and clients that are
killed, each in a process of its own. After the first quarter and at the end the load rests, and
what each process holds is counted. Between the two nothing may grow.

    DUET_RPC_ENDURANCE_SECONDS=600 DUET_RPC_ENDURANCE_SEED=7 pytest -s tests/endurance
"""

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from duet_rpc import blocking
from duet_rpc.errors import ConnectFailed
from duet_rpc.ledger import open_store
from tests.endurance.counts import ALLOCATOR

SECONDS = float(os.environ.get("DUET_RPC_ENDURANCE_SECONDS") or 10)
SEED = int(os.environ.get("DUET_RPC_ENDURANCE_SEED") or random.randrange(1_000_000))
PATIENCE = 60.0
LOADS = ("asyncio", "blocking", "raw")
MEBI = 1024 * 1024

SPARE = {
    # Caches of the interpreter and of ours fill, and threads start, as rare operations come for the
    # first time: up to 1,600 blocks where the first quarter is short, some hundred where it is not.
    # After it 3,000 operations come in the shortest run, and 200,000 in that of CI.
    "blocks": 3_000,
    # Caches of SQLite's, up to 2 MB for each connection, and buffers that are kept for large
    # messages. One message of 70 KB lost for each hundred operations is more.
    "allocated": 4 * MEBI,
    # The same, and pages that cannot be given back because one object on them lives.
    "resident": 12 * MEBI,
    # The collector comes when a quarter as many objects have been added as there were: some ten
    # thousand here.
    "garbage": 20_000,
    # A pool of threads grows to the most handlers that ever ran at once, which is a matter of
    # chance; each thread of a store's has a connection.
    "threads": 16,
    "descriptors": 16,
    "tasks": 0,
}
"""How much more may be held at the end than after the first quarter."""


def limit_descriptors() -> None:
    """Make a process that loses descriptors fail, instead of the machine."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))


@contextmanager
def running(
    module: str, *arguments: str, stderr: int | IO[str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Run a module of this package in a process that is gone at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.endurance.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=os.environ | ALLOCATOR,
        preexec_fn=limit_descriptors,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def make_store(url: str) -> None:
    """Make the store before its server, as after a restart.

    Of retries in its first second a server cannot know whether they were sent before it began, so
    a store that it has just made itself would answer them `outcome-unknown`.
    """
    store = open_store(url)
    store.counts()
    store.close()


class Load:
    """A process that puts load on the server."""

    def __init__(self, kind: str, process: "subprocess.Popen[str]") -> None:
        self.kind = kind
        self._process = process

    def tell(self, *words: object) -> None:
        """Tell it to do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait until it has done so."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the {self.kind} load has ended: {self._process.wait(PATIENCE)}"
        return json.loads(line)

    def end(self) -> int:
        """End it in good order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE)


def kill_clients(path: str, rng: random.Random, seconds: float) -> int:
    """Start clients, one after another, and kill each in the middle of its work."""
    killed, until = 0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if left > 4:
            with running("load", "asyncio", path, str(rng.randrange(1000))) as victim:
                Load("asyncio", victim).tell("run", 60)
                time.sleep(1 + rng.random())
            killed += 1
        time.sleep(min(left, rng.random() * 8))
    return killed


def count_when_idle(path: str, connections: int) -> dict[str, int]:
    """Ask the server what it holds, as soon as only so many connections are there."""
    with blocking.Client.connect(f"unix:{path}", timeout=PATIENCE) as client:
        until = time.monotonic() + PATIENCE
        while True:
            counted: dict[str, int] = client.query("count")
            busy = [counted[name] for name in ("running", "paused", "queued")]
            if (counted["connections"] == connections and not any(busy)) or (
                time.monotonic() > until
            ):
                break
            time.sleep(0.1)
    assert counted["connections"] == connections, f"connections stay open: {counted}"
    assert not any(busy), f"slots are lost: {counted}"
    assert counted["free"] == counted["limit"], counted
    return counted


def grown(first: dict[str, int], last: dict[str, int]) -> list[str]:
    """Say what has grown by more than may be."""
    return [
        f"{name}: {first[name]:,} to {last[name]:,}"
        for name, spare in SPARE.items()
        if name in first and last[name] > first[name] + spare
    ]


def run(loads: list[Load], path: str, seconds: float, rng: random.Random) -> dict[str, Any]:
    """Put load on the server for a while; return what the loads say."""
    for load in loads:
        load.tell("run", seconds)
    killed = kill_clients(path, rng, seconds)
    reports = {load.kind: load.answer() for load in loads}
    for kind, report in reports.items():
        assert not report["wrong"], f"{kind}: {report['wrong']}"
        assert report["pending"] == 0, f"{kind}: calls that never ended: {report['pending']}"
        done = sum(report["done"].values())
        print(f"{kind}: {done} operations, {report['held']}")
        assert done > seconds, f"{kind}: hardly anything happened"
    print(f"{killed} clients killed")
    return reports


def connect_when_there(path: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with blocking.Client.connect(f"unix:{path}"):
                return
        except ConnectFailed:
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.05)


@pytest.mark.long
@pytest.mark.timeout(SECONDS * 1.5 + 300)
def test_nothing_stays_behind_after_mixed_load(tmp_path: Path) -> None:
    print(f"{SECONDS:g} s, seed {SEED}")
    path, log, rng = str(tmp_path / "s"), tmp_path / "log", random.Random(SEED)
    with ExitStack() as stack:
        said = stack.enter_context(log.open("w"))
        store = f"sqlite:///{tmp_path}/commands.db"
        make_store(store)
        server = stack.enter_context(running("server", path, store, stderr=said))
        connect_when_there(path)
        loads = [
            Load(kind, stack.enter_context(running("load", kind, path, str(SEED))))
            for kind in LOADS
        ]
        clients = len(LOADS) - 1  # the raw one keeps no connection
        first = run(loads, path, SECONDS / 4, rng)
        first["server"] = {"held": count_when_idle(path, clients)}
        last = run(loads, path, SECONDS * 3 / 4, rng)
        last["server"] = {"held": count_when_idle(path, clients)}
        print("server:", first["server"]["held"], "to", last["server"]["held"])
        for load in loads[:clients]:
            load.tell("meet")
            assert load.answer() == {"met": [16] * 16}
        assert [load.end() for load in loads] == [0] * len(loads)
        count_when_idle(path, 0)
        server.terminate()
        assert server.wait(PATIENCE) == 0
    found = {kind: grown(first[kind]["held"], last[kind]["held"]) for kind in first}
    assert not any(found.values()), found
    faults = [line for line in log.read_text().splitlines() if " error " in line[:32]]
    unforeseen = [line for line in faults if "Z error handler failed method=fail " not in line]
    unforeseen = [line for line in unforeseen if "notification failed method=fail" not in line]
    assert not unforeseen, unforeseen[:5]
