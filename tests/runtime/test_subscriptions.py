"""Subscriptions, on either client: items, their numbers, slow readers, losses, and every end."""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from duet_rpc import Context, Retry, RpcError, Service, testing
from duet_rpc.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    InternalError,
    InvalidAnswer,
    InvalidRequest,
    Lagged,
    MethodNotFound,
    ResultUnserializable,
    ShuttingDown,
    UsageError,
)
from duet_rpc.hooks import Invocation, RequestEnded
from duet_rpc.policy import EDITOR, SPEC, Policy, replace
from tests.runtime.faces import PATIENCE, Driver, Face, Peer, Pending, Scripted, face_named, framed
from tests.transports.lines import eventually

POLICIES = pytest.mark.parametrize("policy", [SPEC, EDITOR], ids=["spec", "editor"])
AGAIN = Retry(attempts=5, first_delay=0.001)


class Price(msgspec.Struct):
    symbol: str
    cents: int


class OutOfPaper(RpcError):
    code, message = 700, "Out of paper"


class Source:
    """A service to subscribe to, and what it knows of its generators."""

    def __init__(self) -> None:
        self.service = service = Service()
        self.open = 0
        self.opened = 0
        self.made = 0
        self.asked: list[int] = []
        self.stuck = threading.Semaphore(0)

        @service.subscription
        async def prices(symbol: str, n: int, ctx: Context) -> AsyncIterator[Price]:
            for cents in range(n):
                yield Price(symbol, cents)

        @service.subscription
        async def ticks(n: int, fail: bool = False, resume_after: int = 0) -> AsyncIterator[int]:
            self.open += 1
            self.opened += 1
            self.asked.append(resume_after)
            try:
                for number in range(resume_after, n):
                    yield number
                if fail:
                    raise OutOfPaper(data={"at": n})
                self.stuck.release()
                await asyncio.get_running_loop().create_future()
            finally:
                self.open -= 1

        @service.subscription
        async def once() -> AsyncIterator[int]:
            yield 1
            await asyncio.get_running_loop().create_future()

        async def burst(n: int) -> AsyncIterator[int]:
            for number in range(n):
                self.made = number + 1
                yield number

        service.subscription(name="burst")(burst)
        service.subscription(name="burst_drop", when_slow="drop-oldest")(burst)
        service.subscription(name="burst_wait", when_slow="wait")(burst)

        @service.subscription
        async def broken(text: str) -> AsyncIterator[Any]:
            yield 1
            if text:
                raise ValueError(text)
            yield object()

        @service.subscription
        async def pairs(resume_after: int = 0) -> AsyncIterator[int]:
            self.open += 1
            self.asked.append(resume_after)
            try:
                yield resume_after
                yield resume_after + 1
                await asyncio.get_running_loop().create_future()
            finally:
                self.open -= 1

        @service.query
        async def cut(ctx: Context) -> None:
            ctx._peer.close()  # type: ignore[attr-defined]  # of the host

        @service.query(inline=True)
        def add(a: int, b: int) -> int:
            return a + b

    def ended(self) -> bool:
        return self.open == 0


def taken(driver: Driver, method: str, params: Any = None, **options: Any) -> Pending:
    """Subscribe in a block and take the items, all or `most` of them, each with its number."""
    most: int | None = options.pop("most", None)

    async def take_async(subscription: Any) -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        async with subscription as items:
            async for item in items:
                found.append((items.seq, item))
                if len(found) == most:
                    break
        return found

    def take(client: Any) -> Any:
        subscription = client.subscribe(method, params, **options)
        if hasattr(subscription, "__anext__"):
            return take_async(subscription)
        found: list[tuple[int, Any]] = []
        with subscription as items:
            for item in items:
                found.append((items.seq, item))
                if len(found) == most:
                    break
        return found

    return driver.start(take)


def items(driver: Driver, method: str, params: Any = None, **options: Any) -> list[Any]:
    """Take the values of items."""
    found = taken(driver, method, params, **options).result(PATIENCE)
    return [item for _, item in found]


