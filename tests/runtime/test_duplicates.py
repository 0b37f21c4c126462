"""Duplicates of a `def` command on an event loop: they wait for the first, and hold no thread."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from duet_rpc import Client, Server, Service, Transaction, testing
from duet_rpc.errors import InProgress, Overloaded, StoreUnavailable
from duet_rpc.ledger import Ledger, MemoryStore, Ran, Run, SqliteStore
from duet_rpc.ledger.fingerprint import fingerprint
from duet_rpc.ledger.machine import Answer, Command, Finish, Promise
from duet_rpc.policy import AGENT
from duet_rpc.workers import Lane, NoThread, Workers

pytestmark = pytest.mark.timeout(120)
PATIENCE = 60.0


class Slow:
    """A service with a command that waits for the test."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.runs = 0
        self.service = app = Service()

        @app.command
        def slow() -> int:
            self.runs += 1
            self.begun.set()
            assert self.gate.wait(PATIENCE)
            return self.runs

        @app.query
        def ping() -> str:
            return "pong"

    def with_transaction(self) -> Service:
        @self.service.command
        def move(db: Transaction) -> int:
            self.runs += 1
            self.begun.set()
            assert self.gate.wait(PATIENCE)
            return self.runs

        return self.service


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.gate.set()


@pytest.fixture(autouse=True)
def threads_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workers, "IDLE", 0.05)


def handler_threads() -> int:
    return sum(each.name == "duet-rpc handler" for each in threading.enumerate())


