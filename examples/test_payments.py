"""The test suite of `payments.py`: what is declared, what a retry gets, what a crash leaves.

    cd examples && DATABASE_URL=postgresql://... python -m pytest test_payments.py

Nothing is mocked: the service is served in this process to a real client, on a database of your
own. It drops the tables `accounts` and `payments` that it finds. The fixture `rpc_client` comes
with duet-rpc.
"""

import asyncio
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Client, ConnectionLost, InvalidParams, Retry, RpcError, blocking, testing
from duet_rpc.errors import KeyReused
from duet_rpc.policy import PRODUCTION
from payments import URL, Busy, InsufficientFunds, Pool, Statement, UnknownAccount, payments
from payments_demo import create_tables, hold, serve, wait_for_payment

ORDER = {"source": "ada", "target": "ben", "cents": 2500}
connect = partial(testing.connect, payments, policy=PRODUCTION, store=URL)


@pytest.fixture(autouse=True)
def tables() -> None:
    create_tables()


@pytest.fixture
def client(rpc_client: testing.MakeClient) -> blocking.Client:
    return rpc_client(payments, policy=PRODUCTION, store=URL)


@pytest.fixture
def key() -> str:
    """Make a key of its own for each test: the store remembers those of earlier runs."""
    return uuid.uuid4().hex


def look_up(client: blocking.Client) -> tuple[int, int]:
    ada, ben = (client.query("payments.balance", {"account": name}) for name in ("ada", "ben"))
    return ada, ben


def test_money_moves(client: blocking.Client) -> None:
    assert client.command("payments.pay", ORDER, returns=int) == 1
    assert look_up(client) == (7500, 2500)
    found = client.query("payments.statement", {"account": "ben"}, returns=Statement)
    assert found == Statement(2500, received=[2500])


@pytest.mark.parametrize(
    ("change", "error", "data"),
    [
        ({"cents": 10001}, InsufficientFunds, {"account": "ada", "missing": 1}),
        ({"target": "eve"}, UnknownAccount, {"account": "eve"}),
        ({"cents": 0}, InvalidParams, {"param": "cents", "expected": "integer >= 1"}),
    ],
)
def test_what_is_refused_leaves_all_as_it_was(
    client: blocking.Client, change: dict[str, Any], error: type[RpcError], data: dict[str, Any]
) -> None:
    with pytest.raises(error) as refused:
        client.command("payments.pay", ORDER | change)
    assert refused.value.data.items() >= data.items()
    assert look_up(client) == (10000, 0)


def test_a_retry_gets_the_first_outcome(client: blocking.Client, key: str) -> None:
    assert {client.command("payments.pay", ORDER, key=key) for _ in range(3)} == {1}
    assert look_up(client) == (7500, 2500)
    with pytest.raises(KeyReused):
        client.command("payments.pay", ORDER | {"cents": 1}, key=key)


def test_a_pool_without_connections_is_busy(rpc_client: testing.MakeClient) -> None:
    empty = Pool([], patience=0.01)
    client = rpc_client(payments, policy=PRODUCTION, store=URL, override={Pool: empty})
    with pytest.raises(Busy):
        client.query("payments.statement", {"account": "ben"})


def test_an_answer_that_is_lost_is_asked_for_again(key: str) -> None:
    async def pay() -> None:
        wire = testing.Wire()
        async with connect(wire=wire, retry=Retry()) as client:
            wire.to_client.cut(after=10)  # in the middle of the answer
            assert await client.command("payments.pay", ORDER, key=key) == 1
            assert client.stats.connects == 2
            assert await client.query("payments.balance", {"account": "ben"}) == 2500

    asyncio.run(pay())


def test_a_payment_that_a_crash_cut_off_has_not_begun(tmp_path: Path, key: str) -> None:
    async def pay() -> None:
        address, path = f"unix:{tmp_path}/pay.sock", f"{tmp_path}/pay.sock"
        async with serve(path) as server, hold("ben") as db, Client.connect(address) as client:
            paying = asyncio.create_task(client.command("payments.pay", ORDER, key=key))
            await wait_for_payment(db)
            server.kill()
            with pytest.raises(ConnectionLost):
                await paying
        async with connect() as client:
            assert await client.query("payments.balance", {"account": "ada"}) == 10000
            assert await client.command("payments.pay", ORDER, key=key) == 1
            assert await client.query("payments.balance", {"account": "ada"}) == 7500

    asyncio.run(pay())
