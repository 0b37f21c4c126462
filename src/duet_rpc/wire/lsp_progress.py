"""Work done progress of LSP: what is reported under one token, from its begin to its end.

    $/progress {"token": 7, "value": {"kind": "begin", "title": "Index", "percentage": 0}}
    $/progress {"token": 7, "value": {"kind": "report", "percentage": 40, "message": "a.py"}}
    $/progress {"token": 7, "value": {"kind": "end"}}

Laws of this file:
- The first report is the begin. After the end there is nothing, and without a begin no end.
- A percentage never falls; what is no share of a total is said in words.

It knows values; no clock, no I/O, and not who sends them.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from duet_rpc.options import is_number
from duet_rpc.wire.surrogates import encode_value


class WorkDoneReports:
    """What was reported of one piece of work, and what may follow."""

    __slots__ = ("_has_begun", "_has_ended", "_percentage", "_title", "_token")

    def __init__(self, token: Any, title: str) -> None:
        """`token` is a value, or raw as it came; `title` says what is being done."""
        self._token = token
        self._title = title
        self._has_begun = self._has_ended = False
        self._percentage = 0

    def begin(self, **options: Any) -> bytes:
        """Write the params of a begin that reports nothing yet; `options` are other members."""
        self._has_begun = True
        return self._encode({"kind": "begin", "title": self._title, **options})

    def report(self, said: Mapping[str, Any]) -> bytes | None:
        """Write the params of a report, or of the begin if it is the first; None after the end.

        `said` is what `describe_progress` makes.
        """
        if self._has_ended:
            return None
        value = {"kind": "report", **said}
        if not self._has_begun:
            self._has_begun = True
            value = {"kind": "begin", "title": self._title, **said}
        if "percentage" in value:
            self._percentage = value["percentage"] = max(value["percentage"], self._percentage)
        return self._encode(value)

    def end(self, message: str | None = None) -> bytes | None:
        """Write the params of the end; None if nothing has begun, or it has ended before."""
        if self._has_ended or not self._has_begun:
            self._has_ended = True
            return None
        self._has_ended = True
        return self._encode({"kind": "end"} | ({} if message is None else {"message": message}))

    def _encode(self, value: dict[str, Any]) -> bytes:
        return encode_value({"token": self._token, "value": value})


def describe_progress(done: Any, total: Any, message: str | None) -> dict[str, Any]:
    """Say how far work is: a share of a total as a percentage, anything else in words.

    Raises what writing it as JSON raises.
    """
    said: dict[str, Any] = {}
    if is_number(done) and is_number(total) and 0 < total < inf:
        said["percentage"] = int(100 * min(max(done / total, 0), 1))
    elif done is not None and (message is None or not is_number(done)):
        text = done if isinstance(done, str) else encode_value(done).decode()
        message = text if message is None else f"{text}: {message}"
    if message is not None:
        said["message"] = str(message)
    return said
