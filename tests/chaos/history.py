"""What clients were told and what handlers did, and the laws that both must keep together.

A pure module: a history goes in, violations come out. It knows nothing of processes, stores or
clocks; all times are those of one monotonic clock that every process of a machine shares.

Three sources make a history, and none of them is the ledger: the calls as their clients saw them,
the runs as the handlers noted them at their start and end, and the effects that are there when all
is over. Faults tell which misfortunes were real, so that `outcome-unknown` without one is found.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from duet_rpc.ledger import Promise

RESULT, ERROR, LOST = "result", "error", "lost"
INTERNAL, REUSED, IN_PROGRESS, UNKNOWN = -32603, -32012, -32013, -32014
INVALID_REQUEST, INVALID_PARAMS, UNSERIALIZABLE = -32600, -32602, -32016
UNAVAILABLE, OVERLOADED, SHUTTING_DOWN = -32015, -32017, -32018

REFUSALS = {INVALID_REQUEST, INVALID_PARAMS, REUSED, UNAVAILABLE, OVERLOADED, SHUTTING_DOWN}
"""Answers that say: this call has started nothing."""
PASSING = {IN_PROGRESS, UNAVAILABLE, OVERLOADED, SHUTTING_DOWN}
"""Answers that invite another try, so that none may be the last word when all is well again."""


class Identity(NamedTuple):
    """What makes calls the same command, for one principal."""

    method: str
    key: str


class Settled(NamedTuple):
    """How a call ended: a result, an error, or nothing but silence."""

    at: float
    how: str
    body: bytes = b""
    """The result or the error object, as it came; of silence the name of the exception."""
    code: int = 0


@dataclass
class Call:
    """One call as its client saw it."""

    id: str
    server: str
    promise: Promise | None
    """None for a query."""
    method: str
    key: str
    value: str
    """The params, as far as they matter: the result has to repeat it."""
    sent: float
    is_single: bool = True
    """Sent once: a retried call may be refused at the end and have started something before."""
    is_final: bool = False
    """Sent when everything was well again."""
    settled: list[Settled] = field(default_factory=list)

    @property
    def identity(self) -> Identity:
        return Identity(self.method, self.key)

    @property
    def end(self) -> Settled | None:
        return self.settled[0] if self.settled else None

    @property
    def may_linger_until(self) -> float:
        """When its run is over at the latest, as far as its client can tell."""
        return inf if self.end is None or self.end.how == LOST else self.end.at


class Run(NamedTuple):
    """One run of a handler, as it noted itself."""

    id: str
    call: str
    server: str
    method: str
    key: str
    began: float
    ended: float | None
    """None if it was never seen to end."""
    failed: bool = False
    """It raised something unforeseen, after which a retry-safe command may run again."""

    @property
    def identity(self) -> Identity:
        return Identity(self.method, self.key)


class Effect(NamedTuple):
    """One thing that happened in the world."""

    run: str
    call: str
    method: str
    key: str
    value: str

    @property
    def identity(self) -> Identity:
        return Identity(self.method, self.key)


class Fault(NamedTuple):
    """Something bad that befell one server, or (None) the store of all of them."""

    what: str
    server: str | None
    began: float
    ended: float


@dataclass
class History:
    """Everything that is known about a test run."""

    calls: list[Call] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


class Violation(NamedTuple):
    """A law that was broken, and by what."""

    law: str
    what: str


def check(history: History) -> list[Violation]:
    """Find every violation of every law."""
    view = _View(history)
    return [
        Violation(law.__name__.replace("_", " ").strip(), what)
        for law in _LAWS
        for what in law(view)
    ]


class _View:
    """A history, sorted by command."""

    def __init__(self, history: History):
        self.history = history
        self.calls: dict[Identity, list[Call]] = defaultdict(list)
        for call in history.calls:
            if call.promise is not None:
                self.calls[call.identity].append(call)
        self.runs: dict[Identity, list[Run]] = defaultdict(list)
        for run in sorted(history.runs, key=lambda run: run.began):
            self.runs[run.identity].append(run)
        self.effects: dict[Identity, list[Effect]] = defaultdict(list)
        for effect in history.effects:
            self.effects[effect.identity].append(effect)

    def commands(self, *promises: Promise) -> Iterator[tuple[Identity, list[Call]]]:
        for identity, calls in self.calls.items():
            if calls[0].promise in promises:
                yield identity, calls


def _every_call_settles_once(view: _View) -> Iterator[str]:
    for call in view.history.calls:
        if len(call.settled) != 1:
            yield f"{call.id} of {call.identity} settled {len(call.settled)} times"


def _a_query_is_answered_with_what_it_asked_for(view: _View) -> Iterator[str]:
    for call in view.history.calls:
        end = call.end
        if call.promise is None and end is not None and end.how == RESULT:
            if json.loads(end.body) != call.value:
                yield f"{call.id} asked for {call.value!r} and got {end.body!r}"


def _all_outcomes_of_a_command_are_the_same_bytes(view: _View) -> Iterator[str]:
    for identity, calls in view.calls.items():
        outcomes = {(end.how, end.body) for call in calls if (end := _outcome(call))}
        if len(outcomes) > 1:
            yield f"{identity}: {sorted(outcomes)}"


def _a_result_answers_the_params_that_were_sent(view: _View) -> Iterator[str]:
    for identity, calls in view.calls.items():
        for call in calls:
            result = _result(call)
            if result is not None and result["value"] != call.value:
                yield f"{call.id} of {identity} sent {call.value!r} and got {result!r}"


def _a_result_has_its_effect(view: _View) -> Iterator[str]:
    for identity, calls in view.calls.items():
        happened = {(effect.run, effect.value) for effect in view.effects[identity]}
        for call in calls:
            result = _result(call)
            if result is not None and (result["run"], result["value"]) not in happened:
                yield f"{call.id} of {identity} got {result!r}, of which there is no effect"


def _never_twice(view: _View) -> Iterator[str]:
    for identity, _ in view.commands(Promise.TRANSACTIONAL, Promise.AT_MOST_ONCE):
        if len(view.effects[identity]) > 1:
            yield f"{identity} had {len(view.effects[identity])} effects"
    for identity, _ in view.commands(Promise.AT_MOST_ONCE):
        if len(view.runs[identity]) > 1:
            yield f"{identity} ran {len(view.runs[identity])} times"


def _a_transaction_leaves_nothing_without_its_result(view: _View) -> Iterator[str]:
    for identity, calls in view.commands(Promise.TRANSACTIONAL):
        told = {result["run"] for call in calls if (result := _result(call)) is not None}
        for effect in view.effects[identity]:
            if effect.run not in told:
                yield f"{identity}: the effect of {effect.run} is there, and nobody was told"


def _a_refusal_has_no_effect(view: _View) -> Iterator[str]:
    runs = {run.call for run in view.history.runs}
    effects = {effect.call for effect in view.history.effects}
    for identity, calls in view.calls.items():
        for call in calls:
            end = call.end
            if end is None or end.code not in REFUSALS or not call.is_single:
                continue
            # The run of a transaction that is rolled back is no effect.
            is_transaction = call.promise is Promise.TRANSACTIONAL
            if call.id in effects or (call.id in runs and not is_transaction):
                yield f"{call.id} of {identity} was refused ({end.code}), and something happened"


def _an_effect_was_asked_for(view: _View) -> Iterator[str]:
    asked = {(call.identity, call.value) for call in view.history.calls}
    for effect in view.history.effects:
        if (effect.identity, effect.value) not in asked:
            yield f"{effect} was never asked for"


def _unknown_only_where_a_run_was_cut_off(view: _View) -> Iterator[str]:
    for identity, calls in view.calls.items():
        for call in calls:
            end = call.end
            if end is None or end.code != UNKNOWN:
                continue
            if call.promise is Promise.RETRY_SAFE:
                yield f"{call.id} of {identity}: retry-safe commands run again"
            elif not any(_was_cut_off(view, other, end.at) for other in calls):
                yield f"{call.id} of {identity}, but nothing had befallen any of its runs"


def _was_cut_off(view: _View, call: Call, until: float) -> bool:
    """Tell whether a fault befell a call in a way that leaves its outcome unknown."""
    # A transaction that dies with its process is rolled back, and that is known.
    needs_store = call.promise is Promise.TRANSACTIONAL
    return any(
        fault.began <= min(call.may_linger_until, until)
        and fault.ended >= call.sent
        and (fault.server is None or (fault.server == call.server and not needs_store))
        for fault in view.history.faults
    )


def _an_internal_error_comes_of_a_handler_that_failed(view: _View) -> Iterator[str]:
    for identity, calls in view.calls.items():
        failed = any(run.failed for run in view.runs[identity])
        for call in calls:
            if call.end is not None and call.end.code == INTERNAL and not failed:
                yield f"{call.id} of {identity}, though no run of it failed: {call.end.body!r}"


def _an_outcome_once_told_is_known(view: _View) -> Iterator[str]:
    for identity, calls in view.calls.items():
        told = min((end.at for call in calls if (end := _outcome(call))), default=inf)
        for call in calls:
            if call.sent > told and call.end is not None and call.end.code == UNKNOWN:
                yield f"{call.id} of {identity} was told unknown after another had the outcome"


def _a_retry_safe_command_runs_again_only_after_a_fault(view: _View) -> Iterator[str]:
    for identity, _ in view.commands(Promise.RETRY_SAFE):
        runs = view.runs[identity]
        for earlier, later in zip(runs, runs[1:], strict=False):
            if earlier.failed:
                continue
            befell = any(
                fault.server in (None, earlier.server)
                and fault.began <= later.began
                and fault.ended >= earlier.began
                for fault in view.history.faults
            )
            if not befell:
                yield f"{identity} ran as {earlier.id}, was well, and ran as {later.id}"


def _every_command_has_an_end(view: _View) -> Iterator[str]:
    for call in view.history.calls:
        end = call.end
        if call.is_final and (end is None or end.how == LOST or end.code in PASSING):
            yield f"{call.id} of {call.identity}, sent when all was well, ended with {end}"


_LAWS: tuple[Callable[[_View], Iterator[str]], ...] = (
    _every_call_settles_once,
    _a_query_is_answered_with_what_it_asked_for,
    _all_outcomes_of_a_command_are_the_same_bytes,
    _a_result_answers_the_params_that_were_sent,
    _a_result_has_its_effect,
    _never_twice,
    _a_transaction_leaves_nothing_without_its_result,
    _a_refusal_has_no_effect,
    _an_effect_was_asked_for,
    _unknown_only_where_a_run_was_cut_off,
    _an_internal_error_comes_of_a_handler_that_failed,
    _an_outcome_once_told_is_known,
    _a_retry_safe_command_runs_again_only_after_a_fault,
    _every_command_has_an_end,
)


def _outcome(call: Call) -> Settled | None:
    """Give the answer of a call if it is an outcome that a store keeps."""
    end = call.end
    if end is None or end.how == LOST:
        return None
    if end.how == RESULT or end.code > -32000 or end.code < -32768:
        return end
    # What nobody foresaw is kept where an effect may have happened, and forgotten elsewhere.
    kept = {INTERNAL, UNSERIALIZABLE} if call.promise is Promise.AT_MOST_ONCE else set()
    return end if end.code in kept else None


def _result(call: Call) -> dict[str, str] | None:
    """Read the result of a command that succeeded."""
    end = call.end
    if call.promise is None or end is None or end.how != RESULT:
        return None
    result: dict[str, str] = json.loads(end.body)
    return result
