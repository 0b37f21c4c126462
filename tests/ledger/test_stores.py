"""What every store does, compared step by step with the machine, and what only some of them do."""

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.ledger import Identity, MemoryStore, SqliteStore, State, Store, open_store
from duet_rpc.ledger.faults import explain
from duet_rpc.ledger.states import (
    Answer,
    Claim,
    Claimed,
    Fenced,
    Finish,
    Kept,
    Operation,
    Promise,
    Record,
    Release,
    Renew,
    Replay,
    Unknown,
)
from duet_rpc.ledger.stores.base import Series
from tests.ledger.commands import AT_MOST_ONCE, RETRY_SAFE, TRANSACTIONAL, command
from tests.ledger.conftest import STORES
from tests.ledger.conftest import TRANSACTIONAL as TRANSACTIONAL_STORES

every_store = pytest.mark.parametrize("kind", STORES, indirect=True)

LIVE, OVER = 10_000.0, 0.0
YOUNG, OLD = 0.0001, 1e9
"""Ages of retries: one that every store remembers, and one that none does."""
LONG, SHORT = 1e9, 1e-9
"""Windows: one that is never over, and one that always is."""
Step = tuple[str, str, str, float, Promise, float, float | None]


def claim(
    owner: str, key: str = "k", promise: Promise = AT_MOST_ONCE, lease: float = LIVE
) -> Claim:
    return Claim(command(key, promise), owner, lease, 10_000.0)


def apply(store: Store, operation: Operation) -> Answer:
    [answer] = store.commit([operation])
    if isinstance(answer, Exception):
        raise answer
    return answer


def finish(
    store: Store, owner: str, outcome: bytes, key: str = "k", ttl: float = 10_000.0
) -> Answer:
    claimed = apply(store, claim(owner, key))
    assert isinstance(claimed, Claimed)
    return apply(store, Finish(command(key).identity, claimed.token, owner, outcome, ttl))


# Against the model


class Twin:
    """A store and the memory store, given the same operations; their answers must be alike."""

    def __init__(self, store: Store, round: int):
        self.store = store
        self.store.look(command().identity)  # so that it has begun
        self.model = MemoryStore(since=0.0)
        self.round = round
        self.tokens: dict[tuple[str, str], tuple[int, int]] = {}

    def key(self, key: str) -> str:
        return f"{self.round}-{key}"

    def operations(self, step: Step) -> tuple[Operation, Operation]:
        verb, key, owner, lease, promise, age, window = step
        identity = command(self.key(key)).identity
        token, model_token = self.tokens.get((key, owner), (1, 1))
        match verb:
            case "claim" | "other":
                print = b"g" if verb == "other" else b"f"
                asked = command(self.key(key), promise, fingerprint=print, age=age, window=window)
                same: Operation = Claim(asked, owner, lease, 10_000.0)
                return same, same
            case "renew":
                return (
                    Renew(identity, token, owner, lease, 10_000.0),
                    Renew(identity, model_token, owner, lease, 10_000.0),
                )
            case "finish":
                outcome = f'"result":"{owner}"'.encode()
                return (
                    Finish(identity, token, owner, outcome, 10_000.0),
                    Finish(identity, model_token, owner, outcome, 10_000.0),
                )
        same = Release(identity, owner)
        return same, same

    def step(self, group: list[Step]) -> None:
        pairs = [self.operations(step) for step in group]
        answers = self.store.commit([ours for ours, _ in pairs])
        expected = self.model.commit([theirs for _, theirs in pairs])
        for (_, key, owner, *_), answer, wanted in zip(group, answers, expected, strict=True):
            assert shape(answer) == shape(wanted)
            if isinstance(answer, Claimed) and isinstance(wanted, Claimed):
                self.tokens[key, owner] = answer.token, wanted.token
            assert view(self.store, self.key(key)) == view(self.model, self.key(key))


def shape(answer: Answer | Exception) -> object:
    """Reduce an answer to what does not depend on the clock."""
    match answer:
        case Claimed(_, attempt):
            return "claimed", attempt
        case Replay(outcome):
            return "replay", outcome
        case Fenced(record):
            return "fenced", None if record is None else (record.state, record.owner)
    return type(answer)


def view(store: Store, key: str) -> object:
    record = store.look(command(key).identity)
    if record is None:
        return None
    return record.state, record.owner, record.attempts, record.outcome, record.promise


