"""Links that carry whole messages: the transport keeps their boundaries, as WebSocket does.

A `MessageChannel` is for a host what a `Channel` is, without descriptors. What the transport
receives it hands in by `deliver`; what is to be sent goes to `transmit`. Everything happens on the
thread of one event loop.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

MAX_UNREAD = 64
"""Messages that one end of a pair may have sent before the other has read them."""


class MessageChannel:
    """One end of a link of messages."""

    is_file = False

    def __init__(self, transmit: Callable[[bytes], bool]) -> None:
        """`transmit` sends one message; it returns False if the transport cannot take it now.

        It raises `BrokenPipeError` if no one will take it any more.
        """
        self._transmit = transmit
        self._unread: deque[bytes] = deque()
        self._ended = self._closed = False
        self._loop: Any = None
        self._on_readable: Callable[[], object] | None = None
        self._on_writable: Callable[[], object] | None = None
        self.on_close: Callable[[], object] = lambda: None
        """Called once, when our host closes the link."""
        self.on_read: Callable[[], object] = lambda: None
        """Called when our host has read a message."""

    # For the transport.

    @property
    def closed(self) -> bool:
        """Whether our host has closed the link."""
        return self._closed

    @property
    def unread(self) -> int:
        """How many messages our host has not read: backpressure for the sender."""
        return len(self._unread)

    def deliver(self, message: bytes) -> None:
        """Take a message that came."""
        if not self._closed:
            self._unread.append(message or b" ")  # an empty one is no JSON; b"" is the end
            self._call_reader()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._call_reader()

    def resume_sending(self) -> None:
        """The transport takes messages again."""
        if self._on_writable is not None:
            self._loop.call_soon(self._write_again)

    # For the host.

    def send(self, data: bytes | memoryview) -> int:
        """Send one message, or raise `BlockingIOError`."""
        if self._closed:
            raise BrokenPipeError
        if not self._transmit(bytes(data)):
            raise BlockingIOError
        return len(data)

    def receive(self) -> bytes:
        """Take the oldest message; b"" at the end; `BlockingIOError` if there is none yet."""
        if not self._unread:
            if self._ended:
                return b""
            raise BlockingIOError
        message = self._unread.popleft()
        self.on_read()
        self._call_reader()
        return message

    @property
    def has_ended(self) -> bool:
        """Whether everything was read and nothing more can come."""
        return self._ended and not self._unread

    def has_input(self) -> bool:
        """Whether a message, or the end, is there to be read."""
        return bool(self._unread) or self._ended

    def expect(self, *, bulk: bool) -> None:
        """Prepare for nothing: messages come whole."""

    def watch_reading(self, loop: Any, callback: Callable[[], object] | None) -> None:
        """Call back when there is something to read; None ends that."""
        self._loop, self._on_readable = loop, callback
        self._call_reader()

    def watch_writing(self, loop: Any, callback: Callable[[], object] | None) -> None:
        """Call back when the transport takes messages again; None ends that."""
        self._loop, self._on_writable = loop, callback

    def close(self) -> None:
        """Send and receive nothing more; idempotent."""
        if not self._closed:
            self._closed = True
            self._on_readable = self._on_writable = None
            self._unread.clear()
            self.on_close()

    def _call_reader(self) -> None:
        if self._on_readable is not None and self.has_input():
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        # Several calls may be on their way for one message.
        if self._on_readable is not None and self.has_input():
            self._on_readable()

    def _write_again(self) -> None:
        if self._on_writable is not None:
            self._on_writable()


def message_pair(max_unread: int = MAX_UNREAD) -> tuple[MessageChannel, MessageChannel]:
    """Make the two ends of a link of messages in memory; both are used on one event loop."""

    def transmit_to(find: Callable[[], MessageChannel]) -> Callable[[bytes], bool]:
        def transmit(message: bytes) -> bool:
            other = find()
            if other.closed:
                raise BrokenPipeError
            if other.unread >= max_unread:
                return False
            other.deliver(message)
            return True

        return transmit

    first = MessageChannel(transmit_to(lambda: second))
    second = MessageChannel(transmit_to(lambda: first))

    def part_from(other: MessageChannel) -> None:
        other.end()
        other.resume_sending()  # so that it sees that no one takes what it keeps

    for one, other in ((first, second), (second, first)):
        one.on_close = partial(part_from, other)
        one.on_read = other.resume_sending
    return first, second
