"""Stdout belongs to frames, stdin to requests; and both may be anything that carries bytes."""

import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import threading
import tty
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.process import (
    COMMAND,
    PATIENCE,
    Process,
    environment,
    frames,
    request,
    serve,
)
from tests.daemon.services import ASYNC, SYNC

NOISY = """
import os, subprocess, sys

print("while it is imported")
service = Service()

@service.query
def print_it() -> None:
    print("from print", flush=True)
    sys.stdout.write("from sys.stdout\\n")

@service.query
def print_to_the_first() -> None:
    print("from the first stdout", file=sys.__stdout__, flush=True)

@service.query
def write_it() -> None:
    os.write(1, b"from the descriptor\\n")

@service.query
def run_it() -> int:
    return os.system("echo from a shell; cat; cat /dev/stdin")

@service.query
def child() -> str:
    script = "import sys; print('from a child', flush=True); sys.stdin.read()"
    subprocess.run([sys.executable, "-c", script], check=True)
    return "done"

@service.query
def read_it() -> str:
    return sys.stdin.read() + os.read(0, 100).decode()

@service.query
def fork_it() -> int:
    import signal, time

    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@service.query
def echo(text: str) -> str:
    return text
"""


def test_handlers_can_neither_corrupt_frames_nor_eat_requests(tmp_path: Path) -> None:
    calls = ["print_it", "write_it", "run_it", "child", "read_it", "fork_it", "print_to_the_first"]
    wire = b""
    for number, method in enumerate(calls * 2):
        wire += request(method, id=f"noise {number}")
        wire += request("echo", [f"text {number}"], id=number)
    with serve(tmp_path, NOISY) as daemon:
        daemon.send(wire)
        for number in range(len(calls) * 2):
            assert daemon.result(number) == f"text {number}"
        assert daemon.result("noise 2") == 0
        assert daemon.result("noise 4") == ""
        assert daemon.result("noise 5") == -15, "the child's signal is the child's alone"
        daemon.close_input()
        assert daemon.wait() == 0
        assert len(frames(daemon.wire)) == 4 * len(calls)
        for text in ("imported", "print", "sys.stdout", "first stdout", "descriptor", "shell"):
            assert text in daemon.log
        assert "from a child" in daemon.log


def test_handlers_may_print_although_nobody_reads_stderr_any_more(tmp_path: Path) -> None:
    read, write = os.pipe()
    with serve(tmp_path, NOISY, stderr=write) as daemon:
        os.close(write)
        assert daemon.call("echo", ["a"]) == "a"
        os.close(read)
        assert daemon.call("print_it") is None
        assert daemon.call("echo", ["b"]) == "b"
        daemon.close_input()
        assert daemon.wait() == 0


def test_a_handler_with_an_event_loop_of_its_own_leaves_the_signals_to_us(tmp_path: Path) -> None:
    source = """
import asyncio, signal

service = Service()

@service.query
def run_a_loop() -> str:
    async def main() -> str:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)
        await asyncio.sleep(0.01)
        return "done"
    return asyncio.run(main())
"""
    with serve(tmp_path, source) as daemon:
        assert daemon.call("run_a_loop") == "done"
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_handler_cannot_end_the_process_by_an_exception(tmp_path: Path, kind: str) -> None:
    source = f"""
import sys

service = Service()

@service.query
{kind} leave(how: str) -> None:
    raise dict(exit=SystemExit, interrupt=KeyboardInterrupt, stop=GeneratorExit)[how](3)
"""
    with serve(tmp_path, source) as daemon:
        for how in ("exit", "interrupt", "stop"):
            assert daemon.error(daemon.start("leave", [how]))["code"] == -32603
        assert daemon.call("version")
        daemon.close_input()
        assert daemon.wait() == 0


def start(*arguments: str, **descriptors: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*COMMAND, *arguments], env=environment(), stderr=subprocess.DEVNULL, **descriptors
    )