STEPS = st.tuples(
    st.sampled_from(["claim", "claim", "claim", "other", "renew", "finish", "finish", "release"]),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["one", "two"]),
    st.sampled_from([LIVE, OVER]),
    st.sampled_from([AT_MOST_ONCE, RETRY_SAFE]),
    st.sampled_from([0.0, 0.0, YOUNG, OLD]),
    st.sampled_from([None, None, LONG, SHORT]),
)
GROUPS = st.lists(STEPS, min_size=1, max_size=3, unique_by=lambda step: step[1])
rounds = iter(range(1_000_000_000))


@every_store
@given(groups=st.lists(GROUPS, max_size=12))
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_store_does_what_the_machine_says(store: Store, groups: list[list[Step]]) -> None:
    twin = Twin(store, next(rounds))
    for group in groups:
        twin.step(group)


# What the model does not show


@every_store
def test_a_record_keeps_every_field(store: Store) -> None:
    claimed = apply(store, claim("one", "schlüssel-☃", RETRY_SAFE))
    assert isinstance(claimed, Claimed)
    identity = command("schlüssel-☃").identity
    record = store.look(identity)
    assert record is not None
    assert (record.identity, record.fingerprint, record.promise) == (
        identity,
        b"f" * 32,
        RETRY_SAFE,
    )
    assert (record.token, record.owner, record.attempts) == (claimed.token, "one", 1)
    assert record.correlation_id == "correlation of schlüssel-☃"
    assert record.finished_at is None and record.outcome is None
    assert record.lease_until - record.created_at == pytest.approx(LIVE, abs=1.0)
    outcome = bytes(range(256)) * 4
    assert apply(store, Finish(identity, claimed.token, "one", outcome, 5.0)) == Kept()
    finished = store.look(identity)
    assert finished is not None and finished.finished_at is not None
    assert finished.outcome == outcome and finished.created_at == record.created_at
    assert finished.expires_at - finished.finished_at == pytest.approx(5.0, abs=1.0)


@every_store
def test_after_its_window_a_command_is_claimed_anew(store: Store) -> None:
    assert finish(store, "one", b"1") == Kept()
    before = store.look(command().identity)
    later = Claim(command(window=LONG), "two", LIVE, LIVE)
    assert apply(store, later) == Replay(b"1") and before is not None
    again = apply(store, Claim(command(window=SHORT), "two", LIVE, LIVE))
    assert isinstance(again, Claimed) and again.token > before.token and again.attempt == 1
    fenced = apply(store, Finish(command().identity, before.token, "one", b"late", LIVE))
    assert isinstance(fenced, Fenced), "the first run cannot write over the second"
    assert apply(store, Finish(command().identity, again.token, "two", b"2", LIVE)) == Kept()
    assert apply(store, later) == Replay(b"2")


@every_store
def test_scopes_do_not_touch_each_other(store: Store) -> None:
    # Joined carelessly, each of these would be the same text.
    scopes = [("a", "b:c", "d"), ("a:b", "c", "d"), ("a", "b", "c:d"), ("", "a", "b:c:d")]
    for principal, method, key in scopes:
        asked = command(key, principal=principal, method=method)
        assert isinstance(apply(store, Claim(asked, "one", LIVE, LIVE)), Claimed)


@every_store
def test_tokens_grow_over_a_release(store: Store) -> None:
    first = apply(store, claim("one"))
    assert apply(store, Release(command().identity, "one")) == Kept()
    clock_moved = threading.Event()
    clock_moved.wait(0.005)  # a token is the clock in milliseconds
    second = apply(store, claim("two"))
    assert isinstance(first, Claimed) and isinstance(second, Claimed)
    assert second.token > first.token


@every_store
def test_an_operation_that_cannot_be_applied_fails_alone(store: Store, kind: str) -> None:
    # A text that no database takes: a lone surrogate, and for PostgreSQL also a zero.
    bad = "zero \0" if kind == "postgres" else "surrogate \ud800"
    answers = store.commit([claim("one", "good"), claim("one", bad), claim("one", "better")])
    assert isinstance(answers[0], Claimed) and isinstance(answers[2], Claimed)
    if kind != "memory":
        assert isinstance(answers[1], Exception)
        assert not isinstance(answers[1], StoreUnavailable)
    assert store.look(command("zero ").identity) is None, "a key is not cut short"
    assert isinstance(apply(store, claim("one", "after")), Claimed)


