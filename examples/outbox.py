"""An outbox: a command that must send a mail, without losing one or sending it for nothing.

    python examples/outbox.py

The command writes what is to be sent into a table, inside the transaction that holds its effect and
its record. Another part of the program sends what stands there and ticks it off. A crash between
the two sends a mail again, so the receiver is given the row's number to recognise it by; but no
order is ever without its mail, and no mail without its order.
"""

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from duet_rpc import Service, testing
from duet_rpc.policy import PRODUCTION

shop = Service("shop")

SCHEMA = """
create table orders (id integer primary key, item text not null);
create table outbox (id integer primary key, text text not null, sent integer not null default 0);
"""


@shop.command
def order(item: str, db: sqlite3.Connection) -> int:
    """Take an order, and write down the mail that confirms it."""
    number = db.execute("insert into orders (item) values (?)", (item,)).lastrowid
    assert number is not None, "an insert has a row"
    db.execute("insert into outbox (text) values (?)", (f"Order {number}: one {item}",))
    return number


def send_what_is_due(path: Path, send: Callable[[int, str], None]) -> int:
    """Send every mail that was not sent yet; tick each off after it was."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        due = db.execute("select id, text from outbox where not sent order by id").fetchall()
        for number, text in due:
            send(number, text)
            db.execute("update outbox set sent = 1 where id = ?", (number,))
        return len(due)
    finally:
        db.close()


async def main(path: Path) -> list[str]:
    """Order once, retry, and send the mails."""
    mails: list[str] = []
    async with testing.connect(shop, policy=PRODUCTION, store=f"sqlite:///{path}") as client:
        for _ in range(3):  # the same command, three times: one order, one mail
            number = await client.command("shop.order", {"item": "lamp"}, key="cart-5")
            print(f"order {number}")
    while send_what_is_due(path, lambda number, text: mails.append(text)):
        pass
    return mails


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "shop.db")
        with sqlite3.connect(database) as setup:
            setup.executescript(SCHEMA)
        setup.close()
        for mail in asyncio.run(main(database)):
            print(f"mail: {mail}")
