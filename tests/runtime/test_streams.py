"""Streams, on either client: items as they are taken, flow control, and every way to end."""

import asyncio
import json
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from duet_rpc import Context, RpcError, Service, testing
from duet_rpc.errors import (
    CallTimeout,
    ConnectionLost,
    DeadlineExceeded,
    InternalError,
    InvalidAnswer,
    InvalidParams,
    MethodNotFound,
    ResultUnserializable,
    UsageError,
)
from duet_rpc.policy import EDITOR, SPEC, Policy, replace
from tests.runtime.faces import PATIENCE, Driver, Face, Peer, Pending, Scripted
from tests.transports.lines import eventually

POLICIES = pytest.mark.parametrize("policy", [SPEC, EDITOR], ids=["spec", "editor"])


class Hit(msgspec.Struct):
    id: int
    text: str = ""


class OutOfPaper(RpcError):
    code, message = 700, "Out of paper"


class Source:
    """A service that streams, and what it knows of its generators."""

    def __init__(self) -> None:
        self.service = service = Service()
        self.yielded = 0
        self.closed = threading.Semaphore(0)
        self.stuck = threading.Semaphore(0)

        @service.query
        async def count(n: int, fail_at: int = -1) -> AsyncIterator[int]:
            try:
                for number in range(n):
                    if number == fail_at:
                        raise OutOfPaper(data={"at": number})
                    self.yielded = number + 1
                    yield number
            finally:
                self.closed.release()

        @service.query
        async def hits(n: int, ctx: Context) -> AsyncIterator[Hit]:
            for number in range(n):
                yield Hit(number, ctx.method)

        @service.query
        async def stick(after: int) -> AsyncIterator[int]:
            try:
                for number in range(after):
                    yield number
                self.stuck.release()
                await asyncio.get_running_loop().create_future()
            finally:
                self.closed.release()

        @service.query(timeout=0.2)
        async def dawdle() -> AsyncIterator[int]:
            try:
                yield 1
                await asyncio.get_running_loop().create_future()
            finally:
                self.closed.release()

        @service.query
        async def stubborn() -> AsyncIterator[int]:
            try:
                yield 1
                self.stuck.release()
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                yield 2

        @service.query
        async def broken() -> AsyncIterator[Any]:
            yield 1
            yield object()

        @service.query
        async def large(n: int) -> AsyncIterator[str]:
            for number in range(n):
                self.yielded = number + 1
                yield "x" * 100_000

        @service.query(inline=True)
        def add(a: int, b: int) -> int:
            return a + b


def taken(driver: Driver, method: str, params: Any = None, **options: Any) -> Pending:
    """Take the items of a stream, all or `most` of them."""
    most: int | None = options.pop("most", None)

    async def take_async(items: Any) -> list[Any]:
        found = []
        async for item in items:
            found.append(item)
            if len(found) == most:
                break
        return found

    def take(client: Any) -> Any:
        items = client.stream(method, params, **options)
        if hasattr(items, "__anext__"):
            return take_async(items)
        found = []
        for item in items:
            found.append(item)
            if len(found) == most:
                break
        return found

    return driver.start(take)


def items(driver: Driver, method: str, params: Any = None, **options: Any) -> list[Any]:
    found: list[Any] = taken(driver, method, params, **options).result(PATIENCE)
    return found


@POLICIES
@pytest.mark.parametrize("window", [1, 2, 3, 64, 1024])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 200])
def test_every_item_comes_once_in_order(face: Face, policy: Policy, window: int, n: int) -> None:
    source = Source()
    driver = face.connect(source.service, policy=policy)
    assert items(driver, "count", {"n": n}, window=window) == list(range(n))
    assert source.closed.acquire(timeout=PATIENCE)
    assert driver.stats.pending == 0


def test_items_are_decoded_into_their_type(face: Face) -> None:
    driver = face.connect(Source().service)
    assert items(driver, "hits", {"n": 2}, returns=Hit) == [Hit(0, "hits"), Hit(1, "hits")]
    assert items(driver, "hits", {"n": 1}) == [{"id": 0, "text": "hits"}]
    with pytest.raises(InvalidAnswer):
        items(driver, "hits", {"n": 5000}, returns=int)
    assert driver.call("add", [1, 2]) == 3
    eventually(lambda: driver.stats.pending == 0, "the stream is cancelled")


