"""Every way to end, in every state: exit code 0, everything answered, no torn frame.

How long it takes is not asserted tightly: on a loaded machine two seconds are no measure. But a
handler that never returns proves that the end is forced.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.process import (
    COMMAND,
    Process,
    environment,
    eventually,
    frames,
    notification,
    request,
    serve,
)
from tests.daemon.services import ASYNC, SYNC

WAYS: dict[str, Callable[[Process], None]] = {
    "shutdown request": lambda daemon: daemon.send(request("shutdown", id="end")),
    "shutdown notification": lambda daemon: daemon.send(notification("shutdown")),
    "end of input": lambda daemon: daemon.close_input(),
    "SIGINT": lambda daemon: daemon.signal(signal.SIGINT),
    "SIGTERM": lambda daemon: daemon.signal(signal.SIGTERM),
    "SIGHUP": lambda daemon: daemon.signal(signal.SIGHUP),
}
HOSTS = {
    "threads": (SYNC, "editor"),
    "loop, one at a time": (ASYNC, "editor"),
    "loop, many at a time": (ASYNC, "agent"),
}
GOODBYE = {"jsonrpc": "2.0", "id": "end", "result": {"message": "Shutting down gracefully"}}


def end_in_every_way(
    tmp_path: Path, host: str, state: Callable[[Process], object]
) -> dict[str, Process]:
    """Bring one daemon for each way into a state, end it, and wait for them all."""
    source, policy = HOSTS[host]
    daemons = {}
    with contextlib.ExitStack() as stack:
        for way in WAYS:
            daemons[way] = stack.enter_context(serve(tmp_path, source, "--policy", policy))
        for daemon in daemons.values():
            assert daemon.call("version")
            state(daemon)
        for way, end in WAYS.items():
            end(daemons[way])
        for way, daemon in daemons.items():
            assert daemon.wait() == 0, way
            assert frames(daemon.wire) == daemon.messages, way
    assert GOODBYE in daemons["shutdown request"].messages
    assert "why=shutdown" in daemons["shutdown notification"].log
    assert 'why="end of input"' in daemons["end of input"].log
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        assert f"why={name}" in daemons[name].log
    return daemons


@pytest.mark.parametrize("host", HOSTS)
def test_an_idle_daemon_ends(tmp_path: Path, host: str) -> None:
    daemons = end_in_every_way(tmp_path, host, lambda daemon: None)
    for way, daemon in daemons.items():
        assert len(daemon.messages) == (2 if way == "shutdown request" else 1), way
        assert "although" not in daemon.log


@pytest.mark.parametrize(
    ("host", "method", "sign"),
    [
        ("threads", "nap", "napping"),
        ("loop, one at a time", "wait", "waiting"),
        ("loop, many at a time", "nap", "napping"),
        ("loop, many at a time", "work", "working"),
    ],
)
def test_a_request_that_runs_is_answered(tmp_path: Path, host: str, method: str, sign: str) -> None:
    def state(daemon: Process) -> None:
        daemon.send(request(method, {"seconds": 0.3}, id="running"))
        daemon.wait_for_log(sign)

    for way, daemon in end_in_every_way(tmp_path, host, state).items():
        assert daemon.result("running") == "rested", way
        if host != "loop, many at a time" and way == "shutdown request":
            assert daemon.messages[-1] == GOODBYE


@pytest.mark.parametrize(
    ("host", "method", "sign"),
    [
        ("threads", "nap", "napping"),
        ("threads", "spin", "spinning"),
        ("loop, one at a time", "nap", "napping"),
        ("loop, many at a time", "spin", "spinning"),
        ("loop, many at a time", "wait", "waiting"),
        ("loop, many at a time", "work", "working"),
    ],
)
def test_a_request_that_never_ends_does_not_keep_the_daemon(
    tmp_path: Path, host: str, method: str, sign: str
) -> None:
    def state(daemon: Process) -> None:
        daemon.send(request(method, id="running"))
        daemon.wait_for_log(sign)

    for way, daemon in end_in_every_way(tmp_path, host, state).items():
        assert "ended although a handler is still running" in daemon.log, way
        assert not [message for message in daemon.messages if message.get("id") == "running"]


SHORT = """
import time
from collections.abc import AsyncIterator, Iterator
from duet_rpc import Service

service = Service()

@service.lifespan
{lifespan}
    yield
    print("closed")

@service.query
def nap() -> None:
    print("napping")
    time.sleep(0.04)
