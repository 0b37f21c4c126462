"""The same calls over every transport, by a peer that knows only bytes and by both clients."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import blocking
from duet_rpc.client.client import Client
from duet_rpc.errors import RpcError
from duet_rpc.service import Service
from tests.transports.contract import CALLS, EXCHANGES, Call, Exchange
from tests.transports.lines import (
    PATIENCE,
    PROGRAM,
    TRANSPORTS,
    frame,
    notification,
    request,
    serving,
)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_the_same_bytes_get_the_same_answers(
    transport: str, exchange: Exchange, tmp_path: Path
) -> None:
    with TRANSPORTS[transport](tmp_path) as line:
        for data in exchange.writes:
            line.write(data)
        answers = [line.body() for _ in exchange.answers]
        assert sorted(map(str, answers)) == sorted(map(str, exchange.answers))
        assert line.call("test.add", [2, 2], 99) == {"jsonrpc": "2.0", "id": 99, "result": 4}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_reading_goes_on_while_a_handler_runs(transport: str, tmp_path: Path) -> None:
    with TRANSPORTS[transport](tmp_path) as line:
        line.write(request("test.nap", [60], 1))
        assert line.call("test.add", [1, 2], 2)["result"] == 3
        line.write(notification("$/cancelRequest", {"id": 1}))
        answer = line.answer()
        assert (answer["id"], answer["error"]["code"]) == (1, -32800)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_handler_calls_its_caller_back(transport: str, tmp_path: Path) -> None:
    with TRANSPORTS[transport](tmp_path) as line:
        line.write(request("test.ask", ["how much?"], "mine"))
        asked = line.answer()
        assert (asked["method"], asked["params"]) == ("answer", ["how much?"])
        line.write(frame(b'{"jsonrpc":"2.0","id":%d,"result":"a lot"}' % asked["id"]))
        assert line.answer() == {"jsonrpc": "2.0", "id": "mine", "result": "a lot"}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_closes_after_asking_ends_the_connection(
    transport: str, tmp_path: Path
) -> None:
    with TRANSPORTS[transport](tmp_path) as line:
        line.write(request("test.nap", [0.2], 1) + request("test.echo", ["x"], 2))
        line.close_writing()
        results = [line.answer()["result"] for _ in range(2)]
        assert sorted(map(str, results)) == ["0.2", "x"]
        assert line.answer() is None


# The clients.


def _own_service() -> Service:
    own = Service()

    @own.query(name="answer")
    def answer(question: str) -> str:
        return f"{question} a lot"

    return own


OPTIONS: dict[str, Any] = {"timeout": PATIENCE, "service": _own_service()}


@contextlib.contextmanager
def target(transport: str, tmp_path: Path) -> Iterator[str]:
    """The address to connect to; a child has none."""
    if transport == "child":
        yield ""
    else:
        with serving(transport, tmp_path) as server:
            yield server.address


@contextlib.asynccontextmanager
async def client(address: str) -> AsyncIterator[Client]:
    made = (
        Client.connect(address, **OPTIONS)
        if address
        else Client.spawn(*PROGRAM, "stdio", **OPTIONS)
    )
    async with made as opened:
        yield opened


def check(call: Call, outcome: Any) -> None:
    if call.code is None:
        assert outcome == call.result
    else:
        assert isinstance(outcome, RpcError)
        assert outcome.code == call.code


@pytest.mark.parametrize("transport", ["child", "unix", "tcp"])
def test_the_client_makes_the_same_calls_everywhere(transport: str, tmp_path: Path) -> None:
    async def use(address: str) -> None:
        async with client(address) as calling:
            for call in CALLS:
                try:
                    outcome = await calling.call(call.method, call.params)
                except RpcError as error:
                    outcome = error
                check(call, outcome)
            together = [calling.call(call.method, call.params) for call in CALLS]
            outcomes = await asyncio.gather(*together, return_exceptions=True)
            for call, outcome in zip(CALLS, outcomes, strict=True):
                check(call, outcome)

    with target(transport, tmp_path) as address:
        asyncio.run(use(address))


@pytest.mark.parametrize("transport", ["child", "unix", "tcp"])
def test_the_blocking_client_makes_the_same_calls_everywhere(
    transport: str, tmp_path: Path
) -> None:
    with target(transport, tmp_path) as address:
        made = (
            blocking.Client.connect(address, **OPTIONS)
            if address
            else blocking.Client.spawn(*PROGRAM, "stdio", **OPTIONS)
        )
        with made as calling:
            for call in CALLS:
                try:
                    outcome = calling.call(call.method, call.params)
                except RpcError as error:
                    outcome = error
                check(call, outcome)
