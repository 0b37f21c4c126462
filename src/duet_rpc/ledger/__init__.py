"""What became of each command: claim, run, record, replay.

`Ledger` is the face to the engine; a store (memory, SQLite, PostgreSQL, Redis or Valkey) keeps the
records. Databases and their drivers are imported when a store of theirs is named, not before.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duet_rpc.ledger.execution import Ending, Ran, Run
    from duet_rpc.ledger.ledger import Ledger
    from duet_rpc.ledger.states import Command, Identity, Promise, Record, State
    from duet_rpc.ledger.stores.base import Capabilities, Counts, Store, open_store
    from duet_rpc.ledger.stores.memory import MemoryStore
    from duet_rpc.ledger.stores.postgres.store import PostgresStore
    from duet_rpc.ledger.stores.redis.store import RedisStore
    from duet_rpc.ledger.stores.sqlite.store import SqliteStore

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
    "Capabilities": "stores.base",
    "Command": "states",
    "Counts": "stores.base",
    "Ending": "execution",
    "Identity": "states",
    "Ledger": "ledger",
    "MemoryStore": "stores.memory",
    "PostgresStore": "stores.postgres.store",
    "Promise": "states",
    "Ran": "execution",
    "Record": "states",
    "RedisStore": "stores.redis.store",
    "Run": "execution",
    "SqliteStore": "stores.sqlite.store",
    "State": "states",
    "Store": "stores.base",
    "open_store": "stores.base",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