def step(driver: Driver, subscription: Any) -> Any:
    """Take one item of a subscription that is kept."""
    if hasattr(subscription, "__anext__"):

        async def take(client: Any) -> Any:
            return await subscription.__anext__()

        return driver.do(take)
    return driver.do(lambda client: next(subscription))


def begun(driver: Driver, method: str, params: Any = None, **options: Any) -> Any:
    """Subscribe, and keep the subscription."""
    made = driver.do(lambda client: client.subscribe(method, params, **options))
    if hasattr(made, "__aenter__"):
        return driver.do(lambda client: made.__aenter__())
    return made.__enter__()


def close(driver: Driver, subscription: Any) -> None:
    driver.do(lambda client: subscription.close())


# What comes.


@POLICIES
@pytest.mark.parametrize("n", [0, 1, 7, 300])
def test_items_come_in_order_with_their_numbers(face: Face, policy: Policy, n: int) -> None:
    driver = face.connect(Source().service, policy=policy)
    found = taken(driver, "prices", {"symbol": "X", "n": n}, returns=Price).result(PATIENCE)
    assert found == [(number + 1, Price("X", number)) for number in range(n)]
    assert items(driver, "prices", {"symbol": "X", "n": 1}) == [{"symbol": "X", "cents": 0}]
    assert driver.stats.pending == 0


@pytest.mark.parametrize("dialect", ["lsp", "mcp"])
def test_every_dialect_is_the_same(face: Face, dialect: str) -> None:
    source = Source()
    driver = face.connect(source.service, dialect=dialect)
    assert items(driver, "ticks", {"n": 3}, most=3) == [0, 1, 2]
    eventually(source.ended, "it was unsubscribed from")


@POLICIES
def test_ten_thousand_items_of_one_that_waits(face: Face, policy: Policy) -> None:
    driver = face.connect(Source().service, policy=policy)
    assert items(driver, "burst_wait", {"n": 10_000}) == list(range(10_000))
    assert items(driver, "burst_wait", {"n": 500}, window=1) == list(range(500))


@POLICIES
def test_many_at_once_beside_calls(face: Face, policy: Policy) -> None:
    source = Source()
    driver = face.connect(source.service, policy=policy)
    kept = [begun(driver, "ticks", {"n": 3}) for _ in range(100)]
    assert driver.call("add", [1, 2]) == 3
    for each in kept:
        assert [step(driver, each) for _ in range(3)] == [0, 1, 2]
    assert source.open == 100
    for each in kept:
        close(driver, each)
    assert driver.call("add", [1, 2]) == 3
    eventually(source.ended, "all were unsubscribed from")


def test_a_service_as_an_interface(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)

    def first(client: Any) -> Any:
        subscription = client.proxy(source.service).prices("X", 1)
        if not hasattr(subscription, "__anext__"):
            return next(subscription)
        return subscription.__anext__()

    assert driver.do(first) == Price("X", 0)


# How it ends.


@POLICIES
@pytest.mark.parametrize("most", [1, 2, 5])
def test_leaving_the_block_unsubscribes(face: Face, policy: Policy, most: int) -> None:
    source = Source()
    driver = face.connect(source.service, policy=policy)
    assert items(driver, "ticks", {"n": 5}, most=most) == list(range(most))
    eventually(source.ended, "it was unsubscribed from")
    assert driver.call("add", [1, 2]) == 3


def test_one_that_nothing_refers_to_is_left(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)
    kept = begun(driver, "ticks", {"n": 5})
    assert step(driver, kept) == 0
    del kept
    gc.collect()
    assert driver.call("add", [1, 2]) == 3
    eventually(source.ended, "it was unsubscribed from")


def test_errors_of_handlers(face: Face) -> None:
    driver = face.connect(Source().service)
    with pytest.raises(OutOfPaper) as caught:
        items(driver, "ticks", {"n": 2, "fail": True})
    assert caught.value.data == {"at": 2}
    with pytest.raises(InternalError) as unforeseen:
        items(driver, "broken", {"text": "secret"})
    assert "secret" not in str(unforeseen.value)
    with pytest.raises(ResultUnserializable):
        items(driver, "broken", {"text": ""})


