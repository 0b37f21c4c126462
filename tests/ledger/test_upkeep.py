"""Wall clocks that are set while commands run, and after they have: on every store that has one.

A step back must not keep a key busy; a step forward must neither run a command again that still
runs, nor forget outcomes that retries ask for.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from duet_rpc.ledger import State, Store
from duet_rpc.ledger.states import (
    Answer,
    Busy,
    Claim,
    Claimed,
    Finish,
    Kept,
    Operation,
    Promise,
    Replay,
    Unknown,
)
from duet_rpc.ledger.sweeper import SWEEP_ROWS, Sweeper
from tests.ledger.clocks import Hands, OnPostgres, OnSqlite, OnValkey, Setting, pass_time
from tests.ledger.commands import AT_MOST_ONCE, RETRY_SAFE, TRANSACTIONAL, command

HOUR, DAY, DECADES = 3600.0, 86400.0, 56 * 365 * 86400.0
LEASE, TTL, UNKNOWN_TTL = 30.0, DAY, 7 * DAY

every_clock = pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey"])
swept_by_us = pytest.mark.parametrize("kind", ["sqlite", "postgres"])


@pytest.fixture
def setting(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Setting:
    match kind:
        case "sqlite":
            return OnSqlite(tmp_path / "commands.db")
        case "postgres":
            return OnPostgres(request.getfixturevalue("postgres_server"))
    return OnValkey(request.getfixturevalue("valkey_server"))


@pytest.fixture
def store(setting: Setting) -> Iterator[Store]:
    opened = setting.open()
    yield opened
    opened.close()


def claim(
    owner: str, promise: Promise = AT_MOST_ONCE, *, key: str = "k", age: float = 0.0
) -> Claim:
    return Claim(command(key, promise, age=age), owner, LEASE, UNKNOWN_TTL, TTL)


def apply(store: Store, operation: Operation) -> Answer:
    [answer] = store.commit([operation])
    if isinstance(answer, Exception):
        raise answer
    return answer


def finish(store: Store, owner: str, token: int, outcome: bytes, ttl: float = TTL) -> Answer:
    return apply(store, Finish(command().identity, token, owner, outcome, ttl))


def run(store: Store, ttl: float = TTL) -> None:
    claimed = apply(store, claim("one"))
    assert isinstance(claimed, Claimed)
    assert finish(store, "one", claimed.token, b"1", ttl) == Kept()


def sweeper(store: Store, hands: Hands | None = None, name: str = "sweeper") -> Sweeper:
    return Sweeper(store, name, TTL, UNKNOWN_TTL, hands or Hands())


def sweep(each: Sweeper) -> None:
    while each.step():
        pass


# Back


@every_clock
@pytest.mark.parametrize("back", [HOUR, DECADES])
def test_a_clock_set_back_keeps_no_key_busy_for_longer_than_a_lease(
    store: Store, setting: Setting, back: float
) -> None:
    assert isinstance(apply(store, claim("gone")), Claimed)
    setting.step(-back)
    answer = apply(store, claim("two"))
    assert isinstance(answer, Busy) and answer.lease_left <= LEASE
    again = apply(store, claim("three"))
    assert isinstance(again, Busy) and again.lease_left <= LEASE
    setting.step(LEASE + 1.0)
    assert apply(store, claim("two")) == Unknown()


@every_clock
def test_a_live_run_keeps_its_command_over_a_clock_set_back(store: Store, setting: Setting) -> None:
    claimed = apply(store, claim("one"))
    assert isinstance(claimed, Claimed)
    setting.step(-HOUR)
    assert isinstance(apply(store, claim("two")), Busy)
    assert finish(store, "one", claimed.token, b"1") == Kept()
    assert apply(store, claim("two")) == Replay(b"1")


@swept_by_us
def test_a_store_is_not_to_be_born_for_long(store: Store, setting: Setting) -> None:
    watch = sweeper(store)
    sweep(watch)
    setting.step(-HOUR)
    sweep(watch)
    since, now = store.since(TTL)
    assert since <= now


@swept_by_us
def test_a_clock_set_back_makes_no_store_younger(store: Store, setting: Setting) -> None:
    hands = Hands()
    watch = sweeper(store, hands)
    for _ in range(3):
        sweep(watch)
        pass_time(60.0, setting, hands)
    setting.step(-HOUR)
    sweep(watch)
    assert isinstance(apply(store, claim("x", age=100.0)), Claimed)


# A store remembers the time that was there


@swept_by_us
@pytest.mark.parametrize("is_known", [True, False])
def test_a_store_does_not_claim_to_remember_time_that_a_clock_skipped(
    store: Store, setting: Setting, is_known: bool
) -> None:
    """A device boots in 1970, makes its store and learns the time: before or after a restart."""
    setting.step(-DECADES)
    hands = Hands()
    watch = sweeper(store, hands)
    sweep(watch)
    pass_time(5.0, setting, hands)
    setting.step(DECADES)
    pass_time(60.0, setting, hands)
    sweep(watch if is_known else sweeper(store, name="another"))
    assert apply(store, claim("x", age=600.0)) == Unknown()
    pass_time(10.0, setting, hands)
    assert isinstance(apply(store, claim("x", key="young", age=5.0)), Claimed)


@swept_by_us
def test_a_clock_that_was_wrong_for_a_while_changes_nothing(store: Store, setting: Setting) -> None:
    hands = Hands()
    watch = sweeper(store, hands)
    for step in (0.0, -DECADES, DECADES):
        setting.step(step)
        sweep(watch)
        pass_time(60.0, setting, hands)
    assert apply(store, claim("x", age=600.0)) == Unknown()
    assert isinstance(apply(store, claim("x", key="young", age=50.0)), Claimed)


@swept_by_us
@pytest.mark.parametrize("off", [60.0, 10 * HOUR])
def test_a_service_that_was_off_remembers_what_was_before(
    store: Store, setting: Setting, off: float
) -> None:
    sweep(sweeper(store))
    setting.step(off)
    sweep(sweeper(store, name="another"))
    assert isinstance(apply(store, claim("x", age=off - 5.0)), Claimed)


# Forward, while a command runs


@every_clock
@pytest.mark.parametrize("swept", ["not", "in the background", "by an operator"])
@pytest.mark.parametrize("promise", [AT_MOST_ONCE, TRANSACTIONAL])
def test_a_command_that_runs_does_not_run_again_because_the_clock_jumps(
    store: Store, setting: Setting, swept: str, promise: Promise
) -> None:
    claimed = apply(store, claim("one", promise))
    assert isinstance(claimed, Claimed)
    watch = sweeper(store)
    sweep(watch)
    setting.step(DECADES)
    seen = store.look(command().identity)
    assert seen is not None and seen.state is State.UNKNOWN
    assert [each.state for each in store.records()] == [State.UNKNOWN]
    assert store.counts().unknown == 1
    if swept == "in the background":
        sweep(watch)
    elif swept == "by an operator":
        store.sweep(unknown_ttl=UNKNOWN_TTL)
    assert apply(store, claim("two", promise)) == Unknown()
    seen = store.look(command().identity)
    assert seen is not None and seen.state is State.UNKNOWN
    assert finish(store, "one", claimed.token, b"late") == Kept()
    assert apply(store, claim("two", promise)) == Replay(b"late")


@every_clock
def test_a_retry_safe_run_is_taken_over_after_a_jump(store: Store, setting: Setting) -> None:
    first = apply(store, claim("one", RETRY_SAFE))
    setting.step(DECADES)
    second = apply(store, claim("two", RETRY_SAFE))
    assert isinstance(first, Claimed) and isinstance(second, Claimed)
    assert second == Claimed(first.token + 1, 2)


@every_clock
def test_runs_that_were_cut_off_leave_nothing_behind_in_the_end(
    store: Store, setting: Setting
) -> None:
    apply(store, claim("gone"))
    apply(store, claim("gone", RETRY_SAFE, key="safe"))
    hands = Hands()
    watch = sweeper(store, hands)
    sweep(watch)
    pass_time(UNKNOWN_TTL + LEASE + 1.0, setting, hands)
    sweep(watch)
    assert [each.identity.key for each in store.records()] == ["k"]
    assert apply(store, claim("two")) == Unknown()
    pass_time(UNKNOWN_TTL * 1.1 + 1.0, setting, hands)
    sweep(watch)
    assert setting.rows() == 0


# Forward, after a command has its outcome


@swept_by_us
@pytest.mark.parametrize("jump", [2 * DAY, DECADES])
def test_an_outcome_is_replayed_to_a_retry_after_a_jump_swept_or_not(
    store: Store, setting: Setting, jump: float
) -> None:
    watch = sweeper(store)
    sweep(watch)
    run(store)
    setting.step(jump)
    retry = claim("two", age=5.0)
    assert apply(store, retry) == Replay(b"1")
    seen = store.look(command().identity, by_retry=True)
    assert seen is not None and seen.state is State.DONE
    sweep(watch)
    assert apply(store, retry) == Replay(b"1")
    other = setting.open()
    fresh = sweeper(other, name="another process")
    sweep(fresh)
    sweep(fresh)
    sweep(watch)
    assert apply(other, retry) == Replay(b"1")
    other.close()
    assert apply(store, claim("two")) == Replay(b"1"), "swept, the record is as good as before"


@every_clock
def test_a_jump_seen_by_a_new_process_is_made_up_for_too(store: Store, setting: Setting) -> None:
    sweep(sweeper(store))
    run(store)
    store.close()
    setting.step(DECADES)
    later = setting.open()
    sweep(sweeper(later, name="later"))
    answer = apply(later, claim("two", age=5.0))
    later.close()
    # Redis drops by its own clock; what it cannot know is not run either.
    assert answer == (Unknown() if isinstance(setting, OnValkey) else Replay(b"1"))


@pytest.mark.parametrize("kind", ["valkey"])
@pytest.mark.parametrize("swept", [False, True])
def test_a_store_that_a_jump_emptied_runs_no_retry(
    store: Store, setting: Setting, swept: bool
) -> None:
    watch = sweeper(store)
    sweep(watch)
    run(store)
    setting.step(2 * DAY)
    assert store.look(command().identity, by_retry=True) is None
    if swept:
        sweep(watch)
    assert apply(store, claim("two", age=5.0)) == Unknown()
    assert isinstance(apply(store, claim("two", key="new")), Claimed)


@pytest.mark.parametrize("kind", ["valkey"])
def test_a_small_step_costs_nothing(store: Store, setting: Setting) -> None:
    sweep(sweeper(store))
    run(store)
    setting.step(DAY + 0.9 * HOUR)
    assert apply(store, claim("two", age=5.0)) == Replay(b"1")
    assert isinstance(apply(store, claim("two")), Claimed), "a first try finds its time over"


@every_clock
def test_a_first_try_takes_an_expired_record_for_none(store: Store, setting: Setting) -> None:
    run(store)
    setting.step(2 * DAY)
    assert store.look(command().identity) is None
    assert isinstance(apply(store, claim("two")), Claimed)


@swept_by_us
def test_a_record_goes_when_its_time_was_seen_to_pass(store: Store, setting: Setting) -> None:
    hands = Hands()
    watch = sweeper(store, hands)
    sweep(watch)
    run(store)
    pass_time(DAY / 2, setting, hands)
    sweep(watch)
    setting.step(DECADES)
    pass_time(DAY / 2 - 60.0, setting, hands)
    sweep(watch)
    assert setting.rows() == 1, "a minute of its time is left"
    pass_time(120.0, setting, hands)
    sweep(watch)
    assert setting.rows() == 0


@swept_by_us
def test_a_service_that_is_off_at_night_keeps_nothing_for_ever(
    store: Store, setting: Setting
) -> None:
    run(store)
    for day in range(4):
        hands = Hands()
        watch = sweeper(store, hands, name=f"process of day {day}")
        sweep(watch)
        for _ in range(14):
            pass_time(HOUR, setting, hands)
            sweep(watch)
        setting.step(10 * HOUR)
    assert setting.rows() == 0


@swept_by_us
def test_many_records_are_made_up_for_in_bounded_steps(store: Store, setting: Setting) -> None:
    watch = sweeper(store)
    sweep(watch)
    keys = [f"k{number}" for number in range(SWEEP_ROWS + 200)]
    claims: list[Operation] = [claim("one", key=key) for key in keys]
    finishes: list[Operation] = []
    for key, answer in zip(keys, store.commit(claims), strict=True):
        assert isinstance(answer, Claimed)
        finishes.append(Finish(command(key).identity, answer.token, "one", b"1", TTL))
    store.commit(finishes)
    setting.step(30 * DAY)
    assert watch.step(), "a full step has more to do"
    # Another process goes on, and the clock jumps once more in the middle of it.
    setting.step(30 * DAY)
    other = sweeper(store, name="another")
    sweep(other)
    sweep(watch)
    sweep(other)
    assert setting.rows() == len(keys)
    retries: list[Operation] = [claim("two", key=key, age=5.0) for key in keys]
    assert store.commit(retries) == [Replay(b"1")] * len(keys)


@swept_by_us
def test_sweepers_take_turns(store: Store, setting: Setting) -> None:
    hands = Hands()
    one, two = sweeper(store, name="one"), sweeper(store, hands, "two")
    sweep(one)
    run(store, ttl=0.0)
    assert not two.step() and setting.rows() == 1, "left to the one that has just swept"
    assert not one.step() and setting.rows() == 0
    run(store, ttl=0.0)
    for _ in range(2):
        pass_time(60.0, setting, hands)
        sweep(two)
    assert setting.rows() == 0, "the one is gone, the other goes on"


@swept_by_us
@pytest.mark.parametrize("first", ["one", "two"])
def test_a_sweeper_that_left_the_store_to_another_knows_the_time_all_the_same(
    store: Store, setting: Setting, first: str
) -> None:
    """The clock goes back two days and is put right; what came between keeps its time."""
    hands = Hands()
    sweepers = {name: sweeper(store, hands, name) for name in ("one", "two")}
    for step in (0.0, 0.0, -2 * DAY, 0.0):
        setting.step(step)
        for each in sweepers.values():
            sweep(each)
            pass_time(1.0, setting, hands)
        pass_time(58.0, setting, hands)
    run(store)
    setting.step(2 * DAY)
    pass_time(5.0, setting, hands)
    sweep(sweepers[first])
    for each in sweepers.values():
        sweep(each)
    assert apply(store, claim("two", age=6.0)) == Replay(b"1")


@swept_by_us
def test_a_jump_that_a_sweeper_did_not_live_to_see_is_found_by_the_next(
    store: Store, setting: Setting
) -> None:
    hands = Hands()
    one, two = sweeper(store, hands, "one"), sweeper(store, hands, "two")
    sweep(one)
    sweep(two)
    run(store, ttl=25.0)
    setting.step(20.0)
    sweep(two)
    pass_time(12.0, setting, hands)
    sweep(two)
    assert setting.rows() == 1, "12 s of 25 have passed"
    pass_time(15.0, setting, hands)
    sweep(two)
    assert setting.rows() == 0
