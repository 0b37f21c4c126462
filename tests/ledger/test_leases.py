"""Leases are kept alive, and what the store could not take is settled later."""

import threading

import pytest

from duet_rpc.errors import (
    InProgress,
    OutcomeUnknown,
    RpcError,
    StoreUnavailable,
)
from duet_rpc.ledger import Ledger, Promise, Ran, Run, State, Store
from tests.ledger.commands import (
    AT_MOST_ONCE,
    RETRY_SAFE,
    Handler,
    command,
    never,
)
from tests.ledger.support import PATIENCE, Failing, MakeLedger, every_store, until


@every_store
def test_the_heartbeat_keeps_a_long_run_alive(make_ledger: MakeLedger, store: Store) -> None:
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


def test_sweeping_and_the_heartbeat_go_on_when_the_store_fails(
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
