"""The client's part of the contract, clause by clause, on the clock that jumps.

Each clause has its cases for both clients in `tests/runtime`; here each is told once, as it stands.
"""

import asyncio
import sys
from typing import Any

import pytest

from duet_rpc import Client, Context, MemoryStore, Service
from duet_rpc.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    RpcError,
    TransportError,
    UsageError,
)
from duet_rpc.retry import Retry
from duet_rpc.testing import Wire, connect, run


def now() -> float:
    return asyncio.get_running_loop().time()


def make_service() -> tuple[Service, list[Any]]:
    service, done = Service(), list[Any]()

    @service.query
    async def wait(seconds: float) -> float:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            done.append(f"told to stop {seconds:g}")
            raise
        return seconds

    @service.query(inline=True)
    def fail() -> None:
        raise RpcError("on purpose", code=5)

    @service.query(inline=True)
    def size(text: str) -> int:
        return len(text)

    @service.command
    async def pay(amount: int) -> int:
        done.append(amount)
        return amount

    @service.query
    async def back(ctx: Context) -> Any:
        return [await ctx.call("who"), ctx.correlation_id]

    return service, done


@pytest.mark.clause("client-1")
def test_one_reader_any_number_of_calls_answers_by_id() -> None:
    async def story() -> None:
        async with connect(make_service()[0]) as client:
            seconds = [float(n % 10) for n in range(16)]
            calls = [client.start("wait", {"seconds": s}) for s in seconds]
            assert client.stats.pending == 16
            assert await asyncio.gather(*calls) == seconds
            assert now() == 9.0

    run(story())


@pytest.mark.clause("client-3")
def test_every_call_ends_once_in_one_of_five_ways() -> None:
    async def story() -> None:
        wire = Wire()
        async with connect(make_service()[0], wire=wire) as client:
            assert await client.call("wait", {"seconds": 1}) == 1
            with pytest.raises(RpcError, match="on purpose"):
                await client.call("fail")
            with pytest.raises(CallTimeout):
                await client.call("wait", {"seconds": 100}, timeout=2)
            cancelled = client.start("wait", {"seconds": 100})
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            lost = client.start("wait", {"seconds": 100}, timeout=None)
            await asyncio.sleep(0.1)
            wire.to_client.cut()
            with pytest.raises(ConnectionLost):
                await lost
            assert client.stats.pending == 0

    run(story())


