"""A server as a child process: its start, its loss, its end, and nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duet_rpc.errors import ConnectFailed, ConnectionLost, UsageError
from duet_rpc.transports.child import Child
from duet_rpc.transports.guardian import Guardian
from tests.transports.lines import PATIENCE, descriptors, eventually

STUBBORN = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    "grandchild = subprocess.Popen([sys.executable, '-c', 'import signal, time\\n'\n"
    "    'signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'])\n"
    "print(grandchild.pid, flush=True)\n"
    "time.sleep(600)\n"
)
"""Ignores the end of its input and SIGTERM, and has a child that does the same."""


@contextlib.contextmanager
def started(*command: str, **options: object) -> Iterator[Child]:
    child = Child(command, **options)  # type: ignore[arg-type]
    try:
        yield child
    finally:
        child.kill()
        child.end(grace=0)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def line(child: Child) -> str:
    """Read one line; Python may write its end by itself."""
    said = b""
    while not said.endswith(b"\n"):
        data = child.channel.receive()
        assert data, said
        said += data
    return said.decode()


def loss(child: Child) -> ConnectionLost:
    """Wait for the end of its output, then, with patience, for its exit status."""
    while child.channel.receive():
        pass
    lost = child.loss()
    until = time.monotonic() + PATIENCE
    while lost.exit_code is None and time.monotonic() < until:
        lost = child.loss()
    return lost


def is_running(pid: int) -> bool:
    """Tell whether a process is there and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


# Its start.


def test_bytes_go_through_it() -> None:
    with started("cat") as child:
        assert child.channel.send(b"hello") == 5
        assert child.channel.receive() == b"hello"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["no-such-program-here"], "cannot start no-such-program-here: no such program"),
        (["/etc/passwd"], "cannot start /etc/passwd: it is not executable"),
        (["/"], "cannot start /: it is not executable"),
        (["ca\0t"], "null byte"),
    ],
)
def test_what_cannot_be_started_says_why(command: list[str], text: str) -> None:
    before = descriptors()
    with pytest.raises(ConnectFailed, match=text):
        Child(command)
    assert descriptors() == before


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match="its working directory .*/nowhere does not exist"):
        Child(["cat"], cwd=str(tmp_path / "nowhere"))


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    with pytest.raises(ConnectFailed, match="the interpreter in its first line does not exist"):
        Child([str(script)])


@pytest.mark.parametrize("command", [[], "cat file"])
def test_a_command_is_a_list(command: list[str]) -> None:
    with pytest.raises(UsageError, match="is no command; give its words one by one"):
        Child(command)


def test_it_gets_its_directory_and_its_environment(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd(), os.environ['COLOUR'], 'HOME' in os.environ, flush=True)"
    with started(*python(code), cwd=str(tmp_path), env={"COLOUR": "blue"}) as child:
        said = line(child).split()
    assert said == [str(tmp_path), "blue", "False"]


def test_it_leads_its_own_session_and_group() -> None:
    with started("cat") as child:
        assert os.getsid(child.pid) == child.pid
        assert os.getpgid(child.pid) == child.pid


def test_it_holds_its_three_descriptors_and_no_more() -> None:
    code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))), flush=True)"
    with started("cat"), started(*python(code)) as child:
        said = line(child)
    # The fourth is the one that lists them.
    assert said == "[0, 1, 2, 3]\n"


# Its loss.


def test_an_exit_is_told_with_its_status_and_last_words() -> None:
    code = "import sys; print('no database', file=sys.stderr); sys.exit(3)"
    with started(*python(code)) as child:
        lost = loss(child)
        assert lost.exit_code == 3
        assert f"(pid {child.pid}) exited with status 3" in str(lost)
        eventually(lambda: child.loss().stderr_tail == "no database", "stderr is read")
        assert str(child.loss()).endswith("exited with status 3\nno database")


def test_a_kill_is_told_with_its_signal() -> None:
    with started("sleep", "600") as child:
        os.kill(child.pid, signal.SIGKILL)
        lost = loss(child)
    assert lost.exit_code == -signal.SIGKILL
    assert "was killed by SIGKILL" in str(lost)


def test_a_closed_output_is_told_from_an_end() -> None:
    with started("sh", "-c", "exec >&-; exec sleep 600") as child:
        assert child.channel.receive() == b""
        lost = child.loss()
        assert lost.exit_code is None
        assert "closed its output but still runs" in str(lost)


def test_a_child_that_somebody_else_reaped_is_gone_all_the_same() -> None:
    with started("true") as child:
        assert child.channel.receive() == b""
        os.waitpid(child.pid, 0)
        assert str(child.loss()).endswith("ended")
        assert child.end() is None


# Its end.


def test_an_orderly_end_closes_its_stdin() -> None:
    with started(*python("import sys; sys.stdin.read(); sys.exit(7)")) as child:
        assert child.end(grace=PATIENCE) == 7
        assert not exists(child.pid)


def test_one_that_says_much_while_it_ends_is_let_finish() -> None:
    code = "import sys; sys.stdin.read(); sys.stdout.write('x' * 1_000_000); sys.exit(7)"
    with started(*python(code)) as child:
        child.channel.close()
        assert child.end(grace=PATIENCE) == 7


def test_one_that_ignores_the_end_of_input_gets_sigterm() -> None:
    with started("sleep", "600") as child:
        assert child.end(grace=0.1) == -signal.SIGTERM
        assert not exists(child.pid)


