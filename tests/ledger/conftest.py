"""One place to keep records per kind of store, empty at the start of each test."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duet_rpc.ledger import Ledger, Store, open_store
from tests.ledger.servers import Postgres, Valkey

STORES = ("memory", "sqlite", "postgres", "valkey")
SHARED = STORES[1:]
TRANSACTIONAL = ("sqlite", "postgres")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    server = Valkey()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(autouse=True)
def ledgers_are_closed() -> Iterator[None]:
    """Fail a test that leaves a ledger open: it would go on asking a store that is gone."""
    before = set(threading.enumerate())
    yield
    left = [each.name for each in threading.enumerate() if each not in before]
    assert not {"duet-ledger", "duet-sweep"}.intersection(left), "a ledger was not closed"


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Which store; tests choose with `indirect` or take the default of their module."""
    return str(request.param)


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    match kind:
        case "sqlite":
            return f"sqlite:///{tmp_path}/commands.db"
        case "postgres" | "valkey":
            server: Postgres | Valkey = request.getfixturevalue(f"{kind}_server")
            server.empty()
            return server.url
    return "memory:"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def make_ledger(store: Store) -> Iterator[Callable[..., Ledger]]:
    """Make ledgers on the one store, as if each were a process of its own."""
    made: list[Ledger] = []

    def make(**settings: float) -> Ledger:
        ledger = Ledger(store, **settings)  # type: ignore[arg-type]
        made.append(ledger)
        return ledger

    yield make
    for ledger in made:
        ledger.close()


@pytest.fixture
def ledger(make_ledger: Callable[..., Ledger]) -> Ledger:
    return make_ledger(wait=40.0)
