"""`make demo` tells the truth: it shows answers, checks them, and fails if one is wrong."""

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.clients import PATIENCE, ROOT

EXAMPLES = ROOT / "examples"
ESCAPE = "\x1b["


def play(folder: Path = EXAMPLES) -> subprocess.CompletedProcess[str]:
    """Run the demo, with its output in a pipe."""
    return subprocess.run(
        [sys.executable, str(folder / "demo.py")], capture_output=True, text=True, timeout=PATIENCE
    )


def play_on_a_terminal(**environment: str) -> str:
    """Run the demo on a pseudo-terminal; return what that shows."""
    ours, theirs = pty.openpty()
    variables = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    demo = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "demo.py")],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        env={**variables, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # how Linux tells that a terminal's last user is gone
        pass
    os.close(ours)
    assert demo.wait(PATIENCE) == 0
    return shown.decode()


def test_the_demo_shows_requests_and_answers() -> None:
    demo = play()
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    assert "-->    3 bank.transfer " in demo.stdout
    assert "<-- null error -32700 " in demo.stdout
    assert "Every answer was the right one" in demo.stdout
    assert "examples/bank.py" in demo.stdout.rpartition("Every answer")[2], "where the code is"
    assert ESCAPE not in demo.stdout, "colour is for terminals"
    assert all(len(line) <= 100 for line in demo.stdout.splitlines())
    assert '"received": "string"' in demo.stdout and "..." not in demo.stdout, "nothing is cut"
    cancelled = demo.stdout.partition("$/cancelRequest     ")[2].splitlines()[0]
    number = re.search(r"\d+", cancelled)
    assert number and f"-->   {number[0]} bank.audit" in demo.stdout, "the id was shown before"


@pytest.mark.parametrize("lines", [1, 3, 60])
def test_it_ends_quietly_when_nobody_looks_any_more(lines: int) -> None:
    demo = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "demo.py")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert demo.stdout is not None and demo.stderr is not None
    with demo.stdout:
        for _ in range(lines):
            assert demo.stdout.readline()
    with demo.stderr:
        assert demo.stderr.read() == b""
    assert demo.wait(PATIENCE) == 0


def test_it_is_coloured_on_a_terminal_unless_asked_not_to_be() -> None:
    assert ESCAPE in play_on_a_terminal()
    assert ESCAPE not in play_on_a_terminal(NO_COLOR="1")
    assert ESCAPE not in play_on_a_terminal(TERM="dumb")


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("taking.balance + cents", "taking.balance", "what the receipt says is"),
        ("code, message = 2002", "code, message = 2009", "the error is"),
        ("accounts[number] = Account", "raise SystemExit; accounts[number] = Account", "an error"),
        ("bank.run()", "pass", "The demo failed"),
        ("bank.run()", "print('hello'); bank.run()", "no frame"),
    ],
)
def test_it_fails_if_an_answer_is_wrong(tmp_path: Path, right: str, wrong: str, told: str) -> None:
    assert told in play_sabotaged(tmp_path, "bank.py", right, wrong)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("cents = cents + ?", "cents = 1 + cents + ?", id="money out of nothing"),
        pytest.param("post.write(text", "post.write(text + '\\n' + text", id="two letters"),
    ],
)
def test_it_fails_if_a_promise_is_not_kept(tmp_path: Path, right: str, wrong: str) -> None:
    assert "promised" in play_sabotaged(tmp_path, "durable_bank.py", right, wrong)


def play_sabotaged(folder: Path, name: str, right: str, wrong: str) -> str:
    """Play the demo with something else in one of its files; return its last line."""
    for example in EXAMPLES.glob("*.py"):
        shutil.copy(example, folder)
    text = (folder / name).read_text("utf-8")
    assert right in text
    (folder / name).write_text(text.replace(right, wrong), "utf-8")
    demo = play(folder)
    assert demo.returncode == 1, demo.stdout
    return demo.stdout.splitlines()[-1]