@every_store
def test_whatever_stands_in_a_correlation_id_a_command_can_be_claimed(store: Store) -> None:
    asked = msgspec.structs.replace(command(), correlation_id="zero \0 end")
    assert isinstance(apply(store, Claim(asked, "one", LIVE, LIVE)), Claimed)
    record = store.look(asked.identity)
    assert record is not None and record.correlation_id in ("zero \0 end", "zero \ufffd end")


@every_store
def test_a_group_may_be_larger_than_what_a_socket_holds(store: Store) -> None:
    keys = [f"large {number}" for number in range(60)]
    claims: list[Operation] = [claim("one", key) for key in keys]
    bodies = [b'"%d %b"' % (number, b"x" * 200_000) for number in range(60)]
    finishes: list[Operation] = []
    for key, claimed, body in zip(keys, store.commit(claims), bodies, strict=True):
        assert isinstance(claimed, Claimed)
        finishes.append(Finish(command(key).identity, claimed.token, "one", body, 10_000.0))
    assert store.commit(finishes) == [Kept()] * 60
    again: list[Operation] = [claim("two", key) for key in keys]
    assert store.commit(again) == [Replay(body) for body in bodies]


@every_store
def test_an_expired_record_is_gone_for_everybody(store: Store) -> None:
    assert finish(store, "one", b"1", ttl=0.001) == Kept()
    gone = threading.Event()
    gone.wait(0.02)
    assert store.look(command().identity) is None
    assert store.records() == []
    assert store.counts().done == 0
    assert isinstance(apply(store, claim("two")), Claimed)


@every_store
def test_sweeping_is_bounded_and_spares_what_lives(store: Store, kind: str) -> None:
    for number in range(7):
        finish(store, "one", b"1", f"old {number}", ttl=0.001)
    finish(store, "one", b"1", "young")
    apply(store, claim("one", "running"))
    apply(store, claim("one", "lost", lease=OVER))
    threading.Event().wait(0.02)
    swept = [store.sweep(3), store.sweep(3), store.sweep(3), store.sweep(3)]
    assert swept == ([0, 0, 0, 0] if kind == "valkey" else [3, 3, 1, 0])
    assert {record.identity.key for record in store.records()} == {"young", "running", "lost"}


@every_store
def test_operators_see_what_there_is(store: Store) -> None:
    assert store.counts().oldest_running is None
    apply(store, claim("one", "running"))
    finish(store, "one", b"1", "done")
    apply(store, claim("one", "lost", lease=OVER))
    apply(store, claim("one", "safe", RETRY_SAFE, lease=OVER))
    counts = store.counts()
    assert (counts.running, counts.done, counts.unknown) == (2, 1, 1)
    [lost] = store.records(State.UNKNOWN)
    assert lost.identity.key == "lost" and counts.oldest_unknown == pytest.approx(lost.created_at)
    assert counts.oldest_running is not None
    assert counts.oldest_running <= lost.created_at
    assert [record.identity.key for record in store.records()] == [
        "running",
        "done",
        "lost",
        "safe",
    ]
    assert len(store.records(limit=2)) == 2
    assert {record.identity.key for record in store.records(State.RUNNING)} == {"running", "safe"}


@every_store
def test_a_series_is_of_one_principal_and_prefix(store: Store) -> None:
    identities = [
        *(("ada", "task a", "1"), ("ada", "task b", "2"), ("ada", "task", "3")),
        *(("a*a", "task a", "4"), ("bob", "task a", "5"), ("ada", "a task a", "6")),
        *(("ada:task ", "b", "7"), ("ada", "task a", "8"), ("[ab]", "task a", "9")),
    ]
    for principal, method, key in identities:
        asked = command(key, principal=principal, method=method)
        assert isinstance(apply(store, Claim(asked, "one", LIVE, LIVE)), Claimed)

    def keys(of: Series, limit: int = 100) -> str:
        return "".join(each.identity.key for each in store.records(limit=limit, of=of))

    assert keys(Series("ada", "task ")) == "128"
    assert keys(Series("ada", "task "), limit=2) == "12"
    assert keys(Series("a*a", "task ")) == "4"
    assert keys(Series("[ab]", "task ")) == "9"
    assert keys(Series("nobody", "")) == ""
    second = store.look(Identity("ada", "task b", "2"))
    assert second is not None
    assert keys(Series("ada", "task ", second.created_at)) == "28"