def test_the_error_comes_after_the_items(face: Face) -> None:
    driver = face.connect(Source().service)
    kept = begun(driver, "ticks", {"n": 2, "fail": True})
    assert [step(driver, kept), step(driver, kept)] == [0, 1]
    with pytest.raises(OutOfPaper):
        step(driver, kept)


def test_refusals_are_raised_where_the_block_is_entered(face: Face) -> None:
    policy = replace(SPEC, max_subscriptions=1)
    driver = face.connect(Source().service, policy=policy)
    with pytest.raises(MethodNotFound):
        begun(driver, "nothing")
    kept = begun(driver, "once")
    with pytest.raises(InvalidRequest) as caught:
        begun(driver, "once")
    assert caught.value.reason == "too-many-subscriptions"
    assert step(driver, kept) == 1
    close(driver, kept)
    with pytest.raises(InvalidAnswer, match="not that of a new subscription"):
        begun(driver, "add", {"a": 1, "b": 2})
    with pytest.raises(UsageError, match="named params"):
        begun(driver, "ticks", [3])
    with pytest.raises(UsageError, match="window"):
        begun(driver, "ticks", {"n": 3}, window=0)


def test_an_item_of_another_type_ends_it(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)
    with pytest.raises(InvalidAnswer):
        items(driver, "ticks", {"n": 3}, returns=str)
    eventually(source.ended, "it was unsubscribed from")


def test_the_timeout_is_for_each_item_and_off_by_default(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service, timeout=0.5)
    kept = begun(driver, "ticks", {"n": 1}, timeout=0.05)
    assert step(driver, kept) == 0
    with pytest.raises(CallTimeout, match="no item within 0.05 s"):
        step(driver, kept)
    eventually(source.ended, "it was unsubscribed from")


def test_a_server_that_does_not_answer(face: Face) -> None:
    def script(peer: Peer) -> None:
        asked = peer.request()
        assert asked["params"] == {"_meta": {"stream": {"window": 1024}}}
        assert peer.request() == {
            "jsonrpc": "2.0",
            "method": "$/cancelRequest",
            "params": {"id": asked["id"]},
        }
        peer.answer(asked, b'{"subscription":"late"}')
        said = [peer.request() for _ in range(1 if face.name == "asyncio" else 2)]
        assert said[-1]["method"] == "$/unsubscribe"
        assert said[-1]["params"] == {"subscription": "late"}

    server = Scripted(script)
    driver = face.open(server, timeout=0.1)
    with pytest.raises(CallTimeout, match="no answer within 0.1 s"):
        begun(driver, "prices")
    if face.name == "blocking":
        with pytest.raises((CallTimeout, ConnectionLost)):
            driver.call("add", timeout=1)  # a blocking client reads only while it waits
    server.join()


