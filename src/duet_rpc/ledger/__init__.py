"""What became of each command: claim, run, record, replay.

`Ledger` is the face to the engine; a store (memory, SQLite, PostgreSQL, Redis or Valkey) keeps the
records. Databases and their drivers are imported when a store of theirs is named, not before.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duet_rpc.ledger.ledger import Ledger
    from duet_rpc.ledger.machine import Command, Identity, Promise, Record, State
    from duet_rpc.ledger.memory import MemoryStore
    from duet_rpc.ledger.postgres import PostgresStore
    from duet_rpc.ledger.redis import RedisStore
    from duet_rpc.ledger.running import Ending, Ran, Run
    from duet_rpc.ledger.sqlite import SqliteStore
    from duet_rpc.ledger.store import Capabilities, Counts, Store, open_store

__all__ = [
    "Capabilities",
    "Command",
    "Counts",
    "Ending",
    "Identity",
    "Ledger",
    "MemoryStore",
    "PostgresStore",
    "Promise",
    "Ran",
    "Record",
    "RedisStore",
    "Run",
    "SqliteStore",
    "State",
    "Store",
    "open_store",
]

# A service without commands pays for none of this when it starts.
_LAZY = {
    "Capabilities": "store",
    "Command": "machine",
    "Counts": "store",
    "Ending": "running",
    "Identity": "machine",
    "Ledger": "ledger",
    "MemoryStore": "memory",
    "PostgresStore": "postgres",
    "Promise": "machine",
    "Ran": "running",
    "Record": "machine",
    "RedisStore": "redis",
    "Run": "running",
    "SqliteStore": "sqlite",
    "State": "machine",
    "Store": "store",
    "open_store": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
