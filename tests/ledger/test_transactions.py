"""Transactional commands: effects and record commit together, whatever the handler does."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duet_rpc.errors import InProgress, StoreUnavailable, UsageError
from duet_rpc.ledger import Ending, Ledger, Ran, Run, SqliteStore, Store
from duet_rpc.ledger.states import Claim
from duet_rpc.ledger.stores.sqlite.file import WAL_IS_SAFE_FROM
from tests.ledger.commands import TRANSACTIONAL, Handler, command, never

both = pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
sqlite = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
postgres = pytest.mark.parametrize("kind", ["postgres"], indirect=True)

INSERT = "INSERT INTO effects (name) VALUES ('effect')"


class Database:
    """The application's own way into the database."""

    def __init__(self, kind: str, url: str):
        if kind == "sqlite":
            self.connection: Any = sqlite3.connect(
                url.removeprefix("sqlite:///"), isolation_level=None, timeout=45.0
            )
        else:
            self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("CREATE TABLE effects (name text PRIMARY KEY)")

    def effects(self) -> int:
        count: int = self.connection.execute("SELECT count(*) FROM effects").fetchone()[0]
        return count


@pytest.fixture
def database(kind: str, url: str) -> Iterator[Database]:
    opened = Database(kind, url)
    yield opened
    opened.connection.close()


def insert(run: Run) -> Ran:
    run.transaction.execute(INSERT)
    return Ran(b'"result":1')


@both
def test_effect_and_outcome_commit_together(ledger: Ledger, database: Database) -> None:
    def work(run: Run) -> Ran:
        insert(run)
        assert database.effects() == 0, "nobody sees it before the commit"
        return Ran(b'"result":1')

    assert ledger.run(command(promise=TRANSACTIONAL), work) == b'"result":1'
    assert ledger.run(command(promise=TRANSACTIONAL), never) == b'"result":1'
    assert database.effects() == 1


@both
@pytest.mark.parametrize("ending", [Ending.FAILED, Ending.UNSERIALIZABLE])
def test_a_failure_undoes_the_effect_and_stores_nothing(
    ledger: Ledger, database: Database, ending: Ending
) -> None:
    def work(run: Run) -> Ran:
        insert(run)
        return Ran(b'"error":1', ending)

    assert ledger.run(command(promise=TRANSACTIONAL), work) == b'"error":1'
    assert database.effects() == 0
    assert ledger.run(command(promise=TRANSACTIONAL), insert) == b'"result":1'
    assert database.effects() == 1


@both
def test_a_declared_error_undoes_the_effect_and_is_stored(
    ledger: Ledger, database: Database
) -> None:
    def work(run: Run) -> Ran:
        insert(run)
        return Ran(b'"error":"declared"', Ending.DECLARED)

    assert ledger.run(command(promise=TRANSACTIONAL), work) == b'"error":"declared"'
    assert ledger.run(command(promise=TRANSACTIONAL), never) == b'"error":"declared"'
    assert database.effects() == 0


@both
def test_a_declared_error_after_a_failed_statement_is_stored(
    ledger: Ledger, database: Database
) -> None:
    ledger.run(command("first", TRANSACTIONAL), insert)

    def work(run: Run) -> Ran:
        with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
            run.transaction.execute(INSERT)
        return Ran(b'"error":"taken"', Ending.DECLARED)

    assert ledger.run(command("second", TRANSACTIONAL), work) == b'"error":"taken"'
    assert ledger.run(command("second", TRANSACTIONAL), never) == b'"error":"taken"'


@both
@pytest.mark.parametrize("method", ["commit", "rollback", "close"])
def test_a_handler_cannot_end_the_transaction(
    ledger: Ledger, database: Database, method: str
) -> None:
    def work(run: Run) -> Ran:
        insert(run)
        with pytest.raises(UsageError):
            getattr(run.transaction, method)()
        return Ran(b"1")

    assert ledger.run(command(promise=TRANSACTIONAL), work) == b"1"
    assert database.effects() == 1


@both
@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_handler_that_ends_the_transaction_by_sql_is_found_out(
    ledger: Ledger, database: Database, statement: str
) -> None:
    def work(run: Run) -> Ran:
        run.transaction.execute(statement)
        return Ran(b"1")

    with pytest.raises(UsageError, match="ended the transaction"):
        ledger.run(command(promise=TRANSACTIONAL), work)
    assert ledger.run(command("other", TRANSACTIONAL), insert) == b'"result":1'


ENDINGS: dict[str, Callable[[Any], object]] = {
    "COMMIT": lambda line: line.execute("COMMIT"),
    "ROLLBACK": lambda line: line.execute("ROLLBACK"),
    "END": lambda line: line.cursor().execute("end transaction"),
    "the fence": lambda line: line.execute("RELEASE duet_fence"),
    "a script": lambda line: line.cursor().executescript("SELECT 1"),
    "the isolation level": lambda line: setattr(line, "isolation_level", None),
    "OR ROLLBACK": lambda line: line.execute("INSERT OR ROLLBACK INTO effects VALUES ('one')"),
}


