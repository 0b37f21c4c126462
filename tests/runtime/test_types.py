"""What a type checker knows of both clients: options by name, and results by `returns`.

mypy and pyright read this file (`make types`): `assert_type` fails there, and so does a
`type: ignore` that is not needed. What they refuse is refused when it runs as well.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

import asyncio
from typing import Any, assert_type, get_type_hints

import msgspec
import pytest

from duet_rpc import Client, Context, Outcome, Service, blocking, testing
from duet_rpc.client.options import CheckedOptions, ClientOptions
from duet_rpc.context import Reply
from duet_rpc.hooks import Hooks

MISSPELT = "timeot"


class Sum(msgspec.Struct):
    total: int


def make_service() -> Service:
    service = Service()

    @service.query
    def add(a: int, b: int) -> int:
        return a + b

    @service.command
    def keep(total: int) -> Sum:
        return Sum(total)

    return service


async def test_results_of_the_asyncio_client_have_the_type_that_was_asked_for() -> None:
    async with testing.connect(make_service()) as client:
        assert_type(await client.call("add", [1, 2], returns=int), int)
        assert_type(await client.query("add", [1, 2], returns=int), int)
        assert_type(await client.command("keep", {"total": 3}, returns=Sum, key="k"), Sum)
        assert_type(await client.start("add", [1, 2], returns=int), int)
        kept_before = assert_type(await client.outcome("keep", "k", returns=Sum), Outcome[Sum])
        assert assert_type(kept_before.result(), Sum) == Sum(3)
        assert_type(await client.outcome("keep", "k"), Outcome[Any])
        assert_type(await client.call("add", [1, 2]), Any)
        assert_type(await client.call("add", [1, 2], returns=int | None), Any)
        async with client.batch() as batch:
            added = batch.query("add", [1, 2], returns=int, timeout=5)
            kept = batch.command("keep", {"total": 3}, returns=Sum, key="three")
        assert assert_type(added.result(), int) == 3
        assert assert_type(kept.result(), Sum) == Sum(3)


async def test_results_of_gathered_calls_and_of_tasks_keep_their_types() -> None:
    async with testing.connect(make_service()) as client:
        total, kept = await asyncio.gather(
            client.query("add", [1, 2], returns=int),
            client.command("keep", {"total": 3}, returns=Sum, key="k"),
        )
        assert assert_type(total, int) == 3
        assert assert_type(kept, Sum) == Sum(3)
        outcome, called, started = await asyncio.gather(
            client.outcome("keep", "k", returns=Sum),
            client.call("add", [1, 2], returns=int),
            client.start("keep", {"total": 4}, returns=Sum),
        )
        assert assert_type(outcome, Outcome[Sum]).result() == Sum(3)
        assert assert_type(called, int) == 3
        assert assert_type(started, Sum) == Sum(4)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(client.query("add", [1, 2], returns=int))
        assert assert_type(task.result(), int) == 3


def test_results_of_the_blocking_client_have_the_type_that_was_asked_for() -> None:
    with testing.connect_blocking(make_service()) as client:
        assert assert_type(client.call("add", [1, 2], returns=int), int) == 3
        assert assert_type(client.query("add", [1, 2], returns=int), int) == 3
        assert assert_type(client.command("keep", {"total": 3}, returns=Sum), Sum) == Sum(3)
        assert assert_type(client.start("add", [1, 2], returns=int).result(), int) == 3
        client.command("keep", {"total": 3}, key="k")
        kept = assert_type(client.outcome("keep", "k", returns=Sum), Outcome[Sum])
        assert assert_type(kept.result(), Sum) == Sum(3)
        assert assert_type(client.call("add", [1, 2]), Any) == 3
        assert client.call("add", [1, 2], returns=int | None) == 3
        with client.batch() as batch:
            added = batch.query("add", [1, 2], returns=int, timeout=5)
        assert assert_type(added.result(), int) == 3


async def test_calls_of_handlers_have_the_type_that_was_asked_for() -> None:
    asking, asked = Service(), Service()

    @asking.query
    async def ask(ctx: Context) -> int:
        reply = assert_type(ctx.call("total", returns=Sum), Reply[Sum])
        return assert_type(await reply, Sum).total

    @asking.query
    def ask_and_wait(ctx: Context) -> int:
        assert_type(ctx.call("total"), Reply[Any])
        return assert_type(ctx.call("total", timeout=5, returns=Sum).result(), Sum).total

    @asked.query
    def total() -> Sum:
        return Sum(3)

    async with testing.connect(asking, service=asked) as client:
        assert await client.call("ask") == await client.call("ask_and_wait") == 3


def test_a_misspelt_option_of_a_client_is_refused() -> None:
    with pytest.raises(TypeError, match=MISSPELT):
        Client.connect("unix:x", timeot=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=MISSPELT):
        Client.spawn("x", timeot=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=MISSPELT):
        blocking.Client.connect("unix:x", timeot=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=MISSPELT):
        blocking.Client.spawn("x", timeot=3)  # type: ignore[call-arg]


async def test_a_misspelt_option_of_a_call_is_refused() -> None:
    client = Client.connect("unix:x")
    with pytest.raises(TypeError, match=MISSPELT):
        await client.call("add", timeot=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=MISSPELT):
        client.start("add", timeot=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=MISSPELT):
        await client.query("add", timeot=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=MISSPELT):
        await client.command("add", timeot=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=MISSPELT):
        await client.outcome("add", "key", timeot=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=MISSPELT):
        client.batch().call("add", timeot=3)  # type: ignore[call-overload]


def test_a_misspelt_option_of_a_blocking_call_is_refused() -> None:
    client = blocking.Client.connect("unix:x")
    with pytest.raises(TypeError, match=MISSPELT):
        client.call("add", timeot=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=MISSPELT):
        client.query("add", timeot=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=MISSPELT):
        client.command("add", timeot=3)  # type: ignore[call-overload]


def test_an_option_of_a_wrong_type_is_seen_by_the_type_checker() -> None:
    with pytest.raises(Exception, match="timeout is 'x'"):
        blocking.Client.connect("unix:x", timeout="x")  # type: ignore[arg-type]


async def test_options_of_a_client_in_memory_are_seen_by_the_type_checker() -> None:
    with pytest.raises(TypeError, match=MISSPELT):
        async with testing.connect(make_service(), timeot=3):  # type: ignore[call-arg]
            pass
    with pytest.raises(TypeError, match=MISSPELT):
        with testing.connect_blocking(make_service(), timeot=3):  # type: ignore[call-arg]
            pass
    with pytest.raises(Exception, match="timeout is 'x'"):
        async with testing.connect(make_service(), timeout="x"):  # type: ignore[arg-type]
            pass


def test_what_people_write_is_what_is_checked() -> None:
    names = {"Hooks": Hooks}  # options are read without loading what hooks need
    assert get_type_hints(ClientOptions, localns=names) == get_type_hints(
        CheckedOptions, localns=names
    )


@pytest.mark.parametrize("client", [Client, blocking.Client])
def test_no_signature_shows_a_value_that_stands_for_the_usual_timeout(client: Any) -> None:
    import inspect

    for name in ("call", "query", "command", "outcome", "connect", "spawn", "batch"):
        assert "inf" not in str(inspect.signature(getattr(client, name)))
