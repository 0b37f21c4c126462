"""A server process of the chaos tests: every kind of command, and notes of all that it does.

    python -m tests.chaos.server '{"name": …, "socket": …, "url": …, "events": …, "lease": …}'

Handlers note their start, their effect and their end in a file that is not the ledger's; a
transactional one has its effect in a table of the store's own database. The `without` setting takes
one protection of the ledger away, so that the checker can be seen to find what that does.
"""

import asyncio
import inspect
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from hashlib import sha1
from typing import Any

from duet_rpc import Context, RpcError, Server, Service, Transaction
from duet_rpc.ledger import Ledger, open_store
from duet_rpc.ledger.leases import Heartbeat, Lease
from duet_rpc.policy import PRODUCTION

Note = Callable[..., None]


class Declined(RpcError):
    """An error that the commands declare."""

    code, message = 402, "Declined"


class Work:
    """One run of a command: its notes, its waiting, its way to end."""

    def __init__(self, note: Note, is_first: bool, ctx: Context, value: str, end: str):
        self._is_first = is_first
        self.run = secrets.token_hex(8)
        self.value = value
        self._end = end
        self._note = note
        self._who = {
            "run": self.run,
            "call": ctx.trace_parent,
            "method": ctx.method,
            "key": ctx.idempotency_key,
        }
        note("start", **self._who)

    def lasts(self, seconds: float) -> float:
        """Say how long to wait; a time below zero is for the first server alone."""
        if seconds >= 0:
            return seconds
        return -seconds if self._is_first else 0.0

    def effect(self) -> None:
        self._note("effect", **self._who, value=self.value)

    def row(self) -> tuple[Any, ...]:
        return (*self._who.values(), self.value)

    def inserted(self) -> None:
        self._note("inserted", **self._who)

    def end(self) -> dict[str, str]:
        self._note("end", **self._who, failed=self._end == "fail")
        if self._end == "decline":
            raise Declined(data={"run": self.run, "value": self.value})
        if self._end == "fail":
            raise ValueError("the text of this exception is nobody's business")
        return {"run": self.run, "value": self.value}


def plain_service(note: Note, is_first: bool) -> Service:
    """Make the commands that every store can keep, as `def` and as `async def`."""
    service = Service("bank")

    @service.query(inline=True)
    def echo(value: str) -> str:
        return value

    @service.command
    def once(value: str, before: float, after: float, end: str, ctx: Context) -> dict[str, str]:
        work = Work(note, is_first, ctx, value, end)
        time.sleep(work.lasts(before))
        work.effect()
        time.sleep(work.lasts(after))
        return work.end()

    @service.command
    async def once_async(
        value: str, before: float, after: float, end: str, ctx: Context
    ) -> dict[str, str]:
        work = Work(note, is_first, ctx, value, end)
        await asyncio.sleep(work.lasts(before))
        work.effect()
        await asyncio.sleep(work.lasts(after))
        return work.end()

    service.command(name="bank.safe", retry_safe=True)(once)
    service.command(name="bank.safe_async", retry_safe=True)(once_async)
    return service


def transactional_service(note: Note, is_first: bool, insert: str) -> Service:
    """Make the commands whose effects are rows of the store's own database."""
    service = Service("bank")

    @service.command
    def move(
        value: str, before: float, after: float, end: str, ctx: Context, db: Transaction
    ) -> dict[str, str]:
        work = Work(note, is_first, ctx, value, end)
        time.sleep(work.lasts(before))
        db.execute(insert, work.row())
        work.inserted()
        time.sleep(work.lasts(after))
        return work.end()

    @service.command
    async def move_async(
        value: str, before: float, after: float, end: str, ctx: Context, db: Transaction
    ) -> dict[str, str]:
        work = Work(note, is_first, ctx, value, end)
        await asyncio.sleep(work.lasts(before))
        inserted = db.execute(insert, work.row())
        if inspect.isawaitable(inserted):
            await inserted
        work.inserted()
        await asyncio.sleep(work.lasts(after))
        return work.end()

    return service


