"""Starts a server as a child process, and decides how often it is started again after a crash."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from duet_rpc.errors import ConnectFailed, UsageError
from duet_rpc.options import check, is_integer
from duet_rpc.transports.link import Link

StderrOption = Literal["keep", "show"]
"""What to do with the stderr of a child: keep its last lines, or show all of it as well."""


def _check_environment(env: Any) -> None:
    """Refuse what is no environment. The error shows no values: there are secrets among them."""
    accepted = "a dict of texts by name, or None for ours"
    if not isinstance(env, Mapping):
        raise UsageError(f"env is of type {type(env).__name__}; give {accepted}")
    kinds = (str, bytes, os.PathLike)
    for name, value in env.items():
        if not (isinstance(name, kinds) and isinstance(value, kinds)):
            wrong = f"{name!r} of type {type(value).__name__}"
            raise UsageError(f"env is given {wrong}; give {accepted}")


def stderr_reader(option: StderrOption) -> Callable[[str], None] | None:
    """Make the callback for each line of a child's stderr; None if there is none."""
    check("stderr", option, option in ("keep", "show"), '"keep" or "show"')
    return _show if option == "show" else None


def _show(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # in one piece: other threads write there too
    sys.stderr.flush()


class ChildOpener:
    """Starts a server as a child process, again after a crash within limits."""

    MINUTE = 60.0

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        restarts: int = 3,
        on_stderr: Callable[[str], None] | None = None,
    ) -> None:
        from duet_rpc.transports.child import check_command

        check_command(command)
        check("cwd", cwd, cwd is None or isinstance(cwd, (str, os.PathLike)), "a path, or None")
        if env is not None:
            _check_environment(env)
        sound = is_integer(restarts) and restarts >= 0
        check("restarts", restarts, sound, "a whole number, 0 or more")
        self._command = command
        self._cwd = cwd
        self._env = env
        self._restarts = restarts
        self._on_stderr = on_stderr
        self._started: deque[float] = deque()

    def open(self, timeout: float | None = None) -> Link:
        """Start the process, unless it has crashed too often of late."""
        from duet_rpc.transports.child import Child

        now = time.monotonic()
        while self._started and now - self._started[0] > self.MINUTE:
            self._started.popleft()
        if len(self._started) > self._restarts:
            raise ConnectFailed(
                f"{self._command[0]} was started {len(self._started)} times within a minute;"
                " it is not started again for now"
            )
        child = Child(self._command, cwd=self._cwd, env=self._env, on_stderr=self._on_stderr)
        self._started.append(now)
        return Link(
            child.channel,
            is_network=False,
            loss=child.loss,
            end=child.end,
            transport="stdio",
            pid=child.pid,
        )
