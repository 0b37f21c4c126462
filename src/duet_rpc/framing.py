"""Where one message ends and the next begins: bytes in, message bodies and faults out.

A framing decides sizes, headers and recovery, and nothing else. It knows no JSON, no clock and no
I/O: the host feeds it what was read, answers the faults it hands back, and tells it when a frame
took too long. Three laws hold in this file:

- Input never raises. Whatever arrives, the next good frame after it comes out.
- However the stream is cut into reads, the same bodies and faults come out in the same order.
- Memory follows the bytes that came, not the length that a peer claims; what is refused is not
  kept.
"""

import re
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from .errors import InvalidRequest, ParseError, RpcError

MAX_MESSAGE_BYTES: Final = 10 * 1024 * 1024
MAX_HEADER_BYTES: Final = 8 * 1024
MAX_HEADER_LINES: Final = 32


class Fault(msgspec.Struct, frozen=True):
    """Something in the stream that is no message, with the answer that it deserves (id null)."""

    error: RpcError
    boundary_lost: bool
    """Nobody can know where the next frame begins: a network socket is closed after the answer."""
    stray: bool = False
    """The bytes directly follow a complete body and start no header. If that body was no JSON, the
    two are one fault, and the body's answer is enough."""


Event: TypeAlias = bytes | bytearray | Fault


class Framing(Protocol):
    """The incoming half of one connection, and the form of what goes out. Not thread-safe."""

    def feed(self, data: bytes) -> list[Event]:
        """Take what was read; return complete bodies and faults in order of arrival."""

    def end(self) -> Fault | None:
        """Take note that the input ended; return the fault if that cut an unanswered frame."""

    def expire(self) -> bool:
        """Give up the frame under way, because it takes too long; return whether there was one."""

    @property
    def partial(self) -> bool:
        """Whether a frame is under way: some of its bytes came, some are missing."""

    @property
    def started(self) -> int:
        """A number that changes when another frame gets under way, and not while it grows."""

    def space(self) -> memoryview | None:
        """Return where to read the rest of a large body into, if one is under way.

        Nothing but `filled` may be called between this and the read.
        """

    def filled(self, count: int) -> list[Event]:
        """Take note that `count` bytes were read into `space()`; return the same as `feed`."""

    def encode(self, body: bytes) -> bytes:
        """Return the frame to write for one body."""


def framing(
    name: Literal["lsp", "ndjson", "auto"],
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_header_bytes: int = MAX_HEADER_BYTES,
) -> Framing:
    """Make the framing of this name; "auto" takes the one that the peer's first byte shows."""
    kinds: dict[str, type[HeaderFraming | LineFraming | AutoFraming]]
    kinds = {"lsp": HeaderFraming, "ndjson": LineFraming, "auto": AutoFraming}
    return kinds[name](max_message_bytes=max_message_bytes, max_header_bytes=max_header_bytes)


def _cut() -> Fault:
    error = ParseError(data={"detail": "the input ended inside a message"})
    return Fault(error=error, boundary_lost=True)


_BLANKS = b" \t\r\n"
_BLANK_RUN = re.compile(rb"[ \t\r\n]*")
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]*")
_DIGITS = re.compile(rb"[0-9]{1,15}")
_PARAMETER = re.compile(rb'[ \t]*;[ \t]*(?:([^\s;="]+)[ \t]*=[ \t]*(?:"([^"]*)"|([^\s;"]*)))?')
_LENGTH = b"content-length:"
_TYPE = b"content-type:"
_LENGTH_ANY_CASE = re.compile(_LENGTH, re.IGNORECASE)

_LARGE = 64 * 1024
"""What a transport reads at once; from this size on a body is worth reading in place."""

_KNOWN: dict[bytes, int] = {}
"""The plain headers of small bodies that this process has met, to be recognised by one look-up:
half the price of searching for the end and converting digits. Filled as they come, because to build
it would cost each start of a daemon some milliseconds."""
_KNOWN_LENGTHS = range(10, 10_000)


