"""Either side may call the other, also while a handler runs, fifty deep and under any policy."""

import asyncio
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from duet_rpc import Context, Service
from duet_rpc.engine.failures import RETRY_AFTER_MS
from duet_rpc.errors import CallTimeout, ConnectionLost, MethodNotFound, Overloaded
from duet_rpc.policy import EDITOR, SPEC
from tests.runtime.faces import PATIENCE, Driver, Face, Peer, Scripted, failure

DEPTH = 50
KINDS = ["def", "async def"]
POLICIES = {"spec": SPEC, "editor": EDITOR}


def bouncing(kind: str) -> Service:
    """Make a service whose one method calls its caller back until the count is down to zero."""
    service = Service()

    if kind == "def":

        @service.query(name="bounce")
        def bounce(left: int, ctx: Context) -> int:
            if left == 0:
                return 0
            return 1 + int(ctx.call("bounce", {"left": left - 1}).result())
    else:

        @service.query(name="bounce")
        async def bounce_async(left: int, ctx: Context) -> int:
            if left == 0:
                return 0
            return 1 + int(await ctx.call("bounce", {"left": left - 1}))

    return service


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ours", KINDS)
@pytest.mark.parametrize("theirs", KINDS)
def test_calls_bounce_between_the_two_ends(face: Face, theirs: str, ours: str, policy: str) -> None:
    driver = face.connect(
        bouncing(theirs), policy=POLICIES[policy], service=bouncing(ours), timeout=PATIENCE
    )
    assert driver.call("bounce", {"left": DEPTH}) == DEPTH
    assert driver.stats.pending == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_calls_bounce_under_a_sequential_policy_of_ours(face: Face, policy: str) -> None:
    driver = face.connect(
        bouncing("async def"),
        policy=POLICIES[policy],
        service=bouncing("def"),
        timeout=PATIENCE,
        allow_concurrent_requests=False,
    )
    assert driver.call("bounce", {"left": DEPTH}) == DEPTH


def program(kind: str, policy: str) -> str:
    """Make the source of a server that bounces calls over its stdin and stdout."""
    body = (
        "1 + int(ctx.call('bounce', {'left': left - 1}).result())"
        if kind == "def"
        else "1 + int(await ctx.call('bounce', {'left': left - 1}))"
    )
    return textwrap.dedent(
        f"""
        from duet_rpc import Context, Service
        from duet_rpc.policy import {policy.upper()}

        service = Service()

        @service.query
        {kind} bounce(left: int, ctx: Context) -> int:
            return 0 if left == 0 else {body}

        service.run({policy.upper()})
        """
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_bounce_off_a_daemon(face: Face, kind: str, policy: str, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(program(kind, policy))
    driver = face.spawn(sys.executable, str(script), service=bouncing("def"), timeout=PATIENCE)
    assert driver.call("bounce", {"left": DEPTH}) == DEPTH
    assert driver.call("bounce", {"left": 3}) == 3
    driver.close()


def test_several_bounce_at_once(face: Face) -> None:
    driver = face.connect(bouncing("async def"), service=bouncing("def"), timeout=PATIENCE)
    calls = [driver.begin("bounce", {"left": 10}) for _ in range(8)]
    assert [call.result(PATIENCE) for call in calls] == [10] * 8


def test_the_server_is_served_although_nobody_calls(face: Face) -> None:
    got: list[Any] = []
    service = Service()

    @service.query(notification_allowed=True)
    def hello(name: str) -> str:
        got.append(name)
        return f"hello {name}"

    answers: list[Any] = []

    def script(peer: Peer) -> None:
        peer.say(b'{"jsonrpc":"2.0","method":"hello","params":["first"]}')
        peer.say(b'{"jsonrpc":"2.0","id":"q","method":"hello","params":["second"]}')
        answers.append(peer.request())
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server, service=service)
    until = time.monotonic() + PATIENCE
    while not answers and time.monotonic() < until:
        time.sleep(0.005)
    driver.close()
    server.join()
    assert answers == [{"jsonrpc": "2.0", "id": "q", "result": "hello second"}]
    assert sorted(got) == ["first", "second"]


def test_ids_of_the_two_directions_are_separate(face: Face) -> None:
    service = Service()

    @service.query
    def theirs() -> str:
        return "ours to give"

    def script(peer: Peer) -> None:
        request = peer.request()
        peer.say(b'{"jsonrpc":"2.0","id":%d,"method":"theirs"}' % request["id"])
        answer = peer.request()
        assert answer == {"jsonrpc": "2.0", "id": request["id"], "result": "ours to give"}
        peer.answer(request, b'"theirs to give"')
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server, service=service)
    assert driver.call("ours", timeout=PATIENCE) == "theirs to give"
    driver.close()
    server.join()


def calling_back(**options: Any) -> Service:
    """Make a service that calls its caller and tells what came of it."""
    service = Service()

    @service.query
    async def back(method: str, ctx: Context) -> str:
        try:
            return f"got {await ctx.call(method, **options)}"
        except (MethodNotFound, CallTimeout, ConnectionLost) as error:
            return type(error).__name__

    @service.query(name="back.blocking")
    def back_blocking(method: str, ctx: Context) -> str:
        try:
            return f"got {ctx.call(method, **options).result()}"
        except (MethodNotFound, CallTimeout, ConnectionLost) as error:
            return type(error).__name__

    return service


