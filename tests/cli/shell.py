"""Runs the installed command as a shell would: in a pipe, or on a terminal of its own."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from tests.daemon.process import environment

COMMAND = Path(sys.executable).parent / "duet-rpc"
PATIENCE = 50.0
"""Seconds that a command may take on a machine that has other things to do."""


class Ran:
    """A command that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    @property
    def json(self) -> Any:
        """The one JSON value on its one line of stdout."""
        assert self.out.endswith("\n") and self.out.count("\n") == 1, self
        return json.loads(self.out)

    @property
    def jsons(self) -> list[Any]:
        """One JSON value for each line of stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(
    *words: str | Path, stdin: str | bytes = b"", cwd: Path | None = None, **variables: str
) -> Ran:
    """Run `duet-rpc` in a pipe."""
    ended = subprocess.run(
        [COMMAND, *map(str, words)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        cwd=cwd,
        env=shell_environment(**variables),
        timeout=PATIENCE,
    )
    return Ran(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def shell_environment(**variables: str) -> dict[str, str]:
    """Make the environment of a shell in which our environment is active."""
    kept = environment(TERM="xterm-256color", PATH=f"{COMMAND.parent}:{os.environ['PATH']}")
    for name in ("COLUMNS", "LINES"):
        kept.pop(name, None)
    return kept | variables


class Terminal:
    """`duet-rpc` on a terminal of its own; what it shows is read as it comes."""

    def __init__(self, *words: str | Path, cwd: Path | None = None, **variables: str) -> None:
        self._screen = bytearray()
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.process = subprocess.Popen(
            [COMMAND, *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=shell_environment(**variables),
            start_new_session=True,
            preexec_fn=_sit_at_terminal,
        )
        os.close(theirs)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._ours)

    @property
    def screen(self) -> str:
        """What it has shown so far."""
        return self._screen.decode("utf-8", "replace").replace("\r\n", "\n")

    def wait_for(self, text: str) -> None:
        """Wait until something is shown."""
        until = time.monotonic() + PATIENCE
        while text not in self.screen:
            assert self._read(until), f"no {text!r} on the screen:\n{self.screen[-2000:]}"

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._ours, text.encode())

    def end(self) -> Ran:
        """Wait until it has ended."""
        until = time.monotonic() + PATIENCE
        while self._read(until):
            pass
        return Ran(self.process.wait(PATIENCE), self.screen, "")

    def _read(self, until: float) -> bool:
        """Read what is there; False at the end."""
        ready, _, _ = select.select([self._ours], [], [], max(until - time.monotonic(), 0))
        assert ready, f"it takes too long:\n{self.screen[-2000:]}"
        with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more
            data = os.read(self._ours, 65536)
            self._screen += data
            return bool(data)
        return False


def _sit_at_terminal() -> None:
    """Make the terminal the process's own, so that Ctrl-C typed there is meant for it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A shell lets what it runs in the background ignore it, and the tests may run there.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_terminal(*words: str | Path, cwd: Path | None = None, **variables: str) -> Ran:
    """Run `duet-rpc` on a terminal to its end."""
    with Terminal(*words, cwd=cwd, **variables) as terminal:
        return terminal.end()
