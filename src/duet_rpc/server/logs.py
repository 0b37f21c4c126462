"""Log lines on stderr or in a file: never on stdout, never blocking.

A line is `time severity message field=value ...`. It is written at once, without blocking: a client
that does not drain our stderr must not stop us, so what it has no room for is kept for a while, and
dropped and counted beyond that. Python's own `logging` is used where handlers ask for a logger, and
only then imported.

What the runtime itself logs holds no values of callers. The text of an unforeseen exception and the
lines of handlers are the application's and may hold anything. `redact` takes the common forms of
secrets out of them, which helps and promises nothing: no pattern knows every secret. Without
`log_exception_text` exceptions are logged by their types and places alone.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duet_rpc.context import Context
from duet_rpc.errors import RpcError
from duet_rpc.forks import tell_in_child
from duet_rpc.hosts.loggers import HANDLERS, LEVELS, request_logger, severity_of
from duet_rpc.redaction import SECRET_WORDS, redact
from duet_rpc.tracebacks import format_places
from duet_rpc.transports.channel import sender
from duet_rpc.transports.outbox import Outbox

if TYPE_CHECKING:
    from logging import Handler, LoggerAdapter

_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[36m", "warn": "\x1b[33m", "error": "\x1b[31m"}
_MAX_VALUE = 300
_MAX_KEPT = 256 * 1024
"""Bytes of lines that wait for somebody to drain our stderr."""


class Logs:
    """The log of one process; `level` may be changed while it runs. Any thread may write."""

    def __init__(
        self,
        *,
        level: str = "info",
        path: str | None = None,
        colour: bool | None = None,
        log_exception_text: bool = True,
    ):
        self.level: str = level
        self.log_exception_text: bool = log_exception_text
        self.dropped: int = 0
        self._threshold = LEVELS[level]
        self._path = None if path is None else os.path.abspath(path)
        self._fd = 2
        self._closes: Callable[[], object] = _nothing
        self._lock = threading.Lock()
        self._outbox: Outbox | None = None
        self._colour = colour
        self._problem: str | None = None
        self._adapter: Handler | None = None
        self._own = os.urandom(3).hex()
        self._lines = 0
        self._open_file()
        tell_in_child(self)

    def forked(self) -> None:
        """Write as before, but not what the parent has still to write."""
        self._lock = threading.Lock()  # another thread may have held it
        self._outbox = None

    @property
    def sink(self) -> str:
        """Where lines go, without the path of anybody's home."""
        return "stderr" if self._path is None else f"file {os.path.basename(self._path)}"

    def begin(self, version: str, **more: Any) -> None:
        """Write the first line: who we are, where the log goes, and what else is given."""
        with self._lock:
            if self._outbox is None:  # now: a handler may close descriptor 2 before the first line
                self._outbox = self._open()
        if self._problem is not None:
            self.note(
                "warn", "the log file cannot be written; logging to stderr", why=self._problem
            )
        facts = {"version": version, "pid": os.getpid(), "level": self.level, "sink": self.sink}
        self.note("info", "started", **facts, **more)

    def set_level(self, level: str) -> None:
        """Keep lines of this severity and above."""
        self.level = level
        self._threshold = LEVELS[level]
        if self._adapter is not None:
            import logging

            logging.getLogger("duet_rpc").setLevel(LEVELS[level])

    def withhold_exception_text(self) -> None:
        """Log the types and places of exceptions from now on, and nothing of their texts."""
        self.log_exception_text = False

    def note(self, severity: str, text: str, **fields: Any) -> None:
        """Write one line."""
        if LEVELS[severity] >= self._threshold:
            self._write(severity, text, fields, "")

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        """Write an unforeseen exception with its traceback; return the reference for the peer."""
        reference = os.urandom(6).hex()
        if self._threshold <= LEVELS["error"]:
            trace = self._format_trace(error)
            self._write("error", text, {**fields, "reference": reference}, trace)
        return reference

    def _format_trace(self, error: BaseException) -> str:
        if not self.log_exception_text:
            return format_places(error)
        import traceback

        try:
            return "".join(traceback.format_exception(error))
        except Exception:  # an exception whose text cannot be had is still one
            return format_places(error)

    def logger(self, ctx: Context) -> "LoggerAdapter[Any]":
        """Make the logger of one request for its handler."""
        import logging

        self.adopt()
        return request_logger(logging.getLogger(HANDLERS), ctx)

    def adopt(self) -> None:
        """Take in what our own modules and handlers say to Python's `logging`; idempotent."""
        import logging

        if self._adapter is None:
            self._adapter = adapter = _handler(self)
            root = logging.getLogger("duet_rpc")
            root.setLevel(self._threshold)
            root.addHandler(adapter)
            root.propagate = False

    def _let_go(self) -> None:
        if self._adapter is not None:
            import logging

            root = logging.getLogger("duet_rpc")
            root.removeHandler(self._adapter)
            root.propagate = not root.handlers
            self._adapter = None

    def flush(self, timeout: float) -> None:
        """Give the reader of our stderr this many seconds to make room for what is kept."""
        until = time.monotonic() + timeout
        while (outbox := self._outbox) is not None and outbox.size and time.monotonic() < until:
            with self._lock:
                outbox.flush()
            time.sleep(0.005)

    def close(self) -> None:
        """Give back the file, or what was made of stderr; idempotent, any thread.

        A line that comes after it, out of a handler that outlives its server or of another server
        with the same log, opens it again.
        """
        self._let_go()
        with self._lock:
            if self._outbox is not None:
                self._outbox.flush()
                self._outbox.lose()  # somebody may be about to flush it
                self._outbox = None
                self._closes()
            if self._path is not None and self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write(self, severity: str, text: str, fields: dict[str, Any], trace: str) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        with self._lock:
            self._lines += 1
            if fields.get("correlation_id") is None:
                fields["correlation_id"] = _text_of(fields.get("id")) or self._make_correlation_id()
            if self._outbox is None:
                self._outbox = self._open()
            shown = write_fields(fields)
            if self._colour:
                severity = f"{_COLOURS[severity]}{severity}\x1b[0m"
            stamp += f".{int(now % 1 * 1000):03d}Z"
            line = f"{stamp} {severity} {_one_line(redact(text))}{shown}\n{_indent(trace)}"
            self._put(line.encode("utf-8", "backslashreplace"))

    def _make_correlation_id(self) -> str:
        """Make the correlation id of a line that belongs to no request with an id."""
        return f"{self._own}-{self._lines}"

    def _open_file(self) -> None:
        if self._path is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._fd = os.open(self._path, flags, 0o600)
        except OSError as error:
            self._problem = error.strerror or "not writable"
            self._path, self._fd = None, 2

    def _open(self) -> Outbox:
        if self._fd < 0:
            self._open_file()
        if self._colour is None:
            self._colour = os.isatty(self._fd) and not os.environ.get("NO_COLOR")
        try:
            send, self._closes = sender(self._fd)
            return Outbox(send, _MAX_KEPT)
        except OSError:  # somebody has closed it: there is no log, and everything else goes on
            self._closes = _nothing
            closed = Outbox(len, _MAX_KEPT)
            closed.lose()
            return closed

    def _put(self, data: bytes) -> None:
        outbox = self._outbox
        assert outbox is not None, "opened before the first line"
        outbox.flush()
        if outbox.size + len(data) > _MAX_KEPT:
            self.dropped += 1
            return
        if self.dropped:
            outbox.put(b"(%d log lines were dropped)\n" % self.dropped)
            self.dropped = 0
        outbox.put(data)


