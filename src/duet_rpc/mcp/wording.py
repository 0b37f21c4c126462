"""What a model reads when a tool has failed. Of a failed call hosts show it the text alone.

The first line says what happened. Then comes what to do about it: mend the arguments, wait and
repeat, or ask what became of the command first.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from duet_rpc.errors import (
    Cancelled,
    DeadlineExceeded,
    InProgress,
    InternalError,
    InvalidParams,
    InvalidRequest,
    KeyReused,
    MethodNotFound,
    OutcomeUnknown,
    Overloaded,
    ResultUnserializable,
    ShuttingDown,
    StoreUnavailable,
)
from duet_rpc.wire.params import KEY, KEY_OF_ARGUMENTS
from duet_rpc.wire.surrogates import encode_value

OUTCOME_TOOL = "outcome"
"""The tool that tells what became of a command."""

_NOTHING_HAPPENED = {Overloaded.code, ShuttingDown.code, StoreUnavailable.code, InProgress.code}


class ToolError(Struct):
    """The error of a tool, as it stands in an answer."""

    code: int
    message: str
    data: Any | UnsetType = UNSET

    @property
    def details(self) -> dict[str, Any]:
        """Its data, if it is an object."""
        return self.data if isinstance(self.data, dict) else {}


def word_window(window: float) -> str:
    """Say of a tool, ahead of any call, when a call of it is taken for a repetition."""
    return (
        f"The same call within {window:g} s is taken for a repetition: nothing is done again, and"
        f" the answer is the first one. To do it again, give a new {KEY}."
    )


def word_repetition(window: float, *, has_failed: bool) -> str:
    """Say of a result that it is that of an earlier call."""
    what = "Already tried, and it failed" if has_failed else "Already done"
    return (
        f"{what}, a moment ago: this is the answer to an earlier call, and nothing was done now."
        f" The same arguments within {window:g} s are taken for a repetition. To do it again, give"
        f" a new {KEY}."
    )


def word_failure(failed: ToolError, tool: str, key: str | None) -> str:
    """Say what happened and what to do about it."""
    lines = [_word(failed), *_advise(failed, tool, key)]
    return "\n".join(line for line in lines if line)


def _word(failed: ToolError) -> str:
    details = failed.details
    if failed.code == InvalidParams.code:
        return _word_arguments(details)
    if failed.code in (InternalError.code, ResultUnserializable.code):
        reference = details.get("reference")
        said = details.get("detail") or "The tool has failed."
        return f"Internal error: {said} Reference: {reference}." if reference else f"{said}"
    if failed.code in (InvalidRequest.code, MethodNotFound.code) or failed.code in _KNOWN:
        return f"{failed.message}: {details['detail']}" if "detail" in details else failed.message
    if failed.data in (UNSET, None):
        return failed.message
    return f"{failed.message}\n{encode_value(failed.data).decode()}"


_KNOWN = _NOTHING_HAPPENED | {
    KeyReused.code,
    OutcomeUnknown.code,
    DeadlineExceeded.code,
    Cancelled.code,
}


def _word_arguments(details: dict[str, Any]) -> str:
    param, expected = details.get("param"), details.get("expected")
    if param is None:
        return f"Invalid arguments: {details.get('detail', 'they do not fit the tool')}."
    said = f"Invalid arguments: {param}"
    if expected is not None:
        said += f" has to be {expected}"
        if details.get("received") is not None:
            said += f", but {details['received']} came"
    accepted = details.get("accepted")
    listed = f" Accepted: {', '.join(map(str, accepted))}." if isinstance(accepted, list) else ""
    return f"{said}.{listed}"


def _advise(failed: ToolError, tool: str, key: str | None) -> list[str]:
    details, code = failed.details, failed.code
    if code == InvalidParams.code:
        return ["Nothing was done. Correct the arguments and call the tool again."]
    is_given = key is not None and not key.startswith(KEY_OF_ARGUMENTS)
    same = f"the same {KEY} ({key})" if is_given else "the same arguments"
    ask = f"Call the tool {OUTCOME_TOOL} with tool={tool} and {KEY}={key}"
    if code in _NOTHING_HAPPENED:
        wait = details.get("retry_after_ms")
        when = f"in {wait} ms" if isinstance(wait, int) else "in a moment"
        done = "It is still running." if code == InProgress.code else "Nothing was done."
        return [f"{done} Call the tool again {when} with {same}."]
    if code == KeyReused.code:
        return [
            f"Nothing was done: {key} was used for a call with other arguments. Choose a new"
            f" {KEY} for a new action."
        ]
    if code == OutcomeUnknown.code:
        return [
            "No one can know whether it has happened. Do not repeat it under a new"
            f" {KEY} before you have looked at what there is."
        ]
    if code == DeadlineExceeded.code:
        if key is None:
            return ["It may have happened all the same. Look before you repeat it."]
        return [f"It may still happen. {ask}, or call the tool again with {same}."]
    if code in (InternalError.code, ResultUnserializable.code) and key is not None:
        return [f"{KEY}: {key}"]
    return []
