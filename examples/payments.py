"""Payments on PostgreSQL: a service for production, on a database that several processes share.

    DATABASE_URL=postgresql://... python examples/payments.py pay.sock

`pay` is transactional: what it does to `db` and the record of it commit together, and an error that
it raises undoes all. `balance` has a connection that only reads. `statement` reads twice and must
see one moment, so a lifespan opens a pool for it. `payments_demo.py` runs two processes of this and
kills one in the middle of a payment; `test_payments.py` is the test suite.
"""

import os
import queue
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated

import psycopg
from msgspec import Meta

from duet_rpc import RpcError, Server, Service, Unix
from duet_rpc.policy import PRODUCTION

URL = os.environ.get("DATABASE_URL", "postgresql:///payments")
SCHEMA = """
drop table if exists accounts, payments;
create table accounts (name text primary key, cents int not null);
create table payments (id int generated always as identity, source text, target text, cents int);
insert into accounts values ('ada', 10000), ('ben', 0);
"""


class UnknownAccount(RpcError):
    code, message = 3001, "Unknown account"


class InsufficientFunds(RpcError):
    code, message = 3002, "Insufficient funds"


class Busy(RpcError):
    code, message = 3003, "All connections are in use"


payments = Service("payments", errors=[UnknownAccount, InsufficientFunds, Busy])


@dataclass(frozen=True)
class Statement:
    cents: int
    received: list[int]


class Pool:
    """Connections that handlers take turns with."""

    def __init__(self, connections: list[psycopg.Connection], patience: float = 5.0) -> None:
        self._patience = patience
        self._free: queue.Queue[psycopg.Connection] = queue.Queue()
        for connection in connections:
            self._free.put(connection)

    @contextmanager
    def snapshot(self) -> Generator[psycopg.Connection]:
        """Lend a connection whose statements all see the same moment."""
        try:
            connection = self._free.get(timeout=self._patience)
        except queue.Empty:
            raise Busy() from None
        try:
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read, read only")
                yield connection
        finally:
            self._free.put(connection)


@payments.lifespan
def open_pool() -> Iterator[Pool]:
    """Open the pool before the first request and close it after the last."""
    with ExitStack() as stack:
        yield Pool([stack.enter_context(psycopg.connect(URL)) for _ in range(2)])


@payments.command
def pay(source: str, target: str, cents: Annotated[int, Meta(gt=0)], db: psycopg.Connection) -> int:
    """Move money; return the number of the payment."""
    moved = "update accounts set cents = cents + %s where name = %s returning cents"
    for name, change in (source, -cents), (target, cents):
        row = db.execute(moved, (change, name)).fetchone()
        if row is None:
            raise UnknownAccount(data={"account": name})
        if row[0] < 0:
            raise InsufficientFunds(data={"account": name, "missing": -row[0]})
    kept = "insert into payments (source, target, cents) values (%s, %s, %s) returning id"
    [(number,)] = db.execute(kept, (source, target, cents)).fetchall()
    return int(number)


@payments.query
def balance(account: str, db: psycopg.Connection) -> int:
    """Tell how much there is."""
    row = db.execute("select cents from accounts where name = %s", (account,)).fetchone()
    if row is None:
        raise UnknownAccount(data={"account": account})
    return int(row[0])


@payments.query
def statement(account: str, pool: Pool) -> Statement:
    """Tell how much there is and where it came from, as of one moment."""
    with pool.snapshot() as db:
        rows = db.execute("select cents from payments where target = %s order by id", (account,))
        return Statement(balance(account, db), [cents for (cents,) in rows])


if __name__ == "__main__":
    server = Server(payments, policy=PRODUCTION, store=URL)
    server.run(Unix(sys.argv[1]), on_start=lambda address: print(address, flush=True))
