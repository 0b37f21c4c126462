"""WebSockets: a connection of messages in both directions, on each host that serves HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from duet_rpc.http import BearerTokens
from duet_rpc.http.credentials import digest_token
from duet_rpc.policy import replace
from tests.http.served import HOSTS, POLICY, Raw, call, request

PATIENCE = 20.0


@pytest.fixture(params=list(HOSTS))
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    with HOSTS[request.param]() as url:
        yield url.replace("http:", "ws:")


@asynccontextmanager
async def open_socket(url: str, **options: Any) -> AsyncIterator[ClientConnection]:
    async with connect(url, open_timeout=PATIENCE, **options) as socket:
        yield socket


async def ask(socket: ClientConnection, message: Any) -> Any:
    await socket.send(json.dumps(message))
    return json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))


async def test_a_message_is_answered_by_a_message(served: str) -> None:
    async with open_socket(served) as socket:
        assert await ask(socket, call("shop.add", {"a": 1, "b": 2})) == {
            "jsonrpc": "2.0",
            "id": 1,
            "result": 3,
        }
        assert (await ask(socket, call("shop.fail")))["error"]["code"] == 7001
        assert (await ask(socket, "no request"))["error"]["code"] == -32600
        batch = await ask(socket, [call("shop.add", [1, n], id=n) for n in range(3)])
        assert [answer["result"] for answer in batch] == [1, 2, 3]


async def test_many_calls_are_in_flight_together(served: str) -> None:
    async with open_socket(served) as socket:
        for number in range(50):
            await socket.send(json.dumps(call("shop.echo", {"value": number}, id=number)))
        answers = [json.loads(await socket.recv()) for _ in range(50)]
    assert sorted(answer["result"] for answer in answers) == list(range(50))


async def test_a_handler_calls_its_caller(served: str) -> None:
    async with open_socket(served) as socket:
        await socket.send(json.dumps(call("shop.ask_back", id="outer")))
        asked = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
        assert asked["method"] == "your.name"
        await socket.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": "Ada"}))
        answer = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
    assert answer == {"jsonrpc": "2.0", "id": "outer", "result": "hello Ada"}


async def test_a_subscription_sends_items_until_it_is_left(served: str) -> None:
    async with open_socket(served) as socket:
        name = (await ask(socket, call("shop.ticks")))["result"]["subscription"]
        items = [json.loads(await socket.recv())["params"] for _ in range(3)]
        assert [(item["subscription"], item["seq"], item["value"]) for item in items] == [
            (name, 1, 0),
            (name, 2, 1),
            (name, 3, 2),
        ]
        leave = {"jsonrpc": "2.0", "method": "$/unsubscribe", "params": {"subscription": name}}
        await socket.send(json.dumps(leave))
        while (last := json.loads(await socket.recv()))["method"] != "$/end":
            pass
        assert last["params"] == {"subscription": name}


async def test_a_request_is_cancelled(served: str) -> None:
    async with open_socket(served) as socket:
        await socket.send(json.dumps(call("shop.wait", id=7)))
        cancel = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 7}}
        assert (await ask(socket, cancel))["error"]["code"] == -32800


async def test_where_it_comes_from(served: str) -> None:
    async with open_socket(served) as socket:
        assert (await ask(socket, call("shop.who")))["result"] == ["local", [], "websocket", True]


async def test_a_subprotocol_is_taken_but_not_needed(served: str) -> None:
    async with open_socket(served, subprotocols=["other", "jsonrpc"]) as socket:
        assert socket.subprotocol == "jsonrpc"
    async with open_socket(served, subprotocols=["other"]) as socket:
        assert socket.subprotocol is None


async def end_of(socket: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        await asyncio.wait_for(socket.recv(), PATIENCE)
    received = closed.value.rcvd
    return 0 if received is None else received.code


async def test_binary_messages_end_it(served: str) -> None:
    async with open_socket(served) as socket:
        await socket.send(b"{}")
        assert await end_of(socket) == 1003


async def test_a_message_that_is_too_large_ends_it() -> None:
    for name in HOSTS:
        if name == "asgi":
            continue  # the limit is the server's own: 16 MiB under uvicorn
        with HOSTS[name]() as url:
            async with open_socket(url.replace("http:", "ws:")) as socket:
                await socket.send("x" * 200_000)
                assert await end_of(socket) == 1009


async def test_parts_of_a_message_are_put_together(served: str) -> None:
    async with open_socket(served) as socket:
        text = json.dumps(call("shop.echo", {"value": "é" * 1000}))
        await socket.send(text[n : n + 97] for n in range(0, len(text), 97))
        assert json.loads(await socket.recv())["result"] == "é" * 1000


@pytest.mark.parametrize("host", list(HOSTS))
async def test_who_may_open_one(host: str) -> None:
    tokens = BearerTokens({"alice": digest_token("secret")})
    with HOSTS[host](authenticate=tokens, allowed_origins=["https://app.example"]) as url:
        address = url.replace("http:", "ws:")
        right = {"Authorization": "Bearer secret"}
        async with open_socket(address, additional_headers=right) as socket:
            assert (await ask(socket, call("shop.who")))["result"][0] == "token:alice"
        refused_ones: list[tuple[int, str, dict[str, Any]]] = [
            (401, "", {}),
            (403, "", {"origin": "https://evil.example", "additional_headers": right}),
            (404, "other", {"additional_headers": right}),
        ]
        for status, path, options in refused_ones:
            with pytest.raises(InvalidStatus) as refused:
                async with open_socket(address + path, **options):
                    pass
            assert refused.value.response.status_code == status


async def test_the_end_of_a_server_is_said() -> None:
    for name in HOSTS:
        with HOSTS[name]() as url:
            socket = await connect(url.replace("http:", "ws:"))
            assert (await ask(socket, call("shop.add", [1, 2])))["result"] == 3
        code = await end_of(socket)
        assert code in ((1001,) if name == "listener" else (1001, 1012)), name
        await socket.close()


async def test_who_reads_nothing_is_not_worked_for() -> None:
    small = replace(POLICY, max_output_bytes=10_000)
    with HOSTS["listener"](small) as url:
        async with open_socket(url.replace("http:", "ws:"), max_queue=1) as socket:
            message = json.dumps(call("shop.echo", {"value": "x" * 50_000}))

            async def flood() -> None:
                for _ in range(10_000):
                    await socket.send(message)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(flood(), 2.0)
            with Raw(url) as other:
                other.send(request(call("shop.add", {"a": 1, "b": 2})))
                assert other.read().value["result"] == 3
            answer = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
            assert answer["result"] == "x" * 50_000


@pytest.mark.parametrize("host", list(HOSTS))
async def test_a_page_says_by_its_first_message_who_calls(host: str) -> None:
    tokens = BearerTokens({"alice": digest_token("secret")})
    page: dict[str, Any] = {"origin": "https://app.example"}
    with HOSTS[host](authenticate=tokens, allowed_origins=["https://app.example"]) as url:
        address = url.replace("http:", "ws:")
        async with open_socket(address, **page) as socket:
            answer = await ask(socket, call("rpc.authenticate", {"token": "secret"}, id="a"))
            assert answer == {"jsonrpc": "2.0", "id": "a", "result": {"principal": "token:alice"}}
            assert (await ask(socket, call("shop.who")))["result"][0] == "token:alice"
        wrongs: list[Any] = [
            call("rpc.authenticate", {"token": "wrong"}),
            call("shop.who"),
            call("shop.buy", {"token": "secret", "thing": "tea"}),
            [],
        ]
        for wrong in wrongs:
            async with open_socket(address, **page) as socket:
                assert (await ask(socket, wrong))["error"]["code"] == -32010
                assert await end_of(socket) == 1008