class HeaderFraming:
    """The base protocol of LSP: header lines with a Content-Length, a blank line, so many bytes.

    A state is a method: it gets the data and a position, takes what it can, and returns how far it
    got. It may leave the rest in `_held`, to see it again in front of the next data.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_header_bytes: int = MAX_HEADER_BYTES,
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._max_header_bytes = max_header_bytes
        # Under tighter limits not every known header is a good one: such a framing learns its own.
        tight = max_message_bytes < _KNOWN_LENGTHS[-1] or max_header_bytes < 24
        self._known = {} if tight else _KNOWN
        self._state: _State = HeaderFraming._between
        self._started = 0
        self._held = b""
        # The header section: where its unfinished line begins, and up to where names were checked.
        self._line = self._checked = self._lines = 0
        self._length: int | None = None
        self._refusal: Fault | None = None
        # The body: what came of it, in a buffer that may have room for more.
        self._body = bytearray()
        self._have = self._missing = 0
        self._after_body = False

    @staticmethod
    def encode(body: bytes) -> bytes:
        """Return the frame to write. No other header: Emacs gives up after 100 bytes of them."""
        return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)

    @property
    def partial(self) -> bool:
        if self._state is HeaderFraming._tail:
            return bool(self._held)
        return self._state not in (HeaderFraming._between, HeaderFraming._lost)

    @property
    def started(self) -> int:
        return self._started

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        if self._held:
            data = self._held + data
            self._held = b""
        at = 0
        while at < len(data):
            at = self._state(self, data, at, events)
        return events

    def end(self) -> Fault | None:
        # A body that is being skipped was answered when its header came.
        return _cut() if self._state in (HeaderFraming._header, HeaderFraming._collect) else None

    def expire(self) -> bool:
        if not self.partial:
            return False
        self._started += 1
        self._missing -= len(self._held)
        in_body = self._state is not HeaderFraming._header and self._missing > 0
        self._state = HeaderFraming._tail if in_body else HeaderFraming._lost
        self._body = bytearray()
        self._held = b""
        return True

    def space(self) -> memoryview | None:
        if self._state is not HeaderFraming._collect or self._missing < _LARGE:
            return None
        self._reserve(1)
        return memoryview(self._body)[self._have :]

    def filled(self, count: int) -> list[Event]:
        self._have += count
        self._missing -= count
        if self._missing:
            return []
        body, self._body = self._body, bytearray()
        self._state = HeaderFraming._between
        self._after_body = True
        return [body]

    def _between(self, data: bytes, at: int, events: list[Event]) -> int:
        """Cut whole frames with known headers; leave anything else to `_header`."""
        size, known, begin = len(data), self._known.get, at
        while True:
            # 2, 3 and 4 digits between "Content-Length: " and the two line ends.
            if (length := known(data[at : at + 22])) is not None:
                start = at + 22
            elif (length := known(data[at : at + 23])) is not None:
                start = at + 23
            elif (length := known(data[at : at + 24])) is not None:
                start = at + 24
            else:
                break
            if (stop := start + length) > size:
                break
            events.append(data[start:stop])
            at = stop
        if at > begin:
            self._started += 1
            self._after_body = True
        if (blanks_end := _end_of(_BLANK_RUN, data, at, size)) > at:
            return blanks_end
        if at < size:
            self._started += 1
            self._open()
        return at

    def _open(self) -> None:
        """Expect a header section at the position that is returned next."""
        self._line = self._checked = self._lines = 0
        self._length = self._refusal = None
        self._state = HeaderFraming._header

    def _header(self, data: bytes, at: int, events: list[Event]) -> int:
        """Read header lines; `at` is where the section begins, also when part of it was held."""
        stop = min(len(data), at + self._max_header_bytes)
        line, checked = at + self._line, at + self._checked
        while True:
            colon = data.find(b":", line, stop)
            if not 0 <= colon < checked:
                checked = _end_of(_TOKEN, data, checked, stop)
                if checked == line and b"\r\n".startswith(data[line : min(line + 2, stop)]):
                    if line + 2 > stop:
                        break
                    return self._finish(data, at, line + 2, events)
                if checked == stop:
                    break
                if checked != colon or colon == line:
                    detail = "expected a header line, such as Content-Length: 42, with CR LF"
                    return self._refuse(data, at, checked, events, detail)
            checked = stop
            end = data.find(b"\n", colon, stop) + 1
            if end == 0:
                break
            mistake = self._read_line(data[line:colon], data[colon + 1 : end])
            if mistake is not None:
                return self._refuse(data, at, end, events, mistake)
            self._lines += 1
            if self._lines > MAX_HEADER_LINES:
                return self._refuse_size(data, at, end, events)
            line = checked = end
        if stop == at + self._max_header_bytes:
            # Stopped by the limit, perhaps within the next frame's first word.
            return self._refuse_size(data, at, max(at + 1, stop - len(_LENGTH) + 1), events)
        self._line, self._checked = line - at, checked - at
        self._held = data[at:]
        return stop

    def _read_line(self, name: bytes, value: bytes) -> str | None:
        """Take in one header line; return what is wrong with it."""
        if not value.endswith(b"\r\n"):
            return "header lines end with CR LF, not with LF alone"
        value = value.strip(_BLANKS)
        match name.lower():
            case b"content-length":
                self._after_body = False
                if _DIGITS.fullmatch(value) is None:
                    return "Content-Length is a number of 1 to 15 digits"
                if self._length not in (None, int(value)):
                    return "Content-Length is given twice, with different numbers"
                self._length = int(value)
            case b"content-type":
                self._after_body = False
                self._refusal = self._refusal or _judge_content_type(value)
        return None

    def _finish(self, data: bytes, at: int, start: int, events: list[Event]) -> int:
        """Act on a complete header section: data[at:start]."""
        length = self._length
        if length is None:
            return self._refuse(data, at, start, events, "the Content-Length header is missing")
        if length > self._max_message_bytes:
            self._refusal = _refusal(
                "oversize",
                "split the message or raise the limit",
                length=length,
                limit=self._max_message_bytes,
            )
        self._have, self._missing = 0, length
        self._after_body = False
        if self._refusal is not None:
            events.append(self._refusal)
            self._state = HeaderFraming._skip if length else HeaderFraming._between
            return start
        header = data[at:start]
        if length in _KNOWN_LENGTHS and header == b"Content-Length: %d\r\n\r\n" % length:
            self._known[header] = length
        if start + length > len(data):
            self._state = HeaderFraming._collect
            return start
        events.append(data[start : start + length])
        self._after_body = True
        self._state = HeaderFraming._between
        return start + length

    def _refuse_size(self, data: bytes, at: int, end: int, events: list[Event]) -> int:
        detail = "send fewer and shorter headers"
        limits = {"limit": self._max_header_bytes, "lines": MAX_HEADER_LINES}
        return self._refuse(data, at, end, events, detail, "header-too-large", limits)

    def _refuse(
        self,
        data: bytes,
        at: int,
        end: int,
        events: list[Event],
        detail: str,
        reason: str = "invalid-content-length",
        limits: dict[str, Any] | None = None,
    ) -> int:
        """Answer data[at:end], which is no header section, and look for the next one."""
        error = InvalidRequest.because(reason, detail=detail, **(limits or {}))
        events.append(Fault(error=error, boundary_lost=True, stray=self._after_body))
        self._after_body = False
        self._state = HeaderFraming._lost
        # What looked like a header may be text with a good frame right behind it, in the same line.
        for text in data[at:end].lower().split(b"\n"):
            if (inside := text.rfind(_LENGTH)) > 0:
                return at + inside
            at += len(text) + 1
        return end

    def _lost(self, data: bytes, at: int, events: list[Event]) -> int:
        """Drop everything before the next Content-Length, wherever in a line it stands."""
        found = _LENGTH_ANY_CASE.search(data, at)
        if found is None:
            self._held = data[max(at, len(data) - len(_LENGTH) + 1) :]
            return len(data)
        self._started += 1
        self._open()
        return found.start()

    def _collect(self, data: bytes, at: int, events: list[Event]) -> int:
        """Keep the bytes of a body."""
        count = min(self._missing, len(data) - at)
        self._reserve(count)
        memoryview(self._body)[self._have : self._have + count] = data[at : at + count]
        events += self.filled(count)
        return at + count

    def _reserve(self, count: int) -> None:
        """Make room in the body for at least `count` more bytes.

        A new buffer rather than a resized one: the host may still hold a view of the old one.
        """
        needed = self._have + count
        if needed > len(self._body):
            whole = self._have + self._missing
            grown = bytearray(min(whole, max(needed, 2 * len(self._body), _LARGE)))
            memoryview(grown)[: self._have] = memoryview(self._body)[: self._have]
            self._body = grown

    def _skip(self, data: bytes, at: int, events: list[Event]) -> int:
        """Drop the bytes of a refused body, unseen: a frame inside it must not run."""
        count = min(self._missing, len(data) - at)
        self._missing -= count
        if self._missing == 0:
            self._state = HeaderFraming._between
        return at + count

    def _tail(self, data: bytes, at: int, events: list[Event]) -> int:
        """Tell a new frame from the rest of the one that was given up.

        Only the two headers that LSP has, at the very first byte, count as a new frame. Any name
        with a colon would do in theory, but "https:" in the rest of a document has one too.
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


