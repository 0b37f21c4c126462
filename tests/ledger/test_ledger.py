"""The ledger on every store: one effect, one answer, for each promise and each way to end."""

import pytest

from duet_rpc.errors import (
    KeyReused,
    UsageError,
)
from duet_rpc.ledger import Ending, Ledger, MemoryStore, Promise, Ran, Run, State
from tests.ledger.commands import (
    AT_MOST_ONCE,
    TRANSACTIONAL,
    Handler,
    command,
    never,
)
from tests.ledger.support import MakeLedger, every_promise


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


@pytest.mark.parametrize("name", ["lease", "ttl", "unknown_ttl", "max_outcome_bytes"])
def test_a_ledger_that_makes_no_sense_cannot_be_built(name: str) -> None:
    with pytest.raises(UsageError):
        Ledger(MemoryStore(), **{name: 0})
