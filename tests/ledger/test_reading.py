"""Queries that read the store's own database: what they are given, and what they cannot do."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duet_rpc import PostgresStore, Server, Service, SqliteStore, Transaction, testing
from duet_rpc.errors import InternalError, StoreUnavailable, UsageError
from duet_rpc.policy import AGENT
from tests.ledger.servers import Postgres

DRIVERS: dict[str, Any] = {
    "sqlite3.Connection": sqlite3.Connection,
    "psycopg.Connection": psycopg.Connection,
    "psycopg.AsyncConnection": psycopg.AsyncConnection,
}
FITS = {
    "sqlite": {False: "sqlite3.Connection", True: "sqlite3.Connection"},
    "postgres": {False: "psycopg.Connection", True: "psycopg.AsyncConnection"},
}


def service_with(driver: Any, ask: Callable[..., Any], *, is_async: bool = False) -> Service:
    """Make a service whose one query asks its connection something."""
    service = Service()

    def find(sql: str, db: Any) -> Any:
        return ask(db, sql)

    async def find_async(sql: str, db: Any) -> Any:
        return await ask(db, sql) if driver is psycopg.AsyncConnection else ask(db, sql)

    handler = find_async if is_async else find
    handler.__annotations__["db"] = driver
    service.query(name="find")(handler)
    return service


def rows(db: Any, sql: str) -> Any:
    return db.execute(sql).fetchall()


async def rows_async(db: Any, sql: str) -> Any:
    return await (await db.execute(sql)).fetchall()


def reading(kind: str, is_async: bool) -> Service:
    driver = DRIVERS[FITS[kind][is_async]]
    ask = rows_async if driver is psycopg.AsyncConnection else rows
    return service_with(driver, ask, is_async=is_async)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("store", ["none", "memory", "redis", "sqlite", "postgres"])
@pytest.mark.clause("dependencies-9")
def test_a_query_asks_for_the_connection_that_the_store_has(
    store: str, driver: str, is_async: bool, tmp_path: Path
) -> None:
    service = service_with(DRIVERS[driver], rows, is_async=is_async)
    file = tmp_path / "s.db"
    url = {
        "none": None,
        "memory": "memory:",
        "redis": "redis://127.0.0.1:1",
        "sqlite": f"sqlite:///{file}",
        "postgres": "postgresql://127.0.0.1:1/nowhere",
    }[store]
    if FITS.get(store, {}).get(is_async) == driver:
        Server(service, store=url).close()
        return
    with pytest.raises(UsageError) as refused:
        Server(service, store=url)
    if store == "none":
        assert "find: db is a connection to the store, and there is none" in str(refused.value)
    elif store in FITS:
        assert f"write db: {FITS[store][is_async]}" in str(refused.value)
    else:
        assert "Store has none to give; use SQLite or PostgreSQL" in str(refused.value)
    assert not file.exists(), "nothing was opened"


def test_a_query_is_given_no_transaction() -> None:
    service = Service()
    with pytest.raises(UsageError, match="find: only a command is given the transaction"):

        @service.query
        def find(db: Transaction) -> None: ...


@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.clause("dependencies-9")
async def test_a_query_reads_what_is_committed(kind: str, url: str, is_async: bool) -> None:
    service = reading(kind, is_async)
    notes = f"notes_{is_async}"  # PostgreSQL keeps them for the next test

    @service.command
    def add(text: str, tx: Transaction) -> None:
        tx.execute(f"create table if not exists {notes} (text varchar(20))")
        tx.execute(f"insert into {notes} values ('{text}')")

    async with testing.connect(service, policy=AGENT, store=url) as client:
        for count, text in enumerate(["milk", "tea"], 1):
            await client.command("add", {"text": text})
            found = await client.query("find", {"sql": f"select text from {notes}"})
            assert len(found) == count
        assert found == [["milk"], ["tea"]]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.clause("dependencies-9")
async def test_a_query_cannot_write(kind: str, url: str, is_async: bool) -> None:
    service = reading(kind, is_async)
    allow = {
        "sqlite": "pragma query_only = off",
        "postgres": "set session characteristics as transaction read write",
    }
    async with testing.connect(service, policy=AGENT, store=url) as client:
        with pytest.raises(InternalError):
            await client.query("find", {"sql": "create table mine (text varchar(20))"})
        with pytest.raises(InternalError) if kind == "postgres" else _nothing():
            await client.query("find", {"sql": allow[kind]})  # PostgreSQL: it gives no rows
        with pytest.raises(InternalError):
            await client.query("find", {"sql": "create table mine (text varchar(20))"})


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_query_leaves_open_does_not_reach_the_next(
    kind: str, url: str, is_async: bool
) -> None:
    service = reading(kind, is_async)
    async with testing.connect(service, policy=AGENT, store=url) as client:
        for _ in range(3):
            try:
                await client.query("find", {"sql": "begin"})
            except InternalError:
                pass  # it gives no rows on PostgreSQL
        assert await client.query("find", {"sql": "select 1"}) == [[1]]


def close_it(db: Any, sql: str) -> Any:
    found = rows(db, sql)
    db.close()
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
def test_a_connection_that_a_query_has_closed_is_not_lent_again(kind: str, url: str) -> None:
    service = service_with(DRIVERS[FITS[kind][False]], close_it)
    with testing.connect_blocking(service, policy=AGENT, store=url) as client:
        for _ in range(3):
            assert client.query("find", {"sql": "select 1"}) == [[1]]


def test_a_store_prepares_the_connections_that_read(tmp_path: Path) -> None:
    def prepare(db: sqlite3.Connection) -> None:
        db.row_factory = sqlite3.Row

    def names(db: sqlite3.Connection, sql: str) -> list[str]:
        [row] = db.execute(sql).fetchall()
        db.row_factory = None
        return list(row.keys())

    store = SqliteStore(tmp_path / "s.db", prepare=prepare)
    service = service_with(sqlite3.Connection, names)
    with testing.connect_blocking(service, policy=AGENT, store=store) as client:
        for _ in range(2):
            assert client.query("find", {"sql": "select 1 as one"}) == ["one"]


def test_reading_keeps_no_writer_waiting(tmp_path: Path) -> None:
    """A query that takes its time holds no lock between its statements."""
    file = tmp_path / "s.db"
    service = Service()

    @service.query
    def find(db: sqlite3.Connection) -> int:
        db.execute("select count(*) from duet_commands").fetchone()
        with sqlite3.connect(file, timeout=0) as another:
            another.execute("create table notes (text)")
        [(count,)] = db.execute("select count(*) from notes").fetchall()
        return int(count)

    with testing.connect_blocking(service, policy=AGENT, store=f"sqlite:///{file}") as client:
        assert client.query("find") == 0


@pytest.mark.parametrize("is_async", [False, True])
async def test_reading_goes_on_after_a_restart_of_the_server(
    postgres_server: Postgres, is_async: bool
) -> None:
    store = PostgresStore(postgres_server.url, timeout=20.0)
    service = reading("postgres", is_async)
    async with testing.connect(service, policy=AGENT, store=store) as client:
        assert await client.query("find", {"sql": "select 1"}) == [[1]]
        postgres_server.shut_down()
        with pytest.raises(StoreUnavailable):
            await client.query("find", {"sql": "select 1"})
        postgres_server.start()
        assert await client.query("find", {"sql": "select 1"}) == [[1]]