@every_store
def test_operators_resolve_and_forget(store: Store) -> None:
    apply(store, claim("one", "lost", lease=OVER))
    apply(store, claim("one", "running"))
    lost, live = command("lost").identity, command("running").identity
    assert not store.resolve(live, b"1", 100.0)
    assert not store.resolve(command("none").identity, b"1", 100.0)
    assert store.resolve(lost, b'"result":7', 100.0)
    assert apply(store, claim("two", "lost")) == Replay(b'"result":7')
    assert not store.resolve(lost, b'"result":8', 100.0)
    assert store.forget(lost) and not store.forget(lost)
    assert isinstance(apply(store, claim("two", "lost")), Claimed)
    assert not store.forget(live)


@every_store
def test_a_closed_store_opens_again_when_it_is_used(store: Store, kind: str) -> None:
    finish(store, "one", b"1")
    store.close()
    store.close()
    assert apply(store, claim("two")) == Replay(b"1")


@pytest.mark.parametrize("kind", STORES[1:], indirect=True)
def test_stores_that_start_together_do_not_collide(url: str) -> None:
    stores = [open_store(url) for _ in range(8)]
    barrier = threading.Barrier(len(stores))
    answers: list[Answer] = []

    def start(number: int, store: Store) -> None:
        barrier.wait()
        answers.append(apply(store, claim(f"owner {number}")))

    threads = [threading.Thread(target=start, args=each) for each in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(answer, Claimed) for answer in answers) == 1 and len(answers) == 8
    for store in stores:
        store.close()


@pytest.mark.parametrize("kind", TRANSACTIONAL_STORES, indirect=True)
def test_a_transaction_meets_records_of_other_promises(store: Store) -> None:
    asked = claim("two", promise=TRANSACTIONAL)
    apply(store, claim("one", lease=OVER))
    assert store.begin(asked, 1.0) == Unknown()
    assert store.begin(asked, 1.0) == Unknown()
    record: Record | None = store.look(command().identity)
    assert record is not None and record.state is State.UNKNOWN
    finish(store, "one", b"1", "done")
    assert store.begin(claim("two", "done", TRANSACTIONAL), 1.0) == Replay(b"1")


@pytest.mark.parametrize("kind", TRANSACTIONAL_STORES, indirect=True)
def test_a_newer_schema_is_not_touched(
    store: Store, url: str, make_newer: Callable[[], None]
) -> None:
    store.sweep()
    make_newer()
    other = open_store(url)
    with pytest.raises(StoreUnavailable, match="newer version") as refused:
        other.look(command().identity)
    assert "schema 99" in explain(refused.value)
    other.close()


@pytest.fixture
def make_newer(kind: str, url: str, tmp_path: Path) -> Callable[[], None]:
    def run() -> None:
        statement = "UPDATE duet_schema SET version = 99"
        if kind == "sqlite":
            connection = sqlite3.connect(tmp_path / "commands.db")
            connection.execute(statement)
            connection.commit()
            connection.close()
        else:
            import psycopg

            with psycopg.connect(url) as line:
                line.execute(statement)

    return run


def test_urls_choose_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = open_store("sqlite:///here.db")
    apply(relative, claim("one"))
    assert (tmp_path / "here.db").exists()
    relative.close()
    absolute = open_store(f"sqlite:///{tmp_path}/there%20.db")
    apply(absolute, claim("one"))
    assert (tmp_path / "there .db").exists()
    absolute.close()
    assert isinstance(open_store("memory:"), MemoryStore)


