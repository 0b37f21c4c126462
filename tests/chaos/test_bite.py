"""The checker bites: with one protection taken away, one small misfortune is found out.

Each case is a script, not a storm, so that it goes the same way on every machine. It is run twice:
as it is, without a violation, and without the protection, with the violation that this must cause.
All stores that have the protection go through it at the same time, for it is mostly waiting.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from duet_rpc.ledger import Promise
from tests.chaos.history import check
from tests.chaos.script import Script, script_of
from tests.chaos.storm import PATIENT, Order
from tests.ledger.conftest import SHARED, TRANSACTIONAL
from tests.ledger.servers import Postgres, Valkey

LEASE = 1.5

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]


async def stopped_past_its_lease(script: Script) -> None:
    """A server sleeps in the middle of a retry-safe command, and another takes it over."""
    order = Order("bank.safe", "k", "v", Promise.RETRY_SAFE, after=-4 * LEASE)
    asleep = asyncio.create_task(script.first.command(order, retry=PATIENT))
    await script.noted("effect")
    async with script.stopped():
        await script.second.command(order, retry=PATIENT, is_final=True)
    await asleep
    await script.second.command(order, retry=PATIENT, is_final=True)


async def other_params(script: Script) -> None:
    """A key that was used is used again for something else."""
    await script.first.command(Order("bank.once", "k", "v", Promise.AT_MOST_ONCE))
    await script.second.command(Order("bank.once", "k", "other", Promise.AT_MOST_ONCE))


async def longer_than_the_lease(script: Script) -> None:
    """A command takes long, in good health, and is asked for again meanwhile."""
    order = Order("bank.once", "k", "v", Promise.AT_MOST_ONCE, after=-4 * LEASE)
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
    ("fencing", SHARED, stopped_past_its_lease, "all outcomes of a command are the same bytes"),
    ("fingerprint", SHARED, other_params, "a result answers the params that were sent"),
    ("lease", SHARED, longer_than_the_lease, "unknown only where a run was cut off"),
    ("transaction", TRANSACTIONAL, killed_in_the_commit, "never twice"),
]
every_case = pytest.mark.parametrize(("protection", "kinds", "case", "law"), CASES)
Servers = dict[str, Postgres | Valkey]


@pytest.fixture
def servers(postgres_server: Postgres, valkey_server: Valkey) -> Servers:
    postgres_server.empty()
    valkey_server.empty()
    return {"postgres": postgres_server, "valkey": valkey_server}


async def laws_broken(
    kinds: Sequence[str], case: Case, servers: Servers, directory: Path, without: str = ""
) -> dict[str, set[str]]:
    """Run a case on several stores; tell by store which laws were broken."""

    async def on(kind: str) -> set[str]:
        below = directory / kind
        below.mkdir()
        store = servers.get(kind)
        async with script_of(kind, below, LEASE, without=without, store=store) as script:
            await case(script)
            return {violation.law for violation in check(script.history())}

    async with asyncio.TaskGroup() as group:
        running = {kind: group.create_task(on(kind)) for kind in kinds}
    return {kind: task.result() for kind, task in running.items()}


@every_case
async def test_without_a_protection_the_violation_is_found(
    protection: str, kinds: Sequence[str], case: Case, law: str, servers: Servers, tmp_path: Path
) -> None:
    broken = await laws_broken(kinds, case, servers, tmp_path, without=protection)
    assert {kind for kind in kinds if law in broken[kind]} == set(kinds), broken


@every_case
async def test_with_all_protections_there_is_none(
    protection: str, kinds: Sequence[str], case: Case, law: str, servers: Servers, tmp_path: Path
) -> None:
    broken = await laws_broken(kinds, case, servers, tmp_path)
    assert broken == {kind: set() for kind in kinds}, f"{protection} is in place"
