"""A bank that survives `kill -9`: its commands are remembered in the database that holds its money.

    python examples/durable_bank.py bank.sock bank.db

`transfer` is transactional: the money and the record of the command commit together. `send_letter`
acts on the world outside (a file stands for the post office), so it promises to happen at most
once. Both die in the middle of their work when the demo asks for it, the first time only.
"""

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from duet_rpc import Context, RpcError, Server, Service, SqliteStore
from duet_rpc.ledger import Ledger
from duet_rpc.policy import PRODUCTION

bank = Service("bank", version="1.0", description="A bank that survives kill -9")
folder = Path()

Death = Literal["never", "before", "between"]


class InsufficientFunds(RpcError):
    """The account holds less than what was asked for."""

    code, message = 2002, "Insufficient funds"


@bank.command
def transfer(
    source: str,
    target: str,
    cents: Annotated[int, Meta(gt=0)],
    ctx: Context,
    db: sqlite3.Connection,
    death: Death = "never",
) -> dict[str, int]:
    """Move money; return what both accounts hold then."""
    die_once(ctx, death == "before")
    row = db.execute("select cents from accounts where name = ?", (source,)).fetchone()
    if row[0] < cents:
        raise InsufficientFunds(data={"balance": row[0]})
    db.execute("update accounts set cents = cents - ? where name = ?", (cents, source))
    db.execute("update accounts set cents = cents + ? where name = ?", (cents, target))
    die_once(ctx, death == "between")
    return dict(db.execute("select name, cents from accounts").fetchall())


@bank.command
def send_letter(text: str, ctx: Context, death: Death = "never") -> str:
    """Post a letter: an effect that no database can take back."""
    die_once(ctx, death == "before")
    with open(folder / "letters", "a") as post:
        post.write(text + "\n")
    die_once(ctx, death == "between")
    return "posted"


@bank.query
def balances() -> dict[str, int]:
    """Say what every account holds."""
    db = sqlite3.connect(folder / "bank.db")
    try:
        return dict(db.execute("select name, cents from accounts order by name").fetchall())
    finally:
        db.close()


def die_once(ctx: Context, now: bool) -> None:
    """Die as if by a power cut, unless that happened to this command before."""
    scar = folder / f"died-{ctx.idempotency_key}"
    if now and not scar.exists():
        scar.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def open_accounts() -> None:
    """Make the accounts, if this is the first start."""
    with sqlite3.connect(folder / "bank.db") as db:
        db.execute("create table if not exists accounts (name text primary key, cents integer)")
        db.execute("insert or ignore into accounts values ('Ada', 10000), ('Grace', 0)")
    db.close()


if __name__ == "__main__":
    socket = Path(sys.argv[1])
    folder = socket.parent
    open_accounts()
    # A run that is silent for a second counts as cut off; the default of 30 would make a long demo.
    ledger = Ledger(SqliteStore(str(folder / "bank.db")), lease=1.0)
    Server(bank, policy=PRODUCTION, store=ledger).run_unix(str(socket))