@pytest.mark.parametrize("url", ["commands.db", "mysql://host/db", "sqlite://host/x", "sqlite:"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url)


def test_an_sqlite_store_needs_a_file() -> None:
    with pytest.raises(UsageError, match="file"):
        SqliteStore(":memory:")


@pytest.mark.parametrize("url, extra", [("postgresql://x", "postgres"), ("redis://x", "redis")])
def test_a_missing_driver_is_named(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=rf"pip install 'duet-rpc\[{extra}\]'"):
        open_store(url)


@every_store
def test_stores_say_what_they_can_promise(store: Store, kind: str) -> None:
    able = store.capabilities
    assert able.transactional == (kind in TRANSACTIONAL_STORES)
    assert able.durable == (kind != "memory")
    assert able.note
    if not able.transactional:
        with pytest.raises(UsageError):
            store.begin(claim("one", promise=TRANSACTIONAL), 1.0)


def test_identities_sort() -> None:
    assert Identity("a", "b", "c") < Identity("a", "c", "a")


# A store that an older release made


@pytest.mark.parametrize("kind", TRANSACTIONAL_STORES, indirect=True)
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_store_of_the_first_schema_is_migrated_where_it_is(
    kind: str, url: str, is_empty: bool, execute: Callable[[str], list[Any]]
) -> None:
    blob, real = ("blob", "real") if kind == "sqlite" else ("bytea", "float8")
    suffix = " WITHOUT ROWID" if kind == "sqlite" else ""
    execute("CREATE TABLE duet_schema (version integer NOT NULL)")
    execute("INSERT INTO duet_schema VALUES (1)")
    execute(
        f"""CREATE TABLE duet_commands (
            principal text NOT NULL, method text NOT NULL, key text NOT NULL,
            fingerprint {blob} NOT NULL, promise text NOT NULL, state text NOT NULL,
            token bigint NOT NULL, owner text NOT NULL, attempts bigint NOT NULL,
            correlation_id text NOT NULL, lease_until {real} NOT NULL, created_at {real} NOT NULL,
            finished_at {real}, expires_at {real} NOT NULL, outcome {blob},
            PRIMARY KEY (principal, method, key)){suffix}"""
    )
    execute("CREATE INDEX duet_commands_expire ON duet_commands (expires_at)")
    begun = time.time() - 100.0
    if not is_empty:
        identity = "'local', 'bank.transfer', 'k'"
        word = "X'66'" if kind == "sqlite" else "'f'"
        execute(
            f"INSERT INTO duet_commands VALUES ({identity}, {word}, 'at-most-once', 'done', 7,"
            f" 'one', 1, 'c', 0, {begun}, {begun}, {begun + 5000.0}, {word})"
        )
    store = open_store(url)
    since, now = store.since(86400.0)
    assert since == pytest.approx(now if is_empty else begun, abs=5.0)
    assert len(store.records()) == (not is_empty)
    retry = Claim(command("new", age=50.0), "two", LIVE, LIVE)
    assert isinstance(apply(store, retry), Unknown if is_empty else Claimed)
    assert execute("SELECT version FROM duet_schema") == [(2,)]
    store.close()


@pytest.fixture
def execute(kind: str, url: str, tmp_path: Path) -> Callable[[str], list[Any]]:
    """Run a statement behind the store's back."""

    def run(statement: str) -> list[Any]:
        if kind == "sqlite":
            connection = sqlite3.connect(tmp_path / "commands.db", isolation_level=None)
            try:
                return connection.execute(statement).fetchall()
            finally:
                connection.close()
        import psycopg

        with psycopg.connect(url, autocommit=True) as line:
            cursor = line.execute(statement)
            return cursor.fetchall() if cursor.description else []

    return run


# What a sweep costs


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_sqlite_sweeps_by_its_index(store: Store, execute: Callable[[str], list[Any]]) -> None:
    from duet_rpc.ledger.stores.sqlite.file import SQL

    store.sweep()
    for statement in (SQL.cut_off, SQL.drop, SQL.shift):
        values = {":now": "9", ":limit": "5", ":unknown_ttl": "1", ":by": "1"}
        values |= {":after": "1", ":until": "2"}
        for name, value in values.items():
            statement = statement.replace(name, value)
        plan = " / ".join(row[3] for row in execute(f"EXPLAIN QUERY PLAN {statement}"))
        assert "COVERING INDEX duet_commands_expire" in plan
        assert "SCAN" not in plan.replace("SCAN CONSTANT", "")


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_postgres_sweeps_by_its_index(store: Store, execute: Callable[[str], list[Any]]) -> None:
    from duet_rpc.ledger.stores.postgres.statements import SQL

    store.sweep()
    execute(
        "INSERT INTO duet_commands SELECT 'local', 'm', n::text, 'f', 'at-most-once', 'done', n,"
        " 'one', 1, 'c', 0, n, n, n, 'o' FROM generate_series(1, 20000) AS n"
    )
    execute("ANALYZE duet_commands")
    for statement in (SQL.cut_off, SQL.drop, SQL.shift):
        filled = statement % {
            "now": 9.0, "limit": 5, "unknown_ttl": 1.0, "by": 1.0, "after": 1.0, "until": 2.0
        }  # fmt: skip
        plan = "\n".join(row[0] for row in execute(f"EXPLAIN {filled}"))
        assert "Index Scan using duet_commands_expire" in plan
        assert "Tid Scan" in plan and "Seq Scan" not in plan
