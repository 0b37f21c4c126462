"""A JSON-RPC 2.0 runtime: write typed functions once, serve them to editors and agents.

What needs an event loop or a database is imported when it is first asked for, so that a small
daemon starts as fast as Python does. So are servers and clients: few programs are both.
"""

from duet_rpc.collector import pause_collector

with pause_collector():
    from typing import TYPE_CHECKING, Any

    from duet_rpc import startup  # noqa: F401  (before all others)
    from duet_rpc.context import Context, Injected, Origin, RemotePeer, Transaction
    from duet_rpc.errors import (
        CallTimeout,
        ConnectFailed,
        ConnectionLost,
        DuetError,
        InvalidParams,
        OutcomeUnknown,
        RpcError,
        TransportError,
        UsageError,
    )
    from duet_rpc.methods.names import Name, Whole
    from duet_rpc.service import Service
    from duet_rpc.version import __version__
    from duet_rpc.wire.dialect import Progress

if TYPE_CHECKING:
    from duet_rpc import blocking, testing
    from duet_rpc.client.client import Client
    from duet_rpc.client.ends import ConnectionEnd
    from duet_rpc.client.outcomes import Outcome
    from duet_rpc.client.proxies import command, notification, query, subscription
    from duet_rpc.client.started import StartedCall
    from duet_rpc.client.streams import Stream
    from duet_rpc.client.subscriptions import Subscription
    from duet_rpc.ledger.stores.memory import MemoryStore
    from duet_rpc.ledger.stores.postgres.store import PostgresStore as PostgresStore
    from duet_rpc.ledger.stores.redis.store import RedisStore as RedisStore
    from duet_rpc.ledger.stores.sqlite.store import SqliteStore
    from duet_rpc.retry import Retry
    from duet_rpc.server.endpoints import Stdio, Tcp, Unix
    from duet_rpc.server.server import Server

__all__ = [
    "CallTimeout",
    "Client",
    "ConnectFailed",
    "ConnectionEnd",
    "ConnectionLost",
    "Context",
    "DuetError",
    "Injected",
    "InvalidParams",
    "MemoryStore",
    "Name",
    "Origin",
    "Outcome",
    "OutcomeUnknown",
    "Progress",
    "RemotePeer",
    "Retry",
    "RpcError",
    "Server",
    "Service",
    "SqliteStore",
    "StartedCall",
    "Stdio",
    "Stream",
    "Subscription",
    "Tcp",
    "Transaction",
    "TransportError",
    "Unix",
    "UsageError",
    "Whole",
    "__version__",
    "blocking",
    "command",
    "notification",
    "query",
    "subscription",
    "testing",
]

# Not above: `from duet_rpc import *` is for those as well who have no driver of these.
_EXTRAS = {"PostgresStore": "postgres", "RedisStore": "redis"}

_FETCHED_WHEN_ASKED_FOR = {
    "Client": "duet_rpc.client.client",
    "ConnectionEnd": "duet_rpc.client.ends",
    "MemoryStore": "duet_rpc.ledger.stores.memory",
    "Outcome": "duet_rpc.client.outcomes",
    "PostgresStore": "duet_rpc.ledger.stores.postgres.store",
    "RedisStore": "duet_rpc.ledger.stores.redis.store",
    "Retry": "duet_rpc.retry",
    "Server": "duet_rpc.server.server",
    "SqliteStore": "duet_rpc.ledger.stores.sqlite.store",
    "StartedCall": "duet_rpc.client.started",
    "Stream": "duet_rpc.client.streams",
    "Subscription": "duet_rpc.client.subscriptions",
    "Stdio": "duet_rpc.server.endpoints",
    "Tcp": "duet_rpc.server.endpoints",
    "Unix": "duet_rpc.server.endpoints",
    "blocking": "duet_rpc.blocking",
    "command": "duet_rpc.client.proxies",
    "notification": "duet_rpc.client.proxies",
    "query": "duet_rpc.client.proxies",
    "subscription": "duet_rpc.client.proxies",
    "testing": "duet_rpc.testing",
}


def __getattr__(name: str) -> Any:
    if name not in _FETCHED_WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    path = _FETCHED_WHEN_ASKED_FOR[name]
    try:
        with pause_collector():
            module = import_module(path)
    except ModuleNotFoundError as error:
        if name not in _EXTRAS:
            raise
        text = f"{name} needs {error.name}: pip install 'duet-rpc[{_EXTRAS[name]}]'"
        raise ModuleNotFoundError(text, name=error.name) from None
    return module if path.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *_FETCHED_WHEN_ASKED_FOR]
