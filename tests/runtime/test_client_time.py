"""The asyncio client and time, on a clock that jumps: exact, and no wait is real."""

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from duet_rpc import Client, Context, Progress, Service
from duet_rpc.client.timeouts import GRAIN
from duet_rpc.errors import CallTimeout, ConnectionLost, Overloaded
from duet_rpc.retry import Retry
from duet_rpc.testing import Wire, connect, run
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.link import Link

LATE = 0.05
"""Seconds that a timeout may be late."""


def now() -> float:
    return asyncio.get_running_loop().time()


async def times_out(call: Any) -> float:
    """Wait for a call that is to time out; return how long that took."""
    begun = now()
    with pytest.raises(CallTimeout):
        await call
    return now() - begun


def make_service() -> Service:
    service = Service()

    @service.query
    async def sleep(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @service.query(inline=True)
    def size(text: str) -> int:
        return len(text)

    @service.query
    async def work(steps: int, pace: float, ctx: Context) -> str:
        for step in range(steps):
            await asyncio.sleep(pace)
            ctx.progress(step)
        await asyncio.sleep(pace)
        return "done"

    return service


SERVICE = make_service()


def timed(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on the clock that jumps."""

    def wrapped() -> None:
        run(test())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


@timed
async def test_a_timeout_is_neither_early_nor_late() -> None:
    chance = random.Random(3)
    async with connect(SERVICE, timeout=7.0) as client:

        async def one(delay: float, promised: float) -> None:
            await asyncio.sleep(delay)
            took = await times_out(client.call("sleep", {"seconds": 1000}, timeout=promised))
            assert promised - 1e-9 <= took <= promised + LATE

        await asyncio.gather(
            *(
                one(chance.uniform(0, 20), chance.choice([7.0, 7.0, 0.5, 3.25, 0.001]))
                for _ in range(400)
            )
        )
        assert client.stats.timeouts == 400
        assert client.stats.pending == 0


@timed
async def test_a_call_of_the_turn_in_which_older_ones_expire_has_its_own_time() -> None:
    async with connect(SERVICE, timeout=7.0) as client:
        loop, young = asyncio.get_running_loop(), []

        def call() -> None:
            young.append(asyncio.ensure_future(times_out(client.start("sleep", {"seconds": 1000}))))

        # The clock is finer than what the loop tells apart: these and the timer share a turn.
        for step in range(-9, 10):
            loop.call_at(now() + 7.0 + GRAIN + step * 1e-10, call)
        await times_out(client.call("sleep", {"seconds": 1000}))
        await asyncio.sleep(LATE)
        for took in await asyncio.gather(*young):
            assert 7.0 - 1e-8 <= took <= 7.0 + LATE
        assert len(young) == 19


@timed
async def test_calls_that_are_answered_leave_no_timers_behind() -> None:
    async with connect(SERVICE, timeout=3600.0) as client:
        for _ in range(3000):
            await client.call("sleep", {"seconds": 1})
        assert len(client._timeouts.marks) <= 3
        patient = client.start("sleep", {"seconds": 4000}, timeout=None)
        for _ in range(3000):
            await client.call("sleep", {"seconds": 0.5})
        assert len(client._timeouts.marks) <= 3
        patient.cancel()
        took = await times_out(client.call("sleep", {"seconds": 9999}))
        assert 3600 <= took <= 3600 + LATE


@timed
async def test_one_deadline_for_waiting_to_be_sent_and_for_the_answer() -> None:
    wire = Wire()
    async with connect(SERVICE, wire=wire, timeout=5.0) as client:
        wire.to_server.stop()
        large = {"text": "x" * 2_000_000}
        calls = [client.start("size", large), client.start("size", {"text": "x"})]
        later = client.start("size", {"text": "x"}, timeout=2.0)
        assert 2.0 <= await times_out(later) <= 2.0 + LATE
        await asyncio.sleep(2.0)
        wire.to_server.resume()
        assert await asyncio.gather(*calls) == [2_000_000, 1]
        assert 4.0 <= now() <= 4.0 + LATE


@timed
async def test_what_was_never_sent_is_not_cancelled() -> None:
    wire = Wire()
    async with connect(SERVICE, wire=wire, timeout=1.0) as client:
        wire.to_server.stop()
        held = [client.start("size", {"text": "x" * 1_000_000}) for _ in range(5)]
        errors = await asyncio.gather(*held, return_exceptions=True)
        assert {type(error) for error in errors} == {CallTimeout}
        seen: list[bytes] = []

        def watch(frame: bytes) -> list[tuple[float, bytes]]:
            seen.append(frame)
            return [(0.0, frame)]

        wire.to_server.rule = watch
        wire.to_server.resume()
        assert await client.call("size", {"text": "abc"}) == 3
        cancels = [frame for frame in seen if b"cancelRequest" in frame]
        assert len(seen) == 1 + len(cancels) + 1, "the one on its way, its cancellation, the last"
        assert len(cancels) == 1


@timed
async def test_progress_extends_a_timeout_up_to_its_total() -> None:
    async with connect(SERVICE) as client:
        news: list[Progress] = []
        call = client.start(
            "work", {"steps": 10, "pace": 4.0}, timeout=5.0, on_progress=news.append
        )
        assert await call == "done" and now() == 44.0
        assert news == [Progress(n) for n in range(10)]
        begun = now()
        with pytest.raises(CallTimeout):
            await client.call("work", {"steps": 100, "pace": 4.0}, timeout=5.0, total_timeout=18.0)
        assert 18.0 <= now() - begun <= 18.0 + LATE
        begun = now()
        with pytest.raises(CallTimeout):
            await client.call(
                "work", {"steps": 10, "pace": 6.0}, timeout=5.0, on_progress=news.append
            )
        assert 5.0 <= now() - begun <= 5.0 + LATE, "no news in time"


@timed
async def test_cancelling_tells_the_server_and_nobody_else() -> None:
    service, ended = Service(), list[str]()

    @service.query
    async def wait(name: str) -> str:
        try:
            await asyncio.sleep(10)
            return name
        except asyncio.CancelledError:
            ended.append(name)
            raise

    async with connect(service) as client:
        calls = {name: client.start("wait", {"name": name}) for name in "abc"}
        await asyncio.sleep(1)
        calls["b"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls["b"]
        waiting = asyncio.create_task(_wait_for(client, "wait", {"name": "d"}))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [await calls["a"], await calls["c"]] == ["a", "c"]
        assert ended == ["b", "d"]
        stats = client.stats
        assert (stats.cancelled, stats.pending, stats.timeouts) == (2, 0, 0)
        assert not calls["a"].cancel() and client.stats.cancelled == 2


async def _wait_for(client: Client, method: str, params: Any) -> Any:
    return await client.call(method, params)


@timed
async def test_a_batch_that_is_cancelled_cancels_its_items() -> None:
    service, ended = Service(), list[int]()

    @service.query
    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(number)

    async with connect(service) as client:

        async def send() -> None:
            async with client.batch() as batch:
                for number in range(3):
                    batch.call("wait", [number])

        sending = asyncio.create_task(send())
        await asyncio.sleep(1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.sleep(1)
        assert sorted(ended) == [0, 1, 2]
        assert (client.stats.pending, client.stats.cancelled) == (0, 3)


@timed
async def test_a_timeout_outside_cancels_the_call() -> None:
    async with connect(SERVICE) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await client.call("sleep", {"seconds": 100})
        assert now() == 2.0
        assert (client.stats.pending, client.stats.cancelled) == (0, 1)


@timed
async def test_loss_ends_calls_at_the_moment_it_happens() -> None:
    wire = Wire()
    async with connect(SERVICE, wire=wire) as client:
        calls = [client.start("sleep", {"seconds": 100}, timeout=None) for _ in range(100)]
        await asyncio.sleep(3)
        wire.to_client.cut()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert now() == 3.0
        assert {type(outcome) for outcome in outcomes} == {ConnectionLost}
        with pytest.raises(ConnectionLost):
            await client.call("size", {"text": ""})
        assert now() == 3.0


@timed
async def test_ten_thousand_calls_expire_together() -> None:
    async with connect(SERVICE, timeout=2.0) as client:
        calls = [client.start("sleep", {"seconds": 100}) for _ in range(10_000)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {CallTimeout, Overloaded}
        assert now() <= 2.0 + LATE and client.stats.pending == 0
        await asyncio.sleep(1)
        assert await client.call("size", {"text": "ab"}) == 2


@timed
async def test_retries_wait_longer_each_time_and_stop_in_time() -> None:
    service, tries = Service(), list[float]()

    @service.query(inline=True)
    def busy() -> None:
        tries.append(now())
        raise Overloaded(data={"retry_after_ms": 500} if len(tries) == 3 else None)

    retry = Retry(attempts=6, first_delay=1.0, max_delay=3.0, jitter=0.0, total=100.0)
    async with connect(service) as client:
        with pytest.raises(Overloaded):
            await client.query("busy", retry=retry)
        assert tries == [0.0, 1.0, 3.0, 6.0, 9.0, 12.0]
        tries.clear()
        begun = now()
        with pytest.raises(Overloaded):
            await client.query(
                "busy", retry=Retry(attempts=100, first_delay=1.0, jitter=0.0, total=4.0)
            )
        assert [at - begun for at in tries] == [0.0, 1.0, 3.0]


@timed
async def test_a_query_is_tried_again_when_its_answer_does_not_come() -> None:
    wire = Wire()
    retry = Retry(attempts=3, first_delay=1.0, jitter=0.0)
    async with connect(SERVICE, wire=wire, retry=retry, timeout=5.0) as client:
        wire.to_client.rule = lambda frame: []
        asyncio.get_running_loop().call_later(6.0, setattr, wire.to_client, "rule", passing)
        assert await client.query("size", {"text": "abc"}) == 3
        assert 6.0 <= now() <= 6.0 + LATE
        assert client.stats.timeouts >= 1


def passing(frame: bytes) -> list[tuple[float, bytes]]:
    return [(0.0, frame)]


@timed
async def test_those_who_wait_for_a_connection_wait_for_the_same_one() -> None:
    wire = Wire()
    async with connect(SERVICE, wire=wire, reconnect=True) as client:
        wire.to_client.cut()
        with pytest.raises(ConnectionLost):
            await client.call("sleep", {"seconds": 1})
        calls = [client.start("sleep", {"seconds": 1}) for _ in range(10)]
        assert await asyncio.gather(*calls) == [1.0] * 10
        assert client.stats.connects == 2


@timed
async def test_a_notification_without_a_connection_makes_one() -> None:
    wire = Wire()
    async with connect(SERVICE, wire=wire, reconnect=True) as client:
        wire.to_client.cut()
        with pytest.raises(ConnectionLost):
            await client.call("sleep", {"seconds": 1})
        await client.notify("size", {"text": "x"})
        assert client.stats.connects == 2


@pytest.mark.parametrize("awaited", [True, False])
def test_an_answer_to_a_call_that_was_cancelled_in_the_same_turn_is_late(awaited: bool) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel.over(ours)

    class Opened:
        def open(self, timeout: float | None = None) -> Link:
            return Link(channel, True, lambda: ConnectionLost("gone"), channel.close)

    async def main() -> None:
        async with Client(Opened()) as client:
            call: asyncio.Future[Any]
            if awaited:
                call = asyncio.ensure_future(client.call("x", []))
                await asyncio.sleep(0)
            else:
                call = client.start("x", [])
            assert b'"id":1' in theirs.recv(1000)
            body = b'{"jsonrpc":"2.0","id":1,"result":1}'
            theirs.send(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            await asyncio.sleep(0)  # the answer is read behind us, in the turn that follows
            call.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            assert (client.stats.cancelled, client.stats.late_answers) == (1, 1)
            assert (client.stats.unmatched_answers, client.stats.pending) == (0, 0)
        # A call that was started is cancelled at once; a task learns of it when its turn comes.
        assert (theirs.recv(1000) == b"") is awaited

    with theirs:
        asyncio.run(main())
