"""The base protocol of LSP: header lines with a Content-Length, a blank line, so many bytes."""

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from duet_rpc.errors import InvalidRequest, RpcError
from duet_rpc.startup import pattern
from duet_rpc.wire.framing.frames import (
    BLANKS,
    END,
    LARGE,
    MAX_HEADER_BYTES,
    MAX_HEADER_LINES,
    MAX_MESSAGE_BYTES,
    Event,
    Fault,
    Frame,
    cut,
    in_parts,
    join_frame,
    oversize,
    refusal,
)

_BLANK_RUN = rb"[ \t\r\n]*"
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]*"
_MAX_DIGITS = 15
_LENGTH = b"content-length:"
_TYPE = b"content-type:"

_PLAIN_HEADERS = tuple(b"Content-Length: %d\r\n\r\n" % length for length in range(1000))
"""What goes out before small bodies: adding saves half the price of formatting."""

_KNOWN: dict[bytes, tuple[int, int]] = {}
"""How good frames began, and where the body of each begins and ends: to recognise a header costs a
tenth of reading it. A key is a header section, and the first bytes of the body if that makes less
than 24; so one look-up serves the plain headers of all bodies of 10 to 9999 bytes. Filled as frames
come, for a ready table would delay each start of a daemon."""
_KNOWN_ENTRIES = 4096
_KNOWN_BYTES = 128
_KNOWN_BODY = 64 * 1024


