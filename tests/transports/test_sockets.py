"""Addresses as text, connecting, and listening in a place that is ours."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from duet_rpc.errors import ConnectFailed, UsageError
from duet_rpc.transports.address import TcpTarget, UnixTarget, parse_target
from duet_rpc.transports.sockets import (
    connect_tcp,
    connect_unix,
    file_of,
    is_loopback,
    listen_tcp,
    listen_unix,
    peer_uid,
    remove_unix,
)
from tests.transports.lines import PATIENCE, descriptors

# Addresses.


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("unix:notes.sock", UnixTarget("notes.sock")),
        ("unix:./a/b", UnixTarget("./a/b")),
        ("unix:/run/a", UnixTarget("/run/a")),
        ("unix:///run/a", UnixTarget("/run/a")),
        ("tcp://127.0.0.1:80", TcpTarget("127.0.0.1", 80)),
        ("tcp://localhost:8765/", TcpTarget("localhost", 8765)),
        ("tcp://[::1]:80", TcpTarget("::1", 80)),
    ],
)
def test_an_address_is_read(text: str, target: UnixTarget | TcpTarget) -> None:
    assert parse_target(text) == target
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix",
        "unix:",
        "unix://",
        "unix://host/path",
        "tcp:",
        "tcp://",
        "tcp://host",
        "tcp://host:",
        "tcp://:80",
        "tcp://::1:80",
        "tcp://[127.0.0.1]:80",
        "tcp://host:65536",
        "tcp://host:-1",
        "tcp://host:٣",
        "tcp://host/path:80",
        "tcp:host:80",
        "http://host:80",
        "host:80",
    ],
)
def test_what_is_no_address_says_what_is_one(text: str) -> None:
    with pytest.raises(UsageError, match=r"use unix:PATH, unix:///PATH or tcp://HOST:PORT"):
        parse_target(text)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("example.org", False),
    ],
)
def test_loopback_is_what_only_this_machine_can_reach(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


# Connecting.


def test_a_tcp_connection_sends_small_messages_at_once() -> None:
    with listen_tcp("127.0.0.1", 0) as listening:
        channel = connect_tcp("127.0.0.1", listening.getsockname()[1], PATIENCE)
        with socket.socket(fileno=os.dup(channel.write_fd)) as same:
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert same.getblocking()
        channel.close()
        channel.close()


def test_a_refused_connection_says_so(tmp_path: Path) -> None:
    before = descriptors()
    with listen_tcp("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(ConnectFailed, match=f"tcp://127.0.0.1:{port}: nothing listens there"):
        connect_tcp("127.0.0.1", port, PATIENCE)
    with pytest.raises(ConnectFailed, match="no such socket; is the server running"):
        connect_unix(str(tmp_path / "nothing"), PATIENCE)
    listen_unix(str(tmp_path / "dead")).close()
    with pytest.raises(ConnectFailed, match="nothing listens there"):
        connect_unix(str(tmp_path / "dead"), PATIENCE)
    with pytest.raises(ConnectFailed, match="1 to 107 bytes, and this one"):
        connect_unix("x" * 108, PATIENCE)
    with pytest.raises(ConnectFailed, match=r"cannot connect to tcp://127\.0\.0\.1:99999"):
        connect_tcp("127.0.0.1", 99999, PATIENCE)
    assert descriptors() == before


def test_a_server_that_does_not_accept_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(tmp_path / "busy"))
        busy.listen(0)
        waiting = []
        with pytest.raises(ConnectFailed, match="in time"):
            for _ in range(10):
                waiting.append(connect_unix(str(tmp_path / "busy"), 0.1))
        for channel in waiting:
            channel.close()


# Listening.


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_a_unix_socket_is_private_from_its_first_moment(mask: int, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    before = os.umask(mask)
    try:
        listen_unix(path).close()
        assert os.umask(mask) == mask, "the mask is what it was"
    finally:
        os.umask(before)
    mode = os.lstat(path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_the_peer_of_a_unix_socket_is_known(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with listen_unix(path) as listening:
        channel = connect_unix(path, PATIENCE)
        listening.setblocking(True)
        peer, _ = listening.accept()
        with peer:
            assert peer_uid(peer) == os.getuid()
        channel.close()


def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listen_unix(path).close()
    with listen_unix(path):
        connect_unix(path, PATIENCE).close()


def test_the_socket_of_a_live_server_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with listen_unix(path):
        first = file_of(path)
        with pytest.raises(UsageError, match="a server is already listening there"):
            listen_unix(path)
        assert file_of(path) == first


def test_of_many_that_start_at_once_one_gets_the_place(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listen_unix(path).close()
    together = threading.Barrier(8)
    got: list[socket.socket] = []
    refused: list[UsageError] = []

    def start() -> None:
        together.wait()
        try:
            got.append(listen_unix(path))
        except UsageError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 7)
    connect_unix(path, PATIENCE).close()
    got[0].close()


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(UsageError, match="there is a file that is no socket"):
        listen_unix(str(path))
    assert path.read_text() == "precious"


def test_a_link_to_a_socket_is_no_socket(tmp_path: Path) -> None:
    listen_unix(str(tmp_path / "theirs")).close()
    (tmp_path / "s").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="there is a file that is no socket"):
        listen_unix(str(tmp_path / "s"))


def test_what_belongs_to_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "s")
    listen_unix(path).close()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        listen_unix(path)


@pytest.mark.parametrize(("mode", "taken"), [(0o700, True), (0o1777, True), (0o777, False)])
def test_a_directory_where_others_may_write_is_refused(
    mode: int, taken: bool, tmp_path: Path
) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    directory.chmod(mode)
    if taken:
        listen_unix(str(directory / "s")).close()
    else:
        with pytest.raises(UsageError, match="other users may write there"):
            listen_unix(str(directory / "s"))


def test_a_directory_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="No such file or directory"):
        listen_unix(str(tmp_path / "nowhere" / "s"))
    with pytest.raises(UsageError, match="it is no directory"):
        listen_unix(str(tmp_path / "file" / "s"))


@pytest.mark.parametrize("path", ["", "x" * 108, "a\0b"])
def test_a_path_that_does_not_fit_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="the path of a unix socket"):
        listen_unix(path)


def test_only_our_own_socket_is_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with listen_unix(path):
        ours = file_of(path)
        os.unlink(path)
        with listen_unix(path):
            remove_unix(path, ours)
            assert os.path.exists(path), "another has taken its place"
            remove_unix(path, file_of(path))
            assert not os.path.exists(path)
            remove_unix(path, ours)
            assert file_of(path) is None


def test_tcp_stays_on_this_machine_unless_told_otherwise() -> None:
    for host in ("0.0.0.0", "::", "", "192.0.2.1"):
        with pytest.raises(UsageError, match="can be reached from other machines"):
            listen_tcp(host, 0)
    with listen_tcp("0.0.0.0", 0, allow_remote=True) as listening:
        assert listening.getsockname()[0] == "0.0.0.0"
    with listen_tcp("localhost", 0) as listening:
        assert is_loopback(listening.getsockname()[0])


def test_a_port_in_use_is_refused() -> None:
    with listen_tcp("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}: Address already in use"):
            listen_tcp("127.0.0.1", port)


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        listen_tcp("no.such.host.invalid", 0)
