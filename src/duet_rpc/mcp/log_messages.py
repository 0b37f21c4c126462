"""Log lines that a client gets: `ctx.logger` of a handler writes to the log, and to who asked."""

from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING, LoggerAdapter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duet_rpc.mcp.session import McpSession

_LEVELS = {
    "debug": DEBUG,
    "info": INFO,
    "notice": INFO + 5,
    "warning": WARNING,
    "error": ERROR,
    "critical": CRITICAL,
    "alert": CRITICAL + 10,
    "emergency": CRITICAL + 20,
}
"""The severities of the protocol, as numbers of Python's logging."""


class ToldLogger(LoggerAdapter):  # type: ignore[type-arg]
    """A logger whose lines a client gets as well."""

    def __init__(
        self, own: "LoggerAdapter[Any]", session: "McpSession", level: str, name: str
    ) -> None:
        super().__init__(own.logger, dict(own.extra or {}))
        self._session = session
        self._least = _LEVELS[level]
        self._name = name

    def isEnabledFor(self, level: int) -> bool:
        """Whether anyone wants a line of this severity."""
        return level >= self._least or super().isEnabledFor(level)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, and send it."""
        super().log(level, msg, *args, **kwargs)
        if level >= self._least:
            text = str(msg) % args if args else str(msg)
            said = {"level": name_level(level), "logger": self._name, "data": text}
            self._session.notify("notifications/message", said)


def name_level(level: int) -> str:
    """Say a severity in the words of the protocol."""
    return next((name for name, number in reversed(_LEVELS.items()) if level >= number), "debug")
