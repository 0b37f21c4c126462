"""Services: registering functions, names, kinds, and mistakes that show at once."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from duet_rpc.context import Context, Transaction
from duet_rpc.errors import UsageError
from duet_rpc.ledger.states import Promise
from duet_rpc.policy import SPEC
from duet_rpc.server import server as server_module
from duet_rpc.service import Kind, Method, Service


def method(service: Service, name: str) -> Method:
    found = service.get(name)
    assert found is not None
    return found


def test_a_decorator_registers_and_gives_the_function_back() -> None:
    service = Service("notes")

    @service.query
    def get(id: int) -> int:
        """Fetch a note,
        whole.

        Not said to callers.
        """
        return id

    @service.command
    async def add(text: str) -> None: ...

    assert get(3) == 3
    assert len(service) == 2 and "notes.get" in service and "get" not in service
    assert [m.name for m in service] == ["notes.get", "notes.add"]
    query, command = method(service, "notes.get"), method(service, "notes.add")
    assert (query.kind, query.promise, query.is_async) == (Kind.QUERY, None, False)
    assert query.description == "Fetch a note, whole."
    assert (command.kind, command.promise, command.is_async) == (
        Kind.COMMAND,
        Promise.AT_MOST_ONCE,
        True,
    )
    assert command.description == ""
    assert service.get("nothing") is None


def test_options_are_kept() -> None:
    service = Service()

    @service.query(
        name="a.b.c",
        description="said",
        notification_allowed=True,
        inline=True,
        ignore_unknown=True,
    )
    def handler() -> None: ...

    @service.command(
        name="again",
        description="also said",
        notification_allowed=True,
        ignore_unknown=True,
        retry_safe=True,
        timeout=2.5,
    )
    def other(ctx: Context) -> None: ...

    found = method(service, "a.b.c")
    assert (found.description, found.notification_allowed, found.inline, found.timeout) == (
        "said",
        True,
        True,
        None,
    )
    found = method(service, "again")
    assert (found.description, found.promise, found.timeout) == (
        "also said",
        Promise.RETRY_SAFE,
        2.5,
    )
    assert found.parameters.takes_key and found.parameters.context == "ctx"


def test_a_transaction_makes_a_command_transactional() -> None:
    service = Service()

    @service.command
    def pay(tx: Transaction) -> None: ...

    assert method(service, "pay").promise is Promise.TRANSACTIONAL


def test_names_of_the_surroundings_may_stand_in_hints() -> None:
    class Local:
        pass

    Alias = list[int]
    service = Service()

    @service.query
    def total(numbers: "Alias") -> int:
        return sum(numbers)

    assert method(service, "total").parameters.listed[0].hint == list[int]
    with pytest.raises(UsageError, match="holds Local"):

        @service.query
        def take(a: "list[Local]") -> None: ...


def test_async_is_seen_behind_partials_methods_and_objects() -> None:
    class Worker:
        async def run(self) -> None: ...

        async def __call__(self) -> None: ...

    class Plain:
        def __call__(self) -> None: ...

    async def handler(a: int) -> None: ...

    service = Service()
    service.query(name="partial")(functools.partial(functools.partial(handler), 1))
    service.query(Worker().run)
    service.query(name="object")(Worker())
    service.query(name="plain")(Plain())
    service.query(name="len")(len)
    assert {m.name: m.is_async for m in service} == {
        "partial": True,
        "run": True,
        "object": True,
        "plain": False,
        "len": False,
    }


def test_services_can_be_put_together() -> None:
    def same() -> None: ...

    first, second = Service("a", version="1", description="d"), Service("b")
    first.query(same)
    second.query(same)
    first.include(second)
    assert [m.name for m in first] == ["a.same", "b.same"]
    with pytest.raises(UsageError, match="both services define b.same; rename one"):
        first.include(second)


def test_a_fallback_gives_way_to_our_own() -> None:
    ours, theirs = Service("s", version="1", description="d"), Service()
    for service in (ours, theirs):
        service.query(name="both")(lambda: None)
    theirs.query(name="theirs")(lambda: None)
    both = ours.with_fallback(theirs)
    assert sorted(m.name for m in both) == ["both", "theirs"]
    assert both.get("both") is ours.get("both")
    assert (both.name, both.version, both.description) == ("s", "1", "d")
    assert "theirs" not in ours


def function() -> None: ...
async def coroutine() -> None: ...
def generator() -> Iterator[int]:
    yield 1


async def stream() -> AsyncIterator[int]:
    yield 1


def with_transaction(tx: Transaction) -> None: ...


@pytest.mark.parametrize(
    ("register", "advice"),
    [
        (lambda s: s.query(lambda: None), "needs one: @service.query(name=...)"),
        (lambda s: s.command(lambda: None), "needs one: @service.command(name=...)"),
        (lambda s: s.query(functools.partial(function)), "needs one"),
        (lambda s: s.query("add"), "not 'add'; give options by name: @service.query(name=...)"),
        (lambda s: s.command(3), "a command is a function, not 3"),
        (lambda s: (s.query(function), s.command(function)), "registered twice; give one of them"),
        (lambda s: s.query(inline=True)(coroutine), "leave out inline=True"),
        (lambda s: s.query(inline=True, timeout=1)(function), "leave out inline=True or timeout="),
        (lambda s: s.command(inline=True, timeout=1)(function), "leave out inline=True or"),
        (lambda s: s.query(timeout="5")(function), "function: timeout is '5'; give seconds above"),
        (lambda s: s.query(timeout=-1)(function), "timeout is -1; give seconds above 0, or None"),
        (lambda s: s.query(timeout=0)(function), "timeout is 0; give seconds"),
        (lambda s: s.command(timeout=float("nan"))(function), "timeout is nan; give seconds"),
        (lambda s: s.command(timeout=True)(function), "timeout is True; give seconds"),
        (lambda s: s.query(timeout=10**400)(function), "give seconds"),
        (lambda s: s.query(name=7)(function), "name is 7; give a text"),
        (lambda s: s.query(name="")(function), "name is ''; give a text"),
        (lambda s: s.query(name="\ud800", inline=True)(function), "give a text"),
        (lambda s: s.query(description=7)(function), "description is 7; give a text"),
        (lambda s: s.query(inline="no")(function), "inline is 'no'; give True or False"),
        (lambda s: s.query(ignore_unknown=1)(function), "ignore_unknown is 1; give True or False"),
        (lambda s: s.query(notification_allowed="x")(function), "notification_allowed is 'x'"),
        (lambda s: s.command(retry_safe="x")(function), "retry_safe is 'x'; give True or False"),
        (lambda s: s.query(generator), "yields; make it an async def, or return a list"),
        (lambda s: s.command(stream), "stream yields: only a query streams; return a list"),
        (lambda s: s.query(with_transaction), "register it with @service.command"),
        (lambda s: s.command(retry_safe=True)(with_transaction), "needs no retry_safe=True"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(register: Callable[[Any], Any], advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        register(Service())
    assert advice in str(caught.value)


def test_run_serves_on_stdio(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(server_module.Server, "run_stdio", lambda self: served.append(self))
    service = Service()
    service.run(SPEC)
    service.run()
    assert [server.service for server in served] == [service, service]
    assert served[0].policy is SPEC
