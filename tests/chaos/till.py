"""The tools that the agent of `test_agents` calls: one command of each kind.

A run has an effect that counts: a row in the store's own database, where the command is
transactional, else a line in the file that `TILL_EFFECTS` names. `duet-rpc mcp FILE:book` serves
the first; the others stay claimed for as long as a lease lasts when their server is killed, so

    python -m tests.chaos.till URL LEASE

serves them with a lease of so many seconds.
"""

import os
import secrets
import sys

from duet_rpc import Context, Server, Service, Transaction
from duet_rpc.ledger import Ledger, open_store
from duet_rpc.mcp import Mcp
from duet_rpc.policy import AGENT

book, till = Service("book"), Service("till")


@book.command
def move(cents: int, ctx: Context, db: Transaction) -> dict[str, str | int]:
    """Move money from one row to another."""
    run = secrets.token_hex(8)
    # A placeholder is not the same in all databases; these two are letters and digits.
    db.execute(f"INSERT INTO effects VALUES ('{ctx.idempotency_key}', '{run}')")
    return {"run": run, "cents": cents}


@till.command
def once(cents: int, ctx: Context) -> dict[str, str | int]:
    """Take money, at most once."""
    return {"run": _note(ctx), "cents": cents}


@till.command(retry_safe=True)
async def again(cents: int, ctx: Context) -> dict[str, str | int]:
    """Count money, once more if need be."""
    return {"run": _note(ctx), "cents": cents}


def _note(ctx: Context) -> str:
    """Have an effect outside of the store's database."""
    run = secrets.token_hex(8)
    descriptor = os.open(os.environ["TILL_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{ctx.idempotency_key} {run}\n".encode())
    os.close(descriptor)
    return run


if __name__ == "__main__":
    store = Ledger(open_store(sys.argv[1]), lease=float(sys.argv[2]))
    Server(till, policy=AGENT, face=Mcp(), store=store).run_stdio()
