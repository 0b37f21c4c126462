"""The ledger on an event loop: the same answers, and what cancellation may and may not do."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duet_rpc.errors import InProgress, KeyReused, StoreUnavailable
from duet_rpc.ledger import Ending, Ledger, Promise, Ran, Run, State, Store
from tests.ledger.commands import (
    AT_MOST_ONCE,
    RETRY_SAFE,
    TRANSACTIONAL,
    Handler,
    command,
    executing,
    never,
)
from tests.ledger.support import EVERY_PROMISE, Failing, MakeLedger, every_promise

memory = pytest.mark.parametrize("kind", ["memory"], indirect=True)
PATIENCE = 45.0

Work = Callable[[Run], Awaitable[Ran]]


class Paused:
    """A handler that says when it has begun and goes on when it is told to."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.runs = 0
        self.was_cancelled = False

    async def __call__(self, run: Run) -> Ran:
        self.runs += 1
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return Ran(b'"result":"slow"')


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


@every_promise
async def test_a_retry_gets_the_same_bytes(ledger: Ledger, promise: Promise) -> None:
    handler = Handler()
    first = await ledger.run_async(command(promise=promise), handler.on_loop())
    again = await ledger.run_async(command(promise=promise), handler.on_loop())
    assert first == again == b'"result":1'
    assert ledger.run(command(promise=promise), never) == first
    with pytest.raises(KeyReused):
        await ledger.run_async(command(promise=promise, fingerprint=b"g"), handler.on_loop())
    record = ledger.outcome("local", "bank.transfer", "k")
    assert record is not None and record.state is State.DONE


@every_promise
@pytest.mark.parametrize("ending", [Ending.FAILED, Ending.DECLARED])
async def test_endings_mean_the_same_as_in_threads(
    ledger: Ledger, promise: Promise, ending: Ending
) -> None:
    body = b'"error":{"code":1,"message":"no"}'
    assert await ledger.run_async(command(promise=promise), Handler(body, ending).on_loop()) == body
    again = await ledger.run_async(command(promise=promise), Handler(b"1").on_loop())
    is_stored = ending is Ending.DECLARED or promise is AT_MOST_ONCE
    assert again == (body if is_stored else b"1")


@every_promise
async def test_duplicates_join_from_the_loop_and_from_threads(
    make_ledger: MakeLedger, promise: Promise
) -> None:
    ledger = make_ledger(wait=PATIENCE)
    handler = Paused()
    asked = command(promise=promise)
    first = asyncio.create_task(ledger.run_async(asked, handler))
    await handler.begun.wait()
    others = [asyncio.create_task(ledger.run_async(asked, handler)) for _ in range(20)]
    threads = [asyncio.create_task(asyncio.to_thread(ledger.run, asked, never)) for _ in range(3)]
    await asyncio.sleep(0)
    handler.go_on.set()
    answers = await asyncio.gather(first, *others, *threads)
    assert set(answers) == {b'"result":"slow"'} and handler.runs == 1


@every_promise
async def test_many_commands_in_flight_at_once(ledger: Ledger, promise: Promise) -> None:
    async def work(run: Run) -> Ran:
        await asyncio.sleep(0)
        return Ran(run.command.key.encode())

    keys = [f"key {number}" for number in range(40)]
    answers = await asyncio.gather(*(ledger.run_async(command(key, promise), work) for key in keys))
    assert answers == [key.encode() for key in keys]


@pytest.mark.parametrize(
    "kind, promise",
    [each for each in EVERY_PROMISE if each[1] is not TRANSACTIONAL],
    indirect=["kind"],
)
async def test_a_command_that_has_begun_outlives_its_caller(
    ledger: Ledger, promise: Promise
) -> None:
    handler = Paused()
    caller = asyncio.create_task(ledger.run_async(command(promise=promise), handler))
    await handler.begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    waiting = asyncio.create_task(ledger.run_async(command(promise=promise), handler))
    handler.go_on.set()
    assert await waiting == b'"result":"slow"'
    assert handler.runs == 1 and not handler.was_cancelled


@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
async def test_a_transactional_command_is_rolled_back_with_its_caller(ledger: Ledger) -> None:
    handler = Paused()
    caller = asyncio.create_task(ledger.run_async(command(promise=TRANSACTIONAL), handler))
    await handler.begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert handler.was_cancelled
    assert ledger.outcome("local", "bank.transfer", "k") is None
    again = Handler().on_loop()
    assert await ledger.run_async(command(promise=TRANSACTIONAL), again) == b'"result":1'


