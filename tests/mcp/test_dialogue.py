"""Handlers that ask the client: forms, samples, roots, in both eras, over a real connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from duet_rpc import Client, Context, RpcError, Service, Transaction, testing
from duet_rpc.errors import UsageError
from duet_rpc.mcp import Mcp
from duet_rpc.mcp.questions import make_form
from duet_rpc.mcp.request_state import Seal
from duet_rpc.policy import AGENT
from tests.mcp.line import MODERN, PREFIX

HANDSHAKE = "2025-11-25"
CAN: dict[str, Any] = {"elicitation": {}, "sampling": {}, "roots": {}}


@dataclass
class Details:
    name: str
    age: int = 30
    colour: Literal["red", "blue"] = "red"


@dataclass
class Agent:
    """The client of a test: what its user and its model answer, and what it was asked."""

    answers: list[Any] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)

    def service(self) -> Service:
        service = Service(ignore_unknown=True)

        @service.query(name="elicitation/create")
        async def elicit(message: str, requestedSchema: dict[str, Any]) -> Any:
            return await self.answer(f"form {message}")

        @service.query(name="sampling/createMessage")
        async def sample(messages: list[Any], maxTokens: int) -> Any:
            return await self.answer(f"sample {messages[0]['content']['text']}")

        @service.query(name="roots/list")
        async def roots() -> Any:
            return await self.answer("roots")

        return service

    async def answer(self, question: str) -> Any:
        self.asked.append(question)
        self.was_asked.set()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        return answer


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "model": "m", "content": {"type": "text", "text": text}}


class Bench:
    """A service whose tools ask, and how often each of them has run."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.service = service = Service("desk")

        @service.query
        async def greet(ctx: Context) -> str:
            self.runs.append("greet")
            details = await ctx.elicit(Details, "Who are you?", key="who")
            if details is None:
                return "nobody"
            model = await ctx.sample(f"Greet {details.name}", max_tokens=10, key="greeting")
            return f"{model.text} {details.name}, {details.age}, {details.colour}"

        @service.query
        def places(ctx: Context) -> list[str]:
            return [root.uri for root in ctx.roots().result()]

        @service.query
        async def both(ctx: Context) -> str:
            who, greeting = ctx.elicit(Details, "Who?"), ctx.sample("Greet", max_tokens=5)
            details = await who
            assert details is not None
            return f"{(await greeting).text} {details.name}"

        @service.command(retry_safe=True)
        def remove(what: str, ctx: Context) -> str:
            self.runs.append(f"remove {what}")
            if ctx.elicit(Details, f"Remove {what}?", key="sure").result() is None:
                return "kept"
            self.runs.append(f"removed {what}")
            return "removed"

        @service.command
        def once(ctx: Context) -> str:
            return str(ctx.elicit(Details, "Who?").result())

    def effects(self) -> list[str]:
        return [run for run in self.runs if run.startswith("removed")]


@asynccontextmanager
async def connected(
    service: Service, agent: Agent, revision: str = HANDSHAKE, **options: Any
) -> AsyncIterator[Client]:
    async with testing.connect(
        service, policy=AGENT, face=Mcp(), service=agent.service(), framing="ndjson", **options
    ) as client:
        if revision != MODERN:
            opening = {"protocolVersion": revision, "capabilities": CAN}
            assert (await client.call("initialize", opening))["protocolVersion"] == revision
        yield client


async def call(client: Client, tool: str, **more: Any) -> Any:
    return await client.call("tools/call", {"name": tool, **more})