@pytest.mark.parametrize("method", ["back", "back.blocking"])
def test_a_handler_sees_what_became_of_its_call(face: Face, method: str) -> None:
    mine = Service()
    waiting = threading.Event()

    @mine.query
    def wait() -> None:
        waiting.wait(PATIENCE)

    @mine.query
    def fine() -> int:
        return 5

    driver = face.connect(calling_back(timeout=0.3), service=mine, timeout=PATIENCE)
    assert driver.call(method, ["fine"]) == "got 5"
    assert driver.call(method, ["nope"]) == "MethodNotFound"
    assert driver.call(method, ["wait"]) == "CallTimeout"
    waiting.set()
    assert driver.call(method, ["fine"]) == "got 5"


@pytest.mark.parametrize("method", ["back", "back.blocking"])
def test_a_handler_whose_caller_goes_away(face: Face, method: str) -> None:
    mine, begun = Service(), threading.Event()
    go_on = threading.Event()

    @mine.query
    def wait() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    driver = face.connect(calling_back(), service=mine, timeout=PATIENCE)
    call = driver.begin(method, ["wait"])
    assert begun.wait(PATIENCE)
    driver.close()
    go_on.set()
    assert isinstance(failure(call), ConnectionLost)


def test_a_handlers_deadline_of_ours_is_kept(face: Face) -> None:
    mine, go_on = Service(), threading.Event()

    @mine.query(timeout=0.2)
    def wait() -> str:
        go_on.wait(PATIENCE)
        return "too late"

    def script(peer: Peer) -> None:
        request = peer.request()
        peer.say(b'{"jsonrpc":"2.0","id":1,"method":"wait"}')
        assert peer.request()["error"]["code"] == -32019
        go_on.set()
        peer.answer(request, b'"fine"')
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server, service=mine)
    assert driver.call("x", timeout=PATIENCE) == "fine"
    driver.close()
    server.join()


@pytest.mark.parametrize("served_by", ["the server", "the client"])
def test_a_handler_for_which_no_thread_is_left_is_answered(
    face: Face, served_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, ran = Service(), list[int]()

    @service.query
    def note(value: int) -> list[int]:
        ran.append(value)
        return ran

    relaying = Service()

    @relaying.query(name="note")
    async def relay(value: int, ctx: Context) -> Any:
        try:
            return await ctx.call("note", [value])
        except Overloaded as error:
            raise Overloaded(data=error.data) from None  # as its own: it may be sent again

    if served_by == "the server":
        driver = face.connect(service, policy=EDITOR)
    else:
        driver = face.connect(relaying, service=service)
    start = threading.Thread.start

    def start_no_worker(thread: threading.Thread) -> None:
        if thread.name.startswith("duet-rpc handler"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_no_worker)
    with pytest.raises(Overloaded) as refused:
        driver.call("note", [1], timeout=PATIENCE)
    assert refused.value.data["retry_after_ms"] == RETRY_AFTER_MS
    monkeypatch.undo()
    assert driver.call("note", [2], timeout=PATIENCE) == [2], "the first never runs"


def test_a_handler_notifies_its_caller(face: Face) -> None:
    service, mine, seen = Service(), Service(), list[str]()
    told = threading.Event()

    @mine.query(notification_allowed=True)
    def news(text: str) -> None:
        seen.append(text)
        told.set()

    @service.query
    def work(ctx: Context) -> str:
        ctx.notify("news", {"text": "begun"})
        return "done"

    driver = face.connect(service, service=mine)
    assert driver.call("work") == "done"
    assert told.wait(PATIENCE) and seen == ["begun"]


def test_handlers_of_ours_run_side_by_side(face: Face) -> None:
    mine, both = Service(), threading.Barrier(2)

    @mine.query
    def meet() -> str:
        both.wait(PATIENCE)
        return "met"

    def script(peer: Peer) -> None:
        for id in (1, 2):
            peer.say(b'{"jsonrpc":"2.0","id":%d,"method":"meet"}' % id)
        answers = [peer.request(), peer.request()]
        assert [answer["result"] for answer in answers] == ["met", "met"]
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server, service=mine)
    wait_until_over(driver, server)


def wait_until_over(driver: Driver, server: Scripted) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and not server.failures:
        host = driver.client._host
        if host is None or host.connection.requests.stats.requests >= 2 and host.connection.idle:
            break
        time.sleep(0.01)
    driver.close()
    server.join()


async def test_an_async_handler_of_ours_is_cancelled_by_the_server() -> None:
    from duet_rpc import Client

    mine, ended, begun = Service(), asyncio.Event(), threading.Event()

    @mine.query
    async def forever() -> None:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    def script(peer: Peer) -> None:
        peer.say(b'{"jsonrpc":"2.0","id":1,"method":"forever"}')
        begun.wait(PATIENCE)
        peer.say(b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}')
        assert peer.request()["error"]["code"] == -32800
        peer.read_all()

    server = Scripted(script)
    async with Client(server, service=mine):
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
    await asyncio.to_thread(server.join)
