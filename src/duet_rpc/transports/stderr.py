"""What a child says on stderr: read as it comes, its last lines kept for the error report.

A child whose stderr no one reads stops at 64 KiB. One thread reads, keeps a bounded tail, and hands
whole lines on. It ends with the stream; or when it is asked to, for a grandchild that left the
process group may hold the stream open for ever.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable

MAX_LINES = 40
MAX_BYTES = 8 * 1024
_READ_SIZE = 64 * 1024


class StderrTail:
    """Drains a descriptor, which it owns, on a thread of its own."""

    def __init__(self, fd: int, on_line: Callable[[str], None] | None) -> None:
        self._fd = fd
        self._on_line = on_line
        self._lines: deque[bytes] = deque(maxlen=MAX_LINES)
        self._part = b""
        self._lock = threading.Lock()
        self._drained = threading.Event()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._drain, name="duet-rpc stderr", daemon=True)
        self._thread.start()

    def text(self, timeout: float) -> str:
        """Return the last lines; waits a moment for the stream to end, so that none is missing."""
        self._drained.wait(timeout)
        with self._lock:
            kept = b"\n".join([*self._lines, self._part] if self._part else self._lines)
        return kept[-MAX_BYTES:].decode("utf-8", "replace")

    def close(self, timeout: float) -> None:
        """Wait for the end of the stream, or stop before it; to be called once."""
        if not self._drained.wait(timeout):
            os.eventfd_write(self._stop, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        os.close(self._stop)

    def _drain(self) -> None:
        poll = select.poll()
        for fd in (self._fd, self._stop):
            poll.register(fd, select.POLLIN)
        try:
            while self._fd in [fd for fd, _ in poll.poll()]:
                data = os.read(self._fd, _READ_SIZE)
                if not data:
                    break
                self._take(data)
            if self._part:
                self._say(self._part)
        finally:
            os.close(self._fd)
            self._drained.set()

    def _take(self, data: bytes) -> None:
        *lines, part = (self._part + data).split(b"\n")
        if len(part) > MAX_BYTES:  # no end of line in sight: it counts as one
            lines.append(part)
            part = b""
        with self._lock:
            self._part = part
            self._lines.extend(line[-MAX_BYTES:] for line in lines[-MAX_LINES:])
        for line in lines:
            self._say(line)

    def _say(self, line: bytes) -> None:
        if self._on_line is not None:
            try:
                self._on_line(line[:MAX_BYTES].decode("utf-8", "replace").rstrip("\r"))
            except Exception:
                self._on_line = None  # it would fail again; the child must go on being read