@sqlite
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_that_a_handler_does_parts_its_effects_from_their_record(
    ledger: Ledger, database: Database, ending: str
) -> None:
    def work(run: Run) -> Ran:
        line = run.transaction
        line.execute("INSERT INTO effects VALUES ('one')")
        with contextlib.suppress(UsageError, sqlite3.Error):
            ENDINGS[ending](line)
        # Had the transaction ended, this would commit by itself.
        line.cursor().execute("INSERT INTO effects VALUES ('two')")
        raise ZeroDivisionError

    for _ in range(2):  # the second time with statements that are prepared already
        with pytest.raises((ZeroDivisionError, UsageError)):
            ledger.run(command(promise=TRANSACTIONAL), work)
        assert database.effects() == 0
    assert ledger.run(command(promise=TRANSACTIONAL), insert) == b'"result":1'


@sqlite
def test_with_connection_is_a_savepoint(ledger: Ledger, database: Database) -> None:
    def work(run: Run) -> Ran:
        with run.transaction:
            run.transaction.execute("INSERT INTO effects VALUES ('outer')")
            with pytest.raises(ZeroDivisionError), run.transaction:
                run.transaction.execute("INSERT INTO effects VALUES ('inner')")
                raise ZeroDivisionError
        with pytest.raises(UsageError):
            run.transaction.executescript("SELECT 1")
        return Ran(b"1")

    ledger.run(command(promise=TRANSACTIONAL), work)
    assert database.connection.execute("SELECT name FROM effects").fetchall() == [("outer",)]


@postgres
def test_transactions_nest(ledger: Ledger, database: Database) -> None:
    def work(run: Run) -> Ran:
        run.transaction.execute("INSERT INTO effects VALUES ('outer')")
        with pytest.raises(psycopg.IntegrityError), run.transaction.transaction():
            run.transaction.execute("INSERT INTO effects VALUES ('outer')")
        return Ran(b"1")

    ledger.run(command(promise=TRANSACTIONAL), work)
    assert database.effects() == 1


@postgres
def test_a_swallowed_sql_error_is_not_taken_for_success(ledger: Ledger, database: Database) -> None:
    def work(run: Run) -> Ran:
        with pytest.raises(psycopg.Error):
            run.transaction.execute("nonsense")
        return Ran(b"1")

    with pytest.raises(UsageError, match="a statement failed"):
        ledger.run(command(promise=TRANSACTIONAL), work)
    assert ledger.run(command(promise=TRANSACTIONAL), insert) == b'"result":1'


@both
def test_a_constraint_checked_at_the_commit_is_the_handlers_fault(
    ledger: Ledger, database: Database, kind: str
) -> None:
    database.connection.execute(
        "CREATE TABLE children (of text REFERENCES effects (name) DEFERRABLE INITIALLY DEFERRED)"
    )

    def work(run: Run) -> Ran:
        run.transaction.execute("INSERT INTO children VALUES ('nobody')")
        return Ran(b"1")

    try:
        if kind == "sqlite":
            store = ledger.store
            assert isinstance(store, SqliteStore)
            store._transactions._prepare = lambda line: line.execute("PRAGMA foreign_keys = ON")
        with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
            ledger.run(command(promise=TRANSACTIONAL), work)
        assert ledger.run(command(promise=TRANSACTIONAL), insert) == b'"result":1'
    finally:
        database.connection.execute("DROP TABLE children")


@sqlite
def test_what_a_handler_sets_on_its_connection_is_gone_for_the_next(
    ledger: Ledger, database: Database
) -> None:
    def work(run: Run) -> Ran:
        run.transaction.row_factory = lambda cursor, row: {"unlike": "a row"}
        run.transaction.text_factory = bytes
        return Ran(b"1")

    ledger.run(command("one", TRANSACTIONAL), work)
    handler = Handler()
    ledger.run(command("two", TRANSACTIONAL), handler)
    assert handler.runs[0].transaction.row_factory is None
    assert ledger.run(command("one", TRANSACTIONAL), never) == b"1"


