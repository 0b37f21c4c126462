"""The state machine by itself: single steps by name, and any sequence of steps by its laws."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from duet_rpc.ledger.machine import (
    Answer,
    Busy,
    Claim,
    Claimed,
    Fenced,
    Finish,
    Kept,
    Mismatch,
    Operation,
    Promise,
    Record,
    Release,
    Renew,
    Replay,
    State,
    Unknown,
    as_seen,
    decide,
    decide_forget,
    decide_resolve,
)
from tests.ledger.commands import AT_MOST_ONCE, RETRY_SAFE, TRANSACTIONAL, command

LEASE, UNKNOWN_TTL, TTL = 30.0, 1000.0, 100.0
NOW = 5000.0


def claim(owner: str = "one", promise: Promise = AT_MOST_ONCE, fingerprint: bytes = b"f") -> Claim:
    return Claim(command(promise=promise, fingerprint=fingerprint), owner, LEASE, UNKNOWN_TTL)


def running(promise: Promise = AT_MOST_ONCE) -> Record:
    record = decide(claim("one", promise), None, NOW).record
    assert record is not None
    return record


def finish(record: Record, outcome: bytes = b"0", owner: str | None = None) -> Finish:
    return Finish(record.identity, record.token, owner or record.owner, outcome, TTL)


def done() -> Record:
    before = running()
    record = decide(finish(before), before, NOW + 1).record
    assert record is not None
    return record


def test_the_first_claim_runs() -> None:
    answer, record = decide(claim(), None, NOW)
    assert record is not None and answer == Claimed(record.token, 1)
    assert record.state is State.RUNNING and record.lease_until == NOW + LEASE
    assert record.correlation_id == "correlation of k"


def test_a_claim_asked_twice_by_its_owner_is_the_same_claim() -> None:
    record = running()
    assert decide(claim("one"), record, NOW + 1) == (Claimed(record.token, 1), record)


@pytest.mark.parametrize("promise", Promise)
def test_a_live_run_keeps_others_waiting(promise: Promise) -> None:
    record = running(promise)
    assert decide(claim("two", promise), record, NOW + 10) == (Busy(LEASE - 10), record)


@pytest.mark.parametrize("promise", [AT_MOST_ONCE, TRANSACTIONAL])
def test_a_run_that_was_cut_off_is_unknown(promise: Promise) -> None:
    answer, record = decide(claim("two", promise), running(promise), NOW + LEASE)
    assert answer == Unknown() and record is not None and record.state is State.UNKNOWN
    assert record.expires_at == NOW + LEASE + UNKNOWN_TTL
    assert decide(claim("three", promise), record, NOW + LEASE + 1) == (Unknown(), record)


def test_a_retry_safe_run_that_was_cut_off_is_taken_over_with_a_higher_token() -> None:
    before = running(RETRY_SAFE)
    answer, record = decide(claim("two", RETRY_SAFE), before, NOW + LEASE)
    assert answer == Claimed(before.token + 1, 2) and record is not None
    assert (record.owner, record.created_at) == ("two", NOW)


@pytest.mark.parametrize("was, asks", [(RETRY_SAFE, AT_MOST_ONCE), (AT_MOST_ONCE, RETRY_SAFE)])
def test_taking_over_needs_both_declarations(was: Promise, asks: Promise) -> None:
    assert decide(claim("two", asks), running(was), NOW + LEASE).answer == Unknown()


@pytest.mark.parametrize("record", [running(), done()])
def test_other_params_are_refused(record: Record) -> None:
    assert decide(claim("two", fingerprint=b"g"), record, NOW + 2) == (Mismatch(), record)


def test_an_outcome_is_replayed_until_its_time_is_over() -> None:
    record = done()
    over = record.expires_at
    assert over == NOW + 1 + TTL
    assert decide(claim("two"), record, over - 0.001) == (Replay(b"0"), record)
    answer, again = decide(claim("two"), record, over)
    assert isinstance(answer, Claimed) and answer.token > record.token and again is not None


def test_only_the_owner_finishes() -> None:
    before = running(RETRY_SAFE)
    after = decide(claim("two", RETRY_SAFE), before, NOW + LEASE).record
    assert after is not None
    assert decide(finish(before), after, NOW + 50) == (Fenced(after), after)
    # The same token under another owner: the record was released and claimed anew in between.
    assert decide(finish(after, owner="one"), after, NOW + 50) == (Fenced(after), after)
    assert decide(finish(after), after, NOW + 50).answer == Kept()


def test_finishing_twice_changes_nothing() -> None:
    record = done()
    assert decide(finish(record, b"1"), record, NOW + 2) == (Fenced(record), record)
    assert decide(finish(record, b"1"), None, NOW + 2) == (Fenced(None), None)


def test_a_late_owner_heals_an_unknown_outcome() -> None:
    before = running()
    unknown = decide(claim("two"), before, NOW + LEASE).record
    answer, record = decide(finish(before, b"late"), unknown, NOW + 50)
    assert answer == Kept() and record is not None and record.outcome == b"late"


def test_renewing_moves_the_lease_of_the_owner_only() -> None:
    record = running()
    renew = Renew(record.identity, record.token, "one", LEASE, UNKNOWN_TTL)
    answer, kept = decide(renew, record, NOW + 20)
    assert answer == Kept() and kept is not None and kept.lease_until == NOW + 20 + LEASE
    other = Renew(record.identity, record.token, "two", LEASE, UNKNOWN_TTL)
    assert decide(other, record, NOW + 20) == (Fenced(record), record)
    unknown = decide(claim("two"), record, NOW + LEASE).record
    assert decide(renew, unknown, NOW + 50) == (Fenced(unknown), unknown)


def test_a_lease_of_zero_gives_the_run_up() -> None:
    record = running()
    kept = decide(Renew(record.identity, record.token, "one", 0.0, 9.0), record, NOW + 1).record
    assert decide(claim("two"), kept, NOW + 1).answer == Unknown()


def test_releasing_needs_the_owner_and_a_running_command() -> None:
    record = running()
    assert decide(Release(record.identity, "one"), record, NOW) == (Kept(), None)
    assert decide(Release(record.identity, "two"), record, NOW) == (Fenced(record), record)
    finished = done()
    assert decide(Release(record.identity, "one"), finished, NOW) == (Fenced(finished), finished)


def test_an_operator_resolves_what_is_unknown_and_nothing_else() -> None:
    record = running()
    assert decide_resolve(record, b"1", NOW + 1, TTL).answer == Fenced(record)
    answer, resolved = decide_resolve(record, b"1", NOW + LEASE, TTL)
    assert answer == Kept() and resolved is not None and resolved.outcome == b"1"
    assert decide_resolve(resolved, b"2", NOW + LEASE, TTL).answer == Fenced(resolved)
    assert decide_resolve(None, b"2", NOW, TTL).answer == Fenced(None)
    safe = running(RETRY_SAFE)
    assert decide_resolve(safe, b"1", NOW + LEASE, TTL).answer == Fenced(safe)


def test_an_operator_forgets_anything_but_a_live_run() -> None:
    record = running()
    assert decide_forget(record, NOW + 1) == (Fenced(record), record)
    assert decide_forget(record, NOW + LEASE) == (Kept(), None)
    assert decide_forget(done(), NOW + 2) == (Kept(), None)


def test_a_record_is_seen_as_it_stands_though_nobody_touched_it() -> None:
    seen = as_seen(running(), NOW + LEASE)
    assert seen is not None and seen.state is State.UNKNOWN
    safe = running(RETRY_SAFE)
    assert as_seen(safe, NOW + LEASE) is safe
    assert as_seen(done(), NOW + 1 + TTL) is None


OWNERS = st.sampled_from(["one", "two", "three"])
PROMISES = st.shared(st.sampled_from(list(Promise)), key="promise")


class AnyLife(RuleBasedStateMachine):
    """Whatever owners do in whatever order, and however time passes, the laws hold."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.record: Record | None = None
        self.tokens: dict[str, int] = {}
        self.replayed: set[bytes] = set()

    def apply(self, operation: Operation) -> Answer:
        before = self.record
        answer, after = decide(operation, before, self.now)
        if isinstance(answer, Kept):
            assert before is not after, "an operation that took effect changed something"
        elif not isinstance(answer, Claimed | Unknown):
            assert before is after, "a refusal changes nothing"
        if before is not None and after is not None:
            assert after.token >= before.token
            if before.state is State.DONE and before.expires_at > self.now:
                assert after is before, "an outcome stands until its time is over"
        if before is not None and before.state is State.DONE and before.expires_at <= self.now:
            self.replayed.clear()
        self.record = after
        return answer

    @rule(owner=OWNERS, promise=PROMISES, fingerprint=st.sampled_from([b"f", b"f", b"g"]))
    def claim(self, owner: str, promise: Promise, fingerprint: bytes) -> None:
        before = self.record
        answer = self.apply(claim(owner, promise, fingerprint))
        if isinstance(answer, Claimed):
            self.tokens[owner] = answer.token
            again = before is not None and before.state is State.RUNNING
            if again and before is not None and before.expires_at > self.now:
                mine = before.owner == owner
                assert mine or (promise is RETRY_SAFE and before.lease_until <= self.now)
        elif isinstance(answer, Replay):
            self.replayed.add(answer.outcome)

    @rule(owner=OWNERS, outcome=st.sampled_from([b"", b"0", b"null"]))
    def finish(self, owner: str, outcome: bytes) -> None:
        if owner not in self.tokens:
            return
        identity = command().identity
        answer = self.apply(Finish(identity, self.tokens[owner], owner, outcome, TTL))
        if isinstance(answer, Kept):
            self.replayed.add(outcome)

    @rule(owner=OWNERS, lease=st.sampled_from([0.0, LEASE]))
    def renew(self, owner: str, lease: float) -> None:
        if owner in self.tokens:
            self.apply(Renew(command().identity, self.tokens[owner], owner, lease, UNKNOWN_TTL))

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        self.apply(Release(command().identity, owner))

    @rule(seconds=st.sampled_from([0.0, 1.0, LEASE, TTL, UNKNOWN_TTL]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def all_answers_of_a_key_are_the_same(self) -> None:
        assert len(self.replayed) <= 1


TestAnyLife = AnyLife.TestCase
