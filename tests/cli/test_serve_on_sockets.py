"""`duet-rpc serve --unix` and `--tcp`: a service for many clients, ended by a signal."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duet_rpc.blocking import Client
from duet_rpc.errors import ConnectionLost, Overloaded
from tests.cli.servers import OURS
from tests.cli.shell import COMMAND, PATIENCE, run, shell_environment


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a service that does not run by itself."""
    (tmp_path / "sums.py").write_text(OURS)
    return tmp_path


@contextmanager
def serving(place: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Serve `sums.py`; give the process and the address that its log tells."""
    log = place / "log"
    with open(log, "wb") as sink:
        server = subprocess.Popen(
            [COMMAND, "serve", "sums.py", *options],
            cwd=place,
            stdin=subprocess.DEVNULL,
            stderr=sink,
            env=shell_environment(),
        )
    try:
        until = time.monotonic() + PATIENCE
        while (told := re.search(r"listening address=(\S+)", log.read_text())) is None:
            assert server.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.02)
        yield server, told[1]
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("options", [("--unix", "sums.sock"), ("--tcp", "127.0.0.1:0")])
def test_a_service_is_called_over_a_socket_and_ends_by_a_signal(
    place: Path, options: tuple[str, str]
) -> None:
    with serving(place, *options) as (server, address):
        for _ in range(2):
            assert run("call", address, "add", "a:=20", "b:=22", cwd=place).out == "42\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    assert not (place / "sums.sock").exists()


def test_connections_beyond_the_most_are_refused(place: Path) -> None:
    options = ("--unix", str(place / "sums.sock"), "--max-connections", "1")
    address = f"unix:{place}/sums.sock"
    with serving(place, *options), Client.connect(address) as first:
        assert first.call("add", [20, 22]) == 42
        with Client.connect(address) as second, pytest.raises((Overloaded, ConnectionLost)):
            second.call("add", [20, 22])
        assert first.call("add", [20, 22]) == 42


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--unix", "a.sock", "--tcp", "127.0.0.1:0"), "choose one of"),
        (("--max-connections", "5"), "--max-connections is for sockets"),
        (("--unix", "a.sock", "--max-connections", "0"), "--max-connections"),
        (("--unix", "a.sock", "--reload"), "--reload is for stdin and stdout"),
        (("--unix", "a.sock", "--policy", "production"), "give one with --store"),
        (("--tcp", "8765"), "HOST:PORT"),
        (("--tcp", "127.0.0.1:99999"), "HOST:PORT"),
        (("--tcp", "0.0.0.0:0"), "--allow-remote"),
        (("--unix", "no/such/place/a.sock"), "no/such/place"),
    ],
)
def test_what_cannot_be_listened_on_is_said(
    place: Path, options: tuple[str, ...], told: str
) -> None:
    ran = run("serve", "sums.py", *options, cwd=place)
    assert (ran.code, told in ran.err) == (2, True), ran.err