def modern(capabilities: dict[str, Any] = CAN) -> dict[str, Any]:
    return {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": capabilities}


async def ask_again(
    client: Client, tool: str, agent: Agent, arguments: dict[str, Any] | None = None
) -> Any:
    """Do what a client of the modern era does: answer what is asked, and send the call again."""
    more: dict[str, Any] = {}
    while True:
        params = {"name": tool, "arguments": arguments or {}, "_meta": modern(), **more}
        result = await client.call("tools/call", params)
        if result["resultType"] != "input_required":
            return result
        more = {"requestState": result["requestState"], "inputResponses": {}}
        for key, question in result["inputRequests"].items():
            agent.asked.append(f"{key} {question['method']}")
            more["inputResponses"][key] = agent.answers.pop(0)


async def test_a_handler_waits_for_the_client_where_there_is_a_handshake() -> None:
    bench, agent = Bench(), Agent([accept(name="Ada", age=3), said("Hello")])
    async with connected(bench.service, agent) as client:
        result = await call(client, "desk_greet")
    assert result["structuredContent"] == {"result": "Hello Ada, 3, red"}
    assert agent.asked == ["form Who are you?", "sample Greet Ada"]
    assert bench.runs == ["greet"], "it goes on where it waited"


async def test_a_handler_runs_again_with_the_answers_in_the_modern_era() -> None:
    bench, agent = Bench(), Agent([accept(name="Ada", colour="blue"), said("Hello")])
    async with connected(bench.service, agent, MODERN) as client:
        result = await ask_again(client, "desk_greet", agent)
    assert result["structuredContent"] == {"result": "Hello Ada, 30, blue"}
    assert agent.asked == ["who elicitation/create", "greeting sampling/createMessage"]
    assert bench.runs == ["greet"] * 3


async def test_questions_that_are_asked_together_take_one_round() -> None:
    bench, agent = Bench(), Agent([accept(name="Ada"), said("Hi")])
    async with connected(bench.service, agent, MODERN) as client:
        result = await ask_again(client, "desk_both", agent)
    assert result["structuredContent"] == {"result": "Hi Ada"}
    assert agent.asked == ["question-1 elicitation/create", "question-2 sampling/createMessage"]


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_user_may_not_want_to(revision: str, action: str) -> None:
    bench, agent = Bench(), Agent([{"action": action}])
    async with connected(bench.service, agent, revision) as client:
        if revision == MODERN:
            result = await ask_again(client, "desk_greet", agent)
        else:
            result = await call(client, "desk_greet")
    assert result["structuredContent"] == {"result": "nobody"}


async def test_a_def_asks_too() -> None:
    bench, agent = Bench(), Agent([{"roots": [{"uri": "file:///home", "name": "home"}]}])
    async with connected(bench.service, agent) as client:
        result = await call(client, "desk_places")
    assert result["structuredContent"] == {"result": ["file:///home"]}


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_a_command_that_may_run_again_asks_from_its_beginning(revision: str) -> None:
    bench, agent = Bench(), Agent([accept(name="Ada")])
    arguments = {"what": "all", "idempotency_key": "k1"}
    async with connected(bench.service, agent, revision) as client:
        if revision == MODERN:
            result = await ask_again(client, "desk_remove", agent, arguments)
        else:
            result = await call(client, "desk_remove", arguments=arguments)
        assert result["structuredContent"] == {"result": "removed"}
        told = await client.call(
            "tools/call",
            {
                "name": "outcome",
                "arguments": {"tool": "desk_remove", "idempotency_key": "k1"},
                "_meta": modern(),
            },
        )
    assert told["structuredContent"] == {"state": "done", "result": "removed"}
    assert bench.runs == ["remove all", "remove all", "removed all"]


async def test_the_last_round_replayed_a_hundred_times_has_one_effect() -> None:
    bench = Bench()
    async with connected(bench.service, Agent(), MODERN) as client:
        params = {"name": "desk_remove", "arguments": {"what": "all"}, "_meta": modern()}
        first = await client.call("tools/call", params)
        last = {
            **params,
            "requestState": first["requestState"],
            "inputResponses": {"sure": accept(name="Ada")},
        }
        results = await asyncio.gather(
            *(asyncio.ensure_future(client.call("tools/call", last)) for _ in range(100))
        )
    assert bench.effects() == ["removed all"]
    assert all(each == results[0] for each in results)


@pytest.mark.clause("repetition-3")
@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_a_command_without_a_key_that_asked_is_not_done_again(revision: str) -> None:
    service, agent = Service("desk"), Agent([accept(name="Ada")])
    removed: list[str] = []

    @service.command(retry_safe=True, dedupe="arguments")
    def remove(what: str, ctx: Context) -> str:
        if ctx.elicit(Details, f"Remove {what}?", key="sure").result() is None:
            return "kept"
        removed.append(what)
        return "removed"

    arguments = {"what": "all"}
    async with connected(service, agent, revision) as client:
        if revision == MODERN:
            results = [await ask_again(client, "desk_remove", agent, arguments) for _ in range(2)]
        else:
            results = [await call(client, "desk_remove", arguments=arguments) for _ in range(2)]
    assert len(agent.asked) == 1 and removed == ["all"]
    assert [each["structuredContent"]["result"] for each in results] == ["removed"] * 2
    assert [len(each["content"]) for each in results] == [1, 2]


async def test_a_transactional_command_holds_no_transaction_while_somebody_thinks(
    tmp_path: Path,
) -> None:
    service, agent, thinking = Service("bank"), Agent(), asyncio.Event()
    runs = []

    @service.command
    def move(cents: int, tx: Transaction, ctx: Context) -> str:
        runs.append(cents)
        tx.execute("CREATE TABLE IF NOT EXISTS moves (cents)")
        tx.execute("INSERT INTO moves VALUES (?)", (cents,))
        answer = ctx.elicit(Details, "Sure?", key="sure").result()
        return "kept" if answer is None else f"moved for {answer.name}"

    @service.command
    def note(text: str, tx: Transaction) -> str:
        tx.execute("CREATE TABLE IF NOT EXISTS notes (text)")
        tx.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    async def think(question: str) -> Any:
        agent.asked.append(question)
        agent.was_asked.set()
        await thinking.wait()
        return accept(name="Ada")

    agent.answer = think  # type: ignore[method-assign]
    store = f"sqlite:///{tmp_path / 'bank.db'}"
    async with connected(service, agent, store=store) as client:
        slow = client.start(
            "tools/call",
            {"name": "bank_move", "arguments": {"cents": 5, "idempotency_key": "a"}},
        )
        await agent.was_asked.wait()
        # Another one goes through although this one waits for its user.
        assert (await call(client, "bank_note", arguments={"text": "x"}))["structuredContent"]
        thinking.set()
        result = await slow
    assert result["structuredContent"] == {"result": "moved for Ada"}
    assert runs == [5, 5]
    import sqlite3

    with sqlite3.connect(tmp_path / "bank.db") as connection:
        assert connection.execute("SELECT cents FROM moves").fetchall() == [(5,)]


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_a_command_that_runs_at_most_once_cannot_ask_in_the_middle(revision: str) -> None:
    bench = Bench()
    async with connected(bench.service, Agent(), revision) as client:
        meta = {"_meta": modern()} if revision == MODERN else {}
        result = await call(client, "desk_once", arguments={"idempotency_key": "k"}, **meta)
    assert result["isError"] is True


async def test_a_client_that_cannot_be_asked_is_not_asked() -> None:
    bench, agent = Bench(), Agent()
    async with connected(bench.service, agent, MODERN) as client:
        with pytest.raises(RpcError) as caught:
            await call(client, "desk_greet", _meta=modern({}))
        assert caught.value.code == -32021
        assert caught.value.data == {"requiredCapabilities": {"elicitation": {}}}
        await client.call("initialize", {"protocolVersion": HANDSHAKE, "capabilities": {}})
        result = await call(client, "desk_greet")
    assert result["isError"] is True
    assert not agent.asked


async def test_what_the_client_answers_wrongly_is_asked_again_or_fails() -> None:
    bench, agent = Bench(), Agent([accept(name=7), accept(name="Ada"), said("Hi")])
    async with connected(bench.service, agent, MODERN) as client:
        result = await ask_again(client, "desk_greet", agent)
    assert result["structuredContent"]["result"].startswith("Hi Ada")
    assert agent.asked.count("who elicitation/create") == 2
    for wrong in (accept(name=7), {"action": "maybe"}, RpcError("no", code=5)):
        bench, agent = Bench(), Agent([wrong])
        async with connected(bench.service, agent) as client:
            assert (await call(client, "desk_greet"))["isError"] is True
            failing = await call(client, "desk_remove", arguments={"what": "x"})
        assert failing["isError"] is True
        assert not bench.effects()


async def test_state_is_good_for_its_own_request_alone() -> None:
    bench = Bench()
    async with connected(bench.service, Agent(), MODERN) as client:
        params = {"name": "desk_remove", "arguments": {"what": "a"}, "_meta": modern()}
        state = (await client.call("tools/call", params))["requestState"]
        answers = {"sure": accept(name="Ada")}
        version, payload, signature = state.split(".")
        for changed in (
            {"arguments": {"what": "b"}, "requestState": state},
            {"name": "desk_greet", "requestState": state},
            {"requestState": state[:-4] + "AAAA"},
            {"requestState": f"{version}.{payload[:-4]}AAAA.{signature}"},
            {"requestState": "nonsense"},
            {"requestState": "v1.é.é"},
            {"requestState": ""},
        ):
            with pytest.raises(RpcError) as caught:
                await client.call("tools/call", {**params, "inputResponses": answers, **changed})
            assert caught.value.code == -32602
    assert not bench.effects()


def test_state_of_another_server_is_not_taken_and_ends() -> None:
    from duet_rpc.mcp.errors import ProtocolError
    from duet_rpc.mcp.request_state import Sealed

    one, other = Seal(b"a"), Seal(b"b")
    whose = {"principal": "p", "target": "t", "arguments": b"x"}
    good = one.close(Sealed("p", "t", b"x", 9e12))
    assert one.open(good, **whose).key is None  # type: ignore[arg-type]
    with pytest.raises(ProtocolError):
        other.open(good, **whose)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="another request"):
        one.open(good, **{**whose, "principal": "q"})  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="expired"):
        one.open(one.close(Sealed("p", "t", b"x", 1.0)), **whose)  # type: ignore[arg-type]