@pytest.mark.parametrize(
    "kind, promise",
    [("sqlite", AT_MOST_ONCE), ("sqlite", RETRY_SAFE), ("sqlite", TRANSACTIONAL)],
    indirect=["kind"],
)
async def test_a_caller_that_leaves_before_the_start_leaves_nothing(
    ledger: Ledger, store: Store, promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def gated(real: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_do(*args: Any) -> Any:
            asked.set()
            assert answer.wait(PATIENCE)
            return real(*args)

        return wait_and_do

    monkeypatch.setattr(ledger._group, "_commit", gated(store.commit))
    monkeypatch.setattr(store, "begin", gated(store.begin))
    caller = asyncio.create_task(ledger.run_async(command(promise=promise), Paused()))
    await eventually(asked.is_set)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    answer.set()
    await eventually(lambda: not executing(ledger))
    assert store.look(command().identity) is None
    again = Handler().on_loop()
    assert await ledger.run_async(command(promise=promise), again) == b'"result":1'


@memory
async def test_a_handler_cancelled_from_within_is_cut_off(make_ledger: MakeLedger) -> None:
    ledger = make_ledger(lease=1000.0)

    async def work(run: Run) -> Ran:
        raise asyncio.CancelledError

    for promise, state in ((AT_MOST_ONCE, State.UNKNOWN), (RETRY_SAFE, None)):
        with pytest.raises(asyncio.CancelledError):
            await ledger.run_async(command(promise.value, promise), work)
        record = ledger.outcome("local", "bank.transfer", promise.value)
        assert (None if record is None else record.state) is state


@memory
async def test_an_execution_cancelled_before_its_first_step_is_settled(ledger: Ledger) -> None:
    caller = asyncio.create_task(ledger.run_async(command(), Paused()))
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait([caller])
    await eventually(lambda: not executing(ledger))
    assert await ledger.run_async(command(), Handler().on_loop()) == b'"result":1'


@memory
async def test_waiting_ends_with_in_progress(make_ledger: MakeLedger) -> None:
    ledger = make_ledger(wait=0.05)
    handler = Paused()
    first = asyncio.create_task(ledger.run_async(command(), handler))
    await handler.begun.wait()
    with pytest.raises(InProgress):
        await ledger.run_async(command(), handler)
    with pytest.raises(InProgress):
        await ledger.run_async(command(), handler, deadline=time.monotonic())
    handler.go_on.set()
    assert await first == b'"result":"slow"'


@memory
async def test_the_lease_is_kept_while_a_handler_blocks_the_loop(
    make_ledger: MakeLedger, store: Store
) -> None:
    ledger = make_ledger(lease=6.0)

    async def work(run: Run) -> Ran:
        first = store.look(run.command.identity)
        assert first is not None
        while True:
            threading.Event().wait(0.05)  # blocks on purpose
            found = store.look(run.command.identity)
            assert found is not None and found.state is State.RUNNING
            if found.lease_until > first.lease_until:
                return Ran(b"1")

    assert await ledger.run_async(command(), work) == b"1"


async def test_a_store_that_is_down_refuses_before_the_handler() -> None:
    store = Failing()
    ledger = Ledger(store)
    store.is_down = True
    with pytest.raises(StoreUnavailable):
        await ledger.run_async(command(), Paused())
    store.is_down = False
    assert await ledger.run_async(command(), Handler().on_loop()) == b'"result":1'
    ledger.close()


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_command_outlives_the_closing_of_its_ledger(ledger: Ledger, store: Store) -> None:
    handler = Paused()
    caller = asyncio.create_task(ledger.run_async(command(), handler))
    await handler.begun.wait()
    ledger.close()
    handler.go_on.set()
    assert await caller == b'"result":"slow"'
    record = store.look(command().identity)
    assert record is not None and record.outcome == b'"result":"slow"'


@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
def test_a_ledger_serves_one_loop_after_the_other(ledger: Ledger) -> None:
    for number in range(3):
        for promise in (AT_MOST_ONCE, TRANSACTIONAL):
            asked = command(f"{number} {promise.value}", promise)
            assert asyncio.run(ledger.run_async(asked, Handler().on_loop())) == b'"result":1'


@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
def test_a_loop_that_ends_in_the_middle_leaves_no_lock(ledger: Ledger) -> None:
    async def start_and_leave() -> None:
        handler = Paused()
        first = asyncio.create_task(ledger.run_async(command("one", TRANSACTIONAL), handler))
        await handler.begun.wait()
        # On SQLite it waits for the first one in a thread that the end of the loop does not end.
        second = asyncio.create_task(ledger.run_async(command("two", TRANSACTIONAL), handler))
        await asyncio.sleep(0.02)
        del first, second

    asyncio.run(start_and_leave())
    for key in ("one", "two"):
        assert ledger.run(command(key, TRANSACTIONAL), Handler()) == b'"result":1'


@pytest.mark.parametrize("kind", ["memory", "sqlite"], indirect=True)
async def test_only_a_store_that_waits_is_asked_on_another_thread(
    ledger: Ledger, store: Store
) -> None:
    asked: set[int] = set()
    commit = store.commit

    def seen(operations: Any) -> Any:
        asked.add(threading.get_ident())
        return commit(operations)

    ledger._group._commit = seen
    await ledger.run_async(command(promise=AT_MOST_ONCE), Handler().on_loop())
    assert (asked == {threading.get_ident()}) is not store.capabilities.waits