def test_who_cannot_take_a_stream_gets_the_list(face: Face) -> None:
    driver = face.connect(Source().service)
    assert driver.call("count", {"n": 3}) == [0, 1, 2]
    assert driver.call("count", [3]) == [0, 1, 2]
    with pytest.raises(OutOfPaper):
        driver.call("count", {"n": 3, "fail_at": 2})


@pytest.mark.parametrize("dialect", ["lsp", "mcp"])
def test_other_dialects(face: Face, dialect: str) -> None:
    driver = face.connect(Source().service, dialect=dialect)
    assert items(driver, "count", {"n": 300}) == list(range(300))


def test_a_server_that_knows_no_streams(face: Face) -> None:
    def script(peer: Peer) -> None:
        asked = peer.request()
        assert asked["params"] == {"_meta": {"stream": {"window": 64}}}
        peer.answer(asked, b'[1,"\\ud83d",[2]]')
        peer.answer(peer.request(), b'"none"')

    server = Scripted(script)
    driver = face.open(server)
    assert items(driver, "count") == [1, "\ud83d", [2]]
    with pytest.raises(InvalidAnswer, match="neither the end of a stream nor a list"):
        items(driver, "count")
    server.join()


@POLICIES
def test_the_generator_is_not_advanced_beyond_the_window(face: Face, policy: Policy) -> None:
    source = Source()
    driver = face.connect(source.service, policy=policy)
    with_items = driver.do(lambda client: client.stream("count", {"n": 1000}, window=10))

    async def first_async(client: Any) -> int:
        number: int = await with_items.__anext__()
        return number

    def first(client: Any) -> Any:
        return next(with_items) if hasattr(with_items, "__next__") else first_async(client)

    for number in range(3):
        assert driver.do(first) == number
        assert driver.call("add", [1, 2]) == 3, "its slot is free while it waits"
    eventually(lambda: source.yielded == 10, "the window is used")
    assert driver.call("add", [1, 2]) == 3
    assert source.yielded == 10
    driver.do(lambda client: with_items.close())
    assert source.closed.acquire(timeout=PATIENCE)


# Every way to end.


@POLICIES
@pytest.mark.parametrize("fail_at", [0, 1, 64, 100])
def test_an_error_comes_after_the_items_before_it(face: Face, policy: Policy, fail_at: int) -> None:
    driver = face.connect(Source().service, policy=policy)
    found: list[int] = []

    async def take_async(client: Any) -> None:
        async for item in client.stream("count", {"n": 200, "fail_at": fail_at}):
            found.append(item)

    def take(client: Any) -> Any:
        if face.name == "asyncio":
            return take_async(client)
        found.extend(client.stream("count", {"n": fail_at}))
        return list(client.stream("count", {"n": 200, "fail_at": fail_at}))

    with pytest.raises(OutOfPaper) as caught:
        driver.do(take)
    assert caught.value.data == {"at": fail_at}
    assert found == list(range(fail_at))


def test_errors_are_raised_in_the_classes_given(face: Face) -> None:
    driver = face.connect(Source().service, errors=())
    with pytest.raises(OutOfPaper):
        items(driver, "count", {"n": 3, "fail_at": 0}, errors=[OutOfPaper])
    for method, params, error in (
        ("no.such", None, MethodNotFound),
        ("count", {"n": "many"}, InvalidParams),
        ("broken", None, ResultUnserializable),
        ("dawdle", None, DeadlineExceeded),
    ):
        with pytest.raises(error):
            items(driver, method, params)


@POLICIES
@pytest.mark.parametrize("most", [1, 2, 64, 65])
def test_a_stream_that_is_left_early_is_cancelled(face: Face, policy: Policy, most: int) -> None:
    source = Source()
    driver = face.connect(source.service, policy=policy)
    assert items(driver, "count", {"n": 10**6}, most=most) == list(range(most))
    assert source.closed.acquire(timeout=PATIENCE)
    assert driver.call("add", [1, 2]) == 3
    eventually(lambda: driver.stats.pending == 0, "nothing is left")


