"""Links of whole messages: boundaries, backpressure, and the end."""

import asyncio
import contextlib
from typing import Any

import pytest

from duet_rpc import Service
from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.policy import SPEC, replace
from duet_rpc.transports.messages import MessageChannel, message_pair
from duet_rpc.wire.framing import framing

ADD = b'{"jsonrpc":"2.0","id":%d,"method":"add","params":[%d,1]}'
SUM = b'{"jsonrpc":"2.0","id":%d,"result":%d}'


def service() -> Service:
    made = Service()

    @made.query(inline=True)
    def add(a: int, b: int) -> int:
        return a + b

    @made.query
    async def large(size: int) -> str:
        return "x" * size

    return made


def serve(channel: MessageChannel, workers: Workers, **rules: Any) -> LoopHost:
    policy = replace(SPEC, **rules)
    host = LoopHost(
        channel,
        Dispatcher(service(), policy, shares_thread=True),
        framing("whole", max_message_bytes=policy.max_message_bytes),
        ConnectionOptions(origin=Origin(connection_id="m1", transport="memory")),
        workers=workers,
    )
    host.begin()
    return host


class Reader:
    """Reads what a server sends, one message at a time."""

    def __init__(self, channel: MessageChannel) -> None:
        self._channel = channel
        self._ready = asyncio.Event()
        channel.watch_reading(asyncio.get_running_loop(), self._ready.set)

    async def read(self) -> bytes:
        while True:
            try:
                return self._channel.receive()
            except BlockingIOError:
                self._ready.clear()
                await asyncio.wait_for(self._ready.wait(), 20)


async def test_each_answer_is_a_message_of_its_own() -> None:
    ours, theirs = message_pair()
    workers = Workers()
    host, reader = serve(theirs, workers), Reader(ours)
    for number in range(1, 40):
        ours.send(ADD % (number, number))
    for number in range(1, 40):
        assert await reader.read() == SUM % (number, number + 1)
    host.close()
    assert await reader.read() == b""
    workers.close()


async def test_a_peer_that_does_not_read_stops_the_server_and_loses_nothing() -> None:
    ours, theirs = message_pair(max_unread=4)
    workers = Workers()
    host, reader = serve(theirs, workers, max_output_bytes=1000), Reader(ours)
    sent = 0
    while sent < 100:
        try:
            ours.send(ADD % (sent + 1, sent))
            sent += 1
        except BlockingIOError:
            before = theirs.unread
            for _ in range(20):
                await asyncio.sleep(0)
            if theirs.unread == before:
                break  # the server reads no more: its answers are not read
    assert host.connection.congested and ours.unread == 4
    for number in range(1, sent + 1):
        assert await reader.read() == SUM % (number, number)
    assert not host.connection.congested
    host.close()
    workers.close()


@pytest.mark.parametrize("max_unread", [2, 64])
async def test_a_peer_that_closes_without_reading_ends_the_connection(max_unread: int) -> None:
    ours, theirs = message_pair(max_unread)
    workers = Workers()
    host = serve(theirs, workers)
    for number in (1, 2, 3):
        with contextlib.suppress(BlockingIOError):
            ours.send(ADD % (number, number))
        for _ in range(20):
            await asyncio.sleep(0)
    assert ours.unread == min(3, max_unread) and host.behind == (max_unread == 2)
    ours.close()
    for _ in range(20):
        await asyncio.sleep(0)
    assert host.closed
    assert ours.unread == 0
    with pytest.raises(BrokenPipeError):
        theirs.send(b"1")
    workers.close()


async def test_a_large_answer_is_one_message() -> None:
    ours, theirs = message_pair()
    workers = Workers()
    host, reader = serve(theirs, workers), Reader(ours)
    ours.send(b'{"jsonrpc":"2.0","id":1,"method":"large","params":[1000000]}')
    assert len(await reader.read()) > 1_000_000
    host.close()
    workers.close()


async def test_what_was_sent_before_the_end_is_answered() -> None:
    ours, theirs = message_pair()
    workers = Workers()
    host, reader = serve(theirs, workers), Reader(ours)
    ours.send(ADD % (1, 1))
    theirs.end()
    assert await reader.read() == SUM % (1, 2)
    assert await reader.read() == b"" and host.closed
    with pytest.raises(BrokenPipeError):
        theirs.send(b"1")
    workers.close()


@pytest.mark.parametrize("blank", [b"", b" ", b"\r\n"])
async def test_a_message_without_json_is_a_parse_error(blank: bytes) -> None:
    ours, theirs = message_pair()
    workers = Workers()
    host, reader = serve(theirs, workers), Reader(ours)
    ours.send(blank)
    ours.send(ADD % (2, 2))
    assert b'"code":-32700' in await reader.read()
    assert await reader.read() == SUM % (2, 3)
    host.close()
    workers.close()


async def test_a_message_that_is_too_large_is_refused_and_the_next_is_answered() -> None:
    ours, theirs = message_pair()
    workers = Workers()
    host, reader = serve(theirs, workers, max_message_bytes=200), Reader(ours)
    ours.send(ADD.replace(b"add", b"a" * 300) % (1, 1))
    ours.send(ADD % (2, 2))
    assert b'"reason":"oversize"' in await reader.read()
    assert await reader.read() == SUM % (2, 3)
    host.close()
    workers.close()