async def eventually(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, what
        await asyncio.sleep(0.01)


@asynccontextmanager
async def served(server: Server, clients: int) -> AsyncIterator[list[Client]]:
    """Serve on a unix socket, and connect to it."""
    path = f"/tmp/duet-dup-{os.getpid()}.sock"
    started = asyncio.Event()
    serving = asyncio.create_task(
        server.serve_unix(path, on_start=lambda address: started.set(), drain=0.2)
    )
    async with AsyncExitStack() as stack:
        await started.wait()
        yield [
            await stack.enter_async_context(Client.connect(f"unix:{path}")) for _ in range(clients)
        ]
    serving.cancel()
    await asyncio.wait([serving])
    server.close()


def waiting(ledger: Ledger, method: str = "slow") -> int:
    """How many wait for the flight of a command."""
    flights = [each for id, each in ledger._flights._flights.items() if id.method == method]
    return sum(len(each._waiting) for each in flights)


async def test_288_duplicates_of_18_peers_hold_no_thread(slow: Slow) -> None:
    ledger = Ledger(MemoryStore(), wait=PATIENCE)
    async with served(Server(slow.service, policy=AGENT, store=ledger), 19) as clients:
        other = clients.pop()
        calls = [
            asyncio.ensure_future(client.command("slow", {}, key="k", timeout=PATIENCE))
            for client in clients
            for _ in range(16)
        ]
        await eventually(lambda: waiting(ledger) == 287, "all duplicates wait")
        await eventually(lambda: handler_threads() == 1, "only the handler has a thread")
        assert await other.query("ping", timeout=PATIENCE) == "pong"
        slow.gate.set()
        assert set(await asyncio.gather(*calls)) == {1}
    assert slow.runs == 1


async def test_waiting_for_another_process_holds_no_thread(slow: Slow, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "commands.db")
    elsewhere = Ledger(SqliteStore(tmp_path / "commands.db"))
    held, free = threading.Event(), threading.Event()

    def work(run: Run) -> Ran:
        held.set()
        assert free.wait(PATIENCE)
        return Ran(b'"result":42')

    principal = f"uid:{os.getuid()}"
    there = Command(
        principal,
        "slow",
        "k",
        fingerprint("slow", b'{"idempotency_key":"k"}'),
        Promise.AT_MOST_ONCE,
    )
    running = asyncio.create_task(asyncio.to_thread(elsewhere.run, there, work))
    assert await asyncio.to_thread(held.wait, PATIENCE)
    ledger = Ledger(store, wait=PATIENCE)
    async with served(Server(slow.service, policy=AGENT, store=ledger), 2) as clients:
        calls = [
            asyncio.ensure_future(client.command("slow", {}, key="k", timeout=PATIENCE))
            for client in clients
            for _ in range(16)
        ]
        await eventually(lambda: waiting(ledger) == 31, "all duplicates wait")
        # The one that looks after the run elsewhere needs a thread for that, now and then.
        await eventually(lambda: handler_threads() <= 1, "duplicates have no threads")
        free.set()
        assert set(await asyncio.gather(*calls)) == {42}
        assert await running == b'"result":42'
    assert slow.runs == 0
    elsewhere.close()


async def test_a_duplicate_that_has_waited_enough_is_told_so(slow: Slow) -> None:
    ledger = Ledger(MemoryStore(), wait=0.1)
    async with testing.connect(slow.service, policy=AGENT, store=ledger) as client:
        first = asyncio.ensure_future(client.command("slow", {}, key="k"))
        await asyncio.to_thread(slow.begun.wait, PATIENCE)
        with pytest.raises(InProgress):
            await client.command("slow", {}, key="k")
        slow.gate.set()
        assert await first == 1
    assert slow.runs == 1


async def test_a_cancelled_duplicate_of_a_transaction_stops_waiting(
    slow: Slow, tmp_path: Path
) -> None:
    ledger = Ledger(SqliteStore(tmp_path / "commands.db"), wait=PATIENCE)
    async with testing.connect(
        slow.with_transaction(), policy=AGENT, store=ledger, timeout=PATIENCE
    ) as client:
        first = asyncio.ensure_future(client.command("move", {}, key="k"))
        await asyncio.to_thread(slow.begun.wait, PATIENCE)
        # More than there are slots: each has to give its own back.
        for _ in range(3):
            rest = [asyncio.ensure_future(client.command("move", {}, key="k")) for _ in range(15)]
            await eventually(lambda: waiting(ledger, "move") == 15, "all duplicates wait")
            for call in rest:
                call.cancel()
            await asyncio.wait(rest)
            await eventually(lambda: waiting(ledger, "move") == 0, "none waits any more")
        assert await client.query("ping") == "pong"
        slow.gate.set()
        assert await first == 1
    assert slow.runs == 1


async def test_a_duplicate_that_finds_no_thread_to_go_on_is_refused(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(MemoryStore(), wait=PATIENCE)

    def none_left(*_: object) -> None:
        raise NoThread("none left")

    async with testing.connect(slow.service, policy=AGENT, store=ledger) as client:
        first = asyncio.ensure_future(client.command("slow", {}, key="k"))
        await asyncio.to_thread(slow.begun.wait, PATIENCE)
        second = asyncio.ensure_future(client.command("slow", {}, key="k"))
        await eventually(lambda: waiting(ledger) == 1, "the duplicate waits")
        monkeypatch.setattr(Lane, "run", none_left)
        slow.gate.set()
        assert await first == 1
        with pytest.raises(Overloaded):
            await second
        monkeypatch.undo()
        assert await client.command("slow", {}, key="k") == 1


class Reluctant(MemoryStore):
    """A store that takes no outcome at first."""

    refuses = True

    def commit(self, operations: object) -> list[Answer | Exception]:
        assert isinstance(operations, list)
        if self.refuses and any(isinstance(each, Finish) for each in operations):
            raise StoreUnavailable()
        return super().commit(operations)


async def test_a_command_that_has_run_asks_for_a_thread_until_it_has_one(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Reluctant()
    monkeypatch.setattr("duet_rpc.loop._Waiting.AGAIN", 0.05)
    refused = threading.Event()

    def none_left(*_: object) -> None:
        refused.set()
        raise NoThread("none left")

    async with testing.connect(slow.service, policy=AGENT, store=Ledger(store)) as client:
        slow.gate.set()
        call = asyncio.ensure_future(client.command("slow", {}, key="k"))
        await asyncio.to_thread(slow.begun.wait, PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr(Lane, "run", none_left)
            assert await asyncio.to_thread(refused.wait, PATIENCE)
        store.refuses = False
        assert await call == 1
    assert slow.runs == 1
