"""`duet-rpc mcp config`: what is printed is read as the host reads it, and started as it does."""

import json
import os
import pty
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from duet_rpc.cli.mcp.hosts import HOSTS
from tests.cli.shell import COMMAND, PATIENCE, run

NOTES = """
import os
from duet_rpc import Service

print("a stray line")
os.system("echo another one")
notes = Service("my notes")

@notes.command
def add(text: str) -> str:
    return f"{text} in {os.getcwd()} with {os.environ.get('PLACE')}"
"""
ODD = ["plain", "with  spaces", 'it\'s "so"', "größe-日本", "a:b$HOME`x`\\n;&", "#x %y {z}"]
KEYS = {"vscode": "servers", "zed": "context_servers"}


def start_as_host(host: str, printed: str, folder: Path) -> tuple[list[str], dict[str, str], str]:
    """Read what is pasted as the host does: the command, the environment, the server's name."""
    if host == "claude-code":
        # A `claude` that tells what it was given: what a shell makes of the line is part of it.
        (folder / "claude").write_text(
            f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
        )
        (folder / "claude").chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        shell = ["sh", "-c", printed]
        said = subprocess.run(
            shell, env=os.environ | {"PATH": path}, capture_output=True, check=True
        )
        words = json.loads(said.stdout)
        assert words[:2] == ["mcp", "add"]
        options, command = words[3 : words.index("--")], words[words.index("--") + 1 :]
        assert options[::2] == ["-e"] * (len(options) // 2)
        return command, dict(each.split("=", 1) for each in options[1::2]), words[2]
    if host == "codex":
        servers = tomllib.loads(printed)["mcp_servers"]
    else:
        servers = json.loads(printed)[KEYS.get(host, "mcpServers")]
    ((name, entry),) = servers.items()
    assert entry.get("type", "stdio") == "stdio"
    return [entry["command"], *entry["args"]], entry.get("env", {}), name


def talk(command: list[str], env: dict[str, str], *calls: dict[str, Any]) -> list[Any]:
    """Start a server as hosts do, and speak MCP with it."""
    messages: list[dict[str, Any]] = [
        {"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/list"},
        *({"id": 2 + n, "method": "tools/call", "params": each} for n, each in enumerate(calls)),
    ]
    wire = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in messages)
    minimal = {"HOME": "/", "LOGNAME": "ada", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    ended = subprocess.run(
        command,
        input=wire.encode(),
        capture_output=True,
        cwd="/",
        env=minimal | {"TERM": "dumb", "USER": "ada"} | env,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    return [each["result"] for each in sorted(answers, key=lambda answer: int(answer["id"]))]


# The forms are four: a line of a shell, TOML, and JSON with and without a type.
EACH = [(host, odd) for host in ("claude-code", "codex", "vscode", "zed") for odd in ODD]
EACH += [(host, ODD[2]) for host in HOSTS if host not in dict(EACH)]


@pytest.mark.clause("hosts-1")
@pytest.mark.parametrize(("host", "odd"), EACH)
def test_what_is_printed_starts_the_server(host: str, odd: str, tmp_path: Path) -> None:
    folder = tmp_path / odd
    folder.mkdir()
    (folder / "notes.py").write_text(NOTES)
    ran = run(
        *("mcp", "config", host, "notes.py:notes"),
        *("--env", f"PLACE={odd}", "--store", "sqlite:///c.db"),
        cwd=folder,
    )
    assert ran.code == 0, ran
    assert "a stray line" not in ran.out and HOSTS[host].title in ran.err
    command, env, name = start_as_host(host, ran.out, tmp_path)
    assert name == "my-notes" and os.path.isabs(command[0])
    once = {"name": "my_notes_add", "arguments": {"text": "x", "idempotency_key": "k"}}
    _, listed, first = talk(command, env, once)
    assert [tool["name"] for tool in listed["tools"]].count("my_notes_add") == 1
    assert first["structuredContent"] == {"result": f"x in / with {odd}"}
    assert (folder / "c.db").exists(), "the store is where it was said to be"


def test_a_module_is_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "notes.py").write_text(NOTES)
    ran = run("mcp", "config", "codex", "pack.notes", "--name", "mine", cwd=tmp_path)
    command, env, name = start_as_host("codex", ran.out, tmp_path)
    assert (name, env) == ("mine", {"PYTHONPATH": str(tmp_path)})
    assert len(talk(command, env)) == 2


def test_without_the_script_the_interpreter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duet_rpc.cli.mcp import config

    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    (tmp_path / "notes.py").write_text(NOTES)
    command = config._find_command()
    assert command[0] == sys.executable
    assert len(talk([*command, "mcp", str(tmp_path / "notes.py")], {})) == 2


def test_a_store_with_a_password_is_no_argument(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    url = "postgresql://ada:secret@db/notes"
    ran = run("mcp", "config", "codex", "notes.py", "--store", url, cwd=tmp_path)
    command, env, _ = start_as_host("codex", ran.out, tmp_path)
    assert env == {"DUET_RPC_STORE": url} and not any("secret" in word for word in command)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["emacs", "notes.py"], "is not one of"),
        (["codex", "gone.py"], "there is no file gone.py"),
        (["codex", "notes.py", "--env", "A"], "write NAME=VALUE"),
        (["codex", "notes.py", "--name", "a b"], "take letters, digits"),
        (["codex", "notes.py", "--store", "c.db"], "write sqlite:///c.db"),
        (["codex", "notes.py", "--store", "sqlite://c.db"], "sqlite:///relative/path"),
    ],
)
def test_what_cannot_work_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    ran = run("mcp", "config", *words, cwd=tmp_path)
    assert ran.code == 2 and said in ran.err and ran.out == "", ran


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    (Path(os.fsdecode(folder)) / "notes.py").write_text(NOTES)
    ended = subprocess.run(
        [COMMAND, "mcp", "config", "codex", "notes.py"], cwd=folder, capture_output=True
    )
    assert ended.returncode == 2 and b"is not UTF-8" in ended.stderr and ended.stdout == b""


def test_a_person_sees_both_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    ours, theirs = pty.openpty()
    words = [str(COMMAND), "mcp", "config", "claude-code", "notes.py"]
    ended = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "Run this line in your project" in shown
    assert shlex.split(ended.stdout.decode())[:4] == ["claude", "mcp", "add", "my-notes"]
