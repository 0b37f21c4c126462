"""Hooks on a connection driven by hand: middleware around handlers, events of everything else."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from duet_rpc import RpcError, Server, Service
from duet_rpc.hooks import (
    CommandTransition,
    ConnectionClosed,
    ConnectionOpened,
    Event,
    FrameFault,
    Hooks,
    Invocation,
    RequestBegun,
    RequestEnded,
    RequestRefused,
)
from duet_rpc.policy import SPEC
from tests.helpers import Line, Wire

service = Service()


class Closed(RpcError):
    code, message = 7, "Closed"


@service.query
def add(a: int, b: int) -> int:
    return a + b


@service.query
async def add_async(a: int, b: int) -> int:
    return a + b


@service.query(notification_allowed=True)
def fail(how: str = "") -> None:
    if how == "declared":
        raise Closed(data={"until": 8})
    raise ValueError("secret")


@service.command
def pay(amount: int) -> int:
    return amount


class Recording(Hooks):
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)

    def only(self, *kinds: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]


class Around(Hooks):
    """Does the same around every handler."""

    def __init__(
        self, before: Callable[[Invocation], object], after: Callable[[Any], Any] = lambda r: r
    ) -> None:
        self.before, self.after = before, after

    def around(self, call: Invocation, next: Callable[[Invocation], Raw]) -> Any:
        self.before(call)
        return self.after(next(call))

    async def around_async(self, call: Invocation, next: Any) -> Any:
        self.before(call)
        return self.after(await next(call))


def body(method: str, params: Any, id: Any = 1) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": params, "id": id}
    return json.dumps({k: v for k, v in message.items() if v is not None}).encode()


def asked(line: Line, method: str, params: Any, id: Any = 1) -> Any:
    [answer] = line.send(body(method, params, id))
    return json.loads(answer)


def refuse(call: Invocation) -> None:
    raise Closed(data={"method": call.method})


KINDS = pytest.mark.parametrize("method", ["add", "add_async"])


@KINDS
def test_middleware_sees_the_call_and_its_result_encoded(method: str) -> None:
    seen: list[Any] = []

    def keep(result: Any) -> Any:
        seen.append(result)
        return result

    line = Line(SPEC, service, hooks=[Around(seen.append, keep)])
    answer = line.send(body(method, {"a": 1, "b": 2}))
    assert answer == Line(SPEC, service).send(body(method, {"a": 1, "b": 2}))
    call, result = seen
    assert (call.method, call.context.correlation_id) == (method, "1")
    assert call.context.origin is line.connection.requests.origin
    assert (json.loads(bytes(call.params)), bytes(result)) == ({"a": 1, "b": 2}, b"3")


@KINDS
def test_middleware_may_answer_something_else(method: str) -> None:
    line = Line(SPEC, service, hooks=[Around(lambda call: None, lambda result: {"was": result})])
    assert asked(line, method, [1, 2])["result"] == {"was": 3}


@KINDS
def test_middleware_may_refuse_before_anything_runs(method: str) -> None:
    recording = Recording()
    line = Line(SPEC, service, hooks=[recording, Around(refuse)])
    error = asked(line, method, [1, 2])["error"]
    assert (error["code"], error["data"]) == (7, {"method": method})
    [ended] = recording.only(RequestEnded)
    assert isinstance(ended.error, Closed)
    assert line.connection.idle


@KINDS
def test_middleware_that_fails_is_an_internal_error(method: str) -> None:
    line = Line(SPEC, service, hooks=[Around(lambda call: 1 // 0)])
    assert asked(line, method, [1, 2])["error"]["code"] == -32603
    assert [type(error) for error in line.log.failures] == [ZeroDivisionError]
    line = Line(SPEC, service, hooks=[Around(lambda call: None, lambda result: object())])
    assert asked(line, method, [1, 2])["error"]["code"] == -32016


@KINDS
def test_the_first_hook_is_the_outermost(method: str) -> None:
    order: list[str] = []

    def make(name: str) -> Hooks:
        def leave(result: Any) -> Any:
            order.append(name)
            return result

        return Around(lambda call: order.append(f"in {name}"), leave)

    hooks = [make("one"), make("two")]
    assert asked(Line(SPEC, service, hooks=hooks), method, [1, 2])["result"] == 3
    assert order == ["in one", "in two", "two", "one"]


def test_middleware_sees_the_errors_of_handlers_as_they_were_raised() -> None:
    caught: list[RpcError] = []

    class Catching(Hooks):
        def around(self, call: Invocation, next: Callable[[Invocation], Raw]) -> Any:
            try:
                return next(call)
            except RpcError as error:
                caught.append(error)
                raise

        async def around_async(self, call: Invocation, next: Any) -> Any:
            return await next(call)

    line, plain = Line(SPEC, service, hooks=[Catching()]), Line(SPEC, service)
    declared = body("fail", ["declared"])
    assert line.send(declared) == plain.send(declared)
    assert asked(line, "fail", [])["error"]["code"] == -32603
    assert [type(error).__name__ for error in caught] == ["Closed", "InternalError"]
    assert isinstance(caught[1].__cause__, ValueError)


def test_rules_come_before_middleware() -> None:
    seen: list[Any] = []
    recording = Recording()
    line = Line(SPEC, service, hooks=[recording, Around(seen.append)])
    for message in (body("add", ["x", 2]), body("no.such", [])):
        assert "error" in json.loads(line.send(message)[0])
    assert seen == []
    refused = recording.only(RequestRefused)
    assert [(each.method, each.correlation_id) for each in refused] == [
        ("add", "1"),
        ("no.such", "1"),
    ]
    assert recording.only(RequestBegun, RequestEnded) == []


def test_events_of_a_connection() -> None:
    recording = Recording()
    line = Line(SPEC, service, hooks=[recording])
    line.send(body("add", [1, 2]), body("fail", {}, None))
    line.send(Wire(b"Content-Length: x\r\n\r\n"), b"{")
    line.connection.close()
    line.connection.close()
    names = [type(event).__name__ for event in recording.events]
    assert names[:5] == [
        "ConnectionOpened",
        *("RequestBegun", "RequestEnded"),
        *("RequestBegun", "RequestEnded"),
    ]
    assert set(names[5:-1]) == {"FrameFault"} and names[-1] == "ConnectionClosed"
    [opened] = recording.only(ConnectionOpened)
    [closed] = recording.only(ConnectionClosed)
    assert opened.origin is closed.origin is line.connection.requests.origin
    assert (closed.requests, closed.faults) == (2, len(recording.only(FrameFault)))
    ended = recording.only(RequestEnded)
    assert (ended[0].method, ended[0].error, ended[1].method) == ("add", None, "fail")
    assert isinstance(ended[1].error.__cause__, ValueError)


@pytest.mark.clause("hooks-4")
@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError])
def test_a_hook_that_fails_on_an_event_changes_nothing(kind: type[BaseException]) -> None:
    class Broken(Hooks):
        def on(self, event: Event) -> None:
            raise kind("of the hook")

    line = Line(SPEC, service, hooks=[Broken()])
    assert asked(line, "add", [1, 2])["result"] == 3
    assert {type(error) for error in line.log.failures} == {kind}


def test_transitions_of_commands() -> None:
    recording = Recording()
    around: list[Invocation] = []
    server = Server(service, hooks=[recording, Around(around.append)])
    line = Line(SPEC, service, ledger=server.commands, hooks=server.hooks)
    for id in (1, 2):
        assert asked(line, "pay", {"amount": 5, "idempotency_key": "k"}, id)["result"] == 5
    assert len(around) == 2  # around the ledger
    told = [(event.key, event.state) for event in recording.only(CommandTransition)]
    assert told == [("k", "running"), ("k", "done")]
    assert [event.key for event in recording.only(RequestEnded)] == ["k", "k"]
    server.close()


def test_hooks_that_would_leave_handlers_out_are_refused() -> None:
    class OnlySync(Hooks):
        def around(self, call: Invocation, next: Callable[[Invocation], Raw]) -> Any:
            return next(call)

    class OnlyAsync(Hooks):
        async def around_async(self, call: Invocation, next: Any) -> Any:
            return await next(call)

    for hook in (OnlySync(), OnlyAsync(), object()):
        with pytest.raises(Exception, match=r"override|subclasses of duet_rpc\.hooks\.Hooks"):
            Server(service, hooks=[hook])  # type: ignore[list-item]
    plain = Service()
    plain.query(name="add")(add)
    Server(plain, hooks=[OnlySync()])
