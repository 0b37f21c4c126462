"""A wire between two ends that does what networks and pipes do on a bad day.

    wire = Wire()
    async with connect(service, wire=wire) as client:
        wire.to_client.rule = Faults(seed=1, drop=0.1, delay=(0.0, 2.0))
        wire.to_server.stop()

A rule sees each message as one frame and says what is delivered instead, and when: nothing, the
same twice, something else before it, each after a delay of its own. That is enough to drop, repeat,
reorder and garble; `stop` and `cut` do what a rule about messages cannot.
"""

import asyncio
import random
import socket
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from duet_rpc.wire.framing import Fault
from duet_rpc.wire.framing import framing as make_framing

Delivery: TypeAlias = tuple[float, bytes]
"""How many seconds later, and what."""
Rule: TypeAlias = Callable[[bytes], Iterable[Delivery]]

_FULL = 256 * 1024
_READ_SIZE = 64 * 1024


class Faults:
    """A rule that fails at random, the same way for the same seed.

    `drop`, `duplicate` and `garbage` are the shares of messages that are lost, come twice, or have
    noise before them; `delay` is the range of seconds from which each delivery takes its own, so
    that messages overtake one another.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        drop: float = 0.0,
        duplicate: float = 0.0,
        garbage: float = 0.0,
        delay: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._random = random.Random(seed)
        self._drop = drop
        self._duplicate = duplicate
        self._garbage = garbage
        self._delay = delay

    def __call__(self, frame: bytes) -> Iterable[Delivery]:
        """Say what becomes of a message."""
        chance = self._random.random
        if chance() < self._drop:
            return
        if chance() < self._garbage:
            frame = self._random.randbytes(self._random.randint(1, 40)).hex().encode() + frame
        yield self._later(), frame
        if chance() < self._duplicate:
            yield self._later(), frame

    def _later(self) -> float:
        return self._random.uniform(*self._delay)


def pass_on(frame: bytes) -> Iterable[Delivery]:
    """Deliver every message, at once and as it is: the rule of a wire that works."""
    return [(0.0, frame)]


class Way:
    """One direction of a wire. Its rule can be changed at any time."""

    def __init__(self) -> None:
        self.rule: Rule = pass_on
        self.messages = 0
        """How many have come."""
        self.delivered = 0
        """Bytes that were passed on."""
        self._cut_at: int | None = None
        self._stopped = False
        self._source: _Joint | None = None

    def stop(self) -> None:
        """Read nothing more from the sender, so that it comes to a stand when buffers are full."""
        self._stopped = True
        self._arrange()

    def resume(self) -> None:
        """Read again."""
        self._stopped = False
        self._arrange()

    def cut(self, after: int = 0) -> None:
        """Cut the wire, both ways, when so many more bytes have been passed on in this one."""
        self._cut_at = self.delivered + after
        if after == 0 and self._source is not None:
            self._source.cut()

    def inject(self, data: bytes) -> None:
        """Deliver something that no one sent."""
        if self._source is not None:
            self._source.pass_on(data)

    def _arrange(self) -> None:
        if self._source is not None:
            self._source.arrange()


class Wire:
    """Joins one connection after the other; both ways pass everything on unless set otherwise."""

    def __init__(self) -> None:
        self.to_server: Way = Way()
        self.to_client: Way = Way()
        self._joints: list[_Joint] = []

    def join(
        self, client: socket.socket, framing: Literal["lsp", "ndjson"] = "lsp"
    ) -> socket.socket:
        """Put the wire between a socket and the one that is returned; on the running loop."""
        far, near = socket.socketpair()
        forth = _Joint(client, near, self.to_server, framing)
        back = _Joint(near, client, self.to_client, framing)
        forth.other, back.other = back, forth
        self._joints += [forth, back]
        forth.arrange()
        back.arrange()
        return far

    def close(self) -> None:
        """Cut every connection."""
        for joint in self._joints:
            joint.cut()


class _Joint:
    """Carries the bytes of one connection in one direction."""

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        way: Way,
        framing: Literal["lsp", "ndjson"],
    ) -> None:
        self.other = self
        self._source = source
        self._target = target
        self._way = way
        self._framing = make_framing(framing, max_message_bytes=1 << 40)
        self._kept = bytearray()
        self._late = 0
        self._reading = self._writing = self._ended = self._closed = False
        self._loop = asyncio.get_running_loop()
        source.setblocking(False)
        way._source = self
        if way._cut_at is not None:
            way._cut_at = None  # what was cut is another connection

    def arrange(self) -> None:
        """Read, or not; write, or not."""
        if self._closed:
            return
        reading = not (self._way._stopped or self._ended or len(self._kept) > _FULL)
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._loop.add_reader(self._source.fileno(), self._readable)
            else:
                self._loop.remove_reader(self._source.fileno())
        writing = bool(self._kept)
        if writing != self._writing:
            self._writing = writing
            if writing:
                self._loop.add_writer(self._target.fileno(), self._writable)
            else:
                self._loop.remove_writer(self._target.fileno())
        if self._ended and not self._kept and not self._late:
            try:
                self._target.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            if self.other._ended:
                self.cut()

    def _readable(self) -> None:
        try:
            data = self._source.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended = True
        for body in self._framing.feed(data):
            if isinstance(body, Fault):
                continue
            self._way.messages += 1
            for delay, frame in self._way.rule(self._framing.encode(bytes(body))):
                if delay > 0:
                    self._late += 1
                    self._loop.call_later(delay, self._come_late, frame)
                else:
                    self.pass_on(frame)
        self.arrange()

    def _come_late(self, frame: bytes) -> None:
        self._late -= 1
        self.pass_on(frame)

    def pass_on(self, data: bytes) -> None:
        """Deliver bytes, up to where the wire is cut."""
        if self._closed:
            return
        way = self._way
        if way._cut_at is not None:
            data = data[: way._cut_at - way.delivered]
        way.delivered += len(data)
        self._kept += data
        self._writable()
        if way._cut_at is not None and way.delivered >= way._cut_at:
            self.cut()

    def _writable(self) -> None:
        try:
            sent = self._target.send(self._kept) if self._kept else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self.cut()
            return
        del self._kept[:sent]
        self.arrange()

    def cut(self) -> None:
        """Close both ends, and the other direction with this one; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._reading:
            self._loop.remove_reader(self._source.fileno())
        if self._writing:
            self._loop.remove_writer(self._target.fileno())
        self.other.cut()
        self._source.close()
