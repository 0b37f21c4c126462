"""A directory with servers in it, servers on sockets, and the stores of the ledger's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.servers import ON_PIPES, STRANGE, OnSocket
from tests.ledger.conftest import kind, postgres_server, url, valkey_server

__all__ = ["kind", "postgres_server", "url", "valkey_server"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory to work in, with `sums.py` (ours) and `strange.py` (not ours)."""
    (tmp_path / "sums.py").write_text(ON_PIPES)
    (tmp_path / "strange.py").write_text(STRANGE)
    return tmp_path


@pytest.fixture(scope="module")
def on_tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnSocket]:
    with OnSocket(tmp_path_factory.mktemp("tcp"), "tcp") as server:
        yield server


@pytest.fixture
def on_unix(tmp_path: Path) -> Iterator[OnSocket]:
    with OnSocket(tmp_path / "served", "s") as server:
        server.address = f"unix:{server.directory}/s"
        yield server