@pytest.mark.clause("client-4")
async def test_a_loss_carries_the_exit_code_and_the_tail_of_stderr() -> None:
    program = (
        "import sys; sys.stdin.buffer.readline();"
        "print('the ink ran out', file=sys.stderr); sys.exit(9)"
    )
    async with Client.spawn(sys.executable, "-c", program) as client:
        calls = [client.start("x", timeout=None) for _ in range(5)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        begun = now()
        with pytest.raises(ConnectionLost):
            await client.call("later")
        assert now() - begun < 5, "later calls fail at once"
    for outcome in outcomes:
        assert isinstance(outcome, ConnectionLost) and outcome.exit_code in (9, None)
        if outcome.exit_code == 9:
            assert outcome.stderr_tail == "the ink ran out"


@pytest.mark.clause("client-5")
def test_one_deadline_covers_queueing_writing_and_waiting() -> None:
    async def story() -> None:
        wire = Wire()
        async with connect(make_service()[0], wire=wire, timeout=3.0) as client:
            wire.to_server.stop()
            writing = client.start("size", {"text": "x" * 3_000_000})
            queueing = client.start("size", {"text": "x"})
            for call in (writing, queueing):
                with pytest.raises(CallTimeout):
                    await call
            assert 3.0 <= now() <= 3.05
            assert client.stats.pending == 0

    run(story())


@pytest.mark.clause("client-7")
def test_late_duplicate_and_unknown_answers_are_counted_and_dropped() -> None:
    async def story() -> None:
        wire = Wire()
        async with connect(make_service()[0], wire=wire) as client:
            wire.to_client.rule = lambda frame: [(0.0, frame), (0.5, frame)]
            assert await client.call("wait", {"seconds": 0}) == 0
            await asyncio.sleep(1)
            assert client.stats.unmatched_answers == 1, "a duplicate"
            wire.to_client.rule = lambda frame: [(5.0, frame)]
            with pytest.raises(CallTimeout):
                await client.call("wait", {"seconds": 0}, timeout=1)
            await asyncio.sleep(10)
            assert client.stats.unmatched_answers == 1, "a late one is no fault"
            assert client.stats.late_answers == 1
            body = b'{"jsonrpc":"2.0","id":999,"result":1}'
            wire.to_client.inject(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            await asyncio.sleep(1)
            assert client.stats.unmatched_answers == 2, "an unknown one"
            wire.to_client.rule = lambda frame: [(0.0, frame)]
            assert await client.call("wait", {"seconds": 0}) == 0

    run(story())


@pytest.mark.clause("client-6")
def test_a_timeout_touches_no_other_call_and_tells_the_server() -> None:
    async def story() -> None:
        service, done = make_service()
        async with connect(service) as client:
            other = client.start("wait", {"seconds": 5})
            with pytest.raises(CallTimeout):
                await client.call("wait", {"seconds": 60}, timeout=1)
            assert await other == 5
            assert done == ["told to stop 60"]

    run(story())


@pytest.mark.clause("client-2")
def test_ids_are_never_reused_on_a_connection() -> None:
    async def story() -> None:
        wire, ids = Wire(), list[int]()

        def watch(frame: bytes) -> list[tuple[float, bytes]]:
            if b'"method":"wait"' in frame:
                ids.append(int(frame.partition(b'"id":')[2].partition(b",")[0]))
            return [(0.0, frame)]

        wire.to_server.rule = watch
        async with connect(make_service()[0], wire=wire, timeout=0.5) as client:
            for number in range(50):
                try:
                    await client.call("wait", {"seconds": number % 2})
                except CallTimeout:
                    pass
        assert len(ids) == len(set(ids)) == 50

    run(story())


@pytest.mark.clause("client-9")
def test_without_concurrency_one_request_is_sent_at_a_time() -> None:
    async def story() -> None:
        async with connect(make_service()[0], allow_concurrent_requests=False) as client:
            await asyncio.gather(*(client.call("wait", {"seconds": 2}) for _ in range(5)))
            assert now() == 10.0

    run(story())


@pytest.mark.clause("client-16")
def test_queries_are_sent_again() -> None:
    async def story() -> None:
        wire = Wire()
        retry = Retry(attempts=3, first_delay=1.0, jitter=0.0)
        async with connect(make_service()[0], wire=wire, retry=retry, timeout=2.0) as client:
            wire.to_client.cut(10)
            assert await client.query("wait", {"seconds": 1}) == 1
            assert client.stats.connects == 2

    run(story())


@pytest.mark.clause("client-16")
async def test_commands_are_sent_again_under_the_key_that_was_made_first() -> None:
    service, done = make_service()
    wire = Wire()
    retry = Retry(attempts=3, first_delay=0.01)
    async with connect(service, wire=wire, retry=retry, store=MemoryStore()) as client:
        wire.to_client.cut(10)
        assert await client.command("pay", {"amount": 7}) == 7
        assert client.stats.connects == 2
    assert done == [7], "it was sent twice and happened once"


@pytest.mark.clause("client-16")
def test_anything_else_fails_as_outcome_unknown() -> None:
    async def story() -> None:
        wire = Wire()
        async with connect(make_service()[0], wire=wire, retry=Retry()) as client:
            wire.to_client.cut(10)
            with pytest.raises(TransportError) as caught:
                await client.call("wait", {"seconds": 0})
            assert isinstance(caught.value, ConnectionLost)
            assert not isinstance(caught.value, (RpcError, UsageError, ConnectFailed))
            assert await client.call("wait", {"seconds": 0}) == 0, "the next finds a connection"

    run(story())


@pytest.mark.clause("client-21")
def test_both_ways_with_separate_ids_also_while_a_handler_runs() -> None:
    async def story() -> None:
        ours = Service()

        @ours.query
        async def who(ctx: Context) -> str:
            return f"request {ctx.correlation_id} of yours"

        async with connect(make_service()[0], service=ours) as client:
            assert await client.call("back") == ["request 1 of yours", "1"]

    run(story())