"""
LIFESPANS = {
    "threads": "def opened() -> Iterator[None]:",
    "loop": "async def opened() -> AsyncIterator[None]:",
}


@pytest.mark.clause("daemon-9", "lifespan-3")
@pytest.mark.parametrize("host", LIFESPANS)
def test_short_requests_one_after_the_other_do_not_keep_the_daemon(
    tmp_path: Path, host: str
) -> None:
    source = SHORT.format(lifespan=LIFESPANS[host])
    with serve(tmp_path, source, "--policy", "editor") as daemon:
        daemon.send(b"".join(request("nap", id=id) for id in range(100)))
        daemon.wait_for_log("napping")
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        assert sorted(message["id"] for message in daemon.messages) == list(range(100))
        assert daemon.error(99)["code"] == -32018
        assert "closed" in daemon.log and "although" not in daemon.log


def test_what_waits_behind_a_request_that_never_ends_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path, SYNC) as daemon:
        daemon.send(request("nap", id="running"))
        daemon.wait_for_log("napping")
        daemon.send(request("echo", ["a"], id="a") + request("echo", ["b"], id="b"))
        daemon.send(request("shutdown", id="end"))
        assert daemon.wait() == 0
        assert daemon.error("a")["code"] == daemon.error("b")["code"] == -32018
        assert daemon.answer("end") == GOODBYE
        frames(daemon.wire)


STILL_LOADING = """
import time
print("loading", flush=True)
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
"""


@pytest.mark.parametrize("way", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("where", [(), ("--unix", "a.sock")], ids=["stdio", "socket"])
def test_a_signal_ends_what_still_loads(tmp_path: Path, way: str, where: tuple[str, ...]) -> None:
    with serve(tmp_path, STILL_LOADING, *where, cwd=tmp_path) as daemon:
        if where:  # its stdout is its own
            eventually(lambda: b"loading" in daemon.wire, "it loads")
        else:
            daemon.wait_for_log("loading")
        WAYS[way](daemon)
        assert daemon.wait() == 0
        assert "Traceback" not in daemon.log


def test_what_was_read_before_a_signal_is_answered_in_order(tmp_path: Path) -> None:
    with serve(tmp_path, SYNC) as daemon:
        gate = tmp_path / "gate"
        daemon.send(request("hold", [str(gate)], id=1))
        daemon.wait_for_log("holding")
        daemon.send(b"".join(request("echo", [str(id)], id=id) for id in range(2, 50)))
        # The stand-in has read them when it has answered this cancellation of the last one.
        daemon.send(request("echo", ["x"], id=50) + notification("$/cancelRequest", {"id": 50}))
        assert daemon.error(50)["code"] == -32800
        gate.touch()
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        answered = [message["id"] for message in daemon.messages if "result" in message]
        assert answered == list(range(1, 50))


def test_a_thread_that_a_handler_leaves_behind_does_not_keep_the_daemon(tmp_path: Path) -> None:
    source = """
import threading, time

service = Service()

@service.query
def leave() -> None:
    threading.Thread(target=time.sleep, args=(60,)).start()
"""
    with serve(tmp_path, source) as daemon:
        daemon.call("leave")
        daemon.close_input()
        assert daemon.wait() == 0


def test_the_end_of_input_inside_a_frame_is_answered(tmp_path: Path) -> None:
    with Process("rpc") as daemon:
        daemon.send(request("version", id=1) + b"Content-Length: 50\r\n\r\n{")
        daemon.close_input()
        assert daemon.wait() == 0
        first, cut = daemon.messages
        assert first["id"] == 1
        assert (cut["id"], cut["error"]["code"]) == (None, -32700)


def test_a_peer_that_closes_its_end_of_stdout_ends_the_daemon(tmp_path: Path) -> None:
    read, write = os.pipe()
    with Process("rpc", stdout=write) as daemon:
        os.close(write)
        daemon.wait_for_log("started")
        os.close(read)
        daemon.send(request("version"))
        assert daemon.wait() == 0


BIG_THEN_BLOCK = """
import time

service = Service()

@service.query
async def big() -> str:
    return "x" * 600_000

@service.query
async def block() -> None:
    print("blocking", flush=True)
    time.sleep(60)
"""


def read_whole(read: Callable[[int], bytes]) -> list[Any]:
    """Read frames up to the end."""
    wire = b""
    while data := read(65536):
        wire += data
    return frames(wire)


@pytest.mark.parametrize("way", ["shutdown request", "end of input", "SIGTERM"])
@pytest.mark.parametrize("policy", ["editor", "agent"])
def test_an_answer_that_has_begun_is_completed_although_the_loop_is_blocked(
    tmp_path: Path, policy: str, way: str
) -> None:
    read, write = os.pipe()
    with serve(tmp_path, BIG_THEN_BLOCK, "--policy", policy, stdout=write) as daemon:
        os.close(write)
        daemon.send(request("big", id=1) + request("block", id=2))
        daemon.wait_for_log("blocking")
        WAYS[way](daemon)
        big = read_whole(lambda size: os.read(read, size))[0]
        assert daemon.wait() == 0
        assert big["result"] == "x" * 600_000
    os.close(read)


def test_it_is_completed_on_a_socket(tmp_path: Path) -> None:
    options = ("--policy", "agent", "--unix", str(tmp_path / "s"))
    with serve(tmp_path, BIG_THEN_BLOCK, *options) as daemon, socket.socket(socket.AF_UNIX) as peer:
        eventually((tmp_path / "s").exists, "it listens")
        peer.connect(str(tmp_path / "s"))
        peer.sendall(request("big", id=1) + request("block", id=2))
        eventually(lambda: b"blocking" in daemon.wire, "it blocks")
        daemon.signal(signal.SIGTERM)
        [big] = read_whole(peer.recv)
        assert daemon.wait() == 0
        assert big["result"] == "x" * 600_000


@pytest.mark.parametrize("policy", ["editor", "agent"])
def test_it_is_completed_also_long_before_the_end(tmp_path: Path, policy: str) -> None:
    with serve(tmp_path, BIG_THEN_BLOCK, "--policy", policy) as daemon:
        daemon.send(request("big", id=1) + request("block", id=2))
        daemon.wait_for_log("blocking")
        assert daemon.result(1) == "x" * 600_000


INLINE = """
import sys, time

