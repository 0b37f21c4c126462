"""The ledger on every store: one effect, one answer, for each promise and each way to end."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from duet_rpc.errors import (
    InProgress,
    KeyReused,
    OutcomeUnknown,
    RpcError,
    StoreUnavailable,
    UsageError,
)
from duet_rpc.ledger import Ending, Ledger, MemoryStore, Promise, Ran, Run, State, Store
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
    AT_MOST_ONCE,
    RETRY_SAFE,
    TRANSACTIONAL,
    Handler,
    command,
    never,
)
from tests.ledger.conftest import STORES
from tests.ledger.conftest import TRANSACTIONAL as TRANSACTIONAL_STORES

every_store = pytest.mark.parametrize("kind", STORES, indirect=True)
EVERY_PROMISE = [
    *((kind, promise) for kind in STORES for promise in (AT_MOST_ONCE, RETRY_SAFE)),
    *((kind, TRANSACTIONAL) for kind in TRANSACTIONAL_STORES),
]
every_promise = pytest.mark.parametrize("kind, promise", EVERY_PROMISE, indirect=["kind"])

MakeLedger = Callable[..., Ledger]
PATIENCE = 45.0


@every_promise
def test_a_retry_gets_the_same_bytes(ledger: Ledger, promise: Promise) -> None:
    handler = Handler(b'"result":{"z": 1.0,  "a":"\\u00e9"}')
    first = ledger.run(command(promise=promise), handler)
    assert first == handler.body
    assert ledger.run(command(promise=promise), never) == first
    assert len(handler.runs) == 1


@every_promise
def test_a_retry_elsewhere_gets_the_same_bytes(make_ledger: MakeLedger, promise: Promise) -> None:
    first = make_ledger().run(command(promise=promise), Handler())
    assert make_ledger().run(command(promise=promise), never) == first


@every_promise
@pytest.mark.parametrize(
    "body",
    [b'"result":0', b'"result":null', b'"result":""', b'"result":[]', b'"result":false', b""],
)
def test_a_falsy_outcome_is_an_outcome(ledger: Ledger, promise: Promise, body: bytes) -> None:
    assert ledger.run(command(promise=promise), Handler(body)) == body
    assert ledger.run(command(promise=promise), never) == body


@every_promise
def test_other_params_under_a_used_key_are_refused(ledger: Ledger, promise: Promise) -> None:
    ledger.run(command(promise=promise), Handler())
    with pytest.raises(KeyReused) as refusal:
        ledger.run(command(promise=promise, fingerprint=b"other"), never)
    assert refusal.value.reason == "idempotency-key-reused"


@every_promise
def test_principal_and_method_are_scopes(ledger: Ledger, promise: Promise) -> None:
    handler = Handler()
    for principal, method in [("a", "m"), ("b", "m"), ("a", "n")]:
        ledger.run(command(promise=promise, principal=principal, method=method), handler)
    assert len(handler.runs) == 3


@every_promise
def test_a_declared_error_is_an_outcome(ledger: Ledger, promise: Promise) -> None:
    body = b'"error":{"code":7,"message":"Insufficient funds"}'
    assert ledger.run(command(promise=promise), Handler(body, Ending.DECLARED)) == body
    assert ledger.run(command(promise=promise), never) == body


@every_promise
def test_an_unforeseen_failure_is_stored_only_if_an_effect_may_have_happened(
    ledger: Ledger, promise: Promise
) -> None:
    body = b'"error":{"code":-32603,"message":"Internal error"}'
    assert ledger.run(command(promise=promise), Handler(body, Ending.FAILED)) == body
    if promise is AT_MOST_ONCE:
        assert ledger.run(command(promise=promise), never) == body
    else:
        assert ledger.run(command(promise=promise), Handler(b'"result":1')) == b'"result":1'


@every_promise
def test_a_result_that_cannot_be_sent_is_stored_where_its_effect_stays(
    ledger: Ledger, promise: Promise
) -> None:
    body = b'"error":{"code":-32016,"message":"Result cannot be serialized"}'
    assert ledger.run(command(promise=promise), Handler(body, Ending.UNSERIALIZABLE)) == body
    if promise is TRANSACTIONAL:
        assert ledger.run(command(promise=promise), Handler(b'"result":1')) == b'"result":1'
    else:
        assert ledger.run(command(promise=promise), never) == body


@every_promise
def test_an_outcome_above_the_limit_counts_as_one_that_cannot_be_sent(
    make_ledger: MakeLedger, promise: Promise
) -> None:
    ledger = make_ledger(max_outcome_bytes=100)
    body = ledger.run(command(promise=promise), Handler(b'"result":"%s"' % (b"x" * 100)))
    assert b"-32016" in body and b"result-unserializable" in body
    if promise is TRANSACTIONAL:
        assert ledger.run(command(promise=promise), Handler(b"1")) == b"1"
    else:
        assert ledger.run(command(promise=promise), never) == body


class Stop(BaseException):
    """What ends a thread from outside: no error of the handler's."""


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
    assert ledger.in_flight == 0


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


@every_store
def test_the_heart_keeps_a_long_run_alive(make_ledger: MakeLedger, store: Store) -> None:
    ledger = make_ledger(lease=6.0)

    def work(run: Run) -> Ran:
        first = store.look(run.command.identity)
        assert first is not None
        renewed = first
        while renewed.lease_until <= first.lease_until:
            threading.Event().wait(0.05)
            found = store.look(run.command.identity)
            assert found is not None and found.state is State.RUNNING
            renewed = found
        return Ran(b"1")

    assert ledger.run(command(), work) == b"1"


