"""What waits to be sent: in order, whole, and no more than is allowed."""

import fcntl
import os
from collections.abc import Iterator

import pytest

from duet_rpc.transports.channel import BULK_SIZE, READ_SIZE, Channel
from duet_rpc.transports.outbox import Outbox
from duet_rpc.wire.framing import HeaderFraming

LARGE = bytes(range(256)) * 1_000


class Peer:
    """Takes as much as it has room for, as a pipe does."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.got = b""

    def send(self, data: bytes | memoryview) -> int:
        taken = bytes(data[: self.room])
        if not taken and len(data):
            raise BlockingIOError
        self.got += taken
        self.room -= len(taken)
        return len(taken)


@pytest.mark.parametrize("room", [0, 5, 100, 20_000, 100_000, 1_000_000])
def test_parts_and_wholes_go_out_in_order(room: int) -> None:
    peer = Peer(room)
    outbox = Outbox(peer.send, max_bytes=1_000_000)
    frames = [b"first", HeaderFraming.frame(LARGE), b"second", HeaderFraming.frame(LARGE), b"third"]
    for frame in frames:
        outbox.put(frame)
    large = HeaderFraming.encode(LARGE)
    expected = b"first" + large + b"second" + large + b"third"
    assert peer.got == expected[:room]
    assert outbox.size == len(expected) - len(peer.got)
    while outbox.size:
        peer.room += 30_000
        outbox.flush()
    assert peer.got == expected


def test_parts_can_be_too_much_and_calls_of_ours_cannot() -> None:
    seen: list[bool] = []
    peer = Peer(1_000)
    outbox = Outbox(peer.send, max_bytes=100_000, on_over=lambda: seen.append(outbox.over))
    outbox.put(HeaderFraming.frame(LARGE), answers=False)
    assert not outbox.over and not seen
    outbox.put(HeaderFraming.frame(LARGE))
    assert outbox.over and seen == [True]
    peer.room = 10**9
    outbox.flush()
    assert not outbox.over and not outbox.size


def test_parts_that_the_peer_takes_at_once_are_not_too_much() -> None:
    seen: list[bool] = []
    outbox = Outbox(Peer(10**9).send, max_bytes=1_000, on_over=lambda: seen.append(True))
    outbox.put(HeaderFraming.frame(LARGE))
    assert not (outbox.over or outbox.size or seen)


def test_a_peer_that_is_gone_loses_all_parts() -> None:
    def send(data: bytes | memoryview) -> int:
        memoryview(data)
        raise BrokenPipeError

    outbox = Outbox(send, max_bytes=1_000)
    outbox.put(HeaderFraming.frame(LARGE))
    assert outbox.lost and not outbox.size and not outbox.over


@pytest.fixture
def channel() -> Iterator[Channel]:
    found = Channel(*os.pipe())
    yield found
    found.close()


def test_inside_a_large_body_the_pipe_holds_more_and_more_is_read_at_once(channel: Channel) -> None:
    before = fcntl.fcntl(channel.read_fd, fcntl.F_GETPIPE_SZ)
    channel.send(b"x" * 200_000)
    channel.expect(bulk=True)
    assert fcntl.fcntl(channel.read_fd, fcntl.F_GETPIPE_SZ) in (before, BULK_SIZE)
    channel.send(b"x" * 200_000)
    assert len(channel.receive()) >= before
    channel.expect(bulk=False)
    channel.send(b"x" * 200_000)
    assert len(channel.receive()) == READ_SIZE


def test_a_channel_that_is_no_pipe_expects_bulk_all_the_same() -> None:
    import socket

    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel.over(ours)
        channel.expect(bulk=True)
        theirs.sendall(b"x" * 100_000)
        assert len(channel.receive()) > 0
        channel.close()
