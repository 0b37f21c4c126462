"""How a protocol family spells what JSON-RPC leaves open: cancellation, progress, streams, levels.

    JSONRPC, LSP    $/cancelRequest {id}              $/progress {token, value}
                    $/item {stream, seq, value}       $/more {stream, items}
    all             $/item {subscription, ...}        $/more {subscription, items}
                    $/end {subscription, error}       $/unsubscribe {subscription}
    LSP             also, of a request with a `partialResultToken`: its items, as $/progress
                    also, of a request with a `workDoneToken`: begin, report, end, as $/progress
    MCP             notifications/cancelled           notifications/progress
                    {requestId, reason}               {progressToken, progress, total, message}
                    no streams: a caller gets the list

Laws of this file:
- These names and shapes stand here and nowhere else; the engine knows ids, tokens and values.
- What `ctx.progress` is given, `on_progress` gets at the other end, as one `Progress`, under each
  dialect. Only what has no place in MCP (a progress that is no number) travels as text, and a
  caller that speaks of work done alone gets percentages.

It knows bytes and values; no clock, no I/O, no methods.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from duet_rpc.options import check, is_integer, is_number
from duet_rpc.wire.surrogates import decode_value, encode_value

DialectName: TypeAlias = Literal["jsonrpc", "lsp", "mcp"]

ITEM = "$/item"
"""Carries one item of a subscription, under every dialect, as are the next three."""
MORE = "$/more"
"""Grants further items of a subscription."""
END = "$/end"
"""Tells the end of a subscription."""
UNSUBSCRIBE = "$/unsubscribe"
"""Ends a subscription, by its subscriber."""

_NULL = Raw(b"null")
_members_decoder = msgspec.json.Decoder(dict[str, Raw])
_token_decoder = msgspec.json.Decoder(int)
_any_decoder = msgspec.json.Decoder()


class Progress(Struct, frozen=True):
    """How far a call is: what `on_progress` is called with."""

    done: Any = None
    """How much is done: a number, or whatever else the server reports; None if it does not say."""
    total: float | None = None
    """How much there is to do, if that is known."""
    message: str | None = None
    """What is being done, in words."""


class Dialect(Struct, frozen=True):
    """One way to spell these things. `JSONRPC` is the usual one."""

    name: str
    cancel: str
    """The method that cancels a request."""
    cancel_id: str
    """The param that says which."""
    cancel_reason: str | None
    """Sent with it where there is a param for it."""
    answers_cancelled: bool
    """Whether a request that was cancelled is answered, with the error -32800."""
    progress: str
    """The method that reports progress."""
    progress_token: str
    """The param that says of which request."""
    progress_value: str | None
    """The param that holds the whole report. None: a report is a number that grows, with `total`
    and `message` beside it."""
    set_level: str
    """The daemon's method that sets the level of its log."""
    levels: Mapping[str, str]
    """The levels that it takes, and the one of ours that each of them means."""
    repeats_level: bool
    """Whether its result says the level; else it is an empty object."""
    item: str | None = None
    """The method that carries one item of a stream. None: there are no streams."""
    more: str | None = None
    """The method by which the reader of a stream grants further items."""
    partial_token: str | None = None
    """The param that asks for partial results, which are progress without flow control."""
    work_done_token: str | None = None
    """The param that asks for progress with a begin and an end."""

    @property
    def beside(self) -> tuple[str, ...]:
        """The members that may come beside the params of every request, as `_meta` may."""
        return tuple(name for name in (self.partial_token, self.work_done_token) if name)

    def work_done(self, token: int) -> dict[str, int]:
        """Make what asks for progress under a token, beside `_meta` which asks for it too."""
        return {} if self.work_done_token is None else {self.work_done_token: token}

    @property
    def method_names(self) -> frozenset[str | None]:
        """The methods that the engine itself looks at."""
        own = (self.cancel, self.progress, self.item, self.more)
        return frozenset((*own, ITEM, MORE, END, UNSUBSCRIBE))

    def encode_cancel(self, id: int) -> bytes:
        """Write the params that cancel a call of ours."""
        params: dict[str, Any] = {self.cancel_id: id}
        if self.cancel_reason is not None:
            params["reason"] = self.cancel_reason
        return encode_value(params)

    def read_cancel(self, params: bytes | None) -> bytes | None:
        """Read which request is cancelled: its raw id. None if the params do not say."""
        id = _members(params).get(self.cancel_id)
        return None if id is None else bytes(id)

    def read_token(self, token: Any) -> Any:
        """Take what a request names its progress by; None if it asks for none, or by no token."""
        if token is UNSET:
            return None
        is_token = self.progress_value is not None or isinstance(token, str) or is_integer(token)
        return token if is_token else None

    def spell_progress(
        self, token: Any, done: Any, total: Any, message: str | None, last: Any
    ) -> tuple[dict[str, Any] | None, Any]:
        """Make the params of a report, and what `last` is for the next one.

        None in place of the params if this report may not follow the last one.
        """
        if self.progress_value is not None:
            return {self.progress_token: token, self.progress_value: _join(done, total, message)}, 0
        if not is_number(done):
            said = done if isinstance(done, str) else encode_value(done).decode()
            message = said if message is None else f"{said}: {message}"
            done = 0 if last is None else last + 1
        elif done in (inf, -inf) or (last is not None and done <= last):
            return None, last  # it has to grow
        parts = {"progress": done, "total": total, "message": message}
        return {self.progress_token: token, **_drop_absent(parts)}, done

    def read_progress(self, params: bytes | None) -> tuple[int, dict[str, Raw]] | None:
        """Read the token of a report and, undecoded, the rest; None if it has none of ours."""
        members = _members(params)
        try:
            return decode_value(_token_decoder, members.pop(self.progress_token, _NULL)), members
        except msgspec.DecodeError:
            return None

    def decode_progress(self, members: dict[str, Raw]) -> Progress:
        """Make what `on_progress` is called with. Raises `msgspec.ValidationError`."""
        if self.progress_value is not None:
            return _read_value(_decode(members.get(self.progress_value)))
        done, total, message = (_decode(members.get(n)) for n in ("progress", "total", "message"))
        return _progress(done, total, message)


