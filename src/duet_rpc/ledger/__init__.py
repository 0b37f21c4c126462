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
_HOMES = {
    "execution": ("Ending", "Ran", "Run"),
    "ledger": ("Ledger",),
    "states": ("Command", "Identity", "Promise", "Record", "State"),
    "stores.base": ("Capabilities", "Counts", "Store", "open_store"),
    "stores.memory": ("MemoryStore",),
    "stores.postgres.store": ("PostgresStore",),
    "stores.redis.store": ("RedisStore",),
    "stores.sqlite.store": ("SqliteStore",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
