"""Requests that wait for their client, and a client that does not keep to the protocol."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from duet_rpc import Context, Service
from duet_rpc.context import Origin
from duet_rpc.mcp import Mcp
from duet_rpc.policy import AGENT
from duet_rpc.testing.memory import MemoryServer
from duet_rpc.wire.dialect import MCP
from tests.mcp.in_hand import InHand
from tests.mcp.line import MODERN, PREFIX
from tests.mcp.test_dialogue import Details, accept

CAN: dict[str, Any] = {"elicitation": {}}
META = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": CAN}


class RawClient:
    """Sends what it likes, as lines."""

    def __init__(self, server: MemoryServer, reader: Any, writer: Any) -> None:
        self.server = server
        self._reader = reader
        self._writer = writer

    def send(self, method: str, params: Any, id: Any = None) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self.write(message if id is None else {**message, "id": id})

    def write(self, message: Any) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def read(self) -> Any:
        return json.loads(await asyncio.wait_for(self._reader.readline(), 10))

    async def ask(self, method: str, params: Any, id: Any) -> Any:
        self.send(method, params, id)
        return await self.read()

    def remove(self, what: str, id: Any, **more: Any) -> None:
        self.send("tools/call", {"name": "desk_remove", "arguments": {"what": what}, **more}, id)

    def answer(self, question: Any, **content: Any) -> None:
        self.write({"jsonrpc": "2.0", "id": question["id"], "result": accept(**content)})

    @property
    def dialogue(self) -> Any:
        session: Any = self.server.hosts[0].connection.requests.session
        return session.dialogue


@asynccontextmanager
async def talking(service: Service, revision: str = "2025-11-25") -> AsyncIterator[RawClient]:
    ours, theirs = socket.socketpair()
    async with MemoryServer(service, AGENT, None, "ndjson", None, None, MCP, face=Mcp()) as server:
        server._serve(theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        client = RawClient(server, reader, writer)
        if revision != MODERN:
            opening = {"protocolVersion": revision, "capabilities": CAN}
            assert "result" in await client.ask("initialize", opening, 0)
        yield client
        writer.close()


def make_desk(removed: list[str]) -> Service:
    service = Service("desk")

    @service.command(retry_safe=True)
    async def remove(what: str, ctx: Context) -> str:
        sure = await ctx.elicit(Details, f"Remove {what}?", key="sure")
        removed.append(what)
        return f"{what} for {sure and sure.name}"

    @service.resource("desk://{name*}")
    async def read(name: str, ctx: Context) -> str:
        await ctx.elicit(Details, "Read?", key="sure")
        return name

    @service.prompt
    def number() -> Any:
        return 5

    @service.prompt
    def choose(colour: str) -> str:
        return colour

    @service.completion("choose", "colour")
    def colours(value: str) -> Any:
        return None

    return service


async def test_an_id_is_taken_while_its_request_waits_for_the_client() -> None:
    removed: list[str] = []
    async with talking(make_desk(removed)) as client:
        client.remove("a", 5)
        first = await client.read()
        client.remove("b", 5)
        refusal = await client.read()
        assert refusal["id"] == 5
        assert refusal["error"]["data"]["reason"] == "duplicate-id"
        client.answer(first, name="Ada")
        assert (await client.read())["result"]["structuredContent"] == {"result": "a for Ada"}
        client.remove("c", 5)
        client.answer(await client.read(), name="Bob")
        assert (await client.read())["result"]["structuredContent"] == {"result": "c for Bob"}
        assert not client.dialogue._open
        assert not client.dialogue._answered
    assert removed == ["a", "c"]


async def test_the_answers_of_a_request_are_never_those_of_another() -> None:
    removed: list[str] = []
    async with talking(make_desk(removed)) as client:
        client.remove("a", 5)
        question = await client.read()
        requests = client.server.hosts[0].connection.requests
        requests.slots.limit = 0  # so it has to wait for its turn when it is begun anew
        client.answer(question, name="Ada")
        while not requests.queue.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        client.send("notifications/cancelled", {"requestId": 5})
        while requests.queue.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        requests.slots.limit = requests.slots.max_running
        client.remove("all", 5)
        again = await client.read()
        assert again.get("method") == "elicitation/create", "its user was not asked"
        assert not client.dialogue._answered
    assert removed == []


async def test_late_and_repeated_answers_after_a_cancellation() -> None:
    removed: list[str] = []
    async with talking(make_desk(removed)) as client:
        for _ in range(50):
            client.remove("a", 5)
            question = await client.read()
            client.send("notifications/cancelled", {"requestId": 5})
            cancelled = await client.read()
            assert cancelled["method"] == "notifications/cancelled"
            for _ in range(3):
                client.answer(question, name="Ada")
        assert (await client.ask("ping", {}, 6)) == {"jsonrpc": "2.0", "id": 6, "result": {}}
        assert not client.dialogue._open
        assert not client.server.hosts[0].connection.requests.by_id
    assert removed == []


async def test_half_a_character_among_the_answers() -> None:
    async with talking(make_desk([]), MODERN) as client:
        client.remove("a", 1, _meta=META, inputResponses={"\ud800": {}})
        state = (await client.read())["result"]["requestState"]
        client.remove(
            "a", 2, _meta=META, requestState=state, inputResponses={"sure": accept(name="Ada")}
        )
        assert (await client.read())["result"]["structuredContent"] == {"result": "a for Ada"}


async def test_half_a_character_in_an_address_under_which_something_asks() -> None:
    async with talking(make_desk([]), MODERN) as client:
        params = {"uri": "desk://\ud800", "_meta": META}
        first = await client.ask("resources/read", params, 1)
        again = {"requestState": first["result"]["requestState"]}
        again["inputResponses"] = {"sure": accept(name="Ada")}
        last = await client.ask("resources/read", params | again, 2)
        assert last["result"]["contents"][0]["text"] == "\ud800"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "number"}),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/prompt", "name": "choose"},
                "argument": {"name": "colour", "value": ""},
            },
        ),
    ],
)
async def test_a_result_that_cannot_be_spelled_is_answered(method: str, params: Any) -> None:
    async with talking(make_desk([]), MODERN) as client:
        answer = await client.ask(method, params | {"_meta": META}, 1)
        assert answer["id"] == 1
        assert answer["error"]["code"] == -32603
        assert answer["error"]["data"]["reference"]


async def test_one_id_is_listened_under_once() -> None:
    async with talking(make_desk([]), MODERN) as client:
        params = {"notifications": {"resourceSubscriptions": ["desk://a"]}, "_meta": META}
        assert (await client.ask("subscriptions/listen", params, 7))["method"].endswith("ged")
        refusal = await client.ask("subscriptions/listen", params, 7)
        assert refusal["error"]["data"]["reason"] == "duplicate-id"
        client.send("notifications/cancelled", {"requestId": 7})
        assert (await client.ask("subscriptions/listen", params, 7))["method"].endswith("ged")


async def test_a_silent_client_leaves_only_so_many_requests_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duet_rpc.mcp.dialogue.MAX_OPEN", 3)
    async with talking(make_desk([])) as client:
        questions = []
        for id in (1, 2, 3):
            client.remove("a", id)
            questions.append(await client.read())
        client.remove("a", 4)
        assert (await client.read())["result"]["isError"] is True
        client.answer(questions[0], name="Ada")
        assert (await client.read())["id"] == 1
        client.remove("a", 5)
        assert (await client.read())["method"] == "elicitation/create"


async def test_a_client_subscribes_to_only_so_many_resources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duet_rpc.mcp.protocol.MAX_SUBSCRIBED", 2)
    async with talking(make_desk([])) as client:
        for uri in ("desk://a", "desk://b", "desk://a"):
            assert (await client.ask("resources/subscribe", {"uri": uri}, 1))["result"] == {}
        refusal = await client.ask("resources/subscribe", {"uri": "desk://c"}, 1)
        assert refusal["error"]["code"] == -32602


async def test_clients_come_while_another_thread_tells_of_a_change() -> None:
    bound: Any = InHand(make_desk([])).dispatcher.face
    kept: list[Any] = []
    told = asyncio.create_task(
        asyncio.to_thread(lambda: [bound.tell_updated("desk://a") for _ in range(2000)])
    )
    while not told.done():
        peer: Any = SimpleNamespace(has_loop=False)
        origin = Origin(connection_id="c", transport="memory")
        kept.append(bound.open(peer, origin, lambda message: None))
        if len(kept) > 100:
            bound.forget(kept.pop(0))
        await asyncio.sleep(0)
    await told
