"""Stores that stop answering, and then go on: frozen servers, and a file that stays locked."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from duet_rpc.errors import InProgress, OutcomeUnknown, RpcError, StoreUnavailable
from duet_rpc.ledger import Command, Ledger, PostgresStore, Promise, Ran, RedisStore, Run, Store
from tests.ledger.commands import AT_MOST_ONCE, RETRY_SAFE, TRANSACTIONAL, Handler, command, never
from tests.ledger.servers import Postgres, Server, Valkey

pytestmark = pytest.mark.timeout(180)

TIMEOUT = 1.0
HANGS = 60.0
"""What takes so long would take for ever."""
PLAIN = [
    (kind, promise) for kind in ("postgres", "valkey") for promise in (AT_MOST_ONCE, RETRY_SAFE)
]
CASES = [*PLAIN, ("postgres", TRANSACTIONAL)]
every_case = pytest.mark.parametrize("kind, promise", CASES, indirect=["kind"])
in_threads_and_on_loops = pytest.mark.parametrize("face", ["thread", "loop"])


@pytest.fixture
def server(kind: str, url: str, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server behind the URL; it is going to freeze, and goes on for the next test."""
    server: Server = request.getfixturevalue(f"{kind}_server")
    yield server
    server.thaw()


def store_of(server: Server) -> Store:
    if isinstance(server, Postgres):
        return PostgresStore(server.url, timeout=TIMEOUT)
    assert isinstance(server, Valkey)
    return RedisStore(server.url, timeout=TIMEOUT)


class Face:
    """A ledger as threads or as an event loop use it."""

    def __init__(self, name: str, ledger: Ledger):
        self.ledger = ledger
        self.loop = None if name == "thread" else asyncio.Runner()

    def run(self, what: Command, work: Callable[[Run], Ran]) -> bytes:
        return self.run_all([what], work)[0]

    def run_all(self, commands: list[Command], work: Callable[[Run], Ran]) -> list[bytes]:
        """Run commands beside each other; what one raises is raised."""
        if self.loop is not None:
            return self.loop.run(self._all(commands, work))
        with ThreadPoolExecutor(len(commands)) as pool:
            begun = [pool.submit(self.ledger.run, each, work) for each in commands]
            return [each.result(HANGS) for each in begun]

    async def _all(self, commands: list[Command], work: Callable[[Run], Ran]) -> list[bytes]:
        async def on_loop(run: Run) -> Ran:
            return await asyncio.to_thread(work, run)

        runs = (self.ledger.run_async(each, on_loop) for each in commands)
        async with asyncio.timeout(HANGS):
            return await asyncio.gather(*runs)

    def refused(self, keys: list[str], promise: Promise) -> list[RpcError]:
        """Run commands that have to be refused."""
        found: list[RpcError] = []

        def one(key: str) -> None:
            with pytest.raises(RpcError) as refusal:
                self.run(command(key, promise), never)
            found.append(refusal.value)

        for key in keys:
            one(key)
        return found

    def close(self) -> None:
        if self.loop is not None:
            self.loop.close()
        self.ledger.close()


def eventually(run: Callable[[], bytes]) -> bytes:
    """Try until the store is back, as a caller does; any other refusal is raised."""
    give_up = time.monotonic() + HANGS
    while True:
        try:
            return run()
        except StoreUnavailable:
            assert time.monotonic() < give_up
            time.sleep(0.02)


@every_case
@in_threads_and_on_loops
def test_a_frozen_server_refuses_and_recovers(server: Server, promise: Promise, face: str) -> None:
    # A claim that the server applies when it goes on must not keep its key for a whole lease.
    ledger = Face(face, Ledger(store_of(server), lease=600.0, wait=2 * TIMEOUT))
    assert ledger.run(command("before", promise), Handler(b'"result":"kept"'))
    server.freeze()
    refusals = ledger.refused(["first", *map(str, range(50)), "before"], promise)
    assert {type(each) for each in refusals} == {StoreUnavailable}
    assert {each.data["detail"] for each in refusals} == {"the store does not answer"}
    server.thaw()
    for key in ("first", "7", "new"):
        once = Handler()
        assert eventually(lambda: ledger.run(command(key, promise), once)) == b'"result":1'  # noqa: B023
    assert ledger.run(command("before", promise), never) == b'"result":"kept"'
    ledger.close()


@pytest.mark.parametrize(
    "kind, promise, face",
    [
        ("postgres", AT_MOST_ONCE, "thread"),
        ("postgres", TRANSACTIONAL, "thread"),
        ("postgres", TRANSACTIONAL, "loop"),
        ("valkey", AT_MOST_ONCE, "loop"),
    ],
    indirect=["kind"],
)
def test_sixteen_at_once_are_refused_together(server: Server, promise: Promise, face: str) -> None:
    ledger = Face(face, Ledger(store_of(server), lease=600.0, wait=2 * TIMEOUT))
    ledger.run(command("before", promise), Handler())
    server.freeze()
    keys = [f"at once {number}" for number in range(16)]
    with pytest.raises(StoreUnavailable):
        ledger.run_all([command(key, promise) for key in keys], never)
    server.thaw()
    for key in keys:
        assert eventually(lambda: ledger.run(command(key, promise), Handler(b"1"))) == b"1"  # noqa: B023
    ledger.close()


@every_case
def test_a_server_may_be_frozen_before_anything_was_asked(server: Server, promise: Promise) -> None:
    server.freeze()
    ledger = Face("thread", Ledger(store_of(server)))
    ledger.refused(["first", "second"], promise)
    server.thaw()
    assert eventually(lambda: ledger.run(command("first", promise), Handler())) == b'"result":1'
    ledger.close()