def test_the_end_of_a_block_cancels(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)

    async def leave_async(client: Any) -> None:
        async with client.stream("stick", {"after": 2}) as items:
            async for _ in items:
                raise KeyError("of the caller")

    def leave(client: Any) -> Any:
        if face.name == "asyncio":
            return leave_async(client)
        with client.stream("stick", {"after": 2}) as items:
            for _ in items:
                raise KeyError("of the caller")

    with pytest.raises(KeyError):
        driver.do(leave)
    assert source.closed.acquire(timeout=PATIENCE)
    assert driver.stats.cancelled == 1


def test_a_stream_that_was_never_begun_sends_nothing(face: Face) -> None:
    driver = face.connect(Source().service)
    driver.do(lambda client: client.stream("count", {"n": 3}).close())
    assert driver.stats.calls == 0


def test_the_timeout_bounds_each_wait(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service, timeout=None)
    waiting = taken(driver, "stick", {"after": 100}, timeout=0.2)
    with pytest.raises(CallTimeout, match=r"stick: no item within 0\.2 s"):
        waiting.result(PATIENCE)
    assert source.closed.acquire(timeout=PATIENCE), "the server is told"
    assert driver.stats.timeouts == 1
    assert driver.call("add", [1, 2]) == 3


def test_nothing_is_sent_after_the_answer(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)
    assert items(driver, "stubborn", most=1) == [1]
    assert driver.call("add", [1, 2]) == 3
    eventually(lambda: driver.stats.pending == 0, "the stream has ended")


def test_the_loss_of_the_connection_ends_a_stream(face: Face) -> None:
    source, wire = Source(), testing.Wire()
    driver = face.connect(source.service, wire=wire)
    waiting = taken(driver, "stick", {"after": 3})
    assert source.stuck.acquire(timeout=PATIENCE)
    wire.to_client.cut()
    with pytest.raises(ConnectionLost):
        waiting.result(PATIENCE)


@pytest.mark.parametrize("after", [0, 1, 100, 150, 300, 5000, 20_000])
def test_a_connection_that_is_cut_anywhere(face: Face, after: int) -> None:
    source, wire = Source(), testing.Wire()
    driver = face.connect(source.service, wire=wire, reconnect=True)
    assert driver.call("add", [1, 2]) == 3
    if after:
        wire.to_client.cut(after)
    else:
        wire.to_client.rule = lambda frame: [(0.0, frame[:20])]
        wire.to_client.cut(20)
    with pytest.raises(ConnectionLost):
        items(driver, "count", {"n": 10**6})
    assert source.closed.acquire(timeout=PATIENCE)
    wire.to_client.rule = lambda frame: [(0.0, frame)]
    assert items(driver, "count", {"n": 100}) == list(range(100)), "a new one, never by itself"


def test_closing_the_client_ends_a_stream(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)
    waiting = taken(driver, "stick", {"after": 3})
    assert source.stuck.acquire(timeout=PATIENCE)
    driver.close()
    with pytest.raises(ConnectionLost):
        waiting.result(PATIENCE)
    with pytest.raises(ConnectionLost):
        items(driver, "count", {"n": 3})


def test_a_reader_that_stops_reading_for_a_while_misses_nothing(face: Face) -> None:
    source, wire = Source(), testing.Wire()
    driver = face.connect(source.service, wire=wire)
    wire.to_client.stop()
    waiting = taken(driver, "large", {"n": 300}, window=1024)
    eventually(lambda: source.yielded > 0, "it has begun")
    wire.to_client.resume()
    assert len(waiting.result(PATIENCE)) == 300


DYING = """
import os
from collections.abc import AsyncIterator
from duet_rpc import Service
service = Service()
@service.query
async def count(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number
    os._exit(7)
service.run()
"""


@pytest.mark.parametrize("n", [0, 1, 500])
def test_a_server_that_dies_ends_its_streams(face: Face, n: int) -> None:
    driver = face.spawn(sys.executable, "-c", DYING)
    with pytest.raises(ConnectionLost) as caught:
        items(driver, "count", {"n": n})
    assert caught.value.exit_code == 7


