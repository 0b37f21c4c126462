"""`duet-rpc` as a person types it: what it prints, what it refuses, and what it says to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from duet_rpc.version import __version__
from tests.daemon.process import COMMAND, PATIENCE, Process, environment, request, serve
from tests.daemon.services import SYNC


def run(*arguments: str, cwd: Path | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, with nothing on stdin."""
    return subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=cwd,
        env=environment(**env),
    )


def test_the_version() -> None:
    assert run("--version").stdout == f"duet-rpc {__version__}\n"
    assert run("version").stdout == f"{__version__}\n"


def test_help_lists_every_command_with_a_sentence() -> None:
    for arguments in (["--help"], ["-h"]):
        shown = run(*arguments)
        assert shown.returncode == 0
        for command in ("rpc", "serve", "policy", "version", "completion"):
            assert f"\n  {command} " in shown.stdout


@pytest.mark.parametrize("command", ["rpc", "serve"])
def test_every_option_has_its_variable_beside_it(command: str) -> None:
    text = " ".join(run(command, "--help").stdout.split())
    for name in (
        "POLICY",
        "FRAMING",
        "READ_TIMEOUT",
        "MAX_MESSAGE_BYTES",
        "ORDERED_COMMANDS",
        "LOG_LEVEL",
        "LOG",
    ):
        assert f"DUET_RPC_{name}" in text
    assert "NO_COLOR" in text
    assert "duet-rpc " + command in text, "an example"


def test_the_command_is_installed() -> None:
    installed = Path(sys.executable).parent / "duet-rpc"
    shown = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"duet-rpc {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    shown = run("completion", shell)
    assert shown.returncode == 0
    assert f"_DUET_RPC_COMPLETE={shell}_complete" in shown.stdout


def test_completion_completes() -> None:
    asked = run(_DUET_RPC_COMPLETE="bash_complete", COMP_WORDS="duet-rpc p", COMP_CWORD="1")
    assert asked.stdout == "plain,policy\n"


# What goes wrong.


def failed(shown: "subprocess.CompletedProcess[str]", code: int) -> str:
    assert shown.returncode == code, shown.stderr
    assert shown.stdout == ""
    assert "Traceback" not in shown.stderr
    return shown.stderr


def test_a_command_that_does_not_exist() -> None:
    assert "No such command 'sreve'" in failed(run("sreve"), 2)


def test_a_file_that_does_not_exist() -> None:
    assert "there is no file nowhere.py" in failed(run("serve", "nowhere.py"), 2)


def test_a_module_that_does_not_exist() -> None:
    said = failed(run("serve", "no_such_package.api:service"), 2)
    assert "there is no module no_such_package" in said


def test_a_file_without_a_service(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert "empty.py has no Service" in failed(run("serve", "empty.py", cwd=tmp_path), 2)
    said = failed(run("serve", "empty.py:x", cwd=tmp_path), 2)
    assert "x is a int, and a Service is needed" in said
    said = failed(run("serve", "empty.py:y", cwd=tmp_path), 2)
    assert "y is not there, and a Service is needed" in said


def test_a_file_with_several_services(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "from duet_rpc import Service\na = Service('a')\nb = Service('b')\n"
    )
    said = failed(run("serve", "two.py", cwd=tmp_path), 2)
    assert "say which: two.py:a or two.py:b" in said
    assert run("serve", "two.py:b", cwd=tmp_path).returncode == 0


def test_a_file_that_raises_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import duet_rpc\n\nx = 1 / 0\n")
    said = failed(run("serve", "bad.py", cwd=tmp_path), 1)
    assert "bad.py raised ZeroDivisionError when it was imported: division by zero" in said
    assert "bad.py:3: x = 1 / 0" in said
    assert len(said.splitlines()) == 2


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = (\n")
    said = failed(run("serve", "bad.py", cwd=tmp_path), 1)
    assert "bad.py cannot be read: '(' was never closed" in said
    assert "bad.py:1: x = (" in said


def test_a_handler_that_cannot_be_served_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "from duet_rpc import Service\n"
        "service = Service()\n"
        "@service.query\n"
        "def f(**anything: int) -> None: ...\n"
    )
    said = failed(run("serve", "bad.py", cwd=tmp_path), 1)
    assert "**anything" in said
    assert "bad.py:3: @service.query" in said


def test_a_file_that_serves_itself_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from duet_rpc import Service\nservice = Service()\nservice.run()\n"
    )
    said = failed(run("serve", "app.py", cwd=tmp_path), 1)
    assert 'put its own run() under `if __name__ == "__main__":`' in said
    assert "app.py:3: service.run()" in said


