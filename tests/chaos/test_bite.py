"""The checker bites: with one protection taken away, one small misfortune is found out.

Each case is a script, not a storm, so that it goes the same way on every machine. It is run twice:
as it is, without a violation, and without the protection, with the violation that this must cause.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duet_rpc.ledger import Promise
from tests.chaos.cluster import Cluster
from tests.chaos.history import Fault, History, check
from tests.chaos.storm import PATIENT, Caller, Order
from tests.ledger.servers import PATIENCE

LEASE = 1.5

pytestmark = pytest.mark.timeout(240)


class Script:
    """Two servers, a caller at each, and the words that the cases are written in."""

    def __init__(self, cluster: Cluster, *, is_torn: bool):
        self.cluster = cluster
        self.is_torn = is_torn
        """Whether effects and records are committed one after the other."""
        self.first, self.second = (Caller(each.name, each) for each in cluster.servers)

    async def noted(self, what: str) -> None:
        """Wait until the first server has noted something."""
        give_up = time.monotonic() + PATIENCE
        while all(note["what"] != what for note in self.first.server.notes()):
            assert time.monotonic() < give_up, f"no {what}: {self.first.server.tail()}"
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Stop the first server, but not while it holds the file's lock: nobody would get on."""
        for _ in range(50):
            self.first.server.send(signal.SIGSTOP)
            if await asyncio.to_thread(self.cluster.is_file_free):
                return
            self.first.server.send(signal.SIGCONT)
            await asyncio.sleep(0.05)
        raise AssertionError("the server always holds the lock")

    def history(self) -> History:
        return History(
            calls=self.first.calls + self.second.calls,
            runs=self.cluster.runs(),
            effects=self.cluster.effects(),
            faults=self.cluster.faults + self.cluster.late_hearts(),
        )


async def stopped_past_its_lease(script: Script) -> None:
    """A server sleeps in the middle of a retry-safe command, and another takes it over."""
    order = Order("bank.safe", "k", "v", Promise.RETRY_SAFE, after=2 * LEASE)
    asleep = asyncio.create_task(script.first.command(order, retry=PATIENT))
    await script.noted("effect")
    began = time.monotonic()
    await script.stop()
    try:
        await script.second.command(order, retry=PATIENT, is_final=True)
    finally:
        script.first.server.send(signal.SIGCONT)
        name = script.first.server.name
        script.cluster.faults.append(Fault("stop", name, began, time.monotonic() + LEASE))
    await asleep
    await script.second.command(order, retry=PATIENT, is_final=True)


async def other_params(script: Script) -> None:
    """A key that was used is used again for something else."""
    await script.first.command(Order("bank.once", "k", "v", Promise.AT_MOST_ONCE))
    await script.second.command(Order("bank.once", "k", "other", Promise.AT_MOST_ONCE))


async def longer_than_the_lease(script: Script) -> None:
    """A command takes long, in good health, and is asked for again meanwhile."""
    order = Order("bank.once", "k", "v", Promise.AT_MOST_ONCE, after=4 * LEASE)
    running = asyncio.create_task(script.first.command(order, retry=PATIENT))
    await script.noted("effect")
    await script.second.command(order, retry=PATIENT, is_final=True)
    await running


async def killed_in_the_commit(script: Script) -> None:
    """A server dies as soon as the effect of a transaction is there, or could be."""
    order = Order("bank.move", "k", "v", Promise.TRANSACTIONAL)
    sent = asyncio.create_task(script.first.command(order))
    await script.noted("between" if script.is_torn else "end")
    await script.cluster.kill(script.first.server, 0.0)
    await sent
    await script.second.command(order, retry=PATIENT, is_final=True)


Case = Callable[[Script], Awaitable[None]]
CASES = [
    ("fencing", stopped_past_its_lease, "all outcomes of a command are the same bytes"),
    ("fingerprint", other_params, "a result answers the params that were sent"),
    ("lease", longer_than_the_lease, "unknown only where a run was cut off"),
    ("transaction", killed_in_the_commit, "never twice"),
]


@asynccontextmanager
async def script_of(directory: Path, without: str) -> AsyncIterator[Script]:
    cluster = Cluster("sqlite", directory, lease=LEASE, servers=2, without=without)
    try:
        await cluster.start()
        script = Script(cluster, is_torn=without == "transaction")
        try:
            yield script
        finally:
            await script.first.drop()
            await script.second.drop()
    finally:
        cluster.close()


@pytest.mark.parametrize(("protection", "case", "law"), CASES)
async def test_without_a_protection_the_violation_is_found(
    protection: str, case: Case, law: str, tmp_path: Path
) -> None:
    async with script_of(tmp_path, protection) as script:
        await case(script)
        assert law in {violation.law for violation in check(script.history())}


@pytest.mark.parametrize(("protection", "case", "law"), CASES)
async def test_with_all_protections_there_is_none(
    protection: str, case: Case, law: str, tmp_path: Path
) -> None:
    async with script_of(tmp_path, "") as script:
        await case(script)
        assert check(script.history()) == [], f"{protection} is in place"
