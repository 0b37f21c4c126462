"""`ctx.logger`: what a handler logs goes where the lines of its host go. Imports `logging` late."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from duet_rpc.context import Context
from duet_rpc.engine.log import Log, Silence

if TYPE_CHECKING:
    from logging import Logger, LoggerAdapter

LEVELS = {"debug": 10, "info": 20, "warn": 30, "error": 40}
HANDLERS = "duet_rpc.handler"
"""The logger of Python's `logging` that handlers write to."""


class RequestLoggers:
    """Makes `ctx.logger` for the handlers of one connection, on every host.

    Its lines go where the host's own lines go: a log of ours makes its own loggers (`logger`), a
    log that somebody else has written has `note` and `failure`; without any log they go to Python's
    `logging`.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._logger: Logger | None = None

    def logger(self, ctx: Context) -> "LoggerAdapter[Any]":
        """Make the logger of one request, whose lines carry its method and ids."""
        own: Callable[[Context], LoggerAdapter[Any]] | None = getattr(self._log, "logger", None)
        if own is not None:
            return own(ctx)
        if self._logger is None:
            silent = isinstance(self._log, Silence)
            self._logger = _python_logger() if silent else _logger_to(self._log)
        return request_logger(self._logger, ctx)


def _python_logger() -> "Logger":
    import logging

    return logging.getLogger(HANDLERS)


def _logger_to(log: Log) -> "Logger":
    """Make a logger of its own that writes to a log of the user's."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields = dict(getattr(record, "duet_rpc", {}))
            error = record.exc_info[1] if record.exc_info else None
            if error is not None:
                log.failure(record.getMessage(), error, **fields)
            else:
                log.note(severity_of(record.levelno), record.getMessage(), **fields)

    logger = logging.Logger(HANDLERS)
    logger.addHandler(Handler())
    return logger


def request_logger(logger: "Logger", ctx: Context) -> "LoggerAdapter[Any]":
    """Make a logger whose lines carry the method and the ids of one request."""
    import logging

    fields = {
        "method": ctx.method,
        "correlation_id": ctx.correlation_id,
        "connection_id": ctx.connection_id,
    }
    return logging.LoggerAdapter(logger, {"duet_rpc": fields, **fields})


def severity_of(level: int) -> Literal["debug", "info", "warn", "error"]:
    """Say a level of Python's `logging` in our words."""
    if level >= LEVELS["error"]:
        return "error"
    if level >= LEVELS["warn"]:
        return "warn"
    return "info" if level >= LEVELS["info"] else "debug"