class HeaderFraming:
    """The base protocol of LSP: header lines with a Content-Length, a blank line, so many bytes.

    A state is a method: it gets the data and a position, takes what it can, and returns how far it
    got. What it leaves in `_held` it sees again, in front of the next data.

    It has more than twenty methods because states are methods, and more than fifteen fields because
    a header and a body under way are remembered in them.
    """

    joins = True

    def __init__(
        self,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_header_bytes: int = MAX_HEADER_BYTES,
        keeps_ends: bool = False,
    ) -> None:
        # Of the instance: what is the class's, Python 3.11 looks up each time.
        self.prefixes = _PLAIN_HEADERS
        self._keeps_ends = keeps_ends
        self._max_message_bytes = max_message_bytes
        self._max_header_bytes = max_header_bytes
        # What others found good may break a tighter limit; then this framing finds out by itself.
        tight = max_message_bytes < _KNOWN_BODY or max_header_bytes < _KNOWN_BYTES
        self._known = {} if tight else _KNOWN
        self._state: _State = HeaderFraming._between
        self.started: int = 0
        self._held = b""
        # The header section: where its unfinished line begins, and what the ones before it said.
        self._line = self._lines = 0
        self._length: int | None = None
        self._refusal: Fault | None = None
        # The body: what came of it, and how much has not.
        self._body = bytearray()
        self._missing = 0
        self._after_body = False
        # A body that is skipped: how it ended so far, if that is to be reported.
        self._dropped: Fault | None = None
        self._tail_end = b""

    @staticmethod
    def encode(body: bytes) -> bytes:
        return join_frame(HeaderFraming.frame(body))

    @staticmethod
    def frame(body: bytes) -> Frame:
        """Return what to write. No other header: Emacs gives up after 100 bytes of them."""
        length = len(body)
        if length < len(_PLAIN_HEADERS):
            return _PLAIN_HEADERS[length] + body
        if length < LARGE:
            return b"Content-Length: %d\r\n\r\n%b" % (length, body)
        return HeaderFraming.frame_around(b"", body, b"")

    @staticmethod
    def frame_around(before: bytes, body: bytes, after: bytes) -> Frame:
        length = len(before) + len(body) + len(after)
        return in_parts(b"Content-Length: %d\r\n\r\n%b" % (length, before), body, after)

    @property
    def partial(self) -> bool:
        if self._state is HeaderFraming._tail:
            return bool(self._held)
        return self._state not in (HeaderFraming._between, HeaderFraming._resynchronise)

    @property
    def begun(self) -> bytes:
        return bytes(self._body[:LARGE]) if self._dropped is None else self._dropped.head

    @property
    def bulk(self) -> bool:
        return self._missing > LARGE and self._state is HeaderFraming._collect

    def feed(self, data: bytes) -> list[Event]:
        if self._state is _BETWEEN:
            # One whole frame is what nearly every read brings from a peer that waits for answers.
            shape = self._known.get(data[:24])
            if shape is not None and shape[1] == len(data):
                self._after_body = True
                return [data[shape[0] :]]
        events: list[Event] = []
        if self._held:
            data, self._held = self._held + data, b""
        at = 0
        while at < len(data):
            at = self._state(self, data, at, events)
        return events

    def end(self) -> Fault | None:
        # A body that is being skipped was answered when its header came.
        return cut() if self._state in (HeaderFraming._header, HeaderFraming._collect) else None

    def expire(self) -> bool:
        if not self.partial:
            return False
        self.started += 1
        self._missing -= len(self._held)
        in_body = self._state is not HeaderFraming._header and self._missing > 0
        self._state = HeaderFraming._tail if in_body else HeaderFraming._resynchronise
        self._held, self._body = b"", bytearray()
        self._after_body = False
        self._dropped = None
        return True

    def _between(self, data: bytes, at: int, events: list[Event]) -> int:
        """Cut whole frames with known headers; leave the first other one to `_header`."""
        size, known, take, begin = len(data), self._known.get, events.append, at
        while at < size:
            shape = known(data[at : at + 24])
            if shape is None:
                end = data.find(b"\r\n\r\n", at, at + _KNOWN_BYTES) + 4
                shape = known(data[at:end])
                if shape is None:
                    break
            start, stop = shape
            stop += at
            if stop > size:
                self.started += 1
                self._missing, self._state = stop - at - start, HeaderFraming._collect
                return at + start
            take(data[at + start : stop])
            at = stop
        if at > begin:
            self._after_body = True
        if at == size:
            return at
        if data[at] in BLANKS:
            return _end_of(_BLANK_RUN, data, at, size)
        self.started += 1
        self._open()
        return at

    def _open(self) -> None:
        """Expect a header section, from the position that the state returns."""
        self._line = self._lines = 0
        self._length = self._refusal = None
        self._state = HeaderFraming._header

    def _header(self, data: bytes, at: int, events: list[Event]) -> int:
        """Read header lines. `at` is the start of the section, also when part of it was held."""
        stop = min(len(data), at + self._max_header_bytes)
        line = at + self._line
        while True:
            colon = _end_of(_TOKEN, data, line, stop)
            if colon == line and data.startswith(b"\r\n", line, stop):
                return self._judge(data, at, line + 2, events)
            if colon == stop or colon == line and data[line:stop] == b"\r":
                break
            if colon == line or not data.startswith(b":", colon):
                error = _no_header("expected a header line: a name, a colon, a value, CR LF")
                return self._refuse(data, at, colon, error, events)
            if self._lines == MAX_HEADER_LINES:
                return self._refuse(data, at, line, self._too_large(), events)
            end = data.find(b"\n", colon, stop) + 1
            if end == 0:
                break
            mistake = self._read_line(data[line:colon], data[colon + 1 : end])
            if mistake is not None:
                return self._refuse(data, at, end, mistake, events)
            line = end
        if stop - at < self._max_header_bytes:
            self._line, self._held = line - at, data[at:]
            return stop
        return self._refuse(data, at, stop, self._too_large(), events)

    def _read_line(self, name: bytes, value: bytes) -> InvalidRequest | None:
        """Take in one header line; return what is wrong with it."""
        self._lines += 1
        if not value.endswith(b"\r\n"):
            return _no_header("header lines end with CR LF, not with LF alone")
        value = value[:-2].strip(b" \t")
        match name.lower():
            case b"content-length":
                self._after_body = False
                if not value.isdigit() or len(value) > _MAX_DIGITS:
                    return _no_header(f"Content-Length is a number of 1 to {_MAX_DIGITS} digits")
                if self._length not in (None, int(value)):
                    return _no_header("Content-Length is given twice, with different numbers")
                self._length = int(value)
            case b"content-type":
                self._after_body = False
                self._refusal = self._refusal or _judge_content_type(value)
        return None

    def _too_large(self) -> InvalidRequest:
        return InvalidRequest.because(
            "header-too-large",
            detail="send fewer and shorter header lines",
            limit=self._max_header_bytes,
            line_limit=MAX_HEADER_LINES,
        )

    def _judge(self, data: bytes, at: int, start: int, events: list[Event]) -> int:
        """Decide what becomes of the body behind the complete header section data[at:start]."""
        length, limit = self._length, self._max_message_bytes
        if length is None:
            error = _no_header("the Content-Length header is missing")
            return self._refuse(data, at, start, error, events)
        if length > limit:
            self._refusal = oversize(limit, length=length)
        self._missing = length
        if self._refusal is not None:
            events.append(self._refusal)
            if self._keeps_ends and length:
                self._state = HeaderFraming._behead
                return start
            self._state = HeaderFraming._skip
            return self._skip(data, start, events)
        beginning = data[at : max(start, at + 24)]
        if len(beginning) <= _KNOWN_BYTES and length <= _KNOWN_BODY:
            if len(self._known) >= _KNOWN_ENTRIES:
                self._known.clear()
            self._known[beginning] = (start - at, start - at + length)
        self._state = HeaderFraming._collect
        return self._collect(data, start, events)

    def _refuse(self, data: bytes, at: int, end: int, error: RpcError, events: list[Event]) -> int:
        """Answer data[at:end], which is no header section, and look for the next one."""
        events.append(Fault(error=error, boundary_lost=True, stray=self._after_body))
        self._after_body = False
        self._state = HeaderFraming._resynchronise
        # What was read as a header may be other text with a good frame behind it, in the same line.
        inside = data[at:end].lower().rfind(_LENGTH)
        if inside > 0 and data[at + inside - 1 : at + inside] != b"\n":
            return at + inside
        # And its end may have cut the first word of that frame.
        return max(at + 1, end - len(_LENGTH) + 1)

    def _resynchronise(self, data: bytes, at: int, events: list[Event]) -> int:
        """Drop everything before the next Content-Length, wherever in a line it stands."""
        found = pattern(_LENGTH, re.IGNORECASE).search(data, at)
        if found is None:
            self._held = data[max(at, len(data) - len(_LENGTH) + 1) :]
            return len(data)
        self.started += 1
        self._open()
        return found.start()

    def _collect(self, data: bytes, at: int, events: list[Event]) -> int:
        """Keep the bytes of a body until it is complete."""
        stop = at + self._missing
        piece = data[at:stop]
        early = len(self._body) < self._missing
        self._missing -= len(piece)
        if self._body or self._missing:
            self._body += piece
        if early and len(self._body) >= self._missing > LARGE:
            # Half of it came: make room for the rest, where Python would take an eighth more.
            came = len(self._body)
            self._body *= 2
            del self._body[came:]
        if self._missing:
            return len(data)
        events.append(self._body or piece)
        self._body = bytearray()
        self._after_body = True
        self._state = HeaderFraming._between
        return stop

    def _behead(self, data: bytes, at: int, events: list[Event]) -> int:
        """Keep how a refused body begins, tell of it, and leave the rest to `_skip`."""
        assert self._refusal is not None, "only a refused body has its head cut off"
        wanted = min(END - len(self._body), self._missing)
        piece = data[at : at + wanted]
        self._body += piece
        self._missing -= len(piece)
        if len(piece) == wanted:
            head, self._body = bytes(self._body), bytearray()
            self._dropped = msgspec.structs.replace(self._refusal, dropped=True, head=head)
            self._tail_end = head
            events.append(self._dropped)
            self._state = HeaderFraming._skip
            if not self._missing:
                self._end_skip(events)
        return at + len(piece)

    def _skip(self, data: bytes, at: int, events: list[Event]) -> int:
        """Drop the bytes of a refused body unseen: a frame inside it must not run."""
        stop = min(at + self._missing, len(data))
        self._missing -= stop - at
        if self._dropped is not None:
            self._tail_end = (self._tail_end + data[max(at, stop - END) : stop])[-END:]
        if not self._missing:
            self._end_skip(events)
        return stop

    def _end_skip(self, events: list[Event]) -> None:
        if self._dropped is not None:
            events.append(msgspec.structs.replace(self._dropped, tail=self._tail_end))
            self._dropped = None
        self._state = HeaderFraming._between

    def _tail(self, data: bytes, at: int, events: list[Event]) -> int:
        """Tell a new frame from the rest of the one that was given up.

        Only the two headers that LSP has, at the very first byte, make a new frame. Any name with a
        colon might do, but the rest of a document is more likely to begin with "https:".
        """
        first = data[at : at + len(_LENGTH)].lower()
        if first.startswith((_LENGTH, _TYPE)):
            self._open()
        elif _LENGTH.startswith(first) or _TYPE.startswith(first):
            self._held = data[at:]
            return len(data)
        else:
            self._state = HeaderFraming._skip
        return at


_BETWEEN: Final = HeaderFraming._between
_State: TypeAlias = Callable[[HeaderFraming, bytes, int, list[Event]], int]


def _no_header(detail: str) -> InvalidRequest:
    return InvalidRequest.because("invalid-content-length", detail=detail)


def _end_of(run: bytes, data: bytes, at: int, stop: int) -> int:
    match = pattern(run).match(data, at, stop)
    assert match is not None, "a run may be empty"
    return match.end()


def _judge_content_type(value: bytes) -> Fault | None:
    """Accept LSP's media type alone, in UTF-8 if it says anything about that."""
    media_type, *parameters = value.lower().split(b";")
    if media_type.strip() != b"application/vscode-jsonrpc":
        advice = "omit Content-Type, or send application/vscode-jsonrpc; charset=utf-8"
        return refusal("unsupported-content-type", advice)
    for parameter in parameters:
        name, _, charset = parameter.partition(b"=")
        if name.strip() == b"charset" and charset.strip(b' \t"') not in (b"utf-8", b"utf8"):
            return refusal("bad-charset", "messages are UTF-8: omit charset, or send utf-8")
    return None
