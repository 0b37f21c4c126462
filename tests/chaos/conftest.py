"""The database servers of the ledger's tests, for cases that are too short to start their own."""

from tests.ledger.conftest import postgres_server, valkey_server

__all__ = ["postgres_server", "valkey_server"]
