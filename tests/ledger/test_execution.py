"""One execution: what is answered when the store fails, or another run has taken over."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from duet_rpc.errors import (
    InProgress,
    OutcomeUnknown,
    StoreUnavailable,
)
from duet_rpc.ledger import Ending, Ledger, MemoryStore, Promise, Ran, Run
from tests.ledger.commands import (
    AT_MOST_ONCE,
    RETRY_SAFE,
    Handler,
    command,
    never,
)
from tests.ledger.support import PATIENCE, Failing, MakeLedger, Stop, every_promise


@every_promise
@pytest.mark.parametrize("error", [Stop, ValueError])
def test_work_that_raises_counts_as_cut_off(
    make_ledger: MakeLedger, promise: Promise, error: type[BaseException]
) -> None:
    ledger = make_ledger(lease=1000.0)

    def work(run: Run) -> Ran:
        raise error

    with pytest.raises(error):
        ledger.run(command(promise=promise), work)
    if promise is AT_MOST_ONCE:
        with pytest.raises(OutcomeUnknown):
            ledger.run(command(promise=promise), never)
    else:
        assert ledger.run(command(promise=promise), Handler()) == b'"result":1'


def test_a_store_that_is_down_refuses_before_the_handler() -> None:
    store = Failing()
    ledger = Ledger(store)
    store.is_down = True
    with pytest.raises(StoreUnavailable):
        ledger.run(command(), never)
    store.is_down = False
    assert ledger.run(command(), Handler()) == b'"result":1'
    ledger.close()


def test_an_outcome_is_stored_when_the_store_is_back_before_the_lease_ends() -> None:
    store = Failing()
    ledger = Ledger(store, lease=1000.0)

    def work(run: Run) -> Ran:
        store.is_down = True
        back = threading.Timer(0.2, setattr, (store, "is_down", False))
        back.start()
        return Ran(b"1")

    assert ledger.run(command(), work) == b"1"
    assert ledger.run(command(), never) == b"1"
    ledger.close()


def test_a_finish_whose_answer_was_lost_is_not_taken_for_another_run() -> None:
    store = Failing()
    ledger = Ledger(store, lease=1000.0)

    def work(run: Run) -> Ran:
        store.loses_answers = True
        back = threading.Timer(0.2, setattr, (store, "loses_answers", False))
        back.start()
        return Ran(b"1")

    assert ledger.run(command(), work) == b"1"
    ledger.close()


def test_a_fenced_run_answers_what_the_store_says() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    one, two = Ledger(store, lease=30.0), Ledger(store, lease=30.0)

    def slow(run: Run) -> Ran:
        now[0] += 31.0
        assert two.run(command(promise=RETRY_SAFE), Handler(b"second")) == b"second"
        return Ran(b"first")

    assert one.run(command(promise=RETRY_SAFE), slow) == b"second"
    assert one.run(command(promise=RETRY_SAFE), never) == b"second"
    one.close()
    two.close()


def test_a_fenced_run_waits_for_its_successor() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    one, two = Ledger(store, lease=30.0, wait=PATIENCE), Ledger(store, lease=30.0)
    begun, release = threading.Event(), threading.Event()

    def second(run: Run) -> Ran:
        begun.set()
        assert release.wait(PATIENCE)
        return Ran(b"second")

    with ThreadPoolExecutor(1) as pool:

        def first(run: Run) -> Ran:
            now[0] += 31.0
            calls.append(pool.submit(two.run, command(promise=RETRY_SAFE), second))
            assert begun.wait(PATIENCE)
            threading.Timer(0.1, release.set).start()
            return Ran(b"first")

        calls: list[Future[bytes]] = []
        assert one.run(command(promise=RETRY_SAFE), first) == b"second"
        assert calls[0].result(PATIENCE) == b"second"
    one.close()
    two.close()


def test_a_fenced_run_whose_successor_left_nothing_may_be_asked_again() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    one, two = Ledger(store, lease=30.0), Ledger(store, lease=30.0)

    def slow(run: Run) -> Ran:
        now[0] += 31.0
        two.run(command(promise=RETRY_SAFE), Handler(b"failed", Ending.FAILED))
        return Ran(b"first")

    with pytest.raises(InProgress):
        one.run(command(promise=RETRY_SAFE), slow)
    assert one.run(command(promise=RETRY_SAFE), Handler()) == b'"result":1'
    one.close()
    two.close()


def test_a_record_forgotten_under_its_run_leaves_the_outcome_unknown() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    ledger = Ledger(store, lease=30.0)

    def slow(run: Run) -> Ran:
        now[0] += 31.0
        assert store.forget(run.command.identity)
        return Ran(b"first")

    with pytest.raises(OutcomeUnknown):
        ledger.run(command(), slow)
    ledger.close()
