"""The seam between dispatcher and ledger: when it is opened, and what it makes of each ending."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from duet_rpc import Context, RpcError, Service, testing
from duet_rpc.errors import DeadlineExceeded, InProgress, InternalError
from duet_rpc.ledger import Ledger, MemoryStore, Promise, State
from duet_rpc.ledger.commands import Commands
from duet_rpc.policy import DEVELOPMENT, PRODUCTION
from tests.helpers import Line, refusal, request, result


class Opening:
    """Counts how often the ledger is opened."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.opened = 0
        self.announced = 0
        self.commands = Commands(self._open)
        self.commands.on_open = self._announce

    def _open(self) -> Ledger:
        self.opened += 1
        time.sleep(0.01)  # for another thread to come in between
        return Ledger(self.store)

    def _announce(self) -> None:
        self.announced += 1


def counter() -> Service:
    service = Service()
    runs: list[int] = []

    @service.command
    def count() -> int:
        runs.append(1)
        return len(runs)

    @service.query
    def ask() -> int:
        return len(runs)

    return service


def test_the_ledger_is_opened_by_the_first_command_with_a_key() -> None:
    opening = Opening()
    line = Line(DEVELOPMENT, counter(), ledger=opening.commands)
    line.send(request("ask"), request("count"), request("nothing"))
    assert opening.opened == 0, "none had a key"
    line.send(
        request("count", {"idempotency_key": "a"}), request("count", {"idempotency_key": "b"})
    )
    assert (opening.opened, opening.announced) == (1, 1)
    opening.commands.close()
    opening.commands.close()


def test_what_was_never_opened_is_closed_without_being_opened() -> None:
    opening = Opening()
    opening.commands.close()
    assert opening.opened == 0


def test_many_threads_open_one_ledger() -> None:
    opening = Opening()
    found: list[Ledger] = []
    threads = [
        threading.Thread(target=lambda: found.append(opening.commands.ledger)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opening.opened == 1 and len({id(ledger) for ledger in found}) == 1
    opening.commands.close()


class Gone(RpcError):
    code, message = 410, "Gone"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("retry_safe", [False, True])
@pytest.mark.parametrize(
    ("raised", "code", "kept_if_safe"),
    [
        (None, None, True),
        (Gone(), 410, True),
        (ValueError("unforeseen"), -32603, False),
        (SystemExit(3), -32603, False),
        (KeyboardInterrupt(), -32603, False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_each_ending_is_kept_or_forgotten(
    is_async: bool,
    retry_safe: bool,
    raised: BaseException | None,
    code: int | None,
    kept_if_safe: bool,
) -> None:
    store = MemoryStore()
    service = Service()

    def act() -> str:
        if raised is not None:
            raise raised
        return "done"

    if is_async:

        @service.command(name="act", retry_safe=retry_safe)
        async def act_on_loop() -> str:
            return act()
    else:
        service.command(retry_safe=retry_safe)(act)

    async with testing.connect(service, policy=DEVELOPMENT, store=store) as client:
        try:
            assert await client.command("act", key="k") == "done"
            assert code is None
        except RpcError as error:
            assert error.code == code
    is_kept = kept_if_safe or not retry_safe
    assert [record.state for record in store.records()] == ([State.DONE] if is_kept else [])


def test_the_record_says_what_was_promised() -> None:
    opening = Opening()
    service = Service()

    @service.command(retry_safe=True)
    def safe() -> None: ...

    @service.command
    def once() -> None: ...

    line = Line(PRODUCTION, service, ledger=opening.commands)
    for method in ("safe", "once"):
        line.send(request(method, {"idempotency_key": "k"}))
    promises = {record.identity.method: record.promise for record in opening.store.records()}
    assert promises == {"safe": Promise.RETRY_SAFE, "once": Promise.AT_MOST_ONCE}
    opening.commands.close()


def test_outcomes_are_told_by_state() -> None:
    opening = Opening()
    line = Line(PRODUCTION, counter(), ledger=opening.commands)
    told = opening.commands.outcome
    assert told("local", "count", "k") == {"state": "none"}
    line.send(request("count", {"idempotency_key": "k"}))
    assert json.loads(bytes(told("local", "count", "k"))) == {"state": "done", "result": 1}
    assert told("somebody else", "count", "k") == {"state": "none"}
    opening.commands.close()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_duplicate_waits_no_longer_than_its_own_deadline(is_async: bool) -> None:
    """The thread or task of a duplicate is free again when its caller has been answered."""
    service = Service()
    deadlines: list[float | None] = []
    gate = threading.Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def act(ctx: Context) -> None:
        deadlines.append(ctx.deadline)
        loop.call_soon_threadsafe(begun.set)

    if is_async:

        @service.command(name="act", timeout=0.3)
        async def act_on_loop(ctx: Context) -> None:
            act(ctx)
            await asyncio.to_thread(gate.wait, 60)
    else:

        @service.command(name="act", timeout=0.3)
        def act_in_thread(ctx: Context) -> None:
            act(ctx)
            gate.wait(60)

    ledger = Ledger(MemoryStore(), wait=3600.0)
    async with testing.connect(service, policy=DEVELOPMENT, store=ledger) as client:
        try:
            first = asyncio.ensure_future(client.command("act", key="k"))
            await asyncio.wait_for(begun.wait(), 60)
            for call in (first, client.command("act", key="k")):
                with pytest.raises((DeadlineExceeded, InProgress)):
                    await call
        finally:
            gate.set()
    assert len(deadlines) == 1 and deadlines[0] is not None


def test_a_refusal_of_the_ledger_is_its_own_answer_and_no_failure() -> None:
    class Down(MemoryStore):
        def commit(self, operations: Any) -> Any:
            from duet_rpc.errors import StoreUnavailable

            raise StoreUnavailable()

    commands = Commands(lambda: Ledger(Down(), lease=0.5))
    line = Line(PRODUCTION, counter(), ledger=commands)
    [answer] = line.send(request("count", {"idempotency_key": "k"}))
    assert refusal(answer)[:3] == (-32015, "Store unavailable", "store-unavailable")
    assert line.log.failures == [], "nothing unforeseen has happened"
    assert result(line.send(request("ask"))[0]) == 0
    commands.close()


async def test_a_cancellation_that_nobody_sent_is_a_failure_like_any_other() -> None:
    service = Service()
    runs: list[int] = []

    @service.command
    async def stumble() -> None:
        runs.append(1)
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    async with testing.connect(service, store=MemoryStore()) as client:
        answers = []
        for _ in range(2):
            with pytest.raises(InternalError) as caught:
                await client.command("stumble", key="k")
            answers.append(caught.value.data)
        assert answers[0] == answers[1], "one key, one answer"
        assert len(runs) == 1
