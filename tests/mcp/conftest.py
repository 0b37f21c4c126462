"""Servers that are driven by hand end with their test."""

from collections.abc import Iterator

import pytest

from tests.mcp.line import McpLine


@pytest.fixture(autouse=True)
def servers_end() -> Iterator[None]:
    yield
    for line in list(McpLine.opened):
        line.close()
