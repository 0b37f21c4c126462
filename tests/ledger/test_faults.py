"""Faults of stores under a server: a refusal that says why, or as if nothing had been.

Never an internal error, and never a word about a handler that failed: none has run.
"""

import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from duet_rpc import Service, Transaction, testing
from duet_rpc.errors import StoreUnavailable
from duet_rpc.policy import AGENT
from duet_rpc.retry import Retry
from tests.daemon.process import Process, request
from tests.ledger.servers import Postgres, Valkey

pytestmark = pytest.mark.timeout(120)

GOES_ON = None
"""The store mends the fault itself."""


def service_of(kind: str, ran: list[str]) -> Service:
    app = Service()

    @app.command
    def once(name: str) -> str:
        ran.append(name)
        return name

    @app.command
    async def once_async(name: str) -> str:
        ran.append(name)
        return name

    if kind != "valkey":

        @app.command
        def move(name: str, db: Transaction) -> str:
            db.execute("SELECT 1")
            ran.append(name)
            return name

        @app.command
        async def move_async(name: str, db: Transaction) -> str:
            answer = db.execute("SELECT 1")
            if hasattr(answer, "__await__"):
                await answer
            ran.append(name)
            return name

    return app


class Place:
    """A store's database, for faults to happen to."""

    def __init__(self, kind: str, url: str, path: Path):
        self.kind = kind
        self.url = url
        self.path = path

    def sql(self, *statements: str) -> None:
        if self.kind == "sqlite":
            with sqlite3.connect(self.path) as file:
                for statement in statements:
                    file.execute(statement)
            file.close()
            return
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def redis(self, *words: str) -> None:
        client = redis.Redis.from_url(self.url)
        client.execute_command(*words)  # type: ignore[no-untyped-call]
        client.close()


Fault = Callable[[Place], object]


def sql(*statements: str) -> Fault:
    return lambda place: place.sql(*statements)


def words(*commands: str) -> Fault:
    def send(place: Place) -> None:
        for each in commands:
            place.redis(*each.split())

    return send


def delete(place: Place) -> None:
    place.path.unlink()


def replace(place: Place) -> None:
    other = place.path.with_suffix(".other")
    sqlite3.connect(other).execute("CREATE TABLE theirs (x)").connection.close()
    other.rename(place.path)


def spoil(place: Place) -> None:
    other = place.path.with_suffix(".other")
    other.write_bytes(b"this is no database, whatever its name says" * 100)
    other.rename(place.path)


def take_directory_away(place: Place) -> None:
    place.path.parent.rename(place.path.parent.with_suffix(".away"))


def bring_directory_back(place: Place) -> None:
    place.path.parent.with_suffix(".away").rename(place.path.parent)


def nothing(place: Place) -> None:
    """The fault is over by itself."""


CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
DISK_FULL = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
    " 'BEGIN RAISE EXCEPTION USING ERRCODE = ''53100''; END'",
    "CREATE TRIGGER refuse BEFORE INSERT ON duet_commands EXECUTE FUNCTION refuse()",
)