def test_cancelled_while_it_subscribes() -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        request = peer.request()
        asked.set()
        assert peer.request()["method"] == "$/cancelRequest"
        peer.answer(request, b'{"subscription":1}')
        assert peer.request()["method"] == "$/unsubscribe"

    with face_named("asyncio") as face:
        server = Scripted(script)
        driver = face.open(server)

        async def run(client: Any) -> None:
            async def enter() -> None:
                async with client.subscribe("prices"):
                    raise AssertionError("never answered")

            task = asyncio.create_task(enter())
            await asyncio.to_thread(asked.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        driver.do(run)
        server.join()


def item(name: str, seq: int, value: str = "0") -> bytes:
    params = f'{{"subscription":{name},"seq":{seq},"value":{value}}}'
    return framed(f'{{"jsonrpc":"2.0","method":"$/item","params":{params}}}'.encode())


def say_item(peer: Peer, name: str, seq: int, value: str = "0") -> None:
    peer.write(item(name, seq, value))


def say_end(peer: Peer, name: str, error: str = "") -> None:
    params = f'{{"subscription":{name}{error and f",{error}"}}}'
    peer.say(f'{{"jsonrpc":"2.0","method":"$/end","params":{params}}}'.encode())


@pytest.mark.parametrize("name", ["7", '"0x9c"', '"\\ud83d"'])
def test_a_server_names_its_subscriptions_as_it_likes(face: Face, name: str) -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.request(), f'{{"subscription":{name},"more":1}}'.encode())
        say_item(peer, name, 1)
        say_item(peer, name, 4)
        say_item(peer, "12345", 5)  # of no one
        say_item(peer, name, 5)
        say_end(peer, name)
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server)
    kept = begun(driver, "prices")
    assert [(step(driver, kept), kept.seq) for _ in range(3)] == [(0, 1), (0, 4), (0, 5)]
    assert kept.missed == 2
    with pytest.raises((StopIteration, StopAsyncIteration, RuntimeError)):
        step(driver, kept)
    driver.close()
    server.join()


@pytest.mark.parametrize(
    ("numbers", "says"),
    [([1, 1], "item 1 of the subscription came after item 1"), ([3, 2], "item 2"), ([0], None)],
)
def test_a_server_that_counts_wrong(face: Face, numbers: list[int], says: str | None) -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.request(), b'{"subscription":1}')
        for number in numbers:
            say_item(peer, "1", number)
        if says is None:
            say_end(peer, "1", '"error":7')
        peer.read_all()

    server = Scripted(script)
    driver = face.open(server)
    kept = begun(driver, "prices")
    with pytest.raises(InvalidAnswer, match=says or "no valid error"):
        for _ in range(3):
            step(driver, kept)
    driver.close()
    server.join()


def test_a_server_that_sends_more_than_was_granted(face: Face) -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.request(), b'{"subscription":1}')
        peer.write(b"".join(item("1", number) for number in range(1, 9)))  # and we may be gone
        said = peer.read_all()
        assert [each["method"] for each in said][-1] == "$/unsubscribe"

    server = Scripted(script)
    driver = face.open(server)
    kept = begun(driver, "prices", window=2)
    with pytest.raises(InvalidAnswer, match="more than the 2 items granted"):
        for _ in range(9):
            step(driver, kept)
    driver.close()
    server.join()


# Slow readers. What a client does not take waits at the server, because of its window.


def test_a_reader_that_lags(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)
    kept = begun(driver, "burst", {"n": 5000}, window=10)
    with pytest.raises(Lagged) as caught:
        eventually(lambda: source.made > 1000, "the generator goes on")
        for _ in range(5000):
            step(driver, kept)
    assert caught.value.reason == "lagged" and source.made < 2000
    assert driver.call("add", [1, 2]) == 3


def test_a_reader_that_misses_items(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)
    kept = begun(driver, "burst_drop", {"n": 5000}, window=10)
    eventually(lambda: source.made == 5000, "the generator does not wait")
    found = []
    with pytest.raises((StopIteration, StopAsyncIteration, RuntimeError)):
        while True:
            found.append((step(driver, kept), kept.seq))
    assert all(seq == value + 1 for value, seq in found)
    assert found[-1] == (4999, 5000)
    assert kept.missed == 5000 - len(found) > 3000


def test_a_reader_that_makes_it_wait(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)
    kept = begun(driver, "burst_wait", {"n": 5000}, window=10)
    assert step(driver, kept) == 0
    eventually(lambda: source.made >= 1024, "what may wait is made")
    assert driver.call("add", [1, 2]) == 3
    assert source.made < 1100
    assert [step(driver, kept) for _ in range(4999)] == list(range(1, 5000))


# Losses.


def cut(driver: Driver) -> None:
    """Have the server cut the connection."""
    with pytest.raises(ConnectionLost):
        driver.call("cut")