def test_connections_for_handlers_can_be_prepared(tmp_path: Path) -> None:
    def prepare(connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row

    ledger = Ledger(SqliteStore(tmp_path / "commands.db", prepare=prepare))

    def work(run: Run) -> Ran:
        assert run.transaction.execute("SELECT 7 AS seven").fetchone()["seven"] == 7
        return Ran(b"1")

    for key in ("one", "two", "one"):
        assert ledger.run(command(key, TRANSACTIONAL), work) == b"1"
    ledger.close()


@both
def test_async_handlers_work_in_the_transaction(
    ledger: Ledger, database: Database, kind: str
) -> None:
    async def work(run: Run) -> Ran:
        done = run.transaction.execute(INSERT)
        if kind == "postgres":
            assert isinstance(run.transaction, psycopg.AsyncConnection)
            await done
        return Ran(b'"result":1')

    async def fail(run: Run) -> Ran:
        await work(run)
        return Ran(b'"error":1', Ending.FAILED)

    async def both_times() -> list[bytes]:
        asked = command(promise=TRANSACTIONAL)
        return [
            await ledger.run_async(asked, fail),
            await ledger.run_async(asked, work),
            await ledger.run_async(asked, work),
        ]

    assert asyncio.run(both_times()) == [b'"error":1', b'"result":1', b'"result":1']
    assert database.effects() == 1


@postgres
def test_a_duplicate_elsewhere_stops_waiting_for_the_row(
    ledger: Ledger, database: Database, make_ledger: Callable[..., Ledger]
) -> None:
    impatient = make_ledger(wait=0.1)

    def work(run: Run) -> Ran:
        with pytest.raises(InProgress):
            impatient.run(command(promise=TRANSACTIONAL), never)
        return insert(run)

    assert ledger.run(command(promise=TRANSACTIONAL), work) == b'"result":1'
    assert impatient.run(command(promise=TRANSACTIONAL), never) == b'"result":1'


@both
def test_an_expired_outcome_is_replaced(store: Store, database: Database) -> None:
    ledger = Ledger(store, ttl=0.001)
    handler = Handler()
    ledger.run(command(promise=TRANSACTIONAL), handler)
    threading.Event().wait(0.02)
    ledger.run(command(promise=TRANSACTIONAL), handler)
    assert len(handler.runs) == 2
    assert handler.runs[1].token > handler.runs[0].token
    ledger.close()


@both
def test_a_live_run_of_another_promise_is_waited_for(store: Store, database: Database) -> None:
    ledger = Ledger(store, wait=0.05)
    store.commit([Claim(command(), "another release of the service", 1000.0, 1000.0)])
    with pytest.raises(InProgress):
        ledger.run(command(promise=TRANSACTIONAL), never)
    ledger.close()


@sqlite
def test_a_reader_that_keeps_the_commit_out_costs_nothing_but_the_try(
    url: str, database: Database
) -> None:
    ledger = Ledger(SqliteStore(url.removeprefix("sqlite:///"), timeout=0.1))
    ledger.run(command("before", TRANSACTIONAL), Handler())
    database.connection.execute("BEGIN")
    database.effects()
    if sqlite3.sqlite_version_info < WAL_IS_SAFE_FROM:
        with pytest.raises(StoreUnavailable):
            ledger.run(command(promise=TRANSACTIONAL), insert)
    database.connection.execute("COMMIT")
    assert ledger.run(command(promise=TRANSACTIONAL), insert) == b'"result":1'
    assert database.effects() == 1
    ledger.close()


@postgres
def test_a_connection_lost_inside_the_handler_leaves_nothing(
    ledger: Ledger, database: Database
) -> None:
    def work(run: Run) -> Ran:
        insert(run)
        pid = run.transaction.info.backend_pid
        database.connection.execute("SELECT pg_terminate_backend(%s, 45000)", (pid,))
        return Ran(b'"error":1', Ending.FAILED)

    with pytest.raises(StoreUnavailable):
        ledger.run(command(promise=TRANSACTIONAL), work)

    def unaware(run: Run) -> Ran:
        return Ran(work(run).body)

    with pytest.raises(StoreUnavailable):
        ledger.run(command(promise=TRANSACTIONAL), unaware)
    assert database.effects() == 0
    assert ledger.run(command(promise=TRANSACTIONAL), insert) == b'"result":1'


@postgres
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(
    ledger: Ledger, database: Database, is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(run: Run) -> Ran:
        insert(run)
        line = run.transaction
        real = line.execute

        def execute(statement: Any, *args: Any) -> Any:
            if statement != "COMMIT":
                return real(statement, *args)
            if is_committed:
                real(statement)
            line.pgconn.finish()
            raise psycopg.OperationalError("the line is cut")

        monkeypatch.setattr(line, "execute", execute)
        return Ran(b'"result":1')

    if is_committed:
        assert ledger.run(command(promise=TRANSACTIONAL), work) == b'"result":1'
    else:
        with pytest.raises(StoreUnavailable):
            ledger.run(command(promise=TRANSACTIONAL), work)
    assert database.effects() == int(is_committed)
    assert ledger.run(command(promise=TRANSACTIONAL), insert) == b'"result":1'
    assert database.effects() == 1
