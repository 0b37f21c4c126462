"""Unix and TCP sockets: connecting to them, listening on them.

A unix socket is created private (0600, by the umask: a chmod after would leave a moment in which
anybody may connect), in a directory where no one else can put another in its place. A TCP socket is
for this machine alone unless the caller says otherwise.
"""

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator

from duet_rpc.errors import ConnectFailed, UsageError
from duet_rpc.transports.address import TcpTarget
from duet_rpc.transports.channel import Channel

BACKLOG = 1024
"""Connections that wait to be accepted; the kernel cuts it to net.core.somaxconn."""

_MAX_PATH = 107
"""What the kernel has room for, in bytes."""
_LOCK_PATIENCE = 1.0


# Connecting.


def connect_unix(path: str, timeout: float | None) -> Channel:
    """Connect to a unix socket; blocks for at most `timeout` seconds. Raises `ConnectFailed`."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _check_length(path)
        _connect_patiently(connected, path, timeout)
        return Channel.over(connected)
    except (OSError, UsageError) as error:
        connected.close()
        raise ConnectFailed(f"cannot connect to unix:{path}: {_reason(error)}") from error


def _connect_patiently(connecting: socket.socket, path: str, timeout: float | None) -> None:
    """Wait for a place in the server's backlog, which the kernel does only without a timeout."""
    if timeout is None:
        connecting.connect(path)
        return
    connecting.setblocking(False)
    until = time.monotonic() + timeout
    while True:
        try:
            connecting.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError from None
            time.sleep(0.005)


def connect_tcp(host: str, port: int, timeout: float | None) -> Channel:
    """Connect to a TCP port; blocks for at most `timeout` seconds. Raises `ConnectFailed`."""
    target = TcpTarget(host, port)
    try:
        connected = socket.create_connection((host, port), timeout)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConnectFailed(f"cannot connect to {target}: {_reason(error)}") from error
    try:
        # A port of ours that nothing listens on can be connected to itself.
        if connected.getsockname() == connected.getpeername():
            raise OSError(errno.ECONNREFUSED, "nothing listens there")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Channel.over(connected)
    except OSError as error:
        connected.close()
        raise ConnectFailed(f"cannot connect to {target}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, FileNotFoundError):
        return "there is no such socket; is the server running?"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


# Listening.


def listen_tcp(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """Listen on a TCP port (0: a free one) of a loopback address, or of any with `allow_remote`."""
    target = TcpTarget(host, port)
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(f"cannot listen on {target}: {_reason(error)}") from error
    family, _, _, _, address = found[0]
    if not allow_remote and not is_loopback(str(address[0])):
        raise UsageError(
            f"{target} can be reached from other machines, and serves every client;"
            " listen on 127.0.0.1, or say allow_remote=True"
        )
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen on {target}: {error.strerror}") from error
    return listening


def is_loopback(address: str) -> bool:
    """Tell whether an IP address can only be reached from this machine."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return ip.is_loopback or (mapped is not None and mapped.is_loopback)


def listen_unix(path: str) -> socket.socket:
    """Listen on a unix socket that only we may connect to.

    The socket of a server that has died is replaced; one that is served, or is somebody else's, is
    refused with a `UsageError`. The caller closes it, and calls `remove_unix`.
    """
    _check_length(path)
    directory = os.path.dirname(path) or "."
    _check_directory(directory)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _locked(directory):
            _make_room(path)
            mask = os.umask(0o177)
            try:
                listening.bind(path)
            finally:
                os.umask(mask)
            listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen on unix:{path}: {error.strerror}") from error
    except UsageError:
        listening.close()
        raise
    return listening


def file_of(path: str) -> tuple[int, int] | None:
    """Tell which file a path names now; another one may take its place later."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def remove_unix(path: str, file: tuple[int, int] | None) -> None:
    """Remove the socket that was `file` when we made it; never one that has taken its place.

    To be called before the socket is closed: only as long is its file's number its own.
    """
    with _locked(os.path.dirname(path) or "."):
        if file is not None and file_of(path) == file:
            with contextlib.suppress(OSError):
                os.unlink(path)


def peer_uid(connected: socket.socket) -> int:
    """Ask the kernel who is at the other end of a unix socket."""
    _, uid, _ = struct.unpack(
        "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return int(uid)


def _check_length(path: str) -> None:
    length = len(os.fsencode(path))
    if not 0 < length <= _MAX_PATH or "\0" in path:
        raise UsageError(
            f"the path of a unix socket has 1 to {_MAX_PATH} bytes, and this one {length}"
            if "\0" not in path
            else "the path of a unix socket holds no zero byte"
        )


def _check_directory(directory: str) -> None:
    """Refuse a directory where another user could put a socket in the place of ours."""
    try:
        status = os.stat(directory)
    except OSError as error:
        raise UsageError(f"cannot listen in {directory}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"cannot listen in {directory}: it is no directory")
    if status.st_uid not in (0, os.geteuid()):
        raise UsageError(f"cannot listen in {directory}: it belongs to another user")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise UsageError(
            f"cannot listen in {directory}: other users may write there (chmod go-w would help)"
        )


def _make_room(path: str) -> None:
    """Remove the socket of a server of ours that has died; refuse anything else at this path."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise UsageError(f"cannot listen on {path}: there is a file that is no socket")
    if status.st_uid != os.geteuid():
        raise UsageError(f"cannot listen on {path}: the socket there belongs to another user")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            pass  # a full backlog, for one: somebody is there
    raise UsageError(f"cannot listen on {path}: a server is already listening there")


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Keep servers that start at the same moment from removing each other's new socket.

    The directory itself is locked, so nothing is left behind. Anybody who may read it could hold
    the lock for ever, so we wait a moment and no longer.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        until = time.monotonic() + _LOCK_PATIENCE
        while time.monotonic() < until:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.005)
        yield
    finally:
        os.close(fd)
