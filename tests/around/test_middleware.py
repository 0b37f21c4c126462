"""Middleware, events and exception handlers that are registered on a service."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from msgspec import Raw

from duet_rpc import RpcError, Server, Service
from duet_rpc.errors import InternalError, UsageError
from duet_rpc.hooks import Event, Hooks, Invocation, RequestBegun, RequestEnded
from duet_rpc.ledger import Ledger, MemoryStore
from duet_rpc.ledger.commands import Commands
from duet_rpc.policy import SPEC
from tests.helpers import Line

Next = Callable[[Invocation], Raw]
NextAsync = Callable[[Invocation], Awaitable[Raw]]


class Closed(RpcError):
    code, message = 7, "Closed"


class Missing(RpcError):
    code, message = 404, "Missing"


def body(method: str, id: int = 1, **params: Any) -> bytes:
    request = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    return json.dumps(request).encode()


def ask(line: Line, method: str, **params: Any) -> Any:
    [answer] = line.send(body(method, **params))
    return json.loads(answer)


def defs() -> Service:
    service = Service()

    @service.query
    def add(a: int, b: int) -> int:
        return a + b

    return service


def both() -> Service:
    service = defs()

    @service.query
    async def add_async(a: int, b: int) -> int:
        return a + b

    return service


# Which forms there are.


@pytest.mark.clause("hooks-5")
def test_a_function_of_call_and_next_is_around_handlers_of_its_kind() -> None:
    service = defs()

    @service.around
    def double(call: Invocation, next: Next) -> Any:
        return 2 * json.loads(bytes(next(call)))

    assert ask(Line(SPEC, service), "add", a=1, b=2)["result"] == 6


@pytest.mark.clause("hooks-5")
def test_an_async_function_is_around_async_handlers() -> None:
    service = Service()

    @service.query
    async def add(a: int, b: int) -> int:
        return a + b

    @service.around
    async def double(call: Invocation, next: NextAsync) -> Any:
        return 2 * json.loads(bytes(await next(call)))

    Server(service)  # whose own methods are def, and not the service's
    assert ask(Line(SPEC, service), "add", a=1, b=2)["result"] == 6


@pytest.mark.clause("hooks-5")
def test_a_generator_is_around_both_kinds() -> None:
    service, said = both(), list[str]()

    @service.around
    def note(call: Invocation) -> Iterator[None]:
        said.append(f"before {call.method}")
        yield
        said.append(f"after {call.method}")

    line = Line(SPEC, service)
    for method in ("add", "add_async"):
        assert ask(line, method, a=1, b=2)["result"] == 3
        assert said[-2:] == [f"before {method}", f"after {method}"]


def around_defs(call: Invocation, next: Next) -> Any:
    return next(call)


async def around_asyncs(call: Invocation, next: NextAsync) -> Any:
    return await next(call)


async def async_generator(call: Invocation) -> AsyncIterator[None]:
    yield


def no_next(call: Invocation) -> None: ...


def too_many(call: Invocation, next: Next) -> Iterator[None]:
    yield


@pytest.mark.clause("hooks-5")
@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (around_defs, "around_defs is around handlers that are def, and add_async is async def"),
        (around_asyncs, "around_asyncs is around handlers that are async def, and add is def"),
    ],
)
def test_middleware_that_would_leave_a_handler_out_is_refused(function: Any, advice: str) -> None:
    service = both()
    service.around(function)
    with pytest.raises(UsageError) as caught:
        Server(service)
    assert advice in str(caught.value)
    assert "write it as a generator" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (7, "middleware is a function, not 7"),
        (async_generator, "make it a def that yields once, or an async def of (call, next)"),
        (no_next, "middleware takes (call, next)"),
        (too_many, "middleware takes (call)"),
    ],
)
def test_what_cannot_be_around_a_handler_is_refused(function: Any, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        Service().around(function)
    assert advice in str(caught.value)


# What middleware does.


@pytest.mark.clause("hooks-5")
def test_middleware_refuses_maps_and_lets_pass() -> None:
    service = both()

    @service.query
    def fail() -> None:
        raise ValueError("secret")

    @service.around
    def guard(call: Invocation) -> Iterator[None]:
        if call.params is not None and b'"a": 13' in bytes(call.params):
            raise Closed()
        try:
            yield
        except InternalError as error:
            assert isinstance(error.__cause__, ValueError)
            raise Missing() from error

    line = Line(SPEC, service)
    for method in ("add", "add_async"):
        assert ask(line, method, a=13, b=2)["error"] == {"code": 7, "message": "Closed"}
        assert ask(line, method, a=12, b=2)["result"] == 14
    assert ask(line, "fail")["error"] == {"code": 404, "message": "Missing"}


@pytest.mark.clause("hooks-5")
def test_an_error_that_a_generator_catches_stands() -> None:
    service = Service()

    @service.query
    def fail() -> None:
        raise Closed()

    @service.query
    async def fail_async() -> None:
        raise Closed()

    @service.around
    def swallow(call: Invocation) -> Iterator[None]:
        try:
            yield
        except Closed:
            pass

    line = Line(SPEC, service)
    for method in ("fail", "fail_async"):
        assert ask(line, method)["error"]["code"] == 7


@pytest.mark.clause("hooks-5")
def test_the_first_is_the_outermost_and_hooks_of_the_server_are_outside() -> None:
    service, said = both(), list[str]()

    def note(word: str) -> Callable[[Invocation], Iterator[None]]:
        def middleware(call: Invocation) -> Iterator[None]:
            said.append(word)
            yield
            said.append(word)

        return middleware

    class Noting(Hooks):
        def around(self, call: Invocation, next: Next) -> Any:
            said.append("server")
            return next(call)

        async def around_async(self, call: Invocation, next: NextAsync) -> Any:
            return await next(call)

    service.around(note("outer"))
    service.around(note("inner"))
    assert ask(Line(SPEC, service, hooks=[Noting()]), "add", a=1, b=2)["result"] == 3
    assert said == ["server", "outer", "inner", "inner", "outer"]


@pytest.mark.clause("hooks-5")
def test_middleware_of_an_included_service_stays_around_its_methods() -> None:
    app, notes, said = Service(), Service("notes"), list[str]()

    @app.query
    def ping() -> None: ...

    @notes.query
    def get() -> None: ...

    @notes.around
    def inner(call: Invocation) -> Iterator[None]:
        said.append(f"inner {call.method}")
        yield

    @app.around
    def outer(call: Invocation) -> Iterator[None]:
        said.append(f"outer {call.method}")
        yield

    app.include(notes)

    @app.around
    def middle(call: Invocation) -> Iterator[None]:
        said.append(f"middle {call.method}")
        yield

    line = Line(SPEC, app)
    ask(line, "notes.get")
    ask(line, "ping")
    assert said[:3] == ["outer notes.get", "middle notes.get", "inner notes.get"]
    assert said[3:] == ["outer ping", "middle ping"]


# Events.


@pytest.mark.clause("hooks-6")
def test_a_listener_is_called_with_the_events_of_its_class() -> None:
    service, ended, begun = both(), list[RequestEnded](), list[RequestBegun]()

    @service.on(RequestEnded)
    def fail(event: RequestEnded) -> None:
        raise ValueError("the next one is called all the same")

    @service.on(RequestEnded)
    def audit(event: RequestEnded) -> None:
        ended.append(event)

    service.on(RequestBegun)(begun.append)
    line = Line(SPEC, service)
    assert ask(line, "add", a=1, b=2)["result"] == 3
    assert [(event.method, event.error) for event in ended] == [("add", None)]
    assert [event.method for event in begun] == ["add"]
    assert ("error", "a hook failed") in line.log.told()


def test_only_events_are_listened_to() -> None:
    with pytest.raises(UsageError, match="is no class of events; there are ConnectionOpened,"):
        Service().on(int)  # type: ignore[type-var]


# Exceptions of libraries.


def failing() -> Service:
    service = Service()

    @service.query
    def find(key: str) -> int:
        return {"a": 1}[key]

    @service.query
    async def find_async(key: str) -> int:
        return {"a": 1}[key]

    @service.command
    def take(key: str) -> int:
        return {"a": 1}[key]

    @service.query
    def declared() -> None:
        raise Closed()

    @service.exception_handler(LookupError)
    def missing(error: LookupError) -> RpcError:
        return Missing(data={"key": str(error)})

    return service


@pytest.mark.clause("hooks-7")
@pytest.mark.parametrize("method", ["find", "find_async", "take"])
def test_an_exception_becomes_the_error_that_its_handler_makes(method: str) -> None:
    line = Line(SPEC, failing())
    assert ask(line, method, key="a")["result"] == 1
    missing = {"code": 404, "message": "Missing", "data": {"key": "'b'"}}
    assert ask(line, method, key="b")["error"] == missing
    assert not line.log.failures


@pytest.mark.clause("hooks-7")
def test_the_outcome_of_a_command_is_recorded_as_it_was_answered() -> None:
    ledger = Ledger(MemoryStore())
    try:
        line = Line(SPEC, failing(), ledger=Commands(lambda: ledger))
        answers = [line.send(body("take", key="b", idempotency_key="k"))[0] for _ in range(2)]
        assert answers[0] == answers[1]
        assert json.loads(answers[0])["error"]["code"] == 404
    finally:
        ledger.close()


@pytest.mark.clause("hooks-7")
def test_the_nearest_class_counts_and_none_leaves_it_unforeseen() -> None:
    service = failing()

    @service.query
    def index() -> None:
        [][0]

    @service.exception_handler(IndexError)
    def unforeseen(error: IndexError) -> None:
        return None

    @service.exception_handler(Exception)
    def any_other(error: Exception) -> RpcError:
        return Closed(data=type(error).__name__)

    @service.query
    def other() -> None:
        raise OSError

    line = Line(SPEC, service)
    assert ask(line, "index")["error"]["code"] == -32603
    assert ask(line, "find", key="b")["error"]["code"] == 404
    assert ask(line, "other")["error"] == {"code": 7, "message": "Closed", "data": "OSError"}
    assert ask(line, "declared")["error"] == {"code": 7, "message": "Closed"}


@pytest.mark.clause("hooks-7")
def test_exception_handlers_of_an_included_service_come_first_for_its_methods() -> None:
    app, notes = Service(), failing()

    @app.query
    def own() -> None:
        raise KeyError

    app.include(notes)

    @app.exception_handler(LookupError)
    def closed(error: LookupError) -> RpcError:
        return Closed()

    line = Line(SPEC, app)
    assert ask(line, "own")["error"]["code"] == 7
    assert ask(line, "find", key="b")["error"]["code"] == 404


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (7, "7 is no class of exceptions"),
        (KeyboardInterrupt, "is no class of exceptions"),
        (Closed, "Closed is an RpcError, which is answered as it is"),
    ],
)
def test_only_exceptions_of_others_are_mapped(kind: Any, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        Service().exception_handler(kind)
    assert advice in str(caught.value)


def listens_to_anything(event: Event) -> None: ...


def test_a_listener_may_take_more_than_it_is_given() -> None:
    service = Service()
    service.on(RequestEnded)(listens_to_anything)
    service.on(RequestBegun)(listens_to_anything)
    assert len(service.listeners) == 2


def test_errors_beside_the_methods_are_known_to_clients_of_the_service() -> None:
    service = failing()
    assert service.errors.get(404) is Missing

    class Tired(RpcError):
        code, message = 8, "Tired"

    class Lost(RpcError):
        code, message = 9, "Lost"

    class Session: ...

    @service.around
    def rest(call: Invocation) -> Iterator[None]:
        raise Tired()
        yield

    @service.dependency
    def session() -> Iterator[Session]:
        raise Lost()
        yield Session()

    assert (service.errors.get(8), service.errors.get(9)) == (Tired, Lost)