def _nothing() -> None:
    pass


def _text_of(id: bytes | str | None) -> str | None:
    """Say an id as text, as handlers see it; None if it says nothing."""
    if id is None or id == b"null":
        return None
    if isinstance(id, bytes):
        id = id.decode("utf-8", "backslashreplace")
    return id[1:-1] if id.startswith('"') else id


def write_fields(fields: dict[str, Any]) -> str:
    """Say the fields of a line, as they follow its text."""
    present = [(name, value) for name, value in fields.items() if value is not None]
    return "".join(f" {name}={_value(name, value)}" for name, value in present)


def _value(name: str, value: Any) -> str:
    if any(word in name.lower() for word in SECRET_WORDS):
        return "***"
    if isinstance(value, RpcError):
        return str(value.code)  # the rest of it is the peer's, and may hold values
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    if name == "idempotency_key":
        text = text[:8]
    text = redact(text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "...")
    return f'"{_one_line(text)}"' if " " in text or text == "" else _one_line(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _indent(trace: str) -> str:
    home = os.path.expanduser("~")
    if len(home) > 1:
        trace = trace.replace(home, "~")
    return "".join(f"    {line}\n" for line in redact(trace).splitlines())


def _handler(logs: Logs) -> "Handler":
    import logging

    class LogsHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields = dict(getattr(record, "duet_rpc", {}))
            severity = severity_of(record.levelno)
            trace = ""
            if record.exc_info and record.exc_info[1] is not None:
                trace = logs._format_trace(record.exc_info[1])
            logs._write(severity, record.getMessage(), fields, trace)

    return LogsHandler()
