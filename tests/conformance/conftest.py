"""The stores of the ledger's tests, for what is promised on top of them."""

from tests.ledger.conftest import (
    kind,
    ledgers_are_closed,
    postgres_server,
    store,
    url,
    valkey_server,
)

__all__ = ["kind", "ledgers_are_closed", "postgres_server", "store", "url", "valkey_server"]