TABLE: list[tuple[str, str, Fault, Fault, str | None]] = [
    ("sqlite", "table dropped", sql("DROP TABLE duet_commands"), nothing, GOES_ON),
    (
        "sqlite",
        "all tables dropped",
        sql("DROP TABLE duet_commands", "DROP TABLE duet_schema"),
        nothing,
        GOES_ON,
    ),
    ("sqlite", "file deleted", delete, nothing, GOES_ON),
    ("sqlite", "file replaced", replace, nothing, GOES_ON),
    ("sqlite", "file spoiled", spoil, delete, "the store is damaged"),
    (
        "sqlite",
        "directory gone",
        take_directory_away,
        bring_directory_back,
        "the store cannot be reached",
    ),
    (
        "sqlite",
        "wrong schema",
        sql("DROP TABLE duet_commands", "CREATE TABLE duet_commands (x)"),
        sql("DROP TABLE duet_commands"),
        "the store's tables are missing, or are others'",
    ),
    (
        "sqlite",
        "newer schema",
        sql("UPDATE duet_schema SET version = 99", "DROP TABLE duet_commands"),
        sql("UPDATE duet_schema SET version = 0"),
        "the store was made by a newer version",
    ),
    ("postgres", "table dropped", sql("DROP TABLE duet_commands"), nothing, GOES_ON),
    (
        "postgres",
        "all tables dropped",
        sql("DROP TABLE duet_commands, duet_schema"),
        nothing,
        GOES_ON,
    ),
    ("postgres", "connections cut", sql(CUT), nothing, GOES_ON),
    (
        "postgres",
        "no permission",
        sql("REVOKE ALL ON duet_commands FROM tester"),
        sql("GRANT ALL ON duet_commands TO tester"),
        "the store refuses access",
    ),
    (
        "postgres",
        "login refused",
        sql("ALTER ROLE tester NOLOGIN", CUT),
        sql("ALTER ROLE tester LOGIN"),
        "the store cannot be reached",
    ),
    (
        "postgres",
        "read-only",
        sql("ALTER ROLE tester SET default_transaction_read_only = on", CUT),
        sql("ALTER ROLE tester SET default_transaction_read_only = off", CUT),
        "the store is read-only",
    ),
    (
        "postgres",
        "disk full",
        sql(*DISK_FULL),
        sql("DROP TRIGGER refuse ON duet_commands", "DROP FUNCTION refuse"),
        "the store has no space left",
    ),
    (
        "postgres",
        "too many connections",
        sql("ALTER ROLE tester CONNECTION LIMIT 0", CUT),
        sql("ALTER ROLE tester CONNECTION LIMIT -1"),
        "the store cannot be reached",
    ),
    (
        "postgres",
        "wrong schema",
        sql(
            "DROP TABLE duet_commands",
            "CREATE TABLE duet_commands (x text)",
            "ALTER TABLE duet_commands OWNER TO tester",
        ),
        sql("DROP TABLE duet_commands"),
        "the store's tables are missing, or are others'",
    ),
    (
        "postgres",
        "newer schema",
        sql("UPDATE duet_schema SET version = 99", "DROP TABLE duet_commands"),
        sql("UPDATE duet_schema SET version = 0"),
        "the store was made by a newer version",
    ),
    ("valkey", "flushed", words("FLUSHALL"), nothing, GOES_ON),
    ("valkey", "scripts forgotten", words("SCRIPT FLUSH"), nothing, GOES_ON),
    ("valkey", "connections cut", words("CLIENT KILL TYPE normal"), nothing, GOES_ON),
    (
        "valkey",
        "out of memory",
        words("CONFIG SET maxmemory 1"),
        words("CONFIG SET maxmemory 0"),
        "the store has no space left",
    ),
    (
        "valkey",
        "read-only",
        words("REPLICAOF 127.0.0.1 1"),
        words("REPLICAOF NO ONE"),
        "the store is read-only",
    ),
    (
        "valkey",
        "no permission",
        words("ACL SETUSER default -eval -evalsha"),
        words("ACL SETUSER default +@all"),
        "the store refuses access",
    ),
]
METHODS = {
    "sqlite": ["once", "once_async", "move", "move_async"],
    "postgres": ["once", "once_async", "move", "move_async"],
    "valkey": ["once", "once_async"],
}
CASES = [
    pytest.param(kind, fault, mend, detail, id=f"{kind}: {name}")
    for kind, name, fault, mend, detail in TABLE
]


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if kind == "sqlite":
        (tmp_path / "store").mkdir()
        path = tmp_path / "store" / "commands.db"
        yield Place(kind, f"sqlite:///{path}", path)
        return
    server: Postgres | Valkey = request.getfixturevalue(f"{kind}_server")
    server.empty()
    place = Place(kind, server.url, tmp_path)
    if kind == "postgres":
        # Faults of permission do not concern a superuser.
        place.sql("CREATE ROLE tester LOGIN", "GRANT ALL ON SCHEMA public TO tester")
    yield place
    if kind == "postgres":
        place.sql(CUT, "DROP OWNED BY tester CASCADE", "DROP ROLE tester")
        server.empty()


def url_of(place: Place) -> str:
    return place.url.replace("duet@", "tester@") if place.kind == "postgres" else place.url


