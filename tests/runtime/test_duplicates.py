"""Duplicates of a command on an event loop: they wait for the first, and hold no thread.

One that no one waits for any more holds no slot either.
"""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from duet_rpc import Client, Server, Service, Transaction, testing
from duet_rpc.errors import DeadlineExceeded, InProgress, Overloaded, StoreUnavailable
from duet_rpc.hosts.workers import Lane, NoThread, Workers
from duet_rpc.ledger import Ledger, MemoryStore, Ran, Run, SqliteStore
from duet_rpc.ledger.fingerprint import fingerprint
from duet_rpc.ledger.states import Answer, Command, Finish, Promise
from duet_rpc.policy import AGENT
from tests.ledger.commands import executing
from tests.runtime.faces import framed
from tests.runtime.slots import cancel, request

pytestmark = pytest.mark.timeout(120)
PATIENCE = 60.0
SOCKET = f"/tmp/duet-dup-{os.getpid()}.sock"


class Slow:
    """A service with a command that waits for the test."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.runs = 0
        self.ended = 0
        self.service = app = Service()
        app.command(name="slow")(self._run)

        @app.query(inline=True)
        def ping() -> str:
            return "pong"

        @app.query(inline=True)
        def ended() -> int:
            return self.ended

    def _run(self) -> int:
        self.runs += 1
        self.begun.set()
        assert self.gate.wait(PATIENCE)
        self.ended += 1
        return self.runs

    def add(self, name: str, *, is_async: bool, **options: Any) -> None:
        """Add the same command as another kind of handler."""

        async def run() -> int:
            return await asyncio.to_thread(self._run)

        handler: Callable[[], Any] = run if is_async else self._run
        self.service.command(name=name, **options)(handler)

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
async def served(server: Server, clients: int, face: str = "unix") -> AsyncIterator[list[Client]]:
    """Serve on a socket, and connect to it."""
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    if face == "unix":
        serves = server.serve_unix(SOCKET, on_start=started.set_result, drain=0.2)
    else:
        serves = server.serve_tcp("127.0.0.1", 0, on_start=started.set_result, drain=0.2)
    serving = asyncio.create_task(serves)
    async with AsyncExitStack() as stack:
        target = await started
        yield [await stack.enter_async_context(Client.connect(target)) for _ in range(clients)]
    serving.cancel()
    await asyncio.wait([serving])
    server.close()


def waiting(ledger: Ledger, method: str = "slow") -> int:
    """How many wait for the execution of a command."""
    executions = ledger._executions._executions.items()
    return sum(len(each._waiting) for id, each in executions if id.method == method)


@asynccontextmanager
async def run_elsewhere(
    folder: Path, method: str, promise: Promise, free: threading.Event, uid: bool = True
) -> AsyncIterator[asyncio.Task[bytes]]:
    """Run a command as another process with the same store does, until it is set free."""
    elsewhere = Ledger(SqliteStore(folder / "commands.db"))
    held = threading.Event()

    def work(run: Run) -> Ran:
        held.set()
        assert free.wait(PATIENCE)
        return Ran(b'"result":42')

    principal = f"uid:{os.getuid()}" if uid else "local"
    print_of_params = fingerprint(method, b'{"idempotency_key":"k"}')
    there = Command(principal, method, "k", print_of_params, promise)
    running = asyncio.create_task(asyncio.to_thread(elsewhere.run, there, work))
    assert await asyncio.to_thread(held.wait, PATIENCE)
    try:
        yield running
    finally:
        free.set()
        await asyncio.wait([running])
        elsewhere.close()


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
    free = threading.Event()
    ledger = Ledger(SqliteStore(tmp_path / "commands.db"), wait=PATIENCE)
    async with (
        run_elsewhere(tmp_path, "slow", Promise.AT_MOST_ONCE, free) as running,
        served(Server(slow.service, policy=AGENT, store=ledger), 2) as clients,
    ):
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


KINDS = pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
PROMISES = pytest.mark.parametrize("promise", [Promise.AT_MOST_ONCE, Promise.RETRY_SAFE])
SLOTS = AGENT.max_in_flight


@asynccontextmanager
async def faced(face: str, service: Service, ledger: Ledger) -> AsyncIterator[list[Client]]:
    """Serve on a face that has several slots; give two clients, in memory the same one twice."""
    if face == "memory":
        async with testing.connect(service, policy=AGENT, store=ledger) as client:
            yield [client, client]
    else:
        async with served(Server(service, policy=AGENT, store=ledger), 2, face) as clients:
            yield clients


def said(message: Any) -> bytes:
    return framed(json.dumps(message).encode())


def duplicates(client: Client, method: str, count: int) -> list["asyncio.Future[Any]"]:
    return [
        asyncio.ensure_future(client.command(method, {}, key="k", timeout=PATIENCE))
        for _ in range(count)
    ]


@KINDS
@PROMISES
@pytest.mark.parametrize("face", ["memory", "unix", "tcp"])
async def test_cancelled_duplicates_give_their_slots_back_at_once(
    slow: Slow, face: str, promise: Promise, is_async: bool
) -> None:
    slow.add("other", is_async=is_async, retry_safe=promise is Promise.RETRY_SAFE)
    ledger = Ledger(MemoryStore(), wait=10 * PATIENCE)
    async with faced(face, slow.service, ledger) as (one, two):
        first = asyncio.ensure_future(one.command("other", {}, key="k", timeout=PATIENCE))
        assert await asyncio.to_thread(slow.begun.wait, PATIENCE)
        count = SLOTS - 1 if one is two else SLOTS
        for _ in range(2):
            rest = duplicates(two, "other", count)
            await eventually(lambda: waiting(ledger, "other") == count, "all duplicates wait")
            for call in rest:
                call.cancel()
            assert await two.query("ping", timeout=PATIENCE) == "pong"
            await eventually(lambda: waiting(ledger, "other") == 0, "none waits any more")
        slow.gate.set()
        assert await first == 1
    assert slow.runs == 1


@KINDS
@PROMISES
@pytest.mark.parametrize("face", ["memory", "unix"])
async def test_cancelled_duplicates_of_a_run_elsewhere_give_their_slots_back_at_once(
    slow: Slow, tmp_path: Path, face: str, promise: Promise, is_async: bool
) -> None:
    slow.add("other", is_async=is_async, retry_safe=promise is Promise.RETRY_SAFE)
    ledger = Ledger(SqliteStore(tmp_path / "commands.db"), wait=10 * PATIENCE)
    free = threading.Event()
    async with (
        run_elsewhere(tmp_path, "other", promise, free, uid=face == "unix") as running,
        faced(face, slow.service, ledger) as (one, _),
    ):
        for _ in range(2):
            rest = duplicates(one, "other", SLOTS)
            # One of them looks after the run elsewhere, and the others wait for that one.
            await eventually(lambda: waiting(ledger, "other") == SLOTS - 1, "all duplicates wait")
            for call in rest:
                call.cancel()
            assert await one.query("ping", timeout=PATIENCE) == "pong"
            await eventually(lambda: not executing(ledger), "none waits any more")
        free.set()
        assert await running == b'"result":42'
        assert await one.command("other", {}, key="k", timeout=PATIENCE) == 42
    assert slow.runs == 0


@KINDS
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_duplicates_whose_connection_closes_stop_waiting(
    slow: Slow, tmp_path: Path, is_elsewhere: bool, is_async: bool
) -> None:
    slow.add("other", is_async=is_async)
    ledger = Ledger(SqliteStore(tmp_path / "commands.db"), wait=10 * PATIENCE)
    async with AsyncExitStack() as stack:
        if is_elsewhere:
            elsewhere = run_elsewhere(tmp_path, "other", Promise.AT_MOST_ONCE, slow.gate)
            await stack.enter_async_context(elsewhere)
        one, _ = await stack.enter_async_context(faced("unix", slow.service, ledger))
        if not is_elsewhere:
            first = asyncio.ensure_future(one.command("other", {}, key="k", timeout=PATIENCE))
            assert await asyncio.to_thread(slow.begun.wait, PATIENCE)
        with socket.socket(socket.AF_UNIX) as two:
            two.connect(SOCKET)
            ids = range(1, SLOTS + 1)
            two.sendall(b"".join(said(request(id, "other", idempotency_key="k")) for id in ids))
            count = SLOTS - is_elsewhere
            await eventually(lambda: waiting(ledger, "other") == count, "all duplicates wait")
            two.sendall(said(cancel(1)))  # whose answer shows the server that no one reads
        await eventually(lambda: waiting(ledger, "other") == 0, "none waits any more")
        await eventually(
            lambda: len(executing(ledger)) == 1 - is_elsewhere, "nor looks after the run"
        )
        slow.gate.set()
        if not is_elsewhere:
            assert await first == 1
    assert slow.runs == 1 - is_elsewhere


@KINDS
async def test_duplicates_whose_deadline_passes_give_their_slots_back(
    slow: Slow, is_async: bool
) -> None:
    slow.add("other", is_async=is_async, timeout=0.5)
    ledger = Ledger(MemoryStore(), wait=10 * PATIENCE)
    async with faced("unix", slow.service, ledger) as (one, two):
        first = asyncio.ensure_future(one.command("other", {}, key="k", timeout=PATIENCE))
        assert await asyncio.to_thread(slow.begun.wait, PATIENCE)
        for call in duplicates(two, "other", SLOTS):
            with pytest.raises((DeadlineExceeded, InProgress)):
                await call
        assert await two.query("ping", timeout=PATIENCE) == "pong"
        with pytest.raises(DeadlineExceeded):
            await first
        slow.gate.set()
        assert await one.command("other", {}, key="k", timeout=PATIENCE) == 1
    assert slow.runs == 1


@KINDS
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_cancelled_command_that_has_begun_keeps_its_slot_until_it_has_ended(
    slow: Slow, key: str | None, is_async: bool
) -> None:
    slow.add("other", is_async=is_async)
    policy = replace(AGENT, max_in_flight=2)
    ledger = Ledger(MemoryStore())
    async with testing.connect(slow.service, policy=policy, store=ledger) as client:
        calls = []
        for number in (1, 2):
            params = {} if key is None else {"idempotency_key": f"{key}{number}"}
            call = client.call("other", params, timeout=PATIENCE)
            calls.append(asyncio.ensure_future(call))
        await eventually(lambda: slow.runs == 2, "both have begun")
        for each in calls:
            each.cancel()
        ended = asyncio.ensure_future(client.query("ended", timeout=PATIENCE))
        # Answered without a slot, and after what came before it was read.
        await client.call("$/cancelRequest", {"id": 999}, timeout=PATIENCE)
        assert not ended.done()
        slow.gate.set()
        assert await ended >= 1
        await eventually(lambda: slow.ended == 2, "the other ends too")


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
    monkeypatch.setattr("duet_rpc.hosts.runner._Waiting.AGAIN", 0.05)
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
