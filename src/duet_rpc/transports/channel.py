"""A pair of file descriptors that carries one connection, and writing that never blocks.

Pipes, sockets, terminals and files all come down to this. Reading happens when `poll` says so, so
it needs no flag. Writing must not block: a peer that does not read would take our reader with it,
and then its cancellations could not reach us. But O_NONBLOCK belongs to the open file description,
which stdout may share with a shell or a terminal; so a pipe is opened anew, and a socket is asked
call by call.
"""

import os
import select
import stat
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from duet_rpc.wire.large import keep_memory

if TYPE_CHECKING:
    import socket
    from asyncio import AbstractEventLoop

Callback: TypeAlias = Callable[[], object]

READ_SIZE = 64 * 1024
"""Bytes asked for at once. Larger reads cost a mapping and unmapping of memory each time."""
BULK_SIZE = 256 * 1024
"""Bytes asked for at once inside a large body, and what its pipe is made to hold: then the two ends
work side by side instead of waking each other for every 64 KiB."""

_PIPE_BUF = 4096
_POLLRDHUP = 0x2000


class Carrier(Protocol):
    """What a host reads and writes: descriptors, or a link that carries whole messages."""

    @property
    def is_file(self) -> bool:
        """Whether it is always ready, and event loops refuse it."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether everything was read and nothing more can come."""
        ...

    @property
    def send(self) -> "Send":
        """Writes what can be written now, and returns how much that was."""
        ...

    def receive(self) -> bytes:
        """Read what is there; b"" at the end."""
        ...

    def has_input(self) -> bool:
        """Whether something, or the end, is there to be read."""
        ...

    def expect(self, *, bulk: bool) -> None:
        """Prepare for the rest of a large body, or for messages of the usual size again."""
        ...

    def watch_reading(self, loop: "AbstractEventLoop", callback: Callback | None) -> None:
        """Have an event loop call back when there is something to read; None ends that."""
        ...

    def watch_writing(self, loop: "AbstractEventLoop", callback: Callback | None) -> None:
        """Have an event loop call back when something can be sent; None ends that."""
        ...

    def close(self) -> None:
        """Close both directions; idempotent."""
        ...


class Channel:
    """Two descriptors, owned: closing the channel closes them."""

    def __init__(self, read_fd: int, write_fd: int, *, own: "socket.socket | None" = None) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._read_size = READ_SIZE
        self._widened = False
        self.keeps_memory = False
        """Whether the memory of large messages is kept for the next ones: where the process is ours
        and one thread does everything, for each thread would keep its own."""
        kind = os.fstat(read_fd).st_mode
        self.is_file: bool = stat.S_ISREG(kind) or (stat.S_ISCHR(kind) and not os.isatty(read_fd))
        """A regular file, or the null device, is always ready, and event loops refuse it."""
        self.send: Send
        self._closes: Callable[[], object]
        if own is None:
            self.send, self._closes = sender(write_fd)
        else:
            self.send, self._closes = _transmitter(own), own.detach
        self._closed = False

    @classmethod
    def over(cls, connected: "socket.socket") -> "Channel":
        """Carry a connection over a socket, which the channel owns from now on."""
        connected.settimeout(None)
        return cls(connected.fileno(), connected.fileno(), own=connected)

    def receive(self) -> bytes:
        """Read what is there; b"" at the end. Blocks unless the descriptor is ready."""
        try:
            return os.read(self.read_fd, self._read_size)
        except BlockingIOError:
            raise
        except OSError:  # a reset socket or a terminal that went away is an end like any other
            return b""

    @property
    def is_hung_up(self) -> bool:
        """Whether nothing more can come, beside what was not read yet."""
        poll = select.poll()
        poll.register(self.read_fd, _POLLRDHUP)
        return not self.is_file and bool(poll.poll(0))

    @property
    def has_ended(self) -> bool:
        """Whether everything was read and nothing more can come; for those who do not read now."""
        import fcntl  # both here: only where the peer does not read
        import termios

        if not self.is_hung_up:
            return False
        try:
            unread = fcntl.ioctl(self.read_fd, termios.FIONREAD, bytes(4))
        except OSError:
            return False  # it was closed just now
        return not any(unread)

    def expect(self, *, bulk: bool) -> None:
        """Prepare for the rest of a large body, or for messages of the usual size again."""
        self._read_size = BULK_SIZE if bulk else READ_SIZE
        if bulk and not self._widened:
            self._widened = True
            _widen(self.read_fd)
            if self.keeps_memory:
                keep_memory()

    def watch_reading(self, loop: "AbstractEventLoop", callback: Callback | None) -> None:
        """Have an event loop call back when there is something to read; None ends that."""
        if callback is None:
            loop.remove_reader(self.read_fd)
        else:
            loop.add_reader(self.read_fd, callback)

    def watch_writing(self, loop: "AbstractEventLoop", callback: Callback | None) -> None:
        """Have an event loop call back when something can be sent; None ends that."""
        if callback is None:
            loop.remove_writer(self.write_fd)
        else:
            loop.add_writer(self.write_fd, callback)

    def has_input(self) -> bool:
        """Whether something, or the end, is there to be read."""
        poll = select.poll()
        poll.register(self.read_fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close both directions; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._closes()
        os.close(self.write_fd)
        if self.read_fd != self.write_fd:
            os.close(self.read_fd)


def _widen(pipe: int) -> None:
    """Have a pipe hold more, if it is one and its user may still have larger ones."""
    import fcntl  # a cold start's cost, and most messages are small

    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, BULK_SIZE)
    except (AttributeError, OSError):
        pass  # a socket, a file, another system


Send = Callable[[bytes | memoryview], int]
"""Writes what can be written now and returns how much that was. If nothing could be, it returns 0
or raises `BlockingIOError`."""


def sender(fd: int) -> tuple[Send, Callable[[], None]]:
    """Find the way to write to a descriptor without ever blocking."""
    kind = os.fstat(fd).st_mode
    if stat.S_ISSOCK(kind):
        return _socket_sender(fd)
    if stat.S_ISREG(kind):
        return (lambda data: os.write(fd, data)), _nothing
    if not os.get_blocking(fd):
        return _nonblocking_sender(fd), _nothing
    try:
        # The same pipe or terminal under a description of its own, whose flags no one shares.
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return _careful_sender(fd), _nothing
    return _nonblocking_sender(own), lambda: os.close(own)


def _nothing() -> None:
    pass


def _nonblocking_sender(fd: int) -> Send:
    return partial(os.write, fd)  # no frame of Python's own: every small answer passes here


def _socket_sender(fd: int) -> tuple[Send, Callable[[], None]]:
    import socket  # a cold start's cost, and most are started with pipes

    own = socket.socket(fileno=os.dup(fd))
    return _transmitter(own), own.close


def _transmitter(own: "socket.socket") -> Send:
    import socket

    transmit = own.send
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

    def send(data: bytes | memoryview) -> int:
        try:
            return transmit(data, flags)
        except BlockingIOError:
            return 0

    return send


def _careful_sender(fd: int) -> Send:
    """Where the descriptor must stay blocking: a ready pipe takes this many bytes at once."""
    import select

    poll = select.poll()
    poll.register(fd, select.POLLOUT)

    def send(data: bytes | memoryview) -> int:
        sent = 0
        while sent < len(data) and poll.poll(0):
            sent += os.write(fd, data[sent : sent + _PIPE_BUF])
        return sent

    return send