def is_honest(log: str) -> bool:
    return "handler failed" not in log and "Internal error" not in log


@pytest.mark.parametrize(("kind", "fault", "mend", "detail"), CASES)
async def test_a_fault_of_a_store_is_a_refusal_or_nothing(
    place: Place, fault: Fault, mend: Fault, detail: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    app = service_of(place.kind, ran)
    for method in METHODS[place.kind]:
        async with testing.connect(app, policy=AGENT, store=url_of(place)) as client:
            await client.command(method, {"name": "before"}, key=f"before {method}")
            fault(place)
            try:
                for number in range(3):
                    key = f"{method} {number}"
                    call = client.command(method, {"name": key}, key=key)
                    if detail is GOES_ON:
                        assert await call == key
                        continue
                    with pytest.raises(StoreUnavailable) as refused:
                        await call
                    assert refused.value.data["detail"] == detail
            finally:
                mend(place)
            key = f"{method} 1"
            assert await client.command(method, {"name": key}, key=key) == key
            assert ran.count(key) == 1
    assert is_honest(caplog.text)


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Let no file grow, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Take the right to write away, also from root."""
    directory = path.parent
    for each in (directory, *directory.parents[:3]):
        each.chmod(0o755)
    path.chmod(0o444)
    directory.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        directory.chmod(0o755)
        path.chmod(0o644)


@pytest.mark.parametrize("fault", [full_disk, read_only])
@pytest.mark.parametrize("method", METHODS["sqlite"])
async def test_a_file_that_cannot_be_written(
    fault: Callable[[Path], AbstractContextManager[None]],
    method: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "commands.db"
    ran: list[str] = []
    async with testing.connect(
        service_of("sqlite", ran), policy=AGENT, store=f"sqlite:///{path}"
    ) as client:
        await client.command(method, {"name": "before"}, key="before")
        with fault(path):
            for key in ("first", "second" * 1000):
                with pytest.raises(StoreUnavailable) as refused:
                    # A transaction needs room for its record, and there may be some in the file.
                    for number in range(100):
                        name = f"{key} {number}"
                        await client.command(method, {"name": name}, key=name[:250] + str(number))
                assert refused.value.data["detail"] in UNWRITABLE
        # The ledger tries to give its claims back all the time, and may have met the fault last.
        call = client.command(method, {"name": "after"}, key="after", retry=Retry(attempts=20))
        assert await call == "after"
    assert is_honest(caplog.text)


UNWRITABLE = {
    "the store has no space left",
    "the store is read-only",
    "the store cannot be reached",
    "the store failed",
}


SERVED = """
import resource
from duet_rpc import Service

app = Service()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

@app.query(inline=True)
def starve() -> None:  # also when something is closed meanwhile
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))

@app.query(inline=True)
def relieve() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

@app.command
def once(name: str) -> str:
    return name

@app.command
async def once_async(name: str) -> str:
    return name
"""


@pytest.fixture
def served(place: Place, tmp_path: Path) -> Iterator[Process]:
    script = tmp_path / "service.py"
    script.write_text(SERVED)
    with Process(
        "serve", script, "--policy", "agent", "--framing", "lsp", "--store", place.url
    ) as process:
        yield process


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey"])
@pytest.mark.parametrize("method", ["once", "once_async"])
def test_without_descriptors_a_command_is_refused(served: Process, method: str) -> None:
    served.call("starve")
    for number in range(3):
        refused = served.error(
            served.start(method, {"name": "x", "idempotency_key": f"starved {number}"})
        )
        assert refused["data"]["reason"] in ("store-unavailable", "overloaded"), refused
    served.call("relieve")
    done = served.call(method, {"name": "x", "idempotency_key": "starved 0"})
    assert done == "x"
    assert is_honest(served.log)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey"])
@pytest.mark.parametrize("method", ["once", "once_async"])
def test_a_command_under_any_id_is_recorded(served: Process, method: str) -> None:
    for number, id in enumerate(["\0", "\ud83d", "\u202e", "a" * 10_000]):
        params = {"name": "x", "idempotency_key": str(number)}
        served.send(request(method, params, id))
        assert served.result(id) == "x"