def test_a_policy_that_needs_a_store(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from duet_rpc import Service\nservice = Service()\n")
    said = failed(run("serve", "app.py", "--policy", "production", cwd=tmp_path), 2)
    assert "store" in said


@pytest.mark.parametrize(
    "option",
    [
        ["--policy", "strict"],
        ["--framing", "http"],
        ["--read-timeout", "0"],
        ["--max-message-bytes", "-1"],
        ["--log-level", "loud"],
    ],
    ids=" ".join,
)
def test_a_wrong_value_is_refused(option: list[str]) -> None:
    assert "Invalid value" in failed(run("rpc", *option), 2)


# What serve takes.


def test_a_module_can_be_served(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "api.py").write_text(
        "from duet_rpc import Service\nfrom shop.price import PRICE\nservice = Service()\n"
        "@service.query\ndef price() -> int:\n    return PRICE\n"
    )
    (package / "price.py").write_text("PRICE = 5\n")
    for target in ("shop.api:service", "shop.api"):
        with Process("serve", target, cwd=tmp_path) as daemon:
            assert daemon.call("price") == 5


def test_a_file_can_import_its_neighbours_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'next door'\n")
    source = """
from neighbour import NAME

service = Service()

@service.query
def name() -> str:
    return NAME
"""
    with serve(tmp_path, source, name="json.py") as daemon:  # not the one everybody imports
        assert daemon.call("name") == "next door"


def test_options_reach_the_daemon(tmp_path: Path) -> None:
    with Process("rpc", "--framing", "ndjson", "--max-message-bytes", "200") as daemon:
        daemon.send(b'{"jsonrpc":"2.0","id":1,"method":"version"}\n' + b"x" * 300 + b"\n")
        daemon.close_input()
        assert daemon.wait() == 0
        first, second = daemon.wire.splitlines()
        assert b'"result"' in first
        assert b'"oversize"' in second


def test_the_framing_may_be_found_out() -> None:
    for wire in (request("version"), b'{"jsonrpc":"2.0","id":1,"method":"version"}\n'):
        with Process("rpc", "--framing", "auto") as daemon:
            daemon.send(wire)
            daemon.close_input()
            assert daemon.wait() == 0
            assert daemon.wire.startswith(wire[:1])


def test_variables_reach_the_daemon_and_options_win() -> None:
    env = environment(DUET_RPC_POLICY="agent", DUET_RPC_LOG_LEVEL="error")
    batch = b"Content-Length: 2\r\n\r\n[]"
    with Process("rpc", env=env) as daemon:
        daemon.send(batch + request("version"))
        daemon.result(1)
        assert daemon.messages[0]["error"]["data"]["reason"] == "invalid-envelope"
        assert daemon.log == ""
    with Process("rpc", "--policy", "EDITOR", env=env) as daemon:
        daemon.send(batch + request("version"))
        daemon.result(1)
        assert daemon.messages[0]["error"]["data"]["reason"] == "batch-not-supported"


def test_a_frame_that_takes_too_long_is_given_up() -> None:
    with Process("rpc", "--read-timeout", "0.2") as daemon:
        daemon.send(b"Content-Length: 50\r\n\r\n{")
        daemon.wait_for_log("took too long")
        assert daemon.call("version")


def test_the_daemons_own_methods_give_way_to_those_of_the_service(tmp_path: Path) -> None:
    source = (
        SYNC
        + """
@service.query
def version() -> str:
    return "mine"
"""
    )
    with serve(tmp_path, source) as daemon:
        assert daemon.call("version") == "mine"
        assert daemon.call("initialize")["protocolVersion"] == "2.0"


def test_the_start_loads_neither_asyncio_nor_click() -> None:
    program = (
        "import sys; from duet_rpc.cli import main; sys.argv = ['duet-rpc', 'rpc']; main();"
        "print(*sorted({'asyncio', 'click', 'logging', 'socket', 'traceback'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
    )
    assert shown.returncode == 0
    assert shown.stderr.splitlines()[-1] == "", shown.stderr


def test_the_command_says_that_it_needs_click() -> None:
    program = (
        "import sys; sys.modules['click'] = None; sys.argv = ['duet-rpc', 'policy'];"
        "from duet_rpc.cli import main; main()"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert shown.returncode == 1
    assert "pip install 'duet-rpc[cli]'" in shown.stderr


IN_ORDER = """
import asyncio, sys
from duet_rpc import Service

service = Service()

@service.command
async def act(number: int) -> int:
    print(f"begin {number}", file=sys.stderr)
    await asyncio.sleep(0.01)
    print(f"end {number}", file=sys.stderr)
    return number
"""


@pytest.mark.clause("policies-9")
@pytest.mark.parametrize("by_environment", [False, True])
def test_commands_in_order_are_asked_for_on_the_command_line(
    tmp_path: Path, by_environment: bool
) -> None:
    (tmp_path / "app.py").write_text(IN_ORDER)
    words = [] if by_environment else ["--ordered-commands"]
    env = environment(**({"DUET_RPC_ORDERED_COMMANDS": "1"} if by_environment else {}))
    command = ("serve", "app.py", "--policy", "agent", *words)
    with Process(*command, cwd=tmp_path, env=env) as daemon:
        daemon.send(b"".join(request("act", [number], number) for number in range(3)))
        assert [daemon.result(number) for number in range(3)] == [0, 1, 2]
        daemon.wait_for_log("end 2")
        said = [each for each in daemon.log.splitlines() if each.startswith(("begin", "end"))]
    assert said == [f"{word} {number}" for number in range(3) for word in ("begin", "end")]