def _members(params: bytes | None) -> dict[str, Raw]:
    try:
        return decode_value(_members_decoder, params or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return {}


def _decode(raw: Raw | None) -> Any:
    return None if raw is None else decode_value(_any_decoder, raw)


def _progress(done: Any, total: Any, message: Any) -> Progress:
    """Make progress of what a peer sent, which may be of any type."""
    return Progress(
        done,
        total if is_number(total) else None,
        message if isinstance(message, str) else None,
    )


def _read_value(value: Any) -> Progress:
    """Read a report that is one value: ours, that of LSP's work done, or anything else."""
    if not isinstance(value, dict):
        return Progress(value)
    if "done" in value and value.keys() <= {"done", "total", "message"}:
        return _progress(value["done"], value.get("total"), value.get("message"))
    if "kind" in value or "percentage" in value:
        said = [text for name in ("title", "message") if isinstance(text := value.get(name), str)]
        share = value.get("percentage")
        is_share = is_number(share)
        return Progress(
            share if is_share else None, 100 if is_share else None, ": ".join(said) or None
        )
    return Progress(value)


def _join(done: Any, total: Any, message: Any) -> Any:
    """Say a report as one value: what is done, or an object with everything that is known."""
    if total is None and message is None:
        return done
    return _drop_absent({"done": done, "total": total, "message": message})


def _drop_absent(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parts.items() if value is not None}


JSONRPC = Dialect(
    name="jsonrpc",
    cancel="$/cancelRequest",
    cancel_id="id",
    cancel_reason=None,
    answers_cancelled=True,
    progress="$/progress",
    progress_token="token",
    progress_value="value",
    set_level="setLogLevel",
    levels={level: level for level in ("debug", "info", "warn", "error")},
    repeats_level=True,
    item=ITEM,
    more=MORE,
)
"""JSON-RPC spells none of these; the language server protocol does, and others follow it."""

LSP = msgspec.structs.replace(
    JSONRPC,
    name="lsp",
    partial_token="partialResultToken",
    work_done_token="workDoneToken",
)
"""The language server protocol itself."""

MCP = Dialect(
    name="mcp",
    cancel="notifications/cancelled",
    cancel_id="requestId",
    cancel_reason="no one waits for the answer any more",
    answers_cancelled=False,
    progress="notifications/progress",
    progress_token="progressToken",
    progress_value=None,
    set_level="logging/setLevel",
    levels={
        "debug": "debug",
        "info": "info",
        "notice": "info",
        "warning": "warn",
        **dict.fromkeys(("error", "critical", "alert", "emergency"), "error"),
    },
    repeats_level=False,
)
"""The model context protocol, in all its revisions."""

_NAMED = {"jsonrpc": JSONRPC, "lsp": LSP, "mcp": MCP}


def find_dialect(given: Dialect | DialectName) -> Dialect:
    """Give the dialect of this name, or the one that was given; raise `UsageError`."""
    known = _NAMED.get(given) if isinstance(given, str) else given
    check("dialect", given, isinstance(known, Dialect), '"jsonrpc", "lsp", "mcp" or a Dialect')
    assert known is not None, "checked"
    return known