_State: TypeAlias = Callable[[HeaderFraming, bytes, int, list[Event]], int]


def _end_of(pattern: re.Pattern[bytes], data: bytes, at: int, stop: int) -> int:
    """Return where a run that may be empty ends."""
    match = pattern.match(data, at, stop)
    assert match is not None, "the pattern matches the empty run"
    return match.end()


def _refusal(reason: str, detail: str, **limits: Any) -> Fault:
    """Make the fault for a frame that is refused, though its end is known."""
    error = InvalidRequest.because(reason, detail=detail, **limits)
    return Fault(error=error, boundary_lost=False)


def _judge_content_type(value: bytes) -> Fault | None:
    """Accept LSP's media type alone, in UTF-8 if it says anything about that."""
    media_type = value.partition(b";")[0].rstrip(_BLANKS)
    charsets = []
    at = len(media_type)
    while at < len(value) and (parameter := _PARAMETER.match(value, at)):
        name, quoted, plain = parameter.groups()
        if name is not None and name.lower() == b"charset":
            charsets.append((plain if quoted is None else quoted).lower())
        at = parameter.end()
    if media_type.lower() != b"application/vscode-jsonrpc" or at < len(value):
        detail = "omit Content-Type, or send application/vscode-jsonrpc; charset=utf-8"
        return _refusal("unsupported-content-type", detail)
    if not all(charset in (b"utf-8", b"utf8") for charset in charsets):
        return _refusal("bad-charset", "messages are UTF-8: omit charset, or send utf-8")
    return None


