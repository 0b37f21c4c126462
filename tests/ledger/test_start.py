"""What is found out at the start: a transaction of another database, a store that is not there."""

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duet_rpc import Server, Service, Transaction, testing
from duet_rpc.errors import OutcomeUnknown, StoreUnavailable, UsageError
from duet_rpc.ledger import Ledger, MemoryStore, PostgresStore, Ran, RedisStore, Run, SqliteStore
from duet_rpc.ledger.states import Answer
from duet_rpc.policy import AGENT
from tests.daemon.process import Process
from tests.ledger.commands import command, never

pytestmark = pytest.mark.timeout(120)

DRIVERS = {
    "sqlite3.Connection": sqlite3.Connection,
    "psycopg.Connection": psycopg.Connection,
    "psycopg.Connection[Any]": psycopg.Connection[Any],
    "psycopg.AsyncConnection": psycopg.AsyncConnection,
    "Transaction": Transaction,
}
# For each store: what fits a `def`, and what fits an `async def`.
FITS: dict[str, tuple[set[str], set[str]]] = {
    "memory": (set(), set()),
    "sqlite": ({"sqlite3.Connection", "Transaction"}, {"sqlite3.Connection", "Transaction"}),
    "postgres": (
        {"psycopg.Connection", "psycopg.Connection[Any]", "Transaction"},
        {"psycopg.AsyncConnection", "Transaction"},
    ),
    "redis": (set(), set()),
}
TABLE = [
    pytest.param(store, driver, is_async, driver in fits, id=f"{store} {kind} {driver}")
    for store, both in FITS.items()
    for is_async, kind, fits in ((False, "def", both[0]), (True, "async def", both[1]))
    for driver in DRIVERS
]


def store_of(kind: str, path: Path) -> Any:
    match kind:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(path / "commands.db")
        case "postgres":
            return PostgresStore("postgresql://duet@127.0.0.1:1/nowhere")
    return RedisStore("redis://127.0.0.1:1")


def service_with(driver: Any, *, is_async: bool) -> Service:
    app = Service()

    def move(db: Any) -> str:
        return kind_of(db)

    async def move_async(db: Any) -> str:
        return kind_of(db)

    handler = move_async if is_async else move
    handler.__annotations__["db"] = driver
    app.command(handler)
    return app


def kind_of(connection: object) -> str:
    kinds = (sqlite3.Connection, psycopg.Connection, psycopg.AsyncConnection)
    return next(each.__name__ for each in kinds if isinstance(connection, each))


@pytest.mark.parametrize(("store", "driver", "is_async", "fits"), TABLE)
def test_a_transaction_is_asked_for_by_the_connection_that_the_store_has(
    store: str, driver: str, is_async: bool, fits: bool, tmp_path: Path
) -> None:
    service = service_with(DRIVERS[driver], is_async=is_async)
    if fits:
        Server(service, store=store_of(store, tmp_path)).close()
        return
    with pytest.raises(UsageError) as refused:
        Server(service, store=store_of(store, tmp_path))
    meant = FITS[store][is_async]
    advice = "use SQLite or PostgreSQL"
    if meant:
        [advice] = {f"write db: {each}, or" for each in meant if each in _EXACT}
    assert advice in str(refused.value)


_EXACT = {"sqlite3.Connection", "psycopg.Connection", "psycopg.AsyncConnection"}


async def test_a_connection_in_memory_finds_it_out_too(tmp_path: Path) -> None:
    service = service_with(psycopg.Connection, is_async=False)
    with pytest.raises(UsageError, match="write db: sqlite3.Connection"):
        async with testing.connect(service, store=SqliteStore(tmp_path / "commands.db")):
            pass


GIVEN = [
    ("sqlite", False, "Connection", sqlite3.Connection),
    ("sqlite", True, "Connection", sqlite3.Connection),
    ("postgres", False, "Connection", psycopg.Connection),
    ("postgres", True, "AsyncConnection", psycopg.AsyncConnection),
]


@pytest.mark.parametrize("annotated", ["driver", "Transaction"])
@pytest.mark.parametrize(("kind", "is_async", "name", "driver"), GIVEN, indirect=["kind"])
async def test_what_a_transactional_handler_is_given(
    url: str, is_async: bool, name: str, driver: Any, annotated: str
) -> None:
    hint = driver if annotated == "driver" else Transaction
    service = service_with(hint, is_async=is_async)
    method = "move_async" if is_async else "move"
    async with testing.connect(service, policy=AGENT, store=url) as client:
        assert await client.command(method, {}) == name


@pytest.mark.parametrize(
    ("store", "secret"),
    [
        ("postgresql://ada:hunter2@127.0.0.1:1/nowhere", "hunter2"),
        ("redis://ada:hunter2@127.0.0.1:1/0", "hunter2"),
    ],
)
@pytest.mark.parametrize("policy", ["editor", "production"])
def test_a_store_that_cannot_be_reached_is_logged_and_the_server_starts(
    store: str, secret: str, policy: str, tmp_path: Path
) -> None:
    script = tmp_path / "service.py"
    script.write_text(
        "from duet_rpc import Service\n"
        "app = Service()\n"
        "@app.query\n"
        "def ping() -> str:\n"
        "    return 'pong'\n"
        "@app.command\n"
        "def pay() -> None: ...\n"
    )
    with Process(
        "serve", script, "--policy", policy, "--framing", "lsp", "--store", store
    ) as process:
        line = process.wait_for_log("the command store cannot be used")
        assert "warn" in line and "the store cannot be reached" in line
        assert process.call("ping") == "pong"
        refused = process.error(process.start("pay", {"idempotency_key": "k"}))
        assert refused["data"]["reason"] == "store-unavailable"
        assert secret not in process.log


class Gone(MemoryStore):
    """A store that goes away, for good."""

    is_gone = False

    def commit(self, operations: Any) -> list[Answer | Exception]:
        if self.is_gone:
            raise StoreUnavailable()
        return super().commit(operations)


def test_lost_outcomes_are_logged_where_there_are_any(caplog: pytest.LogCaptureFixture) -> None:
    store = Gone()
    ledger = Ledger(store, lease=0.3)
    store.is_gone = True
    with pytest.raises(StoreUnavailable):
        ledger.run(command("claimed"), never)
    ledger.close()
    assert "outcomes lost" not in caplog.text

    store = Gone()
    ledger = Ledger(store, lease=0.3)

    def work(run: Run) -> Ran:
        store.is_gone = True
        return Ran(b"1")

    with pytest.raises(OutcomeUnknown):
        ledger.run(command("finished"), work)
    ledger.close()
    assert "1 outcomes lost" in caplog.text


def test_a_url_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(UsageError) as refused:
        PostgresStore("postgresql://ada:hunter2@host:port:5/x?nonsense")
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None