def test_one_that_ignores_everything_is_killed_with_its_children() -> None:
    with started(*python(STUBBORN)) as child:
        grandchild = int(line(child))
        assert child.end(grace=0.1) == -signal.SIGKILL
        assert not exists(child.pid)
        eventually(lambda: not is_running(grandchild), "the grandchild ends")


def test_what_it_leaves_behind_goes_with_it() -> None:
    code = (
        "import subprocess, sys\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with started(*python(code)) as child:
        grandchild = int(line(child))
        assert child.end(grace=PATIENCE) == 0
        eventually(lambda: not is_running(grandchild), "the grandchild ends")


def test_kill_ends_the_whole_group_at_once() -> None:
    with started(*python(STUBBORN)) as child:
        grandchild = int(line(child))
        child.kill()
        assert loss(child).exit_code == -signal.SIGKILL
        eventually(lambda: not is_running(grandchild), "the grandchild ends")
        assert child.end() == -signal.SIGKILL
        child.kill()  # nobody is hit any more


def test_end_may_be_called_by_many_threads() -> None:
    with started("cat") as child:
        codes: list[int | None] = []
        threads = [threading.Thread(target=lambda: codes.append(child.end())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert codes == [0] * 8


def test_fifty_lives_leave_nothing_behind() -> None:
    with started("cat") as child:
        pass
    before, threads = descriptors(), threading.active_count()
    ours = set(_children())
    for number in range(50):
        with started("cat") as child:
            assert child.channel.send(b"x") == 1
            assert child.channel.receive() == b"x"
            if number % 2:
                child.kill()
            child.end()
    assert descriptors() == before
    assert threading.active_count() == threads
    assert set(_children()) == ours


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


# When we die ourselves.

PARENT = """
import sys, time
from duet_rpc.transports.child import Child
child = Child([sys.executable, "-c", sys.argv[1]])
said = b""
while not said.endswith(b"\\n"):
    said += child.channel.receive()
print(child.pid, said.decode().strip(), flush=True)
time.sleep(600)
"""


def test_no_orphan_is_left_when_the_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT, STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child, grandchild = map(int, parent.stdout.readline().split())
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            assert len(children) == 2, "the child and its guardian"
            assert all(is_running(pid) for pid in (child, grandchild))
        finally:
            parent.kill()
    for pid in (child, grandchild, *map(int, children)):
        eventually(lambda pid=pid: not is_running(pid), f"process {pid} ends")  # type: ignore[misc]


def test_a_guardian_that_was_told_no_pid_finds_the_child_by_its_pipe() -> None:
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    guardian = Guardian(read_fd)
    with subprocess.Popen(["sleep", "600"], stdin=read_fd, start_new_session=True) as child:
        os.close(read_fd)
        # The parent dies here: the leash is let go without a word.
        os.close(guardian._leash)
        guardian._leash = -1
        assert guardian._process is not None
        try:
            assert child.wait(PATIENCE) == -signal.SIGKILL
            guardian._process.wait(PATIENCE)
        finally:
            child.kill()
            os.close(write_fd)


def test_the_guardian_outlives_what_a_terminal_sends_to_our_group() -> None:
    with started("cat") as child:
        process = child._guardian._process
        assert process is not None
        assert os.getsid(process.pid) == process.pid
        child.end()
        assert not exists(process.pid)


def test_a_system_without_a_shell_does_without_a_guardian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duet_rpc.transports.guardian._SHELL", "/no/such/shell")
    with started("cat") as child:
        assert child.channel.send(b"x") == 1
        assert child.end() == 0


# What it says on stderr.


def test_lines_of_stderr_are_handed_on() -> None:
    lines: list[str] = []
    with started("sh", "-c", "echo one >&2; printf 'two\\r\\nthree' >&2", on_stderr=lines.append):
        eventually(lambda: len(lines) == 3, "three lines come")
    assert lines == ["one", "two", "three"]


def test_a_flood_on_stderr_neither_stops_the_child_nor_fills_our_memory() -> None:
    code = (
        "import sys\n"
        "for number in range(20000): sys.stderr.write(f'line {number} ' + 'x' * 100 + '\\n')\n"
        "sys.stderr.write('y' * 100_000)\n"
    )
    with started(*python(code)) as child:
        assert loss(child).exit_code == 0
        eventually(lambda: child.loss().stderr_tail.endswith("y"), "all of it is read")
        assert len(child.loss().stderr_tail) <= 8 * 1024


def test_the_tail_keeps_the_last_lines() -> None:
    with started("sh", "-c", "seq 1000 >&2") as child:
        eventually(lambda: child.loss().stderr_tail.endswith("1000"), "all of it is read")
        assert child.loss().stderr_tail.split("\n") == [str(n) for n in range(961, 1001)]


def test_a_reader_of_stderr_that_fails_is_not_asked_again() -> None:
    def refuse(line: str) -> None:
        raise RuntimeError(line)

    with started("sh", "-c", "seq 1000 >&2", on_stderr=refuse) as child:
        eventually(lambda: child.loss().stderr_tail.endswith("1000"), "all of it is read")


def test_a_stderr_that_a_runaway_holds_open_does_not_hold_us() -> None:
    code = (
        "import subprocess, sys\n"
        "away = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(away.pid, flush=True)\n"
    )
    before, threads = descriptors(), threading.active_count()
    with started(*python(code)) as child:
        runaway = int(line(child))
        try:
            child.end()
            assert descriptors() == before
            assert threading.active_count() == threads
        finally:
            os.kill(runaway, signal.SIGKILL)