class LineFraming:
    """One message a line: NDJSON, and MCP over stdio. Blank lines mean nothing."""

    def __init__(
        self,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_header_bytes: int = MAX_HEADER_BYTES,
    ) -> None:
        del max_header_bytes  # lines have no headers
        self._max_message_bytes = max_message_bytes
        self._line = bytearray()
        self._dropping = False
        self._started = 0

    @staticmethod
    def encode(body: bytes) -> bytes:
        return body + b"\n"

    @property
    def partial(self) -> bool:
        return bool(self._line)

    @property
    def started(self) -> int:
        return self._started

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        *lines, rest = data.split(b"\n")
        if lines and (self._line or self._dropping):
            self._extend(lines.pop(0), events)
            if self._line:
                # Copied only where it must be: the line may have megabytes.
                ended = self._line[-1] not in _BLANKS
                events.append(self._line if ended else self._line.rstrip(_BLANKS))
            self._line = bytearray()
            self._dropping = False
        for line in lines:
            if len(line) > self._max_message_bytes and self._is_oversize(line.lstrip(_BLANKS)):
                events.append(self._oversize())
            elif body := line.strip(_BLANKS):
                events.append(body)
        self._extend(rest, events)
        return events

    def _extend(self, piece: bytes, events: list[Event]) -> None:
        """Keep a part of a line, unless the line is being dropped or becomes too long by it."""
        if self._dropping:
            return
        if not self._line:
            piece = piece.lstrip(_BLANKS)
            self._started += bool(piece)
        self._line += piece
        if self._is_oversize(self._line):
            events.append(self._oversize())
            self._line = bytearray()
            self._dropping = True

    def _is_oversize(self, line: bytes | bytearray) -> bool:
        # Whether the CR at the end is half a line end shows only with the next byte.
        return len(line) - line.endswith(b"\r") > self._max_message_bytes

    def _oversize(self) -> Fault:
        limit = self._max_message_bytes
        return _refusal("oversize", "split the message or raise the limit", limit=limit)

    def end(self) -> Fault | None:
        # Without a newline a whole message looks like a cut one, and a cut one must not run.
        return _cut() if self._line else None

    def expire(self) -> bool:
        if not self._line:
            return False
        # The rest of the line cannot be told from a new message, so it goes too, up to its end.
        self._line = bytearray()
        self._dropping = True
        return True

    def space(self) -> None:
        return None

    def filled(self, count: int) -> list[Event]:
        raise AssertionError("a line has no known length, so there is no space() to fill")


class AutoFraming:
    """The framing that the peer's first byte shows: a message at once, or a header."""

    def __init__(
        self,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_header_bytes: int = MAX_HEADER_BYTES,
    ) -> None:
        limits = {"max_message_bytes": max_message_bytes, "max_header_bytes": max_header_bytes}
        self._framing: HeaderFraming | LineFraming = HeaderFraming(**limits)
        self._line_framing: LineFraming | None = LineFraming(**limits)

    def encode(self, body: bytes) -> bytes:
        return self._framing.encode(body)

    @property
    def partial(self) -> bool:
        return self._framing.partial

    @property
    def started(self) -> int:
        return self._framing.started

    def feed(self, data: bytes) -> list[Event]:
        if self._line_framing is not None and (first := data.lstrip(_BLANKS)[:1]):
            if first in b"{[":
                self._framing = self._line_framing
            self._line_framing = None
        return self._framing.feed(data)

    def end(self) -> Fault | None:
        return self._framing.end()

    def expire(self) -> bool:
        return self._framing.expire()

    def space(self) -> memoryview | None:
        return self._framing.space()

    def filled(self, count: int) -> list[Event]:
        return self._framing.filled(count)
