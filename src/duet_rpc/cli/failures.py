"""What a failed call means to the person who made it: a line, and what to do next."""

import shlex
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct

from duet_rpc.cli.exit_codes import Interrupted
from duet_rpc.cli.output import safe, write_compact
from duet_rpc.errors import (
    CallTimeout,
    ConnectFailed,
    DeadlineExceeded,
    DuetError,
    InProgress,
    InternalError,
    InvalidAnswer,
    InvalidParams,
    InvalidRequest,
    KeyReused,
    MethodNotFound,
    OutcomeUnknown,
    ResultUnserializable,
    RpcError,
    TransportError,
    UsageError,
)
from duet_rpc.methods.wording import UNKNOWN_NAME
from duet_rpc.redaction import HIDDEN
from duet_rpc.wire.surrogates import encode_value

_ALIVE = 1000
"""Milliseconds to wait for a run that is known to go on; for another, until its lease is over."""


_ALIKE, _NEARLY = 0.65, 0.1
"""How alike a name has to be to be meant, and how much less than the most alike one."""


class Attempt(Struct, kw_only=True):
    """What was tried, as far as it matters for what to do next."""

    method: str
    key: str | None = None
    sent: bool = True
    """It may have reached the server."""
    retry_line: str = ""
    """The command line that sends the very same command again."""
    age: float | None = None
    """Seconds ago that it was first sent, as the person says; None if they say it was not."""
    tells_age: bool = False
    """Sent again in the very same way it tells, truly, how long ago it was first sent."""
    first_sent: str = ""
    """The moment when it was, once it was sent."""
    given_as_text: Collection[str] = ()
    known_methods: Sequence[str] = ()


def say_error(error: DuetError) -> str:
    """Say in a line what happened."""
    if isinstance(error, RpcError):
        return f"error {error.code}: {safe(error.message)}"
    first, *rest = str(error).splitlines() or [""]
    return "\n".join([safe(first), *(f"  | {safe(line)}" for line in rest)])


def is_retryable(error: DuetError, attempt: Attempt) -> bool:
    """Tell whether sending the very same call again can help and can do no harm.

    A command that may have run can be sent again if it tells its age: a server that has lost its
    memory meanwhile would take it for a new one otherwise.
    """
    match error:
        case DeadlineExceeded():
            return attempt.key is not None and _is_ours(error)
        case RpcError():
            return error.retryable and _is_ours(error)
        case TransportError():
            return not attempt.sent or (attempt.key is not None and attempt.tells_age)
    return False


def describe_failure(error: DuetError, attempt: Attempt) -> dict[str, Any]:
    """Describe a failure for a program."""
    key = attempt.key
    described: dict[str, Any]
    if isinstance(error, RpcError):
        member: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.data is not None:
            member["data"] = error.data
        described = {"error": member}
    else:
        described = {"failure": _name_failure(error), "message": str(error)}
    described["retryable"] = is_retryable(error, attempt)
    if key is not None:
        described["idempotency_key"] = key
        if attempt.sent and attempt.first_sent and isinstance(error, TransportError):
            described["first_sent"] = attempt.first_sent
    return described


def _name_failure(error: DuetError) -> str:
    match error:
        case Interrupted():
            return "interrupted"
        case CallTimeout():
            return "timeout"
        case InvalidAnswer():
            return "invalid-answer"
        case ConnectFailed():
            return "no-connection"
        case UsageError():
            return "usage"
    return "connection-lost"


def advise(error: DuetError, attempt: Attempt) -> list[str]:
    """Say what the error's data tell, and what the person can do."""
    if isinstance(error, RpcError):
        return [*_say_details(error), *_advise_after_answer(error, attempt)]
    if isinstance(error, UsageError):
        return []
    if not attempt.sent:
        return ["Nothing was called."]
    return ["Whether it happened is not known.", *_say_how_to_retry(attempt)]


def _say_how_to_retry(attempt: Attempt) -> list[str]:
    if attempt.key is None:
        return []
    hidden = [f"with the password where {HIDDEN} is."] if HIDDEN in attempt.retry_line else []
    return [
        "Sent again under its key it takes effect at most once (again, if it is retry safe):",
        f"  {attempt.retry_line}" if attempt.retry_line else f"  --key {attempt.key}",
        *hidden,
    ]


