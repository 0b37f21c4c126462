"""Stores that go away and come back under a ledger that stays."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from duet_rpc.errors import StoreUnavailable
from duet_rpc.ledger import Ledger, Promise, Ran, Run, SqliteStore, open_store
from tests.ledger.commands import AT_MOST_ONCE, TRANSACTIONAL, Handler, command, never
from tests.ledger.servers import Postgres, Server, Valkey

CASES = [("postgres", AT_MOST_ONCE), ("postgres", TRANSACTIONAL), ("valkey", AT_MOST_ONCE)]

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def server(kind: str, url: str, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server behind the URL; it is going to suffer, and runs again for the next test."""
    server: Server = request.getfixturevalue(f"{kind}_server")
    yield server
    if server.process is None:
        server.start()


@pytest.mark.parametrize("kind, promise", CASES, indirect=["kind"])
@pytest.mark.parametrize("end", ["crash", "shut_down"])
def test_a_server_that_goes_down_refuses_and_a_restart_recovers(
    server: Postgres | Valkey, promise: Promise, end: str
) -> None:
    ledger = Ledger(open_store(server.url))
    first = ledger.run(command("before", promise), Handler(b'"result":"kept"'))
    getattr(server, end)()
    for key in ("before", "during"):
        with pytest.raises(StoreUnavailable):
            ledger.run(command(key, promise), never)
    server.start()
    assert ledger.run(command("before", promise), never) == first
    assert ledger.run(command("during", promise), Handler()) == b'"result":1'
    ledger.close()


@pytest.mark.parametrize("kind", ["postgres", "valkey"], indirect=True)
def test_connections_that_went_stale_are_replaced_at_once(server: Postgres | Valkey) -> None:
    ledger = Ledger(open_store(server.url))
    ledger.run(command("before"), Handler())
    server.crash()
    server.start()
    assert ledger.run(command("after"), Handler()) == b'"result":1'
    ledger.close()


@pytest.mark.parametrize("kind", ["postgres", "valkey"], indirect=True)
def test_a_server_may_start_after_us(server: Postgres | Valkey) -> None:
    server.shut_down()
    ledger = Ledger(open_store(server.url))
    with pytest.raises(StoreUnavailable):
        ledger.run(command(), never)
    server.start()
    assert ledger.run(command(), Handler()) == b'"result":1'
    ledger.close()


@pytest.mark.parametrize("kind", ["postgres", "valkey"], indirect=True)
def test_an_outcome_waits_for_a_restart(server: Postgres | Valkey) -> None:
    ledger = Ledger(open_store(server.url), lease=120.0)

    def work(run: Run) -> Ran:
        server.crash()
        server.start()
        return Ran(b'"result":"kept"')

    assert ledger.run(command(), work) == b'"result":"kept"'
    assert ledger.run(command(), never) == b'"result":"kept"'
    ledger.close()


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_connection_that_is_cut_in_the_middle_of_a_claim(server: Postgres) -> None:
    ledger = Ledger(open_store(server.url))
    ledger.run(command("before"), Handler())
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with (
        psycopg.connect(server.url) as other,
        psycopg.connect(server.url, autocommit=True) as watcher,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("LOCK TABLE duet_commands")
        claiming = pool.submit(ledger.run, command("cut"), Handler())
        while not (found := watcher.execute(waiting).fetchall()):
            assert not claiming.done()
        watcher.execute("SELECT pg_terminate_backend(%s)", found[0])
        other.rollback()
        assert claiming.result(60) == b'"result":1'
    ledger.close()


@pytest.mark.parametrize("promise", [AT_MOST_ONCE, TRANSACTIONAL])
def test_a_locked_file_refuses_and_recovers(tmp_path: Path, promise: Promise) -> None:
    path = tmp_path / "commands.db"
    ledger = Ledger(SqliteStore(path, timeout=0.1), wait=0.1)
    ledger.run(command("before", promise), Handler())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        ledger.run(command("during", promise), never)
    other.execute("ROLLBACK")
    other.close()
    assert ledger.run(command("during", promise), Handler()) == b'"result":1'
    ledger.close()


def test_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    ledger = Ledger(SqliteStore(tmp_path / "later" / "commands.db"))
    with pytest.raises(StoreUnavailable):
        ledger.run(command(), never)
    (tmp_path / "later").mkdir()
    assert ledger.run(command(), Handler()) == b'"result":1'
    ledger.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "commands.db"
    path.write_bytes(b"not a database at all" * 100)
    ledger = Ledger(SqliteStore(path))
    for promise in (AT_MOST_ONCE, TRANSACTIONAL):
        with pytest.raises(StoreUnavailable):
            ledger.run(command(promise=promise), never)
    ledger.close()


def test_old_sqlite_gets_the_rollback_journal_and_every_commit_is_synced(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "commands.db")
    store.sweep()
    assert store._writer.connection is not None
    [mode] = store._writer.connection.execute("PRAGMA journal_mode").fetchone()
    is_safe = sqlite3.sqlite_version_info >= (3, 51, 3)
    assert mode == ("wal" if is_safe else "truncate")
    assert store._writer.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()
