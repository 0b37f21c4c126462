"""The state machine by itself: single steps by name, and any sequence of steps by its laws."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from duet_rpc.ledger.states import (
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
    decide,
    decide_forget,
    decide_resolve,
    decide_sweep,
    is_after_window,
    show_record,
)
from tests.ledger.commands import AT_MOST_ONCE, RETRY_SAFE, TRANSACTIONAL, command

LEASE, UNKNOWN_TTL, TTL = 30.0, 1000.0, 100.0
NOW = 5000.0


def claim(
    owner: str = "one",
    promise: Promise = AT_MOST_ONCE,
    fingerprint: bytes = b"f",
    age: float = 0.0,
    window: float | None = None,
) -> Claim:
    asked = command(promise=promise, fingerprint=fingerprint, age=age, window=window)
    return Claim(asked, owner, LEASE, UNKNOWN_TTL, TTL)


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
    seen = show_record(running(), NOW + LEASE)
    assert seen is not None and seen.state is State.UNKNOWN
    safe = running(RETRY_SAFE)
    assert show_record(safe, NOW + LEASE) is safe
    assert show_record(done(), NOW + 1 + TTL) is None


@pytest.mark.parametrize("back", [LEASE + 2.0, 3600.0, NOW - 1.0])
def test_no_lease_is_longer_than_a_lease(back: float) -> None:
    record = running()
    answer, clamped = decide(claim("two"), record, NOW - back)
    assert answer == Busy(LEASE) and clamped is not None
    assert clamped.lease_until == NOW - back + LEASE
    assert clamped.expires_at == clamped.lease_until + UNKNOWN_TTL
    assert decide(claim("two"), clamped, NOW - back + LEASE).answer == Unknown()
    assert decide(finish(record), clamped, NOW - back).answer == Kept()


def test_a_lease_that_seems_a_little_longer_is_let_be() -> None:
    record = running()
    assert decide(claim("two"), record, NOW - 0.5) == (Busy(LEASE + 0.5), record)


@pytest.mark.parametrize("later", [LEASE, LEASE + UNKNOWN_TTL, 1e9])
@pytest.mark.parametrize("promise", [AT_MOST_ONCE, TRANSACTIONAL])
def test_a_running_record_never_expires_into_nothing(promise: Promise, later: float) -> None:
    record = running(promise)
    seen = show_record(record, NOW + later)
    assert seen is not None and seen.state is State.UNKNOWN
    answer, kept = decide(claim("two", promise), record, NOW + later)
    assert answer == Unknown() and kept is not None
    assert (kept.state, kept.expires_at) == (State.UNKNOWN, NOW + later + UNKNOWN_TTL)
    assert decide_sweep(record, NOW + later, UNKNOWN_TTL) == kept


def test_what_a_sweep_leaves() -> None:
    assert decide_sweep(done(), NOW + 2 * TTL, UNKNOWN_TTL) is None
    assert decide_sweep(running(RETRY_SAFE), NOW + 1e6, UNKNOWN_TTL) is None
    unknown = decide(claim("two"), running(), NOW + LEASE).record
    assert unknown is not None and decide_sweep(unknown, NOW + 1e6, UNKNOWN_TTL) is None


def test_a_retry_is_answered_by_a_record_whose_time_seems_over() -> None:
    record = done()
    much_later = NOW + 1e9
    assert decide(claim("two", age=5.0), record, much_later) == (Replay(b"0"), record)
    other = decide(claim("two", age=5.0, fingerprint=b"g"), record, much_later)
    assert other == (Mismatch(), record)
    assert show_record(record, much_later) is None
    assert show_record(record, much_later, by_retry=True) is record


@pytest.mark.parametrize("promise", [AT_MOST_ONCE, TRANSACTIONAL])
@pytest.mark.parametrize(
    "age, since, is_known",
    [
        (5.0, NOW - 5.0, True),
        (5.0, NOW - 4.9, False),  # it was sent before the store began to remember
        (0.001, NOW, False),
        (TTL - 0.1, 0.0, True),
        (TTL, 0.0, False),  # its record may be gone
        (0.0, NOW, True),  # a first try, or a client that does not tell
    ],
)
def test_a_retry_without_a_record_runs_only_where_one_would_be_known(
    promise: Promise, age: float, since: float, is_known: bool
) -> None:
    answer, record = decide(claim("one", promise, age=age), None, NOW, since)
    assert record is not None
    if is_known:
        assert answer == Claimed(record.token, 1)
        return
    assert answer == Unknown()
    assert (record.state, record.expires_at) == (State.UNKNOWN, NOW + UNKNOWN_TTL)
    # Whoever asks next, and however, is told the same.
    assert decide(claim("two", promise), record, NOW + 1, since) == (Unknown(), record)
    assert decide_resolve(record, b"1", NOW + 1, TTL).answer == Kept()


def test_a_retry_safe_command_runs_whatever_its_age() -> None:
    answer = decide(claim("one", RETRY_SAFE, age=1e9), None, NOW, NOW).answer
    assert isinstance(answer, Claimed)


@pytest.mark.parametrize("promise", Promise)
def test_a_window_counts_from_the_end_of_the_first_run(promise: Promise) -> None:
    record = done()
    end = record.finished_at
    assert end == NOW + 1
    late = claim("two", promise, window=50.0)
    assert decide(late, record, end + 49.999) == (Replay(b"0"), record)
    answer, again = decide(late, record, end + 50.0)
    assert isinstance(answer, Claimed) and answer.token > record.token
    assert again is not None and again.state is State.RUNNING and again.outcome is None
    assert decide(claim("two"), record, end + 50.0).answer == Replay(b"0"), "a key has no window"


@pytest.mark.parametrize("promise", [AT_MOST_ONCE, TRANSACTIONAL])
def test_a_run_and_an_unknown_outcome_are_never_after_the_window(promise: Promise) -> None:
    before = running(promise)
    late = claim("two", promise, window=5.0)
    assert isinstance(decide(late, before, NOW + 10).answer, Busy)
    answer, record = decide(late, before, NOW + LEASE)
    assert answer == Unknown() and record is not None
    over = record.expires_at
    assert decide(late, record, over - 1) == (Unknown(), record)
    assert isinstance(decide(late, record, over).answer, Claimed), "it lives as long as any"


def test_a_retry_comes_as_early_as_its_first_try() -> None:
    record = done()
    end = record.finished_at
    assert end is not None
    own = claim("two", age=90.0, window=50.0)
    assert decide(own, record, end + 80.0).answer == Replay(b"0"), "the record is its own"
    other = claim("two", age=20.0, window=50.0)
    answer = decide(other, record, end + 80.0).answer
    assert isinstance(answer, Claimed), "its first try would have run, and did not come"


def test_a_clock_that_is_set_back_does_not_run_a_command_again() -> None:
    record = done()
    assert decide(claim("two", window=5.0), record, NOW - 3600.0).answer == Replay(b"0")


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
        elif isinstance(answer, Busy) and before is not after:
            assert before is not None and after is not None
            assert after.lease_until < before.lease_until, "only a lease too long is touched"
        elif not isinstance(answer, Claimed | Unknown):
            assert before is after, "a refusal changes nothing"
        if before is not None and after is not None:
            assert after.token >= before.token
            if before.state is State.DONE and before.expires_at > self.now:
                is_late = isinstance(operation, Claim) and is_after_window(
                    operation.command, before, self.now
                )
                assert is_late or after is before, "an outcome stands until its time is over"
                if after is not before:
                    self.replayed.clear()
        if before is not None and before.state is State.DONE and before.expires_at <= self.now:
            self.replayed.clear()
        self.record = after
        return answer

    @rule(
        owner=OWNERS,
        promise=PROMISES,
        fingerprint=st.sampled_from([b"f", b"f", b"g"]),
        window=st.sampled_from([None, None, TTL / 2]),
    )
    def claim(self, owner: str, promise: Promise, fingerprint: bytes, window: float | None) -> None:
        before = self.record
        answer = self.apply(claim(owner, promise, fingerprint, window=window))
        if isinstance(answer, Claimed):
            self.tokens[owner] = answer.token
            if before is not None and before.state is State.RUNNING:
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

    @rule(seconds=st.sampled_from([0.0, 1.0, LEASE, TTL, UNKNOWN_TTL, 1e6, -3600.0, -2.0]))
    def set_clock(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def all_answers_of_a_key_are_the_same(self) -> None:
        assert len(self.replayed) <= 1


TestAnyLife = AnyLife.TestCase