@every_promise
def test_the_outcome_can_be_asked_for(ledger: Ledger, promise: Promise) -> None:
    assert ledger.outcome("local", "bank.transfer", "k") is None

    def work(run: Run) -> Ran:
        running = ledger.outcome("local", "bank.transfer", "k")
        assert running is not None and running.state is State.RUNNING
        return Ran(b'"result":5')

    ledger.run(command(promise=promise), work)
    record = ledger.outcome("local", "bank.transfer", "k")
    assert record is not None and record.state is State.DONE
    assert (record.outcome, record.promise) == (b'"result":5', promise)
    assert record.correlation_id == "correlation of k"


@every_promise
@pytest.mark.parametrize("on_loop", [False, True])
def test_a_run_that_lands_while_the_store_is_asked_is_not_missed(
    ledger: Ledger, store: Store, promise: Promise, on_loop: bool, monkeypatch: pytest.MonkeyPatch
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

        def look_before_it_lands(identity: Identity, *, by_retry: bool = False) -> Record | None:
            seen = look(identity, by_retry=by_retry)
            go_on.set()
            running.result()
            return seen

        monkeypatch.setattr(store, "look", look_before_it_lands)
        asked = ("local", "bank.transfer", "k")
        if on_loop:
            record = asyncio.run(ledger.outcome_async(*asked, age=0.001))
        else:
            record = ledger.outcome(*asked, age=0.001)
    assert record is not None and record.state is State.RUNNING, "as it was when it was asked for"


@every_promise
def test_a_run_knows_what_it_is(ledger: Ledger, promise: Promise) -> None:
    handler = Handler()
    ledger.run(command(promise=promise), handler)
    [run] = handler.runs
    assert run.command == command(promise=promise) and run.token > 0 and run.attempt == 1
    assert (run.transaction is None) == (promise is not TRANSACTIONAL)


@pytest.mark.parametrize("kind", ["memory", "valkey"], indirect=True)
def test_stores_without_transactions_refuse_transactional_commands(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="transactional"):
        ledger.require(TRANSACTIONAL)
    with pytest.raises(UsageError, match="transactional"):
        ledger.run(command(promise=TRANSACTIONAL), never)
    ledger.require(AT_MOST_ONCE)


# Faults, on a store that fails when it is told to


class Failing(MemoryStore):
    """A memory store whose line to itself can be cut, before or after it has done its work."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.loses_answers = False
        self.loses_next = False
        """Lose an answer, and go down with it."""

    def commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        if self.is_down:
            raise StoreUnavailable()
        answers = super().commit(operations)
        self.is_down = self.loses_next
        if self.loses_answers or self.loses_next:
            raise StoreUnavailable()
        return answers

    def sweep(self, limit: int = 500, **more: Any) -> int:
        if self.is_down:
            raise StoreUnavailable()
        return super().sweep(limit, **more)


def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never came true")


def test_a_store_that_is_down_refuses_before_the_handler() -> None:
    store = Failing()
    ledger = Ledger(store)
    store.is_down = True
    with pytest.raises(StoreUnavailable):
        ledger.run(command(), never)
    store.is_down = False
    assert ledger.run(command(), Handler()) == b'"result":1'
    ledger.close()


def test_a_claim_whose_answer_was_lost_is_given_back() -> None:
    store = Failing()
    ledger = Ledger(store, lease=6.0, wait=PATIENCE)
    store.loses_next = True
    with pytest.raises(StoreUnavailable):
        ledger.run(command(), never)
    assert store.counts().running == 1
    store.loses_next = store.is_down = False
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


@pytest.mark.parametrize(
    ("promise", "told"), [(AT_MOST_ONCE, OutcomeUnknown), (RETRY_SAFE, InProgress)]
)
def test_an_outcome_that_cannot_be_stored_in_time_is_stored_later(
    promise: Promise, told: type[RpcError]
) -> None:
    store = Failing()
    ledger = Ledger(store, lease=0.3)

    def work(run: Run) -> Ran:
        store.is_down = True
        return Ran(b"late")

    with pytest.raises(told):
        ledger.run(command(promise=promise), work)
    store.is_down = False
    until(lambda: store.counts().done == 1)
    assert ledger.run(command(promise=promise), never) == b"late"
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


def test_outcomes_expire_and_then_the_key_is_new() -> None:
    now = [1000.0]
    ledger = Ledger(MemoryStore(clock=lambda: now[0]), ttl=100.0, unknown_ttl=500.0)
    handler = Handler()
    ledger.run(command(), handler)
    now[0] += 99.0
    ledger.run(command(), handler)
    assert len(handler.runs) == 1 and ledger.sweep() == 0
    now[0] += 1.0
    assert ledger.sweep() == 1
    ledger.run(command(), handler)
    assert len(handler.runs) == 2
    ledger.close()


def test_sweeping_and_the_heart_go_on_when_the_store_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Failing()
    ledger = Ledger(store, lease=0.3, ttl=0.001)
    ledger.run(command("swept"), Handler())
    until(lambda: not store._records)

    def work(run: Run) -> Ran:
        store.is_down = True
        until(lambda: "cannot be used" in caplog.text and "not swept" in caplog.text)
        store.is_down = False
        return Ran(b"1")

    assert ledger.run(command(), work) == b"1"
    until(lambda: not store._records)
    ledger.close()


@pytest.mark.parametrize("name", ["lease", "ttl", "unknown_ttl", "max_outcome_bytes"])
def test_a_ledger_that_makes_no_sense_cannot_be_built(name: str) -> None:
    with pytest.raises(UsageError):
        Ledger(MemoryStore(), **{name: 0})


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