def notes_to(path: str, server: str) -> Note:
    """Make what appends a line to a file, whole, whoever else does the same."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(what: str, **fields: Any) -> None:
        line = {"what": what, "server": server, "at": time.monotonic(), **fields}
        os.write(descriptor, json.dumps(line).encode() + b"\n")

    return note


def note_late_heartbeats(note: Note, lease: float) -> None:
    """Note when a lease is lost because the states or the store is slow: that is a fault too."""
    renew_together, drop = Heartbeat._renew_together, Heartbeat.drop

    def look_at(renewed: float) -> None:
        if time.monotonic() - renewed > lease * 0.9:
            note("late", began=renewed)

    def timed(self: Heartbeat, leases: list[Lease]) -> None:
        oldest = min(lease.renewed for lease in leases)
        try:
            renew_together(self, leases)
        finally:
            look_at(oldest)

    def timed_drop(self: Heartbeat, lease: Lease) -> None:
        drop(self, lease)
        look_at(lease.renewed)

    Heartbeat._renew_together = timed  # type: ignore[method-assign]
    Heartbeat.drop = timed_drop  # type: ignore[method-assign]


def take_away(protection: str, url: str, between: Callable[[], None]) -> None:
    """Break the ledger in one way; only this process, only in these tests.

    `between` is called where a transaction is torn in two.
    """
    from duet_rpc.ledger import fingerprint

    kind = url.partition(":")[0]
    match protection, kind:
        case "fingerprint", _:
            fingerprint.fingerprint = lambda *_: b"f" * 32
        case "lease", _:
            Heartbeat.keep = lambda self, lease: None  # type: ignore[method-assign]
            Heartbeat.drop = lambda self, lease: None  # type: ignore[method-assign]
        case "fencing", "sqlite":
            _unfence_sqlite()
        case "fencing", "postgresql":
            _unfence_postgres()
        case "fencing", "unix":
            _unfence_valkey()
        case "transaction", "sqlite":
            _tear_sqlite(between)
        case "transaction", "postgresql":
            _tear_postgres(between)
        case _:
            raise AssertionError(f"there is no {protection!r} of {kind} to take away")


def _unfence_sqlite() -> None:
    from duet_rpc.ledger import states
    from duet_rpc.ledger.stores.sqlite import store

    def finish(operation: Any, record: Any, now: float) -> Any:
        finished = states.make_finished(record, operation.outcome, now, operation.ttl)
        return states.Decision(states.Kept(), finished)

    vars(states)["decide_finish"] = finish
    vars(store)["IS_POSSIBLE"] = False


def _unfence_postgres() -> None:
    from duet_rpc.ledger.stores.postgres import statements

    fence = "token = %s AND owner = %s AND state <> 'done'"
    assert fence in statements.FINISH
    none = "((token, owner) <> (%s, %s) OR true)"
    vars(statements)["FINISH"] = statements.FINISH.replace(fence, none)


def _unfence_valkey() -> None:
    from duet_rpc.ledger.stores.redis import scripts

    fence = "if old[1] ~= ARGV[1] or old[2] ~= ARGV[2] or old[3] == 'done' then return found() end"
    fenced = scripts.SCRIPTS[scripts._DIGESTS["finish"]]
    assert fence in fenced
    open_to_all = fenced.replace(fence, "")
    digest = sha1(open_to_all.encode(), usedforsecurity=False).hexdigest()
    scripts._DIGESTS["finish"] = digest
    scripts.SCRIPTS[digest] = open_to_all


def _tear_sqlite(between: Callable[[], None]) -> None:
    """Commit the effect first and its record afterwards, as if they could be parted."""
    from duet_rpc.ledger.stores.sqlite import file, transaction

    def save(connection: Any, record: Any) -> None:
        connection.execute("COMMIT")
        between()
        connection.execute("BEGIN IMMEDIATE")
        file.save(connection, record)

    vars(transaction)["save"] = save


def _tear_postgres(between: Callable[[], None]) -> None:
    """Do the same where the record is in the transaction from its beginning on."""
    from duet_rpc.ledger.stores.postgres.statements import INSERT, SAME, insert_values
    from duet_rpc.ledger.stores.postgres.transaction import PostgresTransaction
    from duet_rpc.ledger.waits import do

    whole = PostgresTransaction._end

    async def torn(self: PostgresTransaction, *values: Any) -> bytes | None:
        execute = self.connection.execute
        await do(execute(f"DELETE FROM duet_commands WHERE {SAME}", self._claim.identity))
        await do(execute("COMMIT"))
        between()
        await do(execute("BEGIN"))
        cursor = await do(execute(INSERT, insert_values(self._claim)))
        [self.token] = await do(cursor.fetchone())
        await do(execute("SAVEPOINT duet_fence"))
        return await whole(self, *values)

    PostgresTransaction._end = torn  # type: ignore[method-assign, assignment]


def main(settings: dict[str, Any]) -> None:
    note = notes_to(settings["events"], settings["name"])
    lease: float = settings["lease"]
    note_late_heartbeats(note, lease)
    is_first = settings["name"] == "s0"
    service = plain_service(note, is_first)
    url: str = settings["url"]

    def between() -> None:
        note("between")
        if is_first:
            time.sleep(60.0)  # to be killed in

    if settings.get("without"):
        take_away(settings["without"], url, between)
    if not url.startswith("unix:"):
        holder = "?" if url.startswith("sqlite:") else "%s"
        insert = f"INSERT INTO effects VALUES ({', '.join([holder] * 5)})"
        service.include(transactional_service(note, is_first, insert))
    server = Server(service, policy=PRODUCTION, store=Ledger(open_store(url), lease=lease))
    server.run_unix(settings["socket"], on_start=lambda address: note("ready", pid=os.getpid()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
