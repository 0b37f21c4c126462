"""Servers that are driven by hand end with their test; stores are those of the ledger's tests."""

from collections.abc import Iterator

import pytest

from tests.ledger.conftest import kind, postgres_server, url, valkey_server
from tests.mcp.line import McpLine

__all__ = ["kind", "postgres_server", "url", "valkey_server"]


@pytest.fixture(autouse=True)
def servers_end() -> Iterator[None]:
    yield
    for line in list(McpLine.opened):
        line.close()
