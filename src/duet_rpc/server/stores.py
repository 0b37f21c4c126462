"""The store of a server: opened, and compared with what the methods of its service ask of it."""

import os
import time
from functools import partial
from typing import TYPE_CHECKING

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.kinds import Promise
from duet_rpc.ledger.commands import Commands
from duet_rpc.options import check
from duet_rpc.policy import Policy
from duet_rpc.service import Kind, Method, Service

if TYPE_CHECKING:
    from duet_rpc.ledger import Ledger, Store


def open_commands(
    service: Service, policy: Policy, store: "Store | Ledger | str | None"
) -> Commands:
    """Open the ledger on a store now, or on memory when the first key comes."""
    if store is None:
        if policy.key_required:
            raise UsageError(
                f"policy {policy.name} requires idempotency keys, which need a durable store:"
                " give one with store= of Server (for example sqlite:///commands.db)"
            )
        for method in service:
            if method.promise is Promise.TRANSACTIONAL:
                raise UsageError(
                    f"{method.name} is transactional, which needs the store that its effects are"
                    " in: give it with store= of Server (for example sqlite:///commands.db)"
                )
            if method.reads_store:
                raise UsageError(
                    f"{method.name}: {method.parameters.transaction} is a connection to the store,"
                    " and there is none: give it with store= of Server (for example"
                    " sqlite:///commands.db)"
                )
        return Commands(
            partial(_ledger_in_memory, time.monotonic()), keeps=("memory", "until exit")
        )
    from duet_rpc.ledger import Ledger, open_store

    if isinstance(store, (str, os.PathLike)):
        store = open_store(os.fsdecode(store))
    is_store = callable(getattr(store, "sweep", None)) and not isinstance(store, type)
    accepted = 'a store, such as SqliteStore("commands.db"), its URL or a Ledger'
    check("store", store, is_store or isinstance(store, Ledger), accepted)
    ledger = store if isinstance(store, Ledger) else Ledger(store)
    if policy.key_required and not ledger.store.capabilities.durable:
        raise UsageError(
            f"policy {policy.name} needs a durable store; {type(ledger.store).__name__} forgets"
            " everything when the process ends"
        )
    for method in service:
        if method.promise is not None:
            ledger.require(method.promise)
        _check_connection(method, ledger.store)
    _try_file(ledger)
    keeps = getattr(ledger.store, "keeps", None)
    return Commands(lambda: ledger, checks=True, keeps=keeps)


def _check_connection(method: Method, store: "Store") -> None:
    """Refuse a transaction or a read connection that this store does not give."""
    parameters = method.parameters
    if not parameters.connection:
        return
    able = store.capabilities
    kind, given = "def", able.connection
    if method.is_async:
        kind, given = "async def", able.async_connection
    if method.reads_store and not given:
        raise UsageError(
            f"{method.name}: {parameters.transaction} is a connection to the store, and"
            f" {type(store).__name__} has none to give; use SQLite or PostgreSQL, or provide a"
            " connection of your own with @service.dependency"
        )
    if not given or parameters.connection == given:
        return
    what = "query" if method.kind is Kind.QUERY else "transactional command"
    raise UsageError(
        f"{method.name}: {parameters.transaction} is annotated {parameters.connection}, but"
        f" {type(store).__name__} gives a {what} that is {kind} the {given} of its own database;"
        f" write {parameters.transaction}: {given}"
        + ("" if method.reads_store else ", or duet_rpc.Transaction for either")
    )


def _try_file(ledger: "Ledger") -> None:
    """See at the start that a file can be used; a server that is down may come up later."""
    path = getattr(ledger.store, "path", None)
    if path is None:
        return
    try:
        ledger.store.counts()
    except StoreUnavailable as error:
        ledger.close()
        why = error.__cause__ or error
        raise UsageError(f"{path} cannot be used as a store: {why}") from None


def _ledger_in_memory(made: float) -> "Ledger":
    """Open a ledger that would know of every command since the server was made.

    It is opened with the first key: had one come before, it would have been opened then.
    """
    from duet_rpc.ledger import Ledger, MemoryStore
    from duet_rpc.ledger.stores.memory import steady_time

    return Ledger(MemoryStore(since=steady_time() - (time.monotonic() - made)))
