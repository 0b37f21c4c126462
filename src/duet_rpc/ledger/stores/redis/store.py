"""A store in Redis or Valkey: shared and fast, but with no transactions for handlers.

Each operation is a script, so that it is applied as a whole and by the server's clock; a group of
them is one pipeline. The common case is decided in the script, by token and owner; what it leaves
open is read back and decided by `states`. Records that have an outcome expire by themselves;
only runs that were cut off are swept.

It is as durable as the server is configured to be: without the append-only file a restart forgets,
and a failover to a replica may lose what was answered last.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.ledger.retry_age import must_have_record
from duet_rpc.ledger.states import (
    ALWAYS,
    Answer,
    Claim,
    Claimed,
    Fenced,
    Identity,
    Kept,
    Operation,
    Record,
    decide_claim,
    show_record,
)
from duet_rpc.ledger.stores.base import (
    UNKNOWN_TTL,
    Capabilities,
    Decide,
    Found,
    RecordStore,
    Series,
    compare_and_swap,
)
from duet_rpc.ledger.stores.redis.connections import RedisConnections, make_refusal
from duet_rpc.ledger.stores.redis.scripts import (
    BEGIN,
    LOAD,
    PREFIX,
    STORE,
    SWAP,
    SWEEP,
    UPKEEP,
    make_pattern,
    name_key,
    read_found,
    slack,
    swap_values,
    write_script,
)
from duet_rpc.ledger.upkeep import Clocks


class RedisStore(RecordStore):
    """Records as hashes under `duet:command:` keys of one database.

    `timeout` is how long the server may take to answer; after that the store counts as unavailable
    until it answers again.
    """

    keeps: tuple[str, str] = ("redis", "as its server does")

    def __init__(self, url: str, *, timeout: float = 5.0):
        if timeout <= 0:
            raise UsageError(f"timeout is {timeout!r}; give the seconds that a server may take")
        self._connections = RedisConnections(url, timeout)
        self._capabilities: Capabilities | None = None
        self._has_begun = False

    @property
    def capabilities(self) -> Capabilities:
        """What the server promises by its settings, asked until it has answered once."""
        if self._capabilities is None:
            try:
                info = self._connections.ask(lambda client: client.info("persistence"))
            except StoreUnavailable:
                note = "it has no transactions, and could not be asked whether it forgets"
                return Capabilities(transactional=False, durable=True, note=note)
            is_logged = bool(info.get("aof_enabled"))
            self._capabilities = Capabilities(
                transactional=False,
                durable=is_logged,
                note="it has no transactions; failover may lose records"
                if is_logged
                else "it has no transactions; without the append-only file a restart forgets",
            )
        return self._capabilities

    def since(self, ttl: float) -> tuple[float, float]:
        return self._upkeep(slack(ttl))

    def sweep(
        self, limit: int = 500, *, unknown_ttl: float = UNKNOWN_TTL, clocks: Clocks | None = None
    ) -> int:
        """See `Store.sweep`. The server drops what is finished when its time is over."""
        if clocks is not None:
            self._upkeep(slack(clocks.ttl))
        values = (limit, unknown_ttl, unknown_ttl + slack(unknown_ttl))
        return int(self._connections.run_one((SWEEP, STORE, values)))

    def close(self) -> None:
        self._connections.close()

    def _commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        if not self._has_begun:
            self._connections.run_one((BEGIN, STORE, ()))
            self._has_begun = True
        replies = self._connections.run([write_script(operation) for operation in operations])
        return [
            self._answer(operation, reply)
            for operation, reply in zip(operations, replies, strict=True)
        ]

    def _answer(self, operation: Operation, reply: Any) -> Answer | Exception:
        if isinstance(reply, Exception):
            return make_refusal(reply)
        if isinstance(reply, int):
            return Claimed(reply, 1) if isinstance(operation, Claim) else Kept()
        if not isinstance(operation, Claim):
            return Fenced(read_found(*reply)[0])
        try:
            since = ALWAYS
            if must_have_record(operation):
                since, _ = self._upkeep(slack(operation.ttl))
            return self._change(
                operation.identity, lambda found, now, _: decide_claim(operation, found, now, since)
            )
        except Exception as error:
            return error

    def _change(self, identity: Identity, decide: Decide) -> Answer:
        key = name_key(identity)

        def swap(found: Record | None, kept: Record | None, now: float) -> bool:
            values = swap_values(found, kept, now)
            return bool(self._connections.run_one((SWAP, key, values)) == 1)

        return compare_and_swap(partial(self._load, identity), swap, decide)

    def _load(self, identity: Identity) -> Found:
        """Read a record; `_upkeep` alone tells since when the store remembers."""
        return *read_found(*self._connections.run_one((LOAD, name_key(identity), ()))), ALWAYS

    def _upkeep(self, unseen: float) -> tuple[float, float]:
        """Look at the clock; return since when the store remembers, and the time.

        It begins anew if its clock was not looked at for longer than `unseen` seconds.
        """
        since, now = self._connections.run_one((UPKEEP, STORE, (unseen,)))
        return float(since), float(now)

    def _list(self, of: Series | None = None) -> Iterator[Record]:
        """See `RecordStore._list`. Looks at every key there is, and reads records one by one."""
        pattern = f"{PREFIX}*" if of is None else make_pattern(of.principal, of.prefix)
        for key in self._connections.ask(partial(_list_keys, pattern)):
            found, now = read_found(*self._connections.run_one((LOAD, key.decode(), ())))
            seen = None if found is None else show_record(found, now)
            if seen is not None and (of is None or of.holds(seen)):
                yield seen


def _list_keys(pattern: str, client: Any) -> list[bytes]:
    return list(client.scan_iter(pattern, count=1000))
