"""A server that we start ourselves and talk to over its stdin and stdout.

The child leads a session and a process group of its own: a Ctrl-C meant for us does not reach it,
and it ends together with everything it has started. It ends when we say so (`end`), and also when
we die without saying anything (`Guardian`).

Law of this file: the leader is not reaped before its group has been killed. Until then its number
cannot be given to anybody else, so no signal of ours can hit a stranger.
"""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from duet_rpc.errors import ConnectFailed, ConnectionLost, UsageError
from duet_rpc.transports.channel import READ_SIZE, Channel
from duet_rpc.transports.guardian import Guardian
from duet_rpc.transports.stderr import StderrTail

_LOSS_PATIENCE = 0.05
"""Seconds that pending calls wait for the exit status, so that their error can tell it."""
_KILL_PATIENCE = 10.0
"""Seconds for the kernel to end a killed process; one in a dead file system takes for ever."""


class Child:
    """One running child process; `channel` carries the connection."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        on_stderr: Callable[[str], None] | None = None,
    ) -> None:
        """Start it. `env` is its whole environment, ours if none is given.

        `on_stderr` gets each line of its stderr, on a thread of its own. Raises `ConnectFailed`.
        """
        check_command(command)
        self._name = os.path.basename(command[0])
        self._lock = threading.Lock()
        self._exit_code: int | None = None
        self._gone = False
        """It has ended; the exit code is known unless somebody else has reaped it."""
        self._ended = False
        self._was_stopped = False
        """It did not end by itself."""
        theirs, ours = _Pipes(), _Pipes()
        guardian = None
        try:
            theirs.stdin, ours.stdin = os.pipe2(os.O_CLOEXEC)
            ours.stdout, theirs.stdout = os.pipe2(os.O_CLOEXEC)
            ours.stderr, theirs.stderr = os.pipe2(os.O_CLOEXEC)
            guardian = Guardian(theirs.stdin)
            self._process = subprocess.Popen(
                list(command),
                stdin=theirs.stdin,
                stdout=theirs.stdout,
                stderr=theirs.stderr,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            if guardian is not None:
                guardian.release()
            ours.close()
            raise ConnectFailed(_why(command[0], cwd, error)) from error
        finally:
            theirs.close()
        self.pid: int = self._process.pid
        guardian.watch(self.pid)
        self._guardian = guardian
        self._stderr = StderrTail(ours.stderr, on_stderr)
        os.set_blocking(ours.stdin, False)  # no one shares our end of the pipe
        self.channel: Channel = Channel(ours.stdout, ours.stdin)
        # Kept when the channel is closed: a server that still has something to say while it ends
        # must not be killed by SIGPIPE for it.
        self._last_words = os.dup(ours.stdout)

    def loss(self) -> ConnectionLost:
        """Say what became of it after its output has ended; takes at most 50 ms."""
        until = time.monotonic() + _LOSS_PATIENCE
        self._wait(_LOSS_PATIENCE)
        tail = self._stderr.text(max(0.0, until - time.monotonic()))
        code = self._exit_code
        if code is None:
            became = "ended" if self._gone else "closed its output but still runs"
        elif self._was_stopped:
            became = "closed its output, did not end by itself and was stopped"
        elif code < 0:
            became = f"was killed by {_signal_name(-code)}"
        else:
            became = f"exited with status {code}"
        text = f"{self._name} (pid {self.pid}) {became}"
        return ConnectionLost(text, exit_code=code, stderr_tail=tail)

    def end(self, *, grace: float = 2.0) -> int | None:
        """End it with all its children, and return its exit code; idempotent, any thread.

        Its stdin is closed, and what it still writes is read and dropped; after `grace` seconds
        comes SIGTERM, after as many again SIGKILL. Blocks. Users of the channel must have
        stopped: it is closed here.
        """
        with self._lock:
            if self._ended:
                return self._exit_code
            self._ended = True
            self.channel.close()
            if not self._wait(grace, self._drop_output):
                self._was_stopped = True
                self._signal(signal.SIGTERM)
                self._wait(grace, self._drop_output)
            self._signal(signal.SIGKILL)  # what it leaves behind goes with it
            self._wait(_KILL_PATIENCE)
            os.close(self._last_words)
            self._guardian.release()
            if self._gone:
                self._process.wait()
            self._stderr.close(0.2)
            return self._exit_code

    def kill(self) -> None:
        """Kill the whole group at once; `end` is still to be called."""
        if not self._ended:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # no process is left, or it has changed its user

    def _wait(self, timeout: float, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Wait until it has ended, but leave it unreaped."""
        until = time.monotonic() + timeout
        pause = 0.0005
        while not self._has_ended():
            left = until - time.monotonic()
            if left <= 0:
                return False
            sleep(min(pause, left))
            pause = min(pause * 1.5, 0.01)
        return True

    def _drop_output(self, seconds: float) -> None:
        """Sleep, but read what it says meanwhile."""
        poll = select.poll()
        poll.register(self._last_words, select.POLLIN)
        if poll.poll(seconds * 1000) and not os.read(self._last_words, READ_SIZE):
            time.sleep(seconds)  # the end is always ready

    def _has_ended(self) -> bool:
        if self._gone:
            return True
        try:
            status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody waits for all children of this process
            self._gone = True
            return True
        if status is None:
            return False
        exited = status.si_code == os.CLD_EXITED
        self._exit_code = status.si_status if exited else -status.si_status
        self._gone = True
        return True


def check_command(command: Sequence[str]) -> None:
    """Refuse what names no program; whether there is one, only its start can tell."""
    is_whole = isinstance(command, str) or not command
    if is_whole or not all(isinstance(word, (str, os.PathLike)) for word in command):
        raise UsageError(
            f'{command!r} is no command; give its words one by one: "python", "server.py"'
        )


class _Pipes:
    """One side of the three pipes, to be closed together when the start fails."""

    def __init__(self) -> None:
        self.stdin = self.stdout = self.stderr = -1

    def close(self) -> None:
        for fd in (self.stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)


def _why(program: str, cwd: str | None, error: Exception) -> str:
    if cwd is not None and not os.path.isdir(cwd):
        return f"cannot start {program}: its working directory {cwd} does not exist"
    if isinstance(error, FileNotFoundError):
        found = os.path.exists(program)
        reason = (
            "the interpreter in its first line does not exist"
            if found
            else "no such program; is it installed, and on PATH?"
        )
    elif isinstance(error, PermissionError):
        reason = "it is not executable"
    elif isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
    else:
        reason = str(error)
    return f"cannot start {program}: {reason}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
