"""The log: where it goes, what a line says, and what must never stand in it."""

import logging
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from duet_rpc.server.logs import Logs
from tests.daemon.process import PATIENCE, Process, environment, frame, notification, request, serve
from tests.daemon.services import ASYNC, SYNC

START = re.compile(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info started version=\S+ pid=(\d+) level=info"
    r" sink=stderr correlation_id=\S+$"
)


def test_the_first_line_says_version_pid_level_and_sink() -> None:
    with Process("rpc") as daemon:
        line = daemon.wait_for_log("started")
        found = START.match(line)
        assert found is not None, line
        assert int(found[1]) == daemon.pid


def run(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Start and end a daemon; return what it wrote to stderr."""
    with Process("rpc", *arguments, env=env) as daemon:
        daemon.close_input()
        assert daemon.wait() == 0
        return daemon.log


def test_the_log_goes_to_the_file_of_the_option(tmp_path: Path) -> None:
    file = tmp_path / "daemon.log"
    assert run("--log-file", str(file)) == ""
    text = file.read_text()
    assert "started" in text and "sink=" in text and "ended" in text
    assert str(tmp_path) not in text


def test_the_log_goes_to_the_file_of_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "daemon.log"
    assert run(env=environment(DUET_RPC_LOG=str(file))) == ""
    assert "started" in file.read_text()


def test_the_option_wins_over_the_variable(tmp_path: Path) -> None:
    file, other = tmp_path / "option.log", tmp_path / "variable.log"
    assert run("--log-file", str(file), env=environment(DUET_RPC_LOG=str(other))) == ""
    assert "started" in file.read_text()
    assert not other.exists()


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "daemon.log"
    file.write_text("before\n")
    run("--log-file", str(file))
    run("--log-file", str(file))
    assert file.read_text().startswith("before\n")
    assert file.read_text().count("started") == 2


@pytest.mark.parametrize("place", ["missing/folder/daemon.log", ""], ids=["no folder", "a folder"])
def test_a_log_file_that_cannot_be_written_is_told_once(tmp_path: Path, place: str) -> None:
    log = run("--log-file", str(tmp_path / place))
    warnings = [line for line in log.splitlines() if " warn " in line]
    assert len(warnings) == 1
    assert "cannot be written" in warnings[0]
    assert "sink=stderr" in log
    assert str(tmp_path) not in log


def test_a_log_file_that_is_a_pipe_without_a_reader_does_not_stop_us(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "cannot be written" in run("--log-file", str(tmp_path / "pipe"))


def on_a_terminal(*arguments: str, env: dict[str, str]) -> bytes:
    """Run a daemon whose stderr is a terminal; return what stands on it."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 4096):
                shown.extend(data)
        except OSError:
            pass  # nobody has the terminal open any more

    reader = threading.Thread(target=read, daemon=True)
    with Process("rpc", *arguments, env=env, stderr=theirs) as daemon:
        os.close(theirs)
        reader.start()
        daemon.close_input()
        assert daemon.wait() == 0
    reader.join(PATIENCE)
    os.close(ours)
    assert b"started" in shown
    return bytes(shown)


def test_colour_is_for_terminals_alone() -> None:
    assert b"\x1b[" in on_a_terminal(env=environment())
    assert "\x1b" not in run()


def test_colour_can_be_turned_off() -> None:
    assert b"\x1b" not in on_a_terminal("--no-color", env=environment())
    assert b"\x1b" not in on_a_terminal(env=environment(NO_COLOR="1"))
    assert b"\x1b[" in on_a_terminal(env=environment(NO_COLOR="")), "empty means not set"


@pytest.mark.parametrize("level", ["debug", "INFO", "Warn", "eRRoR"])
def test_the_level_may_be_set_in_any_case(level: str) -> None:
    with Process("rpc") as daemon:
        assert daemon.call("setLogLevel", {"level": level}) == {
            "level": level.lower(),
            "success": True,
        }


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with Process("rpc") as daemon:
        error = daemon.error(daemon.start("setLogLevel", {"level": "loud"}))
        assert error["code"] == -32602
        assert error["data"]["param"] == "level"
        assert error["data"]["accepted"] == ["debug", "info", "warn", "error"]


def test_a_level_keeps_what_is_below_it_out() -> None:
    with Process("rpc", "--log-level", "WARN") as daemon:
        daemon.send(notification("unknown 1"))
        daemon.wait_for_log("unknown 1")
        daemon.call("setLogLevel", ["error"])
        daemon.send(notification("unknown 2"))
        daemon.call("setLogLevel", ["info"])
        daemon.close_input()
        assert daemon.wait() == 0
        assert "started" not in daemon.log
        assert "unknown 2" not in daemon.log
        assert "ended" in daemon.log


def test_lines_carry_method_id_and_correlation_id() -> None:
    with Process("rpc") as daemon:
        daemon.send(
            request("lost", id="seven") + request("lost", id=1234567) + request("lost", id=None)
        )
        daemon.send(notification("lost without id"))
        assert 'id="seven"' in daemon.wait_for_log("correlation_id=seven")
        assert " id=1234567 " in daemon.wait_for_log("correlation_id=1234567")
        assert "correlation_id=" in daemon.wait_for_log("id=null")
        line = daemon.wait_for_log("lost without id")
        assert " warn " in line and " id=" not in line and "correlation_id=" in line
        assert "connection_id=stdio" in line


@pytest.mark.parametrize("policy", ["editor", "production"])
def test_a_refusal_says_what_was_wrong_but_not_with_what(tmp_path: Path, policy: str) -> None:
    options = ["--policy", policy, "--store", f"sqlite:///{tmp_path}/commands.db"]
    with serve(tmp_path, SYNC, *options) as daemon:
        daemon.send(request("setLogLevel", {"level": ["private"]}, id=1))
        line = daemon.wait_for_log(" id=1 ")
        assert "Invalid params" in line and "param=level expected=string" in line
        daemon.send(request("setLogLevel", {"level": "info", "unexpected": "private"}, id=2))
        line = daemon.wait_for_log(" id=2 ")
        assert 'expected="a parameter named level"' in line
        daemon.send(notification("echo", {"unexpected": "text"}))
        if policy == "production":
            assert "reason=notification-not-allowed" in daemon.wait_for_log("method=echo")
        else:
            assert 'expected="a parameter named ' in daemon.wait_for_log("method=echo")
        assert "private" not in daemon.log and "unexpected" not in daemon.log


@pytest.mark.parametrize(("source", "policy"), [(SYNC, "editor"), (ASYNC, "agent")])
def test_a_failure_stands_in_the_log_under_its_reference_and_nowhere_else(
    tmp_path: Path, source: str, policy: str
) -> None:
    with serve(tmp_path, source, "--policy", policy) as daemon:
        daemon.send(request("fail", ["what only the log may know"], id=5))
        error = daemon.error(5)
        assert set(error) == {"code", "message", "data"}
        assert (error["code"], error["message"]) == (-32603, "Internal error")
        assert set(error["data"]) == {"reference"}
        line = daemon.wait_for_log(error["data"]["reference"])
        assert " error " in line and "method=fail" in line and "correlation_id=5" in line.split()
        daemon.wait_for_log("ValueError: what only the log may know")
        assert b"only the log" not in daemon.wire
        assert b"served.py" not in daemon.wire


def test_a_failing_notification_is_logged_and_not_answered(tmp_path: Path) -> None:
    with serve(tmp_path, SYNC) as daemon:
        daemon.send(notification("fail", ["unseen"]) + notification("echo", {"no": "text"}))
        assert " error " in daemon.wait_for_log("Invalid params")
        assert " error " in daemon.wait_for_log("handler failed")
        assert daemon.call("echo", ["after"]) == "after"
        assert len(daemon.messages) == 1


def test_payloads_stay_out_of_the_log() -> None:
    with Process("rpc", "--log-level", "debug", "--max-message-bytes", "1000") as daemon:
        daemon.send(frame(b'{"jsonrpc":"2.0","secret payload'))
        daemon.send(frame(b'{"jsonrpc":"2.0","method":5,"id":1,"params":["secret payload"]}'))
        daemon.send(frame(b"secret payload" * 100))
        daemon.send(b"secret payload\r\n" + request("version", id="after"))
        daemon.result("after")
        for reason in ("parse error", "invalid-envelope", "oversize", "invalid-content-length"):
            assert " warn " in daemon.wait_for_log(reason)
        assert "payload" not in daemon.log


def test_secrets_and_homes_are_taken_out(tmp_path: Path) -> None:
    home = tmp_path / "somebody"
    home.mkdir()
    said = "token=abc123 password: hunter2 Authorization: Bearer xyz.789 /home/anna/x /Users/bob/y"
    with serve(home, SYNC, env=environment(HOME=str(home))) as daemon:
        daemon.send(request("fail", [said], id=1))
        daemon.error(1)
        daemon.wait_for_log("ValueError")
        log = daemon.log
        for secret in ("abc123", "hunter2", "xyz.789", "anna", "bob", str(home)):
            assert secret not in log, secret
        assert '"~/served.py"' in log


def test_handlers_have_a_logger_whose_lines_carry_the_ids(tmp_path: Path) -> None:
    source = """
service = Service()

@service.query
def work(ctx: Context) -> None:
    ctx.logger.debug("too quiet")
    ctx.logger.warning("half way, api_key=%s", "12345")
"""
    with serve(tmp_path, source) as daemon:
        daemon.send(request("work", id="the id"))
        daemon.result("the id")
        line = daemon.wait_for_log("half way")
        assert " warn " in line and "method=work" in line and 'correlation_id="the id"' in line
        assert "12345" not in line
        assert "too quiet" not in daemon.log


def test_a_log_line_is_one_line() -> None:
    with Process("rpc") as daemon:
        daemon.send(notification("two\nlines \x1b[31m"))
        line = daemon.wait_for_log("two")
        assert r"two\nlines" in line
        assert "\x1b" not in daemon.log


def test_a_handler_that_closes_stderr_before_the_first_line_gets_its_answer(
    tmp_path: Path,
) -> None:
    source = (
        "import os\nservice = Service()\n"
        "@service.query\ndef fail() -> int:\n    os.close(2)\n    raise ValueError\n"
    )
    with serve(tmp_path, source, "--log-level", "error") as daemon:
        assert daemon.error(daemon.start("fail"))["code"] == -32603
        assert daemon.error(daemon.start("fail"))["code"] == -32603
        daemon.close_input()
        assert daemon.wait() == 0


# Its end.


@pytest.mark.usefixtures("rpc_no_leaks")
def test_a_log_gives_its_file_back_and_opens_it_again_for_a_late_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logs = Logs(path="daemon.log")
    logs.note("info", "first")
    logs.close()
    logs.close()
    monkeypatch.chdir("/")
    logs.note("info", "late")
    logs.close()
    first, late = (tmp_path / "daemon.log").read_text().splitlines()
    assert " info first " in first and " info late " in late


@pytest.mark.usefixtures("rpc_no_leaks")
def test_a_log_that_said_nothing_gives_its_file_back(tmp_path: Path) -> None:
    Logs(path=str(tmp_path / "daemon.log")).close()


def test_a_log_whose_file_is_gone_for_good_goes_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    logs = Logs(path=str(tmp_path / "folder" / "daemon.log"))
    logs.close()
    (tmp_path / "folder" / "daemon.log").unlink()
    (tmp_path / "folder").rmdir()
    logs.note("warn", "late")
    logs.close()
    logs.note("warn", "later")
    logs.close()
    assert [line.split()[2] for line in capfd.readouterr().err.splitlines()] == ["late", "later"]


def test_a_closed_log_takes_in_no_more_of_what_others_say(tmp_path: Path) -> None:
    logger = logging.getLogger("duet_rpc.handler")
    logs = [Logs(path=str(tmp_path / f"{number}.log")) for number in range(3)]
    for each in logs:
        each.adopt()
        logger.warning("said")
        each.close()
    assert [path.read_text().count(" said ") for path in sorted(tmp_path.iterdir())] == [1, 1, 1]
    assert logging.getLogger("duet_rpc").handlers == []
    assert logging.getLogger("duet_rpc").propagate


SERVE = """
import os, sys
from duet_rpc import Server, Service
from duet_rpc.server.logs import Logs

where, log = sys.argv[1:]
server = Server(Service())
if where == "stdio":
    server.run_stdio(logs=Logs(path=log))
else:
    # Ended as soon as it has begun.
    server.run_unix(where, logs=Logs(path=log), on_start=lambda address: os.kill(os.getpid(), 15))
links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
assert log not in [os.readlink(link) for link in links if os.path.islink(link)]
"""


@pytest.mark.parametrize("where", ["stdio", "socket"])
def test_a_server_that_has_ended_has_closed_its_log(where: str, tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    place = where if where == "stdio" else str(tmp_path / "socket")
    ended = subprocess.run(
        [sys.executable, "-c", SERVE, place, str(log)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(),
        timeout=PATIENCE,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert " info ended " in log.read_text()