# Servers that break the rules.


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([{"seq": 2}], "item 1 of the stream is missing: 2 came"),
        ([{"seq": 1}, {"seq": 1}], "item 2 of the stream is missing: 1 came"),
        ([{"seq": n} for n in range(1, 5)], "more than the 3 items granted"),
        ([{"seq": 1}, {"result": {"items": 2}}], "1 of the 2 items of the stream came"),
        ([{"seq": 1}, {"result": [1]}], "items came, and then a list"),
    ],
)
def test_a_server_that_breaks_the_rules(face: Face, said: list[Any], why: str) -> None:
    def script(peer: Peer) -> None:
        asked = peer.request()
        id = asked["id"]
        peer.say(json.dumps({"jsonrpc": "2.0", "method": "$/item", "params": {}}).encode())
        for each in said:
            if "result" in each:
                peer.answer(asked, json.dumps(each["result"]).encode())
                continue
            item = {"stream": id, "value": 0, **each}
            peer.say(json.dumps({"jsonrpc": "2.0", "method": "$/item", "params": item}).encode())
        all_said.set()
        peer.read_all()

    all_said = threading.Event()
    server = Scripted(script)
    driver = face.open(server)
    found: list[Any] = []

    async def take_async(client: Any) -> None:
        async with client.stream("any", window=3) as items:
            await asyncio.to_thread(eventually, lambda: items._call.inflow.ended, "it is noticed")
            async for item in items:
                found.append(item)

    def take(client: Any) -> Any:
        if face.name == "asyncio":
            return take_async(client)
        with client.stream("any", window=3) as items:
            assert all_said.wait(PATIENCE)  # so that it reads all before it takes the first
            for item in items:
                found.append(item)

    with pytest.raises(InvalidAnswer, match=why):
        driver.do(take)
    driver.close()
    server.join()


def test_items_of_a_stream_that_is_over_are_dropped(face: Face) -> None:
    def script(peer: Peer) -> None:
        asked = peer.request()
        peer.answer(asked, b'{"items":0}')
        item = {"stream": asked["id"], "seq": 1, "value": 0}
        peer.say(json.dumps({"jsonrpc": "2.0", "method": "$/item", "params": item}).encode())
        peer.answer(peer.request(), b"3")

    server = Scripted(script)
    driver = face.open(server)
    assert items(driver, "any") == []
    assert driver.call("add", [1, 2]) == 3
    server.join()


@pytest.mark.parametrize("window", [0, -1, 1025, "1", True])
def test_a_window_that_is_none(face: Face, window: Any) -> None:
    driver = face.connect(Source().service)
    with pytest.raises(UsageError, match="window is"):
        items(driver, "count", {"n": 1}, window=window)
    with pytest.raises(UsageError, match=r"_meta\.stream needs named params"):
        items(driver, "count", [1])


# Many.


def test_many_streams_at_a_time(face: Face) -> None:
    driver = face.connect(Source().service, policy=replace(SPEC, max_in_flight=2))
    running = [taken(driver, "count", {"n": 300}, window=1 + n % 7) for n in range(20)]
    for each in running:
        assert each.result(PATIENCE) == list(range(300))
    assert driver.stats.pending == 0


def test_a_hundred_thousand_items_in_bounded_memory(face: Face) -> None:
    driver = face.connect(Source().service)
    assert items(driver, "count", {"n": 1000}, most=500) == list(range(500))
    tracemalloc.start()
    try:

        async def sum_async(client: Any) -> int:
            return sum([0 if item else 1 async for item in _thinned(client)])

        async def _thinned(client: Any) -> AsyncIterator[int]:
            async for item in client.stream("count", {"n": 100_000}):
                if item % 1000 == 999:
                    yield item

        def sum_up(client: Any) -> Any:
            if face.name == "asyncio":
                return sum_async(client)
            return sum(1 for item in client.stream("count", {"n": 100_000}) if item < 0)

        assert driver.do(sum_up) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_an_internal_error_is_told_by_its_reference(face: Face) -> None:
    service = Service()

    @service.query
    async def fails() -> AsyncIterator[int]:
        yield 1
        raise ValueError("secret")

    driver = face.connect(service)
    with pytest.raises(InternalError) as caught:
        items(driver, "fails")
    assert "secret" not in str(caught.value)