def test_a_loss_ends_it_where_no_one_reconnects(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service)
    kept = begun(driver, "pairs")
    assert step(driver, kept) == 0
    cut(driver)
    assert step(driver, kept) == 1, "what came before it"
    with pytest.raises(ConnectionLost):
        step(driver, kept)
    eventually(source.ended, "its generator is closed")


def test_after_a_loss_it_goes_on_where_it_was(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service, retry=AGAIN)
    kept = begun(driver, "pairs")
    for first in (0, 2, 4, 6):
        assert [step(driver, kept), step(driver, kept)] == [first, first + 1]
        assert kept.seq == first + 2
        cut(driver)
    assert step(driver, kept) == 8
    assert source.asked == [0, 2, 4, 6, 8] and kept.missed == 0
    close(driver, kept)
    assert driver.call("add", [1, 2]) == 3
    eventually(source.ended, "all have ended")


def test_one_that_waits_for_an_item_goes_on(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service, retry=AGAIN)
    pending = taken(driver, "pairs", most=4)
    eventually(lambda: source.open, "it is subscribed to")
    cut(driver)
    assert pending.result(PATIENCE) == [(1, 0), (2, 1), (3, 2), (4, 3)]


KILLED = """
import asyncio, os
from collections.abc import AsyncIterator
from duet_rpc import Service

service = Service()

@service.subscription
async def pairs(resume_after: int = 0) -> AsyncIterator[int]:
    yield resume_after
    yield os.getpid()
    await asyncio.get_running_loop().create_future()

service.run()
"""


def test_a_server_that_is_killed(face: Face) -> None:
    driver = face.spawn(sys.executable, "-c", KILLED)
    kept = begun(driver, "pairs")
    assert step(driver, kept) == 0
    os.kill(step(driver, kept), signal.SIGKILL)
    with pytest.raises(ConnectionLost) as caught:
        step(driver, kept)
    assert caught.value.exit_code == -signal.SIGKILL


def test_a_server_that_is_killed_and_started_again(face: Face) -> None:
    driver = face.spawn(sys.executable, "-c", KILLED, retry=AGAIN)
    kept = begun(driver, "pairs")
    for first in (0, 2, 4):
        assert step(driver, kept) == first
        os.kill(step(driver, kept), signal.SIGKILL)
    assert step(driver, kept) == 6 and kept.seq == 7


def test_one_that_cannot_go_on_says_so(face: Face) -> None:
    driver = face.connect(Source().service, retry=AGAIN)
    kept = begun(driver, "once")
    assert step(driver, kept) == 1
    cut(driver)
    with pytest.raises(ConnectionLost, match="after item 1, and the method takes no resume_after"):
        step(driver, kept)
    assert driver.call("add", [1, 2]) == 3, "the client goes on"


def test_a_server_that_begins_again_is_noticed(face: Face) -> None:
    def first(peer: Peer) -> None:
        peer.answer(peer.request(), b'{"subscription":1}')
        say_item(peer, "1", 1)

    def second(peer: Peer) -> None:
        asked = peer.request()
        assert asked["params"]["resume_after"] == 1 and asked["params"]["symbol"] == "X"
        peer.answer(asked, b'{"subscription":1}')
        say_item(peer, "1", 1)
        peer.read_all()

    server = Scripted(first, second)
    driver = face.open(server, retry=AGAIN)
    kept = begun(driver, "prices", {"symbol": "X"})
    assert step(driver, kept) == 0
    with pytest.raises(InvalidAnswer, match="item 1 of the subscription came after item 1"):
        step(driver, kept)
    driver.close()
    server.join()