service = Service()

@service.query
async def other() -> None:
    pass

@service.query(inline=True)
def keep() -> None:
    print("keeping", file=sys.stderr, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("unread", [b"", request("other", id=2)])
@pytest.mark.parametrize("policy", ["editor", "agent"])
def test_the_end_of_input_is_seen_while_an_inline_handler_keeps_the_loop(
    tmp_path: Path, policy: str, unread: bytes
) -> None:
    with serve(tmp_path, INLINE, "--policy", policy) as daemon:
        daemon.send(request("keep", id=1))
        daemon.wait_for_log("keeping")
        if unread:
            daemon.send(unread)
        daemon.close_input()
        assert daemon.wait() == 0
    assert "ended although a handler is still running" in daemon.log


BIG = """
service = Service()

@service.query
%s big() -> str:
    return "x" * 200_000
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("policy", ["editor", "agent"])
def test_the_end_of_input_is_seen_while_the_peer_does_not_read(
    tmp_path: Path, kind: str, policy: str
) -> None:
    read, write = os.pipe()
    with serve(tmp_path, BIG % kind, "--policy", policy, stdout=write) as daemon:
        os.close(write)
        daemon.send(b"".join(request("big", id=id) for id in range(20)))
        assert os.read(read, 1), "it writes, and is not read any more"
        time.sleep(0.5)  # until it stops reading; no one can see that from outside
        daemon.close_input()
        assert daemon.wait() == 0
        os.close(read)
    assert 'why="end of input"' in daemon.log


PARENT = """
import subprocess, sys
daemon = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
daemon.stdin.write(sys.stdin.buffer.read())
daemon.stdin.flush()
print(daemon.pid, flush=True)
daemon.wait()
"""


@pytest.mark.parametrize("method", ["version", "nap", "spin"])
def test_a_daemon_whose_parent_is_killed_ends(tmp_path: Path, method: str) -> None:
    service, log = tmp_path / "served.py", tmp_path / "daemon.log"
    service.write_text("from duet_rpc import Context, Service\n" + SYNC)
    command = [*COMMAND, "serve", str(service), "--log-file", str(log)]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    pid = 0
    try:
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdin.write(request(method))
        parent.stdin.close()
        pid = int(parent.stdout.readline())
        eventually(lambda: log.exists() and "started" in log.read_text(), "the daemon's start")
        time.sleep(0.2)  # into the handler; if it is not there yet, the test is only weaker
        parent.kill()
        eventually(lambda: "ended" in log.read_text(), "the daemon's end")
        eventually(lambda: is_gone(pid), "its process gone")
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()
        if pid and not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended, though nobody may have asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("policy", ["editor", "agent"], ids=["threads", "loop"])
def test_only_a_fault_from_which_it_cannot_go_on_ends_the_daemon_with_1(
    tmp_path: Path, policy: str
) -> None:
    source = """
import os, sys

service = Service()

@service.query
def fail(how: str) -> None:
    if how == "exit":
        sys.exit(1)
    raise ValueError(how)

@service.query
def break_waiting() -> None:
    # What the daemon waits with: its epoll, and the pipe whose ends are both its own.
    kinds = {int(fd): os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")
             if os.path.exists("/proc/self/fd/" + fd)}
    for fd, kind in kinds.items():
        is_pair = kind.startswith("pipe:") and list(kinds.values()).count(kind) == 2
        if "eventpoll" in kind or is_pair:
            os.close(fd)
"""
    with serve(tmp_path, source, "--policy", policy) as daemon:
        for how in ("exit", "raise"):
            daemon.send(request("fail", [how], id=how))
            assert daemon.error(how)["code"] == -32603
        assert daemon.call("version"), "faults of handlers do not end it"
        daemon.send(request("break_waiting", id="last"))
        assert daemon.wait() == 1
        assert "the daemon cannot go on" in daemon.log
