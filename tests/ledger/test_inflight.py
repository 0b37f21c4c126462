"""Single flight: duplicates join what runs here, and wait for what runs elsewhere."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from duet_rpc.errors import (
    InProgress,
    KeyReused,
    RpcError,
    StoreUnavailable,
)
from duet_rpc.ledger import Ledger, Promise, Ran, Run, State, Store
from duet_rpc.ledger.states import (
    Answer,
    Claim,
    Claimed,
    Identity,
    Kept,
    Operation,
    Record,
    Renew,
)
from tests.ledger.commands import (
    RETRY_SAFE,
    Handler,
    command,
    executing,
    never,
)
from tests.ledger.support import PATIENCE, Failing, MakeLedger, Stop, every_promise, every_store


@every_promise
def test_fifty_duplicates_are_one_run(make_ledger: MakeLedger, promise: Promise) -> None:
    ledger = make_ledger(wait=PATIENCE)
    begun, release = threading.Event(), threading.Event()
    handler = Handler()

    def work(run: Run) -> Ran:
        begun.set()
        assert release.wait(PATIENCE)
        return handler(run)

    with ThreadPoolExecutor(50) as pool:
        calls = [pool.submit(ledger.run, command(promise=promise), work) for _ in range(50)]
        assert begun.wait(PATIENCE)
        with pytest.raises(KeyReused):
            ledger.run(command(promise=promise, fingerprint=b"other"), never)
        release.set()
        assert {call.result(PATIENCE) for call in calls} == {b'"result":1'}
    assert len(handler.runs) == 1
    assert not executing(ledger)


@every_promise
def test_duplicates_of_another_ledger_wait_for_the_outcome(
    make_ledger: MakeLedger, promise: Promise, kind: str
) -> None:
    one, two = make_ledger(wait=PATIENCE), make_ledger(wait=PATIENCE)
    begun, release = threading.Event(), threading.Event()

    def work(run: Run) -> Ran:
        begun.set()
        assert release.wait(PATIENCE)
        return Ran(b'"result":"of the first"')

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.run, command(promise=promise), work)
        assert begun.wait(PATIENCE)
        second = pool.submit(two.run, command(promise=promise), never)
        release.set()
        assert first.result(PATIENCE) == second.result(PATIENCE) == b'"result":"of the first"'


@every_promise
def test_waiting_ends_with_in_progress(make_ledger: MakeLedger, promise: Promise) -> None:
    ledger = make_ledger(wait=0.05)
    begun, release = threading.Event(), threading.Event()

    def work(run: Run) -> Ran:
        begun.set()
        assert release.wait(PATIENCE)
        return Ran(b"1")

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ledger.run, command(promise=promise), work)
        assert begun.wait(PATIENCE)
        with pytest.raises(InProgress) as refusal:
            ledger.run(command(promise=promise), never)
        assert refusal.value.data["retry_after_ms"] == 1000, "alive: it may end at any time"
        with pytest.raises(InProgress):
            ledger.run(command(promise=promise), never, deadline=0.0)
        release.set()
        assert first.result(PATIENCE) == b"1"


@every_store
def test_waiting_for_another_ledger_ends_with_in_progress(make_ledger: MakeLedger) -> None:
    one, two = make_ledger(), make_ledger(wait=0.05)
    begun, release = threading.Event(), threading.Event()

    def work(run: Run) -> Ran:
        begun.set()
        assert release.wait(PATIENCE)
        return Ran(b"1")

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one.run, command(), work)
        assert begun.wait(PATIENCE)
        with pytest.raises(InProgress):
            two.run(command(), never)
        release.set()
        assert first.result(PATIENCE) == b"1"


@every_store
@pytest.mark.parametrize(
    ("lease", "least", "most"), [(20.0, 10_000, 20_000), (600.0, 60_000, 60_000)]
)
def test_a_retry_is_told_when_the_lease_of_a_silent_run_ends(
    make_ledger: MakeLedger, store: Store, lease: float, least: int, most: int
) -> None:
    claim = Claim(command(), "somebody who is gone", lease, 600.0)
    assert isinstance(store.commit([claim])[0], Claimed)
    with pytest.raises(InProgress) as refusal:
        make_ledger(wait=0.05, lease=lease).run(command(), never)
    assert least <= refusal.value.data["retry_after_ms"] <= most


@every_store
def test_a_retry_is_told_to_ask_soon_while_the_lease_is_renewed(
    make_ledger: MakeLedger, store: Store
) -> None:
    [claimed] = store.commit([Claim(command(), "elsewhere", 20.0, 600.0)])
    assert isinstance(claimed, Claimed)
    renew = Renew(command().identity, claimed.token, "elsewhere", 20.0, 600.0)
    ended = threading.Event()

    def keep_renewing() -> None:
        while not ended.wait(0.01):
            assert store.commit([renew]) == [Kept()]

    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(keep_renewing)
        with pytest.raises(InProgress) as refusal:
            make_ledger(wait=1.0).run(command(), never)
        ended.set()
        renewing.result(PATIENCE)
    assert refusal.value.data["retry_after_ms"] == 1000


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
def test_a_waiter_takes_over_from_a_run_that_left_nothing(make_ledger: MakeLedger) -> None:
    ledger = make_ledger(wait=PATIENCE)
    begun, release = threading.Event(), threading.Event()

    def work(run: Run) -> Ran:
        begun.set()
        assert release.wait(PATIENCE)
        raise Stop

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ledger.run, command(promise=RETRY_SAFE), work)
        assert begun.wait(PATIENCE)
        second = pool.submit(ledger.run, command(promise=RETRY_SAFE), Handler())
        release.set()
        with pytest.raises(Stop):
            first.result(PATIENCE)
        assert second.result(PATIENCE) == b'"result":1'


@every_promise
def test_a_run_that_ends_while_the_store_is_asked_is_not_missed(
    ledger: Ledger, store: Store, promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(run: Run) -> Ran:
        begun.set()
        go_on.wait()
        return Ran(b'"result":5')

    with ThreadPoolExecutor() as pool:
        running = pool.submit(ledger.run, command(promise=promise), work)
        begun.wait()
        look = store.look

        def look_before_it_ends(identity: Identity, *, by_retry: bool = False) -> Record | None:
            seen = look(identity, by_retry=by_retry)
            go_on.set()
            running.result()
            return seen

        monkeypatch.setattr(store, "look", look_before_it_ends)
        record = ledger.outcome("local", "bank.transfer", "k", age=0.001)
    assert record is not None and record.state is State.RUNNING, "as it was when it was asked for"


def test_duplicates_share_a_refusal_but_not_an_exception() -> None:
    store = Failing()
    ledger = Ledger(store, wait=PATIENCE)
    inside, release = threading.Event(), threading.Event()
    real = store.commit

    def commit(operations: Sequence[Operation]) -> list[Answer | Exception]:
        inside.set()
        assert release.wait(PATIENCE)
        return real(operations)

    ledger._group._commit = commit
    store.is_down = True
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ledger.run, command(), never)
        assert inside.wait(PATIENCE)
        second = pool.submit(ledger.run, command(), never)
        release.set()
        errors = [call.exception(PATIENCE) for call in (first, second)]
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert errors[0] is not errors[1]
    assert isinstance(errors[0], RpcError) and errors[0].retryable
    ledger.close()