async def test_a_request_that_is_cancelled_while_its_user_thinks_is_not_answered() -> None:
    bench, agent = Bench(), Agent([asyncio.Event()])
    async with connected(bench.service, agent) as client:
        started = client.start("tools/call", {"name": "desk_remove", "arguments": {"what": "a"}})
        await agent.was_asked.wait()
        started.cancel()
        assert await client.call("ping") == {}
    assert not bench.effects()


async def test_what_a_client_that_is_gone_was_asked_has_no_effect() -> None:
    bench, agent = Bench(), Agent([asyncio.Event() for _ in range(20)])
    async with connected(bench.service, agent) as client:
        for _ in range(20):
            client.start("tools/call", {"name": "desk_remove", "arguments": {"what": "a"}})
        await agent.was_asked.wait()
        await client.close()
        await asyncio.sleep(0.05)
    assert bench.runs and not bench.effects()


async def test_only_agents_can_be_asked() -> None:
    bench = Bench()
    async with testing.connect(bench.service) as client:
        with pytest.raises(RpcError) as caught:
            await client.call("desk.greet")
        assert caught.value.code == -32603


def test_a_form_has_one_level_of_simple_fields() -> None:
    assert make_form(Details) == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "default": 30},
            "colour": {"type": "string", "enum": ["blue", "red"], "default": "red"},
        },
        "required": ["name"],
    }

    @dataclass
    class Nested:
        details: Details

    for wrong in (Nested, int):
        with pytest.raises(UsageError):
            make_form(wrong)