@pytest.mark.clause("subscriptions-15")
def test_who_stops_waiting_while_it_goes_on_may_wait_again() -> None:
    asked_again = threading.Event()

    def first(peer: Peer) -> None:
        peer.answer(peer.request(), b'{"subscription":1}')
        say_item(peer, "1", 1, "5")

    def second(peer: Peer) -> None:
        for _ in range(2):
            asked = peer.request()
            assert asked["params"]["resume_after"] == 1
            asked_again.set()
            assert peer.request()["method"] == "$/cancelRequest"
        asked = peer.request()
        assert asked["params"]["resume_after"] == 1
        peer.answer(asked, b'{"subscription":1}')
        say_item(peer, "1", 2, "6")
        peer.read_all()

    with face_named("asyncio") as face:
        server = Scripted(first, second)
        driver = face.open(server, retry=AGAIN)
        kept = begun(driver, "prices")
        assert step(driver, kept) == 5

        async def stop_waiting(client: Any) -> None:
            waiting = asyncio.ensure_future(anext(kept))
            await asyncio.to_thread(asked_again.wait, PATIENCE)
            asked_again.clear()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        driver.do(stop_waiting)
        driver.do(stop_waiting)
        assert step(driver, kept) == 6 and kept.seq == 2 and kept.missed == 0
        driver.close()
        server.join()


def test_a_server_that_shuts_down_is_one_that_is_lost(face: Face) -> None:
    shutting_down = '"error":{"code":-32018,"message":"Shutting down"}'

    def first(peer: Peer) -> None:
        peer.answer(peer.request(), b'{"subscription":1}')
        say_end(peer, "1", shutting_down)

    def second(peer: Peer) -> None:
        peer.answer(peer.request(), b'{"subscription":1}')
        say_item(peer, "1", 1, "5")
        say_end(peer, "1", shutting_down)

    server = Scripted(first, second)
    driver = face.open(server, retry=Retry(attempts=3, first_delay=0.001))
    kept = begun(driver, "prices")
    assert step(driver, kept) == 5
    with pytest.raises((ConnectFailed, ShuttingDown, ConnectionLost)):
        step(driver, kept)
    server.join()


def test_a_server_that_is_lost_again_and_again_is_given_up(face: Face) -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.request(), b'{"subscription":1}')

    server = Scripted(*[script] * 50)
    driver = face.open(server, retry=Retry(attempts=4, first_delay=0.001))
    kept = begun(driver, "prices")
    with pytest.raises(ConnectionLost):
        step(driver, kept)
    assert driver.stats.connects < 10
    server.join()


def test_a_client_that_is_closed_ends_it(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service, retry=AGAIN)
    kept = begun(driver, "ticks", {"n": 1})
    assert step(driver, kept) == 0
    driver.close()
    with pytest.raises(ConnectionLost):
        step(driver, kept)
    eventually(source.ended, "its generator is closed")


# Nothing stays behind.


def test_nothing_is_left_of_many(face: Face) -> None:
    source = Source()
    driver = face.connect(source.service, policy=replace(SPEC, max_subscriptions=8))
    for number in range(300):
        kept = begun(driver, "ticks", {"n": 2, "fail": number % 3 == 0}, window=1 + number % 3)
        if number % 2:
            assert step(driver, kept) == 0
        if number % 5:
            close(driver, kept)
        del kept
        if number % 7 == 0:
            assert driver.call("add", [1, 2]) == 3
            eventually(lambda: source.open < 8, "they end")
        eventually(lambda: source.open < 7, "they end")
    gc.collect()
    assert driver.call("add", [1, 2]) == 3
    eventually(source.ended, "all have ended")
    assert driver.call("add", [1, 2]) == 3

    def look(client: Any) -> tuple[int, int]:
        calls = client._host.connection.calls
        return len(calls.open), len(calls.subscribed)

    eventually(
        lambda: driver.call("add", [1, 2]) and driver.do(look) == (0, 0), "all are forgotten"
    )


def test_hooks_are_around_it_until_the_end(face: Face) -> None:
    source, told = Source(), []
    service = source.service

    @service.around
    def watch(call: Invocation) -> Iterator[None]:
        told.append(f"begin {call.method}")
        try:
            yield
        finally:
            told.append(f"end {call.method}")

    @service.on(RequestEnded)
    def ended(event: RequestEnded) -> None:
        told.append(f"{event.method} {type(event.error).__name__}")

    driver = face.connect(service)
    kept = begun(driver, "ticks", {"n": 1, "fail": True})
    with pytest.raises(OutOfPaper):
        for _ in range(2):
            step(driver, kept)
    assert told == ["begin ticks", "end ticks", "ticks OutOfPaper"]


