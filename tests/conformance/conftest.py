"""The stores of the ledger's tests, and what carries messages, for what is promised on top of them.

Every case that speaks the wire by `exchange` or `Line` runs over each carrier. A module or a test
that is about one of them says so: `CARRIERS = ["stream"]`, `@pytest.mark.carriers("stream")`.
"""

from collections.abc import Iterator

import pytest

from tests.helpers import CARRIERS, Chosen
from tests.ledger.conftest import (
    kind,
    ledgers_are_closed,
    postgres_server,
    store,
    url,
    valkey_server,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each case once for each of its carriers."""
    if not hasattr(metafunc.module, "Line") and not hasattr(metafunc.module, "exchange"):
        return
    marker = metafunc.definition.get_closest_marker("carriers")
    chosen = getattr(metafunc.module, "CARRIERS", CARRIERS) if marker is None else marker.args
    metafunc.parametrize("carrier", chosen, indirect=True)


@pytest.fixture(autouse=True)
def carrier(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have what a test sends carried by this."""
    Chosen.carrier = getattr(request, "param", "stream")
    yield
    Chosen.carrier = "stream"


__all__ = ["kind", "ledgers_are_closed", "postgres_server", "store", "url", "valkey_server"]
