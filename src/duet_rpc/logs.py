"""Log lines on stderr or in a file: never on stdout, never blocking, never with secrets.

A line is `time severity message field=value ...`. It is written at once, without blocking: a client
that does not drain our stderr must not stop us, so lines it has no room for are dropped and
counted. Python's own `logging` is used where handlers ask for a logger, and only then imported.
"""

import os
import time
from typing import TYPE_CHECKING, Any

from duet_rpc.context import Context
from duet_rpc.transports.channel import Send, sender

if TYPE_CHECKING:
    from logging import LoggerAdapter

LEVELS = {"debug": 10, "info": 20, "warn": 30, "error": 40}
_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[36m", "warn": "\x1b[33m", "error": "\x1b[31m"}
_SECRET_NAMES = ("token", "password", "passwd", "secret", "authorization", "api_key", "apikey")
_MAX_VALUE = 300


class Logs:
    """The log of one process; `level` may be changed while it runs."""

    def __init__(self, *, level: str = "info", path: str | None = None, colour: bool | None = None):
        self.level = level
        self.dropped = 0
        self._threshold = LEVELS[level]
        self._path = path
        self._fd = 2
        self._send: Send | None = None
        self._colour = colour
        self._problem: str | None = None
        self._adapter_ready = False
        if path is not None:
            try:
                self._fd = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
                )
            except OSError as error:
                self._problem = error.strerror or "not writable"
                self._path = None

    @property
    def sink(self) -> str:
        """Where lines go, without the path of anybody's home."""
        return "stderr" if self._path is None else f"file {os.path.basename(self._path)}"

    def begin(self, version: str) -> None:
        """Write the first line: who we are, and where the log goes."""
        if self._problem is not None:
            self.note(
                "warn", "the log file cannot be written; logging to stderr", why=self._problem
            )
        self.note(
            "info", "started", version=version, pid=os.getpid(), level=self.level, sink=self.sink
        )

    def set_level(self, level: str) -> None:
        """Keep lines of this severity and above."""
        self.level = level
        self._threshold = LEVELS[level]
        if self._adapter_ready:
            import logging

            logging.getLogger("duet_rpc").setLevel(LEVELS[level])

    def note(self, severity: str, text: str, **fields: Any) -> None:
        """Write one line."""
        if LEVELS[severity] >= self._threshold:
            self._write(severity, text, fields, "")

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        """Write an unforeseen exception with its traceback; return the reference for the peer."""
        reference = os.urandom(6).hex()
        if self._threshold <= LEVELS["error"]:
            import traceback

            try:
                trace = "".join(traceback.format_exception(error))
            except Exception:  # an exception whose text cannot be had is still one
                trace = f"{type(error).__name__} (its text cannot be read)\n"
            self._write("error", text, {**fields, "reference": reference}, trace)
        return reference

    def logger(self, ctx: Context) -> "LoggerAdapter[Any]":
        """Make the logger of one request for its handler."""
        import logging

        logger = logging.getLogger("duet_rpc.handler")
        if not self._adapter_ready:
            self._adapter_ready = True
            root = logging.getLogger("duet_rpc")
            root.setLevel(self._threshold)
            root.addHandler(_handler(self))
            root.propagate = False
        fields = {
            "method": ctx.method,
            "correlation_id": ctx.correlation_id,
            "connection_id": ctx.connection_id,
        }
        return logging.LoggerAdapter(logger, {"duet_rpc": fields})

    def _write(self, severity: str, text: str, fields: dict[str, Any], trace: str) -> None:
        if "id" in fields and "correlation_id" not in fields and fields["id"] is not None:
            fields["correlation_id"] = fields["id"]
        now = time.time()
        stamp = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        )
        shown = "".join(
            f" {name}={_value(name, value)}" for name, value in fields.items() if value is not None
        )
        if self._send is None:
            self._send = sender(self._fd)[0]
            if self._colour is None:
                self._colour = os.isatty(self._fd) and "NO_COLOR" not in os.environ
        if self._colour:
            severity = f"{_COLOURS[severity]}{severity}\x1b[0m"
        line = f"{stamp} {severity} {_one_line(text)}{shown}\n{_indented(trace)}"
        data = line.encode("utf-8", "backslashreplace")
        try:
            if self.dropped and self._send(b"(%d log lines were dropped)\n" % self.dropped):
                self.dropped = 0
            if self._send(data) != len(data):
                self.dropped += 1
        except OSError:
            self.dropped += 1


def _value(name: str, value: Any) -> str:
    if any(secret in name.lower() for secret in _SECRET_NAMES):
        return "***"
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    if name == "idempotency_key":
        text = text[:8]
    text = text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "..."
    return f'"{_one_line(text)}"' if " " in text or text == "" else _one_line(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _indented(trace: str) -> str:
    home = os.path.expanduser("~")
    if len(home) > 1:
        trace = trace.replace(home, "~")
    return "".join(f"    {line}\n" for line in trace.splitlines())


def _handler(logs: Logs) -> Any:
    import logging

    names = {10: "debug", 20: "info", 30: "warn", 40: "error", 50: "error"}

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields = dict(getattr(record, "duet_rpc", {}))
            severity = names.get(record.levelno // 10 * 10, "info")
            trace = ""
            if record.exc_info and record.exc_info[1] is not None:
                import traceback

                trace = "".join(traceback.format_exception(record.exc_info[1]))
            logs._write(severity, record.getMessage(), fields, trace)

    return Handler()