@pytest.mark.parametrize("kind", ["postgres", "valkey"], indirect=True)
@in_threads_and_on_loops
def test_an_outcome_that_cannot_be_stored_is_unknown_until_it_can(
    server: Server, face: str
) -> None:
    ledger = Face(face, Ledger(store_of(server), lease=3.0))

    def work(run: Run) -> Ran:
        server.freeze()
        return Ran(b'"result":"done"')

    with pytest.raises(OutcomeUnknown):
        ledger.run(command(), work)
    server.thaw()
    give_up = time.monotonic() + HANGS
    while True:
        try:
            assert ledger.run(command(), never) == b'"result":"done"'
            break
        except (StoreUnavailable, OutcomeUnknown, InProgress):
            assert time.monotonic() < give_up
            time.sleep(0.05)
    ledger.close()


def effects(server: Postgres) -> int:
    with psycopg.connect(server.url) as connection:
        [(number,)] = connection.execute("SELECT count(*) FROM effects").fetchall()
    return int(number)


def make_effects(server: Postgres) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE effects (what text)")


INSERT = "INSERT INTO effects VALUES ('effect')"


SLOW_COMMIT = """
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION slowly()
"""
COMMITTING = "SELECT 1 FROM pg_stat_activity WHERE query = 'COMMIT' AND wait_event = 'PgSleep'"


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
@in_threads_and_on_loops
def test_a_commit_without_an_answer_is_unknown_and_the_retry_knows(
    server: Postgres, face: str
) -> None:
    make_effects(server)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(SLOW_COMMIT)
    ledger = Face(face, Ledger(store_of(server)))

    async def on_loop(run: Run) -> Ran:
        await run.transaction.execute(INSERT)
        return Ran(b'"result":"once"')

    def work(run: Run) -> Ran:
        run.transaction.execute(INSERT)
        return Ran(b'"result":"once"')

    def call() -> bytes:
        if ledger.loop is None:
            return ledger.ledger.run(command(promise=TRANSACTIONAL), work)
        return ledger.loop.run(ledger.ledger.run_async(command(promise=TRANSACTIONAL), on_loop))

    def freeze_in_commit() -> None:
        with psycopg.connect(server.url, autocommit=True) as watcher:
            while not watcher.execute(COMMITTING).fetchall():
                pass
            server.freeze()

    try:
        with ThreadPoolExecutor(1) as pool:
            freezing = pool.submit(freeze_in_commit)
            with pytest.raises(OutcomeUnknown):
                call()
            freezing.result(HANGS)
        server.thaw()
        assert eventually(call) == b'"result":"once"'
        assert effects(server) == 1
    finally:
        server.thaw()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("DROP TABLE effects; DROP FUNCTION slowly")
        ledger.close()


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_frozen_server_ends_a_handlers_statement_and_nothing_is_kept(server: Postgres) -> None:
    make_effects(server)
    ledger = Ledger(store_of(server))

    def work(run: Run) -> Ran:
        run.transaction.execute(INSERT)
        server.freeze()
        run.transaction.execute(INSERT)
        raise AssertionError("a frozen server answered")

    with pytest.raises(psycopg.OperationalError, match="stopped answering"):
        ledger.run(command(promise=TRANSACTIONAL), work)
    server.thaw()

    def again(run: Run) -> Ran:
        run.transaction.execute(INSERT)
        return Ran(b"1")

    assert eventually(lambda: ledger.run(command(promise=TRANSACTIONAL), again)) == b"1"
    assert effects(server) == 1
    ledger.close()


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_handlers_statement_may_take_longer_than_the_timeout(server: Postgres) -> None:
    ledger = Ledger(store_of(server))

    def work(run: Run) -> Ran:
        run.transaction.execute("SELECT pg_sleep(%s)", (3 * TIMEOUT,))
        return Ran(b"1")

    assert ledger.run(command(promise=TRANSACTIONAL), work) == b"1"
    ledger.close()


LOCKER = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("promise", [AT_MOST_ONCE, RETRY_SAFE, TRANSACTIONAL])
@in_threads_and_on_loops
def test_a_file_that_stays_locked_refuses_and_recovers(
    tmp_path: Path, promise: Promise, face: str
) -> None:
    from duet_rpc.ledger import SqliteStore

    path = tmp_path / "commands.db"
    ledger = Face(face, Ledger(SqliteStore(path, timeout=TIMEOUT), lease=600.0, wait=TIMEOUT))
    ledger.run(command("before", promise), Handler())
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as locker:
        assert locker.stdin is not None and locker.stdout is not None
        assert locker.stdout.readline() == b"locked\n"
        refusals = ledger.refused(["first", *map(str, range(50))], promise)
        assert {each.data["detail"] for each in refusals} == {"the store is locked by others"}
        with pytest.raises(StoreUnavailable):
            ledger.run_all([command(f"at once {n}", promise) for n in range(16)], never)
        locker.communicate(b"\n")
    for key in ("first", "at once 3", "new"):
        assert ledger.run(command(key, promise), Handler()) == b'"result":1'
    ledger.close()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_valkey_that_was_frozen_holds_no_claim_of_ours(valkey_server: Valkey) -> None:
    """The claim lay in the server's buffers; whatever it did there, the key is free again."""
    valkey_server.empty()
    store = store_of(valkey_server)
    ledger = Ledger(store, lease=600.0)
    ledger.run(command("before"), Handler())
    valkey_server.freeze()
    try:
        with pytest.raises(StoreUnavailable):
            ledger.run(command("frozen"), never)
    finally:
        valkey_server.thaw()
    other = Ledger(store_of(valkey_server), lease=600.0, wait=30.0)
    assert eventually(lambda: other.run(command("frozen"), Handler())) == b'"result":1'
    ledger.close()
    other.close()
