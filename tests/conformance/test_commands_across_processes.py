"""Commands where processes crash: real servers on each store, killed and stopped.

Every case ends with the checker of the chaos tests, which knows all the laws at once.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from duet_rpc.ledger import Promise
from tests.chaos.cluster import Cluster
from tests.chaos.history import RESULT, UNAVAILABLE, UNKNOWN, check
from tests.chaos.script import Script, script_of
from tests.chaos.storm import PATIENT, Caller, Order
from tests.ledger.conftest import SHARED, TRANSACTIONAL
from tests.ledger.servers import Postgres, Valkey

LEASE = 1.5
FOREVER = 120.0
ONCE, SAFE, MOVE = Promise.AT_MOST_ONCE, Promise.RETRY_SAFE, Promise.TRANSACTIONAL

pytestmark = pytest.mark.timeout(240)

every_store = pytest.mark.parametrize("kind", SHARED, indirect=True)
PLAIN = [
    (kind, method, promise)
    for kind in SHARED
    for method, promise in (("bank.once", ONCE), ("bank.safe_async", SAFE))
]
MOVES = [(kind, method, MOVE) for kind in TRANSACTIONAL for method in ("bank.move",)]
every_promise = pytest.mark.parametrize(
    ("kind", "method", "promise"), PLAIN + MOVES, indirect=["kind"]
)


@pytest.fixture
def server_of_store(
    kind: str, url: str, request: pytest.FixtureRequest
) -> Postgres | Valkey | None:
    """The database server behind the store; `url` has emptied it."""
    if kind == "sqlite":
        return None
    server: Postgres | Valkey = request.getfixturevalue(f"{kind}_server")
    return server


@pytest.fixture
async def script(
    kind: str, server_of_store: Postgres | Valkey | None, tmp_path: Path
) -> AsyncIterator[Script]:
    async with script_of(kind, tmp_path, LEASE, store=server_of_store) as made:
        yield made
    if server_of_store is not None and server_of_store.process is None:
        server_of_store.start()


def sound(script: Script) -> bool:
    violations = check(script.history())
    assert not violations, violations
    return True


@pytest.mark.clause("commands-25")
@every_promise
async def test_duplicates_over_four_processes_are_one_run(
    kind: str,
    server_of_store: Postgres | Valkey | None,
    method: str,
    promise: Promise,
    tmp_path: Path,
) -> None:
    cluster = Cluster(kind, tmp_path, lease=30.0, servers=4, store=server_of_store)
    callers = [Caller(server.name, server) for server in cluster.servers]
    order = Order(method, "k", "v", promise, after=0.2)
    try:
        await cluster.start()
        sent = [callers[number % 4].command(order, patience=90.0) for number in range(50)]
        calls = await asyncio.gather(*sent)
        ends = {(end.how, end.body) for call in calls if (end := call.end)}
        assert len(ends) == 1 and ends.pop()[0] == RESULT
        assert len(cluster.effects()) == 1
        if promise is not MOVE:
            assert len(cluster.runs()) == 1
    finally:
        for caller in callers:
            await caller.drop()
        cluster.close()


@pytest.mark.clause("commands-9", "commands-12")
@every_promise
@pytest.mark.parametrize("place", ["before", "after"])
async def test_kill_9_before_and_after_the_effect(
    script: Script, method: str, promise: Promise, place: str
) -> None:
    # Held where it is to die; the same command on the other server is not.
    before, after = (-FOREVER, 0.0) if place == "before" else (0.0, -FOREVER)
    order = Order(method, "k", "v", promise, before, after)
    cut = asyncio.create_task(script.first.command(order))
    reached = "inserted" if promise is MOVE else "effect"
    await script.noted("start" if place == "before" else reached)
    await script.cluster.kill(script.first.server, 0.0)
    await cut
    again = await script.second.command(order, retry=PATIENT, is_final=True)
    assert again.end is not None
    if promise is ONCE:
        assert again.end.code == UNKNOWN
    else:
        assert again.end.how == RESULT
    once_more = await script.first.command(order, retry=PATIENT, is_final=True)
    assert once_more.end is not None and once_more.end.body == again.end.body
    happened = int(place == "after")
    expected = {ONCE: happened, SAFE: happened + 1, MOVE: 1}
    assert len(script.cluster.effects()) == expected[promise]
    assert sound(script)


@pytest.mark.clause("commands-24")
@every_store
async def test_a_retry_safe_run_that_slept_past_its_lease_is_fenced(script: Script) -> None:
    order = Order("bank.safe", "k", "v", SAFE, after=-2 * LEASE)
    asleep = asyncio.create_task(script.first.command(order, patience=90.0))
    await script.noted("effect")
    async with script.stopped():
        other = await script.second.command(order, retry=PATIENT, is_final=True)
    late = await asleep
    assert late.end is not None and other.end is not None and late.end.body == other.end.body
    assert len(script.cluster.effects()) == 2, "declared: it ran again"
    assert sound(script)


@pytest.mark.clause("commands-22")
@every_store
async def test_a_run_at_most_once_that_slept_past_its_lease_heals_what_was_unknown(
    script: Script,
) -> None:
    order = Order("bank.once", "k", "v", ONCE, after=-2 * LEASE)
    asleep = asyncio.create_task(script.first.command(order, patience=90.0))
    await script.noted("effect")
    async with script.stopped():
        other = await script.second.command(order, retry=PATIENT, is_final=True)
        assert other.end is not None and other.end.code == UNKNOWN
        client = await script.second.connected()
        assert client is not None
        assert (await client.outcome("bank.once", "k")).state == "unknown"
    late = await asleep
    healed = await script.second.command(order, retry=PATIENT, is_final=True)
    assert late.end is not None and late.end.how == RESULT
    assert healed.end is not None and healed.end.body == late.end.body
    assert len(script.cluster.effects()) == 1
    assert sound(script)


@pytest.mark.clause("commands-23")
@every_store
async def test_a_long_command_keeps_its_lease(script: Script) -> None:
    order = Order("bank.once_async", "k", "v", ONCE, after=2 * LEASE)
    calls = await asyncio.gather(
        script.first.command(order, patience=90.0), script.second.command(order, patience=90.0)
    )
    ends = {call.end.body for call in calls if call.end is not None}
    assert len(ends) == 1 and len(script.cluster.effects()) == 1
    assert sound(script)


@pytest.mark.clause("commands-20")
@every_store
async def test_a_caller_that_goes_away_does_not_end_what_has_begun(script: Script) -> None:
    order = Order("bank.once_async", "k", "v", ONCE, after=0.5)
    lost = asyncio.create_task(script.first.command(order))
    await script.noted("effect")
    await script.first.drop()
    await lost
    again = await script.second.command(order, retry=PATIENT, is_final=True)
    assert again.end is not None and again.end.how == RESULT
    assert len(script.cluster.effects()) == 1 and sound(script)


# Store faults, through a server that stays.


async def refused(script: Script, *methods: str) -> None:
    """Send new commands, and see them refused without having run."""
    promises = {"bank.once": ONCE, "bank.safe_async": SAFE, "bank.move": MOVE}
    orders = [Order(method, "refused", "v", promises[method]) for method in methods]
    calls = await asyncio.gather(*(script.first.command(order, patience=90.0) for order in orders))
    assert [call.end.code for call in calls if call.end] == [UNAVAILABLE] * len(orders)
    assert script.cluster.runs() == []


async def recovered(script: Script, *methods: str) -> None:
    """Send the same commands again, and see them run."""
    promises = {"bank.once": ONCE, "bank.safe_async": SAFE, "bank.move": MOVE}
    for method in methods:
        order = Order(method, "refused", "v", promises[method])
        call = await script.first.command(order, retry=PATIENT, is_final=True)
        assert call.end is not None and call.end.how == RESULT, call.end
    assert len(script.cluster.effects()) == len(methods)
    assert sound(script)


def methods_of(kind: str) -> tuple[str, ...]:
    plain = ("bank.once", "bank.safe_async")
    return plain if kind == "valkey" else (*plain, "bank.move")


@pytest.mark.clause("stores-3")
@pytest.mark.parametrize("kind", ["postgres", "valkey"], indirect=True)
@pytest.mark.parametrize("end", ["crash", "shut_down"])
async def test_a_database_that_goes_down_and_comes_back(
    script: Script, kind: str, server_of_store: Postgres | Valkey, end: str
) -> None:
    process = script.first.server.process
    await asyncio.to_thread(getattr(server_of_store, end))
    await refused(script, *methods_of(kind))
    await asyncio.to_thread(server_of_store.start)
    await recovered(script, *methods_of(kind))
    assert script.first.server.process is process


@pytest.mark.clause("stores-3")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_file_that_somebody_locks(script: Script, kind: str, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "commands.db", isolation_level=None, timeout=60)
    try:
        other.execute("BEGIN EXCLUSIVE")
        await refused(script, *methods_of(kind))
        other.execute("ROLLBACK")
        await recovered(script, *methods_of(kind))
    finally:
        other.close()