def _say_details(error: RpcError) -> list[str]:
    data = error.data
    if data is None:
        return []
    if isinstance(error, InvalidParams) and isinstance(data, dict) and "expected" in data:
        said = [f"{safe(str(data.get('param')))}: expected {safe(str(data['expected']))}"]
        if "received" in data:
            said.append(f"received {safe(str(data['received']))}")
        text = ", ".join(said)
        if isinstance(data.get("accepted"), list):
            text += f"; accepted: {' '.join(map(write_compact, data['accepted']))}"
        return [text]
    if isinstance(data, dict):
        if isinstance(error, InternalError) and set(data) == {"reference"}:
            return []
        if _is_ours(error) and set(data) == {"reason"}:
            return []
        if isinstance(error, ResultUnserializable) and _is_ours(error):
            return []  # the advice says the same
        if set(data) == {"detail"} and isinstance(data["detail"], str):
            return [safe(data["detail"])]
    try:
        return [write_compact(data)]
    except (TypeError, ValueError):  # it came as JSON, so this cannot be; a report must not fail
        return [safe(str(data))]


def _is_ours(error: RpcError) -> bool:
    """Other servers use the same codes for other things; the word in `data.reason` is ours."""
    return error.word is not None and error.reason == error.word


def _advise_after_answer(error: RpcError, attempt: Attempt) -> list[str]:
    match error:
        case MethodNotFound():
            return suggest_methods(attempt)
        case InvalidParams():
            return _advise_about_params(error, attempt)
        case InvalidRequest() if error.reason == "command-requires-id":
            return ["A command is not sent with --notify: its outcome could not be answered."]
        case InternalError():
            return _point_to_log(error)
    if not _is_ours(error):
        return []
    match error:
        case InProgress():
            return [_say_when_it_ends(error), *_say_how_to_retry(attempt)]
        case DeadlineExceeded():
            return ["The server gave it no more time.", *_say_how_to_retry(attempt)]
        case KeyReused():
            return ["Nothing was done: the key stands for another command. Take a new key."]
        case OutcomeUnknown():
            return [
                "A run was cut off, and no one can know whether its effect happened; it is not run"
                " again.",
                "Its operator can look it up and settle it, in the store that the server uses:",
                f"  duet-rpc commands show {shlex.join([attempt.method, attempt.key or 'KEY'])}"
                " --store URL",
            ]
        case ResultUnserializable():
            return ["It happened; only its result cannot be sent.", *_point_to_log(error)]
    if error.retryable:
        again = _say_how_to_retry(attempt)
        return ["Nothing was done. It can be sent again.", *again[1:]]
    return []


def _say_when_it_ends(error: RpcError) -> str:
    wait = error.data.get("retry_after_ms") if isinstance(error.data, dict) else None
    if not isinstance(wait, int) or wait <= _ALIVE:
        return "It still runs. Ask again in a moment."
    return f"Its run gave no sign of life. Ask again in {-(-wait // 1000)} seconds."


def _point_to_log(error: RpcError) -> list[str]:
    reference = error.data.get("reference") if isinstance(error.data, dict) else None
    return [f"The server's log tells why, under {safe(str(reference))}."] if reference else []


def suggest_methods(attempt: Attempt) -> list[str]:
    """Say which methods may have been meant."""
    likeness = {name: _compare(attempt.method, name) for name in attempt.known_methods}
    best = max(likeness.values(), default=0.0)
    near = max(_ALIKE, best - _NEARLY)
    close = [name for name in likeness if likeness[name] >= near][:3]
    if close:
        return [f"Did you mean {' or '.join(map(safe, close))}?"]
    return ["`duet-rpc list` shows what there is."]


def _compare(one: str, other: str) -> float:
    """Say how alike two names are, from 0 to 1.

    The last word counts twice: the methods of a service all begin alike, and `get` is likely to be
    `shop.get`.
    """
    from difflib import SequenceMatcher

    one, other = one.casefold(), other.casefold()
    pairs = ((one, other), (one.rpartition(".")[2], other.rpartition(".")[2]))
    return sum(SequenceMatcher(None, *pair).ratio() for pair in pairs) / 2


def _advise_about_params(error: RpcError, attempt: Attempt) -> list[str]:
    data = error.data if isinstance(error.data, dict) else {}
    if error.reason == "idempotency-key-missing":
        return ["Give one with --key KEY, or have one made with --command."]
    param = str(data.get("param"))
    expected = str(data.get("expected"))
    if expected.startswith("no key") and attempt.key is not None:
        return ["Leave out --key and --command."]
    is_unknown = data.get("received") == UNKNOWN_NAME
    other_type = not is_unknown and "string" not in expected and '"' not in expected
    if other_type and param in attempt.given_as_text:
        return [f"{safe(param)}=... is text; write {safe(param)}:=... for other values."]
    return [f"`duet-rpc describe` shows what {safe(attempt.method)} takes."]


def encode_failure(error: DuetError, attempt: Attempt) -> bytes:
    """Encode `as_json`."""
    return encode_value(describe_failure(error, attempt))
