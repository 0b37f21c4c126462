"""One rule for what a call returns: a coroutine, sent when it is awaited; `start` sends now."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, assert_type

import pytest

from duet_rpc import (
    Client,
    ConnectionLost,
    Outcome,
    Retry,
    RpcError,
    Service,
    StartedCall,
    blocking,
    testing,
)
from tests.runtime.faces import PATIENCE, Face, Peer, Scripted


def make_service() -> Service:
    service = Service()

    @service.query
    def add(a: int, b: int) -> int:
        return a + b

    @service.command
    def keep(total: int) -> int:
        return total

    @service.query
    def fail() -> None:
        raise RpcError("no", code=7)

    return service


VERBS: list[Callable[[Client], Coroutine[Any, Any, Any]]] = [
    lambda client: client.call("add", [1, 2]),
    lambda client: client.query("add", [1, 2]),
    lambda client: client.command("keep", {"total": 3}),
    lambda client: client.outcome("keep", "k"),
]


@pytest.mark.clause("client-28")
@pytest.mark.parametrize("verb", VERBS, ids=["call", "query", "command", "outcome"])
async def test_nothing_is_sent_before_it_is_awaited(
    verb: Callable[[Client], Coroutine[Any, Any, Any]],
) -> None:
    async with testing.connect(make_service()) as client:
        calling = verb(client)
        assert asyncio.iscoroutine(calling)
        await asyncio.sleep(0)
        assert client.stats.calls == 0
        await calling
        assert client.stats.calls == 1


@pytest.mark.clause("client-28")
async def test_calls_can_be_made_tasks_of_a_group() -> None:
    async with testing.connect(make_service(), retry=Retry()) as client:
        await client.command("keep", {"total": 3}, key="k")
        async with asyncio.TaskGroup() as group:
            called = group.create_task(client.call("add", [1, 2], returns=int))
            queried = group.create_task(client.query("add", [1, 2], returns=int))
            ordered = group.create_task(client.command("keep", {"total": 3}, returns=int))
            asked = group.create_task(client.outcome("keep", "k", returns=int))
        assert_type(called.result(), int)
        assert_type(asked.result(), Outcome[int])
        assert called.result() == queried.result() == ordered.result() == asked.result().result()


@pytest.mark.clause("client-28")
async def test_calls_can_be_gathered() -> None:
    async with testing.connect(make_service()) as client:
        both = await asyncio.gather(
            client.call("add", [1, 2], returns=int), client.query("add", [3, 4], returns=int)
        )
        assert_type(both, tuple[int, int])
        assert list(both) == [3, 7]
        started = [client.start("add", [n, 1], returns=int) for n in range(100)]
        assert await asyncio.gather(*started) == list(range(1, 101))


@pytest.mark.clause("client-28")
async def test_a_started_call_is_on_its_way_and_needs_no_task() -> None:
    async with testing.connect(make_service()) as client:
        before = asyncio.all_tasks()
        call = assert_type(client.start("add", [1, 2], returns=int), StartedCall[int])
        assert isinstance(call, asyncio.Future)
        assert client.stats.calls == 1 and asyncio.all_tasks() == before
        assert call.id == 1 and not call.done()
        assert await call == 3 == call.result()
        assert client.start("add", [1, 2]).id == 2
        with pytest.raises(RpcError) as failed:
            await client.start("fail")
        assert failed.value.code == 7


@pytest.mark.clause("client-28")
def test_the_id_of_a_started_call_is_that_of_its_request(face: Face) -> None:
    seen: list[Any] = []

    def script(peer: Peer) -> None:
        for _ in range(2):
            request = peer.request()
            seen.append(request["id"])
            peer.answer(request)

    server = Scripted(script)
    driver = face.open(server)
    ids = [driver.do(_start).id for _ in range(2)]
    server.join()
    assert ids == seen


def _start(client: Any) -> Any:
    """Start a call in a function: the driver of the asyncio client would await what it gets."""
    call = client.start("x")
    if isinstance(call, blocking.Call):
        call.result()
        return call

    async def finish() -> Any:
        await call
        return call

    return finish()


async def test_a_call_that_is_started_without_a_connection_connects() -> None:
    server = Scripted(lambda peer: peer.request(), lambda peer: peer.answer(peer.request(), b"3"))
    async with Client(server, reconnect=True, timeout=PATIENCE) as client:
        with pytest.raises(ConnectionLost):
            await client.call("add")
        call = client.start("add", [1, 2])
        assert call.id is None
        assert await call == 3
        assert call.id == 1
    server.join()


async def test_a_call_that_is_cancelled_while_it_connects_is_never_sent() -> None:
    server = Scripted(lambda peer: peer.request(), lambda peer: peer.read_all())
    async with Client(server, reconnect=True, timeout=PATIENCE) as client:
        with pytest.raises(ConnectionLost):
            await client.call("add")
        call = client.start("add", [1, 2])
        assert call.cancel() and call.cancelled() and not call.cancel()
        await client.open()
        await client.notify("last")
        assert client.stats.pending == 0 and client.stats.calls == 1
    server.join()


async def test_a_started_call_fails_at_once_where_there_is_no_way_to_connect() -> None:
    server = Scripted(lambda peer: peer.request())
    async with Client(server, timeout=PATIENCE) as client:
        with pytest.raises(ConnectionLost):
            await client.call("add")
        call = client.start("add", [1, 2])
        assert call.done() and call.id is None
        with pytest.raises(ConnectionLost):
            await call
