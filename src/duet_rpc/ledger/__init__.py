"""What became of each command: claim, run, record, replay.

`Ledger` is the face to the engine; a store (memory, SQLite, PostgreSQL, Redis or Valkey) keeps the
records. Databases and their drivers are imported when a store of theirs is named, not before.
"""

from typing import TYPE_CHECKING, Any

from .fingerprint import fingerprint
from .ledger import Ledger
from .machine import Command, Identity, Promise, Record, State
from .running import Ending, Ran, Run
from .store import Capabilities, Counts, Store, open_store

if TYPE_CHECKING:
    from .memory import MemoryStore
    from .postgres import PostgresStore
    from .redis import RedisStore
    from .sqlite import SqliteStore

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
    "fingerprint",
    "open_store",
]

_LAZY = {
    "MemoryStore": "memory",
    "SqliteStore": "sqlite",
    "PostgresStore": "postgres",
    "RedisStore": "redis",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
