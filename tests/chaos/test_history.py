"""The checker itself: a sound history passes, and each law finds the history that breaks it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from duet_rpc.ledger import Promise
from tests.chaos.history import (
    ERROR,
    IN_PROGRESS,
    INTERNAL,
    LOST,
    REFUSALS,
    RESULT,
    REUSED,
    UNAVAILABLE,
    UNKNOWN,
    Call,
    Effect,
    Fault,
    History,
    Run,
    Settled,
    check,
)

ONCE, SAFE, MOVE = Promise.AT_MOST_ONCE, Promise.RETRY_SAFE, Promise.TRANSACTIONAL
EVERY = [ONCE, SAFE, MOVE]


def result(run: str, value: str = "v", at: float = 2.0) -> Settled:
    return Settled(at, RESULT, b'{"run":"%b","value":"%b"}' % (run.encode(), value.encode()))


def error(code: int, at: float = 2.0, text: bytes = b"") -> Settled:
    return Settled(at, ERROR, b'{"code":%d}%b' % (code, text), code)


def lost(at: float = 2.0) -> Settled:
    return Settled(at, LOST, b"ConnectionLost")


def call(
    id: str, promise: Promise | None, *settled: Settled, sent: float = 1.0, value: str = "v"
) -> Call:
    return Call(id, "s0", promise, "m", "k", value, sent, settled=list(settled))


def run(id: str, call: str = "a", began: float = 1.5, server: str = "s0") -> Run:
    return Run(id, call, server, "m", "k", began, began + 0.1)


def effect(run: str, call: str = "a", value: str = "v") -> Effect:
    return Effect(run, call, "m", "k", value)


def sound(promise: Promise) -> History:
    """A call that ran, and a duplicate that got the same."""
    return History(
        calls=[call("a", promise, result("r")), call("b", promise, result("r", at=3.0))],
        runs=[run("r")],
        effects=[effect("r")],
    )


def laws(history: History) -> set[str]:
    return {violation.law for violation in check(history)}


@pytest.mark.parametrize("promise", EVERY)
def test_a_sound_history_passes(promise: Promise) -> None:
    assert check(sound(promise)) == []


@pytest.mark.parametrize("promise", EVERY)
def test_nothing_at_all_passes(promise: Promise) -> None:
    assert check(History()) == []


@pytest.mark.parametrize("ends", [[], [result("r"), result("r", at=3.0)]])
def test_a_call_that_does_not_settle_once(ends: list[Settled]) -> None:
    history = sound(ONCE)
    history.calls[1].settled = ends
    assert laws(history) == {"every call settles once"}


def test_a_query_with_the_answer_to_another() -> None:
    asked = call("q", None, Settled(2.0, RESULT, b'"other"'))
    assert laws(History([asked])) == {"a query is answered with what it asked for"}


@pytest.mark.parametrize("promise", EVERY)
def test_two_results_for_one_key(promise: Promise) -> None:
    history = sound(promise)
    history.calls[1].settled = [result("other", at=3.0)]
    history.effects.append(effect("other", call="b"))
    assert "all outcomes of a command are the same bytes" in laws(history)


@pytest.mark.parametrize("promise", EVERY)
def test_a_result_and_a_declared_error_for_one_key(promise: Promise) -> None:
    history = sound(promise)
    history.calls[1].settled = [error(402, at=3.0)]
    assert laws(history) == {"all outcomes of a command are the same bytes"}


def test_an_unforeseen_failure_is_an_outcome_where_it_is_kept() -> None:
    for promise, is_kept in ((ONCE, True), (SAFE, False), (MOVE, False)):
        history = sound(promise)
        history.runs[0] = history.runs[0]._replace(failed=True)
        history.calls[1].settled = [error(INTERNAL, at=3.0)]
        assert ("all outcomes of a command are the same bytes" in laws(history)) is is_kept


@pytest.mark.parametrize("promise", EVERY)
def test_a_result_of_other_params(promise: Promise) -> None:
    history = sound(promise)
    history.calls[1].value = "other"
    assert laws(history) == {"a result answers the params that were sent"}


@pytest.mark.parametrize("promise", EVERY)
def test_other_params_that_are_refused_pass(promise: Promise) -> None:
    history = sound(promise)
    history.calls[1] = call("b", promise, error(REUSED), value="other")
    assert check(history) == []


@pytest.mark.parametrize("promise", EVERY)
def test_a_result_without_its_effect(promise: Promise) -> None:
    history = replace(sound(promise), effects=[])
    assert laws(history) == {"a result has its effect"}


@pytest.mark.parametrize("promise", EVERY)
def test_a_second_effect(promise: Promise) -> None:
    history = sound(promise)
    history.effects.append(effect("other", call="b"))
    expected = {
        ONCE: {"never twice"},
        SAFE: set(),
        MOVE: {"never twice", "a transaction leaves nothing without its result"},
    }
    assert laws(history) == expected[promise]


def test_a_second_run_of_a_command_that_runs_at_most_once() -> None:
    history = sound(ONCE)
    history.runs.append(run("other", "b", began=2.5))
    assert laws(history) == {"never twice"}


def test_a_second_run_of_a_transaction_that_was_rolled_back_passes() -> None:
    history = sound(MOVE)
    history.runs.append(run("other", "b", began=0.5))
    assert check(history) == []


@pytest.mark.parametrize("end", [lost(), error(402), error(INTERNAL), error(UNKNOWN)])
def test_the_effect_of_a_transaction_of_which_nobody_was_told(end: Settled) -> None:
    history = sound(MOVE)
    history.calls = [call("a", MOVE, end)]
    assert "a transaction leaves nothing without its result" in laws(history)


@pytest.mark.parametrize("code", sorted(REFUSALS))
@pytest.mark.parametrize("promise", EVERY)
def test_a_refusal_with_an_effect(promise: Promise, code: int) -> None:
    history = sound(promise)
    history.calls[0].settled = [error(code)]
    assert laws(history) == {"a refusal has no effect"}


@pytest.mark.parametrize("promise", EVERY)
def test_a_refusal_with_a_run(promise: Promise) -> None:
    history = sound(promise)
    history.calls = [call("a", promise, error(UNAVAILABLE))]
    history.effects = []
    # What a transaction did and undid is nothing.
    assert laws(history) == (set() if promise is MOVE else {"a refusal has no effect"})


@pytest.mark.parametrize("promise", EVERY)
def test_a_refusal_after_retries_says_nothing_about_the_tries_before(promise: Promise) -> None:
    history = sound(promise)
    history.calls[0].settled = [error(UNAVAILABLE)]
    history.calls[0].is_single = False
    assert check(history) == []


@pytest.mark.parametrize("promise", EVERY)
def test_an_effect_that_nobody_asked_for(promise: Promise) -> None:
    history = sound(promise)
    history.effects.append(Effect("x", "a", "m", "another key", "v"))
    assert laws(history) == {"an effect was asked for"}


def unknown(promise: Promise) -> History:
    """A run whose caller heard nothing, and a duplicate that was told unknown."""
    return History(
        calls=[call("a", promise, lost()), call("b", promise, error(UNKNOWN, at=5.0), sent=4.0)],
        runs=[run("r")],
    )


@pytest.mark.parametrize("promise", EVERY)
def test_unknown_without_a_fault(promise: Promise) -> None:
    assert laws(unknown(promise)) == {"unknown only where a run was cut off"}


@pytest.mark.parametrize(
    ("fault", "excuses"),
    [
        (Fault("kill", "s0", 1.6, 1.6), [ONCE]),
        (Fault("kill", "s0", 3.0, 3.0), [ONCE]),  # the run may have gone on without its caller
        (Fault("kill", "s1", 1.6, 1.6), []),
        (Fault("kill", "s0", 0.5, 0.6), []),
        (Fault("kill", "s0", 5.5, 5.6), []),
        (Fault("stop", "s0", 0.5, 1.6), [ONCE]),
        (Fault("store", None, 1.6, 1.9), [ONCE, MOVE]),
        (Fault("store", None, 0.1, 0.9), []),
    ],
)
@pytest.mark.parametrize("promise", EVERY)
def test_unknown_with_a_fault(fault: Fault, excuses: list[Promise], promise: Promise) -> None:
    history = replace(unknown(promise), faults=[fault])
    assert (check(history) == []) is (promise in excuses)


def test_a_call_that_was_answered_is_not_cut_off_later() -> None:
    history = unknown(ONCE)
    history.calls[0].settled = [error(IN_PROGRESS)]
    history.faults = [Fault("kill", "s0", 3.0, 3.0)]
    assert laws(history) == {"unknown only where a run was cut off"}


@pytest.mark.parametrize("promise", EVERY)
@pytest.mark.parametrize("failed", [False, True])
def test_an_internal_error_that_is_not_the_handlers(promise: Promise, failed: bool) -> None:
    history = History([call("a", promise, error(INTERNAL))], [run("r")._replace(failed=failed)])
    law = "an internal error comes of a handler that failed"
    assert laws(history) == (set() if failed else {law})


def test_unknown_after_the_outcome_was_told() -> None:
    history = sound(ONCE)
    history.calls.append(call("c", ONCE, error(UNKNOWN, at=5.0), sent=4.0))
    history.faults = [Fault("kill", "s0", 1.0, 6.0)]
    assert laws(history) == {"an outcome once told is known"}


def test_a_late_owner_heals_what_was_unknown() -> None:
    history = unknown(ONCE)
    history.calls.append(call("c", ONCE, result("r", at=7.0), sent=6.0))
    history.effects = [effect("r")]
    history.faults = [Fault("stop", "s0", 1.0, 6.0)]
    assert check(history) == []


def again() -> History:
    history = sound(SAFE)
    history.runs = [run("first"), run("r", "b", began=1.7, server="s1")]
    return history


def test_a_retry_safe_command_that_runs_again_for_no_reason() -> None:
    assert laws(again()) == {"a retry safe command runs again only after a fault"}


@pytest.mark.parametrize(
    ("fault", "excuses"),
    [
        (Fault("kill", "s0", 1.6, 1.6), True),
        (Fault("store", None, 1.6, 1.6), True),
        (Fault("kill", "s1", 1.6, 1.6), False),
        (Fault("kill", "s0", 1.8, 1.8), False),
        (Fault("kill", "s0", 1.0, 1.1), False),
    ],
)
def test_a_retry_safe_command_runs_again_after_a_fault(fault: Fault, excuses: bool) -> None:
    assert (check(replace(again(), faults=[fault])) == []) is excuses


def test_a_retry_safe_command_runs_again_after_it_failed() -> None:
    history = again()
    history.runs[0] = history.runs[0]._replace(failed=True)
    assert check(history) == []


@pytest.mark.parametrize(
    "end",
    [lost, lambda: error(IN_PROGRESS), lambda: error(UNAVAILABLE)],
    ids=["lost", "in progress", "unavailable"],
)
def test_a_command_without_an_end(end: Callable[[], Settled]) -> None:
    last = call("a", SAFE, end())
    last.is_single, last.is_final = False, True
    assert laws(History([last])) == {"every command has an end"}
    last.is_final = False
    assert check(History([last])) == []
