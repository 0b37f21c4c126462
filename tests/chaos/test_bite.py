"""The checker bites: with one protection taken away, one small misfortune is found out.

Each case is a script, not a storm, so that it goes the same way on every machine. It is run twice:
as it is, without a violation, and without the protection, with the violation that this must cause.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from duet_rpc.ledger import Promise
from tests.chaos.history import check
from tests.chaos.script import Script, script_of
from tests.chaos.storm import PATIENT, Order

LEASE = 1.5

pytestmark = pytest.mark.timeout(240)


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
    ("fencing", stopped_past_its_lease, "all outcomes of a command are the same bytes"),
    ("fingerprint", other_params, "a result answers the params that were sent"),
    ("lease", longer_than_the_lease, "unknown only where a run was cut off"),
    ("transaction", killed_in_the_commit, "never twice"),
]


@pytest.mark.parametrize(("protection", "case", "law"), CASES)
async def test_without_a_protection_the_violation_is_found(
    protection: str, case: Case, law: str, tmp_path: Path
) -> None:
    async with script_of("sqlite", tmp_path, LEASE, without=protection) as script:
        await case(script)
        assert law in {violation.law for violation in check(script.history())}


@pytest.mark.parametrize(("protection", "case", "law"), CASES)
async def test_with_all_protections_there_is_none(
    protection: str, case: Case, law: str, tmp_path: Path
) -> None:
    async with script_of("sqlite", tmp_path, LEASE) as script:
        await case(script)
        assert check(script.history()) == [], f"{protection} is in place"