def test_who_may_not_subscribe_is_refused_by_the_answer(face: Face) -> None:
    source = Source()

    @source.service.around
    async def refuse(call: Invocation, next: Any) -> Any:
        raise OutOfPaper(data={"for": call.method})

    driver = face.connect(only(source.service, "ticks"))
    with pytest.raises(OutOfPaper):
        begun(driver, "ticks", {"n": 1})
    assert source.opened == 0


def only(service: Service, name: str) -> Service:
    """Leave out the `def`s, around which no `async def` can be."""
    for each in [method.name for method in service if method.name != name]:
        del service._methods[each]
    return service


def test_it_ends_before_the_lifespan(face: Face) -> None:
    source, told = Source(), []

    class Pool:
        pass

    @source.service.lifespan
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        told.append(f"lifespan ends, {source.open} open")

    with face_named(face.name) as inner:
        driver = inner.connect(source.service)
        kept = begun(driver, "ticks", {"n": 1})
        assert step(driver, kept) == 0
    assert told == ["lifespan ends, 0 open"]


def test_it_may_call_its_subscriber(face: Face) -> None:
    service, client_service = Service(), Service()

    @service.subscription
    async def doubled(n: int, ctx: Context) -> AsyncIterator[int]:
        for number in range(n):
            yield await ctx.call("double", [number], timeout=PATIENCE)

    @client_service.query
    def double(number: int) -> int:
        return 2 * number

    driver = face.connect(service, service=client_service, policy=EDITOR)
    assert items(driver, "doubled", {"n": 5}) == [0, 2, 4, 6, 8]


def test_the_other_end_may_subscribe_too() -> None:
    """A client with a service is subscribed to by its server."""
    source = Source()
    server = Service()
    found: list[Any] = []
    complete = asyncio.Event()

    @server.query
    async def follow(ctx: Context) -> Any:
        return await ctx.call("ticks", {"n": 2})

    @server.notification(name="$/item")
    async def take(subscription: int, seq: int, value: int) -> None:
        found.append((subscription, seq, value))
        if len(found) == 2:
            complete.set()

    async def main() -> None:
        async with testing.connect(server, service=source.service) as client:
            assert await client.call("follow") == {"subscription": 1}
            await asyncio.wait_for(complete.wait(), PATIENCE)

    asyncio.run(main())
    assert found == [(1, 1, 0), (1, 2, 1)]


# Registration.


def test_what_cannot_be_a_subscription() -> None:
    service = Service()
    with pytest.raises(UsageError, match="does not yield"):

        @service.subscription
        async def no_items() -> int:
            return 1

    with pytest.raises(UsageError, match="make it an async def"):

        @service.subscription
        def items_of_a_def() -> Any:
            yield 1

    with pytest.raises(UsageError, match="annotate it as int"):

        @service.subscription
        async def odd_number(resume_after: str = "") -> AsyncIterator[int]:
            yield 1

    with pytest.raises(UsageError, match="resume_after: int = 0"):

        @service.subscription
        async def required_number(resume_after: int) -> AsyncIterator[int]:
            yield 1

    with pytest.raises(UsageError, match="when_slow"):
        service.subscription(when_slow="never")  # type: ignore[call-overload]


def test_the_rule_for_names_does_not_reach_the_number_to_go_on_after(face: Face) -> None:
    service = Service(rename="camel")

    @service.subscription
    async def count_up(last_number: int, resume_after: int | None = None) -> AsyncIterator[int]:
        for number in range(resume_after or 0, last_number):
            yield number

    driver = face.connect(service)
    found = taken(driver, "count_up", {"lastNumber": 3, "resume_after": 1}).result(PATIENCE)
    assert found == [(2, 1), (3, 2)]
