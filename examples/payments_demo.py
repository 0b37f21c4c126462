"""Two processes of `payments.py` on one database, and a client that outlives one of them.

    DATABASE_URL=postgresql://... python examples/payments_demo.py

The client pays, and pays again under the same key: one payment. Then its server is killed in the
middle of one; the client finds the other server and sends the payment again under its key, and the
money has moved once. It drops the tables `accounts` and `payments` that it finds.
"""

import asyncio
import sys
import tempfile
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import psycopg

import payments
from duet_rpc import Client, Retry
from payments import SCHEMA, URL, InsufficientFunds, Statement


@asynccontextmanager
async def serve(path: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a server in a process of its own."""
    command = sys.executable, payments.__file__, path
    quiet, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=quiet)
    assert process.stdout is not None
    await process.stdout.readline()  # it says its address when it can be reached
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def hold(account: str) -> AsyncGenerator[psycopg.AsyncConnection]:
    """Keep an account locked, so that a payment stops in the middle."""
    async with await psycopg.AsyncConnection.connect(URL) as db:
        await db.execute("select from accounts where name = %s for update", (account,))
        yield db


async def wait_for_payment(db: psycopg.AsyncConnection) -> None:
    """Wait until a payment waits for the lock."""
    waiting = "select from pg_locks where not granted"
    while not (await db.execute(waiting)).rowcount:
        await db.execute("select pg_sleep(0.01)")


def create_tables() -> None:
    """Begin anew, with a hundred in ada's account."""
    with psycopg.connect(URL) as db:
        db.execute(SCHEMA)


async def main(folder: str) -> None:
    """Pay, retry, and kill a server in the middle of a payment."""
    create_tables()
    cart = uuid.uuid4().hex  # keys are remembered for a day, so each run has its own
    first, second = f"{folder}/first.sock", f"{folder}/second.sock"
    order = {"source": "ada", "target": "ben", "cents": 2500}
    async with (
        serve(first) as victim,
        serve(second),
        Client.connect(
            f"unix:{first}", f"unix:{second}", retry=Retry(attempts=10), errors=payments.payments
        ) as client,
    ):
        for attempt in "sent", "sent again":
            number = await client.command("payments.pay", order, key=f"{cart}/1", returns=int)
            print(f"order 1, {attempt}: payment {number}")
        try:
            await client.command("payments.pay", order | {"cents": 9900}, key=f"{cart}/2")
        except InsufficientFunds as error:
            print(f"order 2, refused: {error.data['missing']} cents are missing")
        async with hold("ben") as db:
            paying = asyncio.create_task(client.command("payments.pay", order, key=f"{cart}/3"))
            await wait_for_payment(db)
            victim.kill()
            end = await client.closed()
            print(f"order 3, its server killed in the middle: the connection is {end.reason}")
        print(f"order 3, by the second server: payment {await paying}")
        found = await client.query("payments.statement", {"account": "ben"}, returns=Statement)
        print(f"ben has {found.cents} cents, received as {found.received}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(made))
