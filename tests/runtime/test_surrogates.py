"""Lone surrogates on their way between two ends: params, results, errors, both directions."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duet_rpc import Client, Context, Progress, RpcError, Server, Service
from duet_rpc.errors import InvalidAnswer, InvalidParams, MethodNotFound
from duet_rpc.policy import SPEC, replace
from tests.runtime.faces import PATIENCE, Face, Peer, Scripted

HALF = "half \ud83d"
VALUE = {HALF: [HALF, 1.5, {"\ude00\ud83d": None}]}


def served() -> Service:
    service = Service()

    @service.query
    def echo(value: Any) -> Any:
        return value

    @service.query(inline=True)
    def at_once(value: Any) -> Any:
        return value

    @service.query
    async def later(text: str) -> str:
        return text

    @service.query
    def fail(text: str) -> None:
        raise RpcError(text, code=7, data=[text])

    @service.query
    def work(text: str, ctx: Context) -> str:
        ctx.progress({"doing": text})
        return text

    @service.query
    async def back(text: str, ctx: Context) -> Any:
        ctx.notify("heard", [text])
        return [await ctx.call("answer", [text]), await ctx.call("answer", [text], returns=str)]

    @service.query
    def back_in_a_thread(text: str, ctx: Context) -> Any:
        return ctx.call("answer", {"text": text}).result()

    @service.command
    def put(text: str) -> str:
        return text

    return service


class Held(msgspec.Struct):
    texts: dict[str, str]


def test_params_and_results(face: Face) -> None:
    driver = face.connect(served(), timeout=PATIENCE)
    for method in ("echo", "at_once"):
        assert driver.call(method, {"value": VALUE}) == VALUE
        assert driver.call(method, [VALUE]) == VALUE
        assert driver.call(method, [HALF], returns=str) == HALF
        held = driver.call(method, {"value": {"texts": {HALF: HALF}}}, returns=Held)
        assert held == Held({HALF: HALF})
        assert driver.call(method, [HALF], returns=msgspec.Raw) == rb'"half \ud83d"'
        with pytest.raises(InvalidAnswer, match="not what was asked for"):
            driver.call(method, [HALF], returns=int)
    assert driver.call("later", [HALF]) == HALF
    with pytest.raises(InvalidParams):
        driver.call("later", {HALF: HALF})
    with pytest.raises(MethodNotFound):
        driver.call(HALF)
    with pytest.raises(MethodNotFound):
        driver.call(HALF, [HALF])


def test_large_ones(face: Face) -> None:
    driver = face.connect(served(), timeout=PATIENCE)
    value = [HALF * 100] * 300
    assert driver.call("at_once", [value]) == value
    assert driver.call("echo", [value], returns=list[str]) == value


def test_errors(face: Face) -> None:
    driver = face.connect(served(), timeout=PATIENCE)
    with pytest.raises(RpcError) as failed:
        driver.call("fail", [HALF])
    assert (failed.value.message, failed.value.data) == (HALF, [HALF])


def test_batches(face: Face) -> None:
    driver = face.connect(served(), timeout=PATIENCE)
    items = driver.batch(
        lambda batch: [
            batch.query("at_once", [HALF]),
            batch.query("fail", [HALF]),
            batch.command("put", {"text": HALF}, key="k"),
            batch.query("echo", [VALUE], returns=dict[str, Any]),
        ]
    )
    assert [items[0].result(), items[2].result(), items[3].result()] == [HALF, HALF, VALUE]
    error = items[1].error()
    assert isinstance(error, RpcError) and error.data == [HALF]


def test_commands_and_their_replay(face: Face) -> None:
    driver = face.connect(served(), timeout=PATIENCE)
    for _ in range(2):
        outcome = driver.do(lambda client: client.command("put", {"text": HALF}, key="one"))
        assert outcome == HALF
    found = driver.do(lambda client: client.outcome("put", "one"))
    assert found.state == "done" and found.result() == HALF
    for ask in (
        lambda client: client.command("put", {"text": "a"}, key=HALF),
        lambda client: client.outcome("put", HALF),
    ):
        with pytest.raises(InvalidParams) as refused:
            driver.do(ask)
        assert refused.value.reason == "idempotency-key-invalid"


def test_progress_and_calls_of_the_server(face: Face) -> None:
    heard: list[Any] = []
    ours = Service()

    @ours.query(notification_allowed=True)
    def hear(text: str) -> None:
        heard.append(text)

    @ours.query
    def answer(text: str) -> str:
        return text

    ours_renamed = Service()
    ours_renamed.query(name="heard", notification_allowed=True)(hear)
    ours_renamed.query(name="answer")(answer)
    driver = face.connect(served(), timeout=PATIENCE, service=ours_renamed)
    assert driver.call("work", {"text": HALF}, on_progress=heard.append) == HALF
    assert heard == [Progress({"doing": HALF})]
    assert driver.call("back", {"text": HALF}) == [HALF, HALF]
    assert driver.call("back_in_a_thread", {"text": HALF}) == HALF
    assert HALF in heard


PROGRAM = """
import sys
from typing import Any
from duet_rpc import Server, Service

app = Service()

@app.query
def echo(value: Any) -> Any:
    return value

Server(app).run_stdio(framing=sys.argv[1])
"""


@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
def test_over_a_process(face: Face, framing: str) -> None:
    driver = face.spawn(sys.executable, "-c", PROGRAM, framing, framing=framing, timeout=PATIENCE)
    assert driver.call("echo", [VALUE]) == VALUE
    driver.close()


async def test_over_a_socket(tmp_path: Path) -> None:
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = Server(served()).serve_unix(str(tmp_path / "s"), on_start=started.set_result)
    server = asyncio.create_task(serving)
    async with Client.connect(await started, timeout=PATIENCE) as client:
        assert await client.call("echo", [VALUE]) == VALUE
        assert await client.call("at_once", [VALUE]) == VALUE
    server.cancel()
    await asyncio.wait([server])


ANSWERS = [
    rb'{"jsonrpc":"2.0","id":ID,"result":"half \ud83d"}',
    rb'{"result":"half \ud83d","jsonrpc":"2.0","id":ID}',
    rb'{"jsonrpc":"2.0","id":ID,"result":"half \uD83D","\ud83d":1}',
    rb'[{"jsonrpc":"2.0","id":ID,"result":"half \ud83d"}]',
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("returns", [Any, str])
def test_answers_however_they_are_written(face: Face, answer: bytes, returns: Any) -> None:
    def script(peer: Peer) -> None:
        peer.say(answer.replace(b"ID", b"%d" % peer.request()["id"]))
        peer.read_all()

    driver = face.open(Scripted(script))
    assert driver.call("x", timeout=PATIENCE, returns=returns) == HALF
    assert driver.stats.faults == 0
    driver.close()


def test_the_depth_of_an_answer_is_bounded_all_the_same(face: Face) -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.request(), rb'["\ud83d",[[[[[[]]]]]]]')
        peer.answer(peer.request(), rb'["\ud83d",[]]')
        peer.read_all()

    driver = face.open(Scripted(script), policy=replace(SPEC, max_depth=6))
    with pytest.raises(InvalidAnswer, match="max_depth"):
        driver.call("x", timeout=PATIENCE)
    assert driver.call("x", timeout=PATIENCE) == ["\ud83d", []]
    driver.close()
