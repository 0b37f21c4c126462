"""Stdin and stdout, kept for frames alone.

Stdout belongs to frames. `take_stdio` keeps private duplicates of descriptors 0 and 1 and points 1
at stderr and 0 at the null device, so that a `print`, a C library or a child process can neither
corrupt a frame nor eat a request.
"""

import io
import os
import sys
from typing import Any

from duet_rpc.transports.channel import Channel

_taken: list[Channel] = []


def take_stdio() -> Channel:
    """Keep stdin and stdout for frames alone; everybody else gets the null device and stderr.

    The second call gives what the first one took: a service is imported after the descriptors are
    safe, and served later.
    """
    if _taken:
        return _taken[0]
    for fd in (0, 1, 2):  # a closed one would be given to the next file that somebody opens
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr = _forgiving_stderr()
    _taken.append(Channel(read_fd, write_fd))
    return _taken[0]


class _Forgiving(io.FileIO):
    """A file that no one has to read: what cannot be written is lost, and no handler fails."""

    def write(self, data: Any) -> int:
        """Write as much as one can."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _forgiving_stderr() -> io.TextIOWrapper:
    raw = _Forgiving(2, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True
    )


def return_stdio() -> None:
    """Make descriptors 0 and 1 what they were, for the program that this process becomes."""
    channel = _taken.pop()
    os.dup2(channel.read_fd, 0)
    os.dup2(channel.write_fd, 1)
