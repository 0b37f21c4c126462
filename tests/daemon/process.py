"""Drives the real command in a real process: frames in, frames out, its log, its end.

    with Process("rpc") as daemon:
        assert daemon.call("version") == {"version": "0.1.0"}
        daemon.close_input()
        assert daemon.wait() == 0

Waits are patient (`PATIENCE`) and end as soon as they can: on a loaded machine a test is slow, not
red. Every process is gone when its block is left, whatever happened in it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

PATIENCE = 30.0
"""Seconds that anything may take on a machine that has other things to do."""

COMMAND = [sys.executable, "-m", "duet_rpc"]


def frame(body: bytes) -> bytes:
    """Put an LSP header in front of a body."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def request(method: str, params: Any = None, id: Any = 1) -> bytes:
    """Make the frame of a request."""
    return frame(json.dumps(_message(method, params) | {"id": id}).encode())


def notification(method: str, params: Any = None) -> bytes:
    """Make the frame of a notification."""
    return frame(json.dumps(_message(method, params)).encode())


def _message(method: str, params: Any) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "method": method}
    return message if params is None else message | {"params": params}


def frames(wire: bytes) -> list[Any]:
    """Decode a whole stream of frames; anything else in it, or a cut frame, fails."""
    found = []
    while wire:
        header, separator, rest = wire.partition(b"\r\n\r\n")
        assert separator and header.startswith(b"Content-Length: "), f"no frame: {wire[:80]!r}"
        length = int(header.removeprefix(b"Content-Length: "))
        assert len(rest) >= length, f"a torn frame: {wire[:80]!r}"
        found.append(json.loads(rest[:length]))
        wire = rest[length:]
    return found


def environment(**changes: str) -> dict[str, str]:
    """Make an environment without our variables and without colour settings, plus `changes`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DUET_RPC_") and name not in ("NO_COLOR", "FORCE_COLOR")
    }
    return kept | changes


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds; say what did not."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.01)


class Process:
    """The command in a process of its own, whose stdout and stderr are read as they come.

    `stdin`, `stdout` and `stderr` may be descriptors instead of pipes; what is not a pipe is not
    read here.
    """

    def __init__(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int = subprocess.PIPE,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        **more: Any,
    ) -> None:
        self._changed = threading.Condition()
        self._wire = bytearray()
        self._taken = 0
        self._log = bytearray()
        self._last_id = 0
        self.messages: list[Any] = []
        """Every message that came, in order."""
        self.bad_wire: str | None = None
        self.output_ended = False
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            env=dict(environment() if env is None else env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            **more,
        )
        self._readers = [
            threading.Thread(target=read, args=(stream,), daemon=True)
            for read, stream in (
                (self._read_output, self.process.stdout),
                (self._read_log, self.process.stderr),
            )
            if stream is not None
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self.close_input()
        for reader in self._readers:
            reader.join(1.0)  # a child of the daemon's may still hold the pipe
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        if error is not None and self._log:
            error.add_note(f"the daemon's log:\n{self.log}")

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    # In.

    def send(self, data: bytes) -> None:
        """Write bytes to its stdin."""
        assert self.process.stdin is not None, "its stdin is not ours"
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close_input(self) -> None:
        """End its input; does nothing the second time."""
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass

    def start(self, method: str, params: Any = None) -> int:
        """Send a request under a new id and return the id."""
        self._last_id += 1
        self.send(request(method, params, self._last_id))
        return self._last_id

    def call(self, method: str, params: Any = None) -> Any:
        """Send a request and wait for its result."""
        return self.result(self.start(method, params))

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    # Out.

    def answer(self, id: Any) -> Any:
        """Wait for the answer under an id."""
        return self.wait_for(
            lambda message: "method" not in message and message.get("id") == id, f"answer to {id}"
        )

    def result(self, id: Any) -> Any:
        """Wait for the answer under an id, which must be a result."""
        answer = self.answer(id)
        assert "result" in answer, answer
        return answer["result"]

    def error(self, id: Any) -> Any:
        """Wait for the answer under an id, which must be an error."""
        answer = self.answer(id)
        assert "error" in answer, answer
        return answer["error"]

    def wait_for(self, wanted: Callable[[Any], bool], what: str) -> Any:
        """Wait for the first message of this kind, whether it has come already or not."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: [m for m in self.messages if wanted(m)] or self.output_ended, PATIENCE
            )
        assert found and found is not True, f"no {what}; came: {self.messages!r}"
        return found[0]

    @property
    def wire(self) -> bytes:
        """Every byte of its stdout so far."""
        with self._changed:
            return bytes(self._wire)

    @property
    def log(self) -> str:
        """What it wrote to stderr so far."""
        with self._changed:
            return self._log.decode("utf-8", "replace")

    def wait_for_log(self, text: str) -> str:
        """Wait until a text stands in its log; return the whole line."""

        def line() -> str | None:
            whole = self._log[: self._log.rfind(b"\n") + 1].decode("utf-8", "replace")
            return next((line for line in whole.splitlines() if text in line), None)

        with self._changed:
            found = self._changed.wait_for(line, PATIENCE)
        assert found is not None, f"no {text!r} in the log:\n{self.log}"
        return found

    # The end.

    def wait(self) -> int:
        """Wait until it has ended by itself; return its exit code. Its output is complete then."""
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def memory(self, field: str = "VmHWM") -> int:
        """Read how many bytes it uses (VmRSS) or has used at most (VmHWM)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"the kernel tells no {field}")

    def _read_output(self, stream: IO[bytes]) -> None:
        while data := os.read(stream.fileno(), 1 << 20):
            with self._changed:
                self._wire += data
                self._split()
                self._changed.notify_all()
        with self._changed:
            self.output_ended = True
            self._changed.notify_all()

    def _split(self) -> None:
        while (end := self._wire.find(b"\r\n\r\n", self._taken)) >= 0:
            header = bytes(self._wire[self._taken : end])
            if not header.startswith(b"Content-Length: ") or self.bad_wire is not None:
                self.bad_wire = repr(bytes(self._wire[self._taken : self._taken + 200]))
                return
            stop = end + 4 + int(header.removeprefix(b"Content-Length: "))
            if stop > len(self._wire):
                return
            self.messages.append(json.loads(bytes(self._wire[end + 4 : stop])))
            self._taken = stop

    def _read_log(self, stream: IO[bytes]) -> None:
        while data := os.read(stream.fileno(), 1 << 16):
            with self._changed:
                self._log += data
                self._changed.notify_all()


def serve(
    tmp_path: Path, source: str, *arguments: str, name: str = "served.py", **more: Any
) -> Process:
    """Write a service into a file and serve it."""
    file = tmp_path / name
    text = "from duet_rpc import Context, RpcError, Service\n" + source
    if not file.exists() or file.read_text() != text:  # another daemon may be reading it
        file.write_text(text)
    return Process("serve", file, *arguments, **more)
