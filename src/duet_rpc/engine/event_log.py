"""The log as a listener: which events of a connection are log lines, how severe, in which words.

Loaded with the first event that there is. Events around every request (begun, ended, sent, settled)
are for hooks; the log has no line for them.
"""

from typing import TYPE_CHECKING, Any

from duet_rpc.errors import MethodNotFound
from duet_rpc.hooks import AnswerDropped, Event, FrameFault, RequestRefused

if TYPE_CHECKING:
    from duet_rpc.engine.dispatch import Dispatcher

_FAULTS = {
    "frame": "bad frame",
    "message": "bad message",
    "late frame": "a frame took too long",
    "answer": "an answer cannot be read",
}


def log_event(event: Event, dispatcher: "Dispatcher") -> None:
    """Write the line of an event, if it has one."""
    if isinstance(event, FrameFault):
        reason = {"reason": event.reason} if event.what in ("frame", "message") else {}
        _note(dispatcher, event, "warn", _FAULTS[event.what], event.id, method=None, **reason)
    elif isinstance(event, RequestRefused):
        error = event.error
        if event.id is not None or isinstance(error, MethodNotFound):
            severity = "warn"
        else:
            severity = "error"  # no answer tells its sender
        facts = dispatcher.facts(event.method, error)
        _note(dispatcher, event, severity, error.message, event.id, method=event.method, **facts)
    elif isinstance(event, AnswerDropped):
        about: dict[str, Any] = {"method": None, "reason": None, "error": event.error}
        text = "an answer that no call waits for"
        if event.error is not None and event.refuses_notification:
            text, about["reason"] = "a notification was refused", event.error.reason
        _note(dispatcher, event, "warn", text, event.id, **about)


def _note(
    dispatcher: "Dispatcher",
    event: FrameFault | RequestRefused | AnswerDropped,
    severity: Any,
    text: str,
    id: bytes | None,
    **fields: Any,
) -> None:
    connection_id = event.origin.connection_id
    correlation_id = dispatcher.correlation_id(id, connection_id)
    dispatcher.log.note(
        severity,
        text,
        id=id,
        connection_id=connection_id,
        correlation_id=correlation_id,
        **fields,
    )