def finished(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the end of a process; whatever happens, it has ended then."""
    try:
        return process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()


def service_file(tmp_path: Path, source: str) -> str:
    file = tmp_path / "served.py"
    file.write_text("from duet_rpc import Context, RpcError, Service\n" + source)
    return str(file)


@pytest.fixture(params=["threads", "loop"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The arguments that serve an `echo`, on each kind of host."""
    source, policy = {"threads": (SYNC, "editor"), "loop": (ASYNC, "agent")}[request.param]
    return ["serve", service_file(tmp_path, source), "--policy", policy]


def test_stdin_and_stdout_may_be_files(tmp_path: Path, served: list[str]) -> None:
    count = 3000  # more than one read, and more than the queue holds
    (tmp_path / "in").write_bytes(
        b"".join(request("echo", [str(id)], id=id) for id in range(count))
    )
    with open(tmp_path / "in", "rb") as stdin, open(tmp_path / "out", "wb") as stdout:
        assert finished(start(*served, stdin=stdin, stdout=stdout)) == 0
    answers = frames((tmp_path / "out").read_bytes())
    assert {answer["id"]: answer["result"] for answer in answers} == {
        id: str(id) for id in range(count)
    }


def test_stdout_that_is_appended_to_keeps_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(request("version"))
    (tmp_path / "out").write_bytes(b"before")
    with open(tmp_path / "in", "rb") as stdin, open(tmp_path / "out", "ab") as stdout:
        assert finished(start("rpc", stdin=stdin, stdout=stdout)) == 0
    assert (tmp_path / "out").read_bytes().startswith(b"beforeContent-Length: ")


@pytest.mark.parametrize("shared", [True, False], ids=["one for both", "one for each"])
def test_stdin_and_stdout_may_be_sockets(served: list[str], shared: bool) -> None:
    ours, theirs = socket.socketpair()
    our_out, their_out = (ours, theirs) if shared else socket.socketpair()
    process = start(*served, stdin=theirs, stdout=their_out)
    for end in {theirs, their_out}:
        end.close()
    try:
        ours.settimeout(PATIENCE)
        our_out.settimeout(PATIENCE)
        ours.sendall(request("echo", ["x" * 100_000], id=1) + request("echo", ["b"], id=2))
        ours.shutdown(socket.SHUT_WR)
        wire = b""
        while data := our_out.recv(1 << 16):
            wire += data
        assert {answer["id"]: answer["result"] for answer in frames(wire)} == {
            1: "x" * 100_000,
            2: "b",
        }
        assert finished(process) == 0
    finally:
        finished(process)
        ours.close()
        our_out.close()


def test_stdin_and_stdout_may_be_a_terminal(served: list[str]) -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    process = start(*served, stdin=theirs, stdout=theirs)
    os.close(theirs)
    wire = bytearray()
    complete = threading.Event()

    def read() -> None:
        try:
            while data := os.read(ours, 1 << 16):
                wire.extend(data)
                if wire.count(b'"result"') == 2:
                    complete.set()
        except OSError:
            pass  # a terminal that nobody has open any more

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        os.write(ours, request("echo", ["a"], id=1) + request("shutdown", id=2))
        assert complete.wait(PATIENCE)
        assert finished(process) == 0
        assert sorted(answer["id"] for answer in frames(bytes(wire))) == [1, 2]
    finally:
        finished(process)
        reader.join(PATIENCE)
        os.close(ours)


def test_a_terminal_that_goes_away_is_an_end_of_input() -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    process = start("rpc", stdin=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    assert process.stdout is not None
    try:
        os.write(ours, request("version"))
        assert process.stdout.readline().startswith(b"Content-Length")
        os.close(ours)
        assert finished(process) == 0
    finally:
        finished(process)
        process.stdout.close()


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2>&- <&-", ">&- 2>&- <&-"])
def test_descriptors_may_be_closed_or_full(redirection: str) -> None:
    command = f"exec {shlex.join([*COMMAND, 'rpc'])} {redirection}"
    process = subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    try:
        wire, _ = process.communicate(request("version", id=7), timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    if "<&-" not in redirection:
        assert [answer["id"] for answer in frames(wire)] == [7]


def test_a_stderr_that_nobody_drains_stops_nothing(tmp_path: Path) -> None:
    read, write = os.pipe()
    with serve(tmp_path, SYNC, "--log-level", "debug", stderr=write) as daemon:
        os.close(write)
        daemon.call("setLogLevel", ["debug"])
        for _ in range(1500):  # each is a line in the log, more than the pipe and the buffer hold
            daemon.send(request("no such method " + "x" * 250, id="lost"))
        assert daemon.call("echo", ["still here"]) == "still here"
        daemon.close_input()
        assert daemon.wait() == 0
    os.close(read)


def test_the_descriptors_of_frames_are_not_inherited(tmp_path: Path) -> None:
    source = """
import os, subprocess, sys

service = Service()

@service.query
def descriptors() -> list[str]:
    script = "import os; print(*os.listdir('/proc/self/fd'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return done.stdout.split()

@service.query
def leave_one_behind() -> int:
    return subprocess.Popen(["sleep", "60"]).pid
"""
    with serve(tmp_path, source) as daemon:
        # 0, 1, 2 and the one that lists the directory.
        assert len(daemon.call("descriptors")) == 4
        pid = daemon.call("leave_one_behind")
        try:
            daemon.close_input()
            assert daemon.process.wait(PATIENCE) == 0
            # Our end of its stdout sees the end, although the child lives on.
            daemon._readers[0].join(PATIENCE)
            assert daemon.output_ended
        finally:
            os.kill(pid, 9)


def test_python_can_be_told_to_warn_of_everything() -> None:
    with Process("rpc", env=environment(PYTHONWARNINGS="error", PYTHONDEVMODE="1")) as daemon:
        assert daemon.call("version")
        daemon.close_input()
        assert daemon.wait() == 0
        assert "Warning" not in daemon.log
    assert sys.version_info >= (3, 11)


def test_a_child_that_returns_from_a_handler_runs_nothing_that_its_parent_runs(
    tmp_path: Path,
) -> None:
    source = (
        "import os\nservice = Service()\n"
        "@service.query\ndef fork() -> str:\n"
        "    pid = os.fork()\n"
        "    if pid:\n        os.waitpid(pid, 0)\n"
        "    return 'done'\n"
        "@service.query\ndef act(path: str) -> str:\n"
        "    with open(path, 'a') as file:\n        file.write('x')\n"
        "    return 'acted'\n"
    )
    file = tmp_path / "acts"
    with serve(tmp_path, source) as daemon:
        daemon.send(request("fork", id=1) + request("act", [str(file)], id=2))
        assert daemon.answer(1)["result"] == "done"
        assert daemon.answer(2)["result"] == "acted"
        assert file.read_text() == "x"
        daemon.close_input()
        assert daemon.wait() == 0
