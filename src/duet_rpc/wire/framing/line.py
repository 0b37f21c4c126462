"""One message a line: NDJSON, and MCP over stdio."""

from collections.abc import Sequence

import msgspec

from duet_rpc.errors import ParseError
from duet_rpc.wire.framing.frames import (
    BLANKS,
    END,
    LARGE,
    MAX_MESSAGE_BYTES,
    Event,
    Fault,
    Frame,
    cut,
    in_parts,
    oversize,
)

_JSON_BEGINS = (b"{", b"[")


class LineFraming:
    """One message a line: NDJSON, and MCP over stdio. Blank lines mean nothing.

    With `only_json` the first line that does not begin like JSON loses the boundary. It is for
    sockets, where a web page can make a browser POST any text: line by line, the HTTP headers
    would be so many parse errors, and a line of the body would run. (A framing with headers needs
    no such care: a request line is no header, and that alone loses the boundary.)
    """

    joins = True

    def __init__(
        self,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keeps_ends: bool = False,
        only_json: bool = False,
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._keeps_ends = keeps_ends
        self._only_json = only_json
        # A line that is dropped: how it ended so far, if that is to be reported.
        self._dropped: Fault | None = None
        self._tail = b""
        self._line = bytearray()
        self._dropping = False
        self.started: int = 0

    prefixes: Sequence[bytes] = ()

    @staticmethod
    def encode(body: bytes) -> bytes:
        return body + b"\n"

    @staticmethod
    def frame(body: bytes) -> Frame:
        return body + b"\n" if len(body) < LARGE else in_parts(b"", body, b"\n")

    @staticmethod
    def frame_around(before: bytes, body: bytes, after: bytes) -> Frame:
        return in_parts(before, body, after + b"\n")

    @property
    def partial(self) -> bool:
        return bool(self._line)

    @property
    def begun(self) -> bytes:
        return bytes(self._line[:LARGE])

    @property
    def bulk(self) -> bool:
        return len(self._line) > LARGE

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        *lines, rest = data.split(b"\n")
        if lines and (self._line or self._dropping):
            self._extend(lines.pop(0), events)
            if self._line:
                # Copied only where it must be: the line may have megabytes.
                clean = self._line[-1] not in BLANKS
                events.append(self._line if clean else self._line.rstrip(BLANKS))
            self._end_drop(events)
            self._line, self._dropping = bytearray(), False
        for line in lines:
            if len(line) > self._max_message_bytes and self._is_oversize(line.lstrip(BLANKS)):
                self._drop(line.lstrip(BLANKS), events)
                self._end_drop(events)
            elif body := line.strip(BLANKS):
                events.append(body)
        if rest:
            self._extend(rest, events)
        return _cut_at_noise(events) if self._only_json else events

    def _extend(self, piece: bytes, events: list[Event]) -> None:
        """Keep a part of a line, unless the line is being dropped or becomes too long by it."""
        if self._dropping:
            if self._dropped is not None:
                self._tail = (self._tail + piece[-END:])[-END:]
            return
        if not self._line:
            piece = piece.lstrip(BLANKS)
            self.started += bool(piece)
        self._line += piece
        if self._is_oversize(self._line):
            self._drop(self._line, events)
            self._line, self._dropping = bytearray(), True

    def _drop(self, line: bytes | bytearray, events: list[Event]) -> None:
        """Tell that a line is too long, and how it begins."""
        fault = oversize(self._max_message_bytes)
        events.append(fault)
        if self._keeps_ends:
            # As much as is sure to have come, however the line was cut into reads.
            head = bytes(line[: min(END, self._max_message_bytes)])
            self._dropped = msgspec.structs.replace(fault, dropped=True, head=head)
            self._tail = bytes(line[-END:])
            events.append(self._dropped)

    def _end_drop(self, events: list[Event]) -> None:
        """Tell how a line ended that was too long."""
        if self._dropped is not None:
            events.append(msgspec.structs.replace(self._dropped, tail=self._tail))
            self._dropped = None

    def _is_oversize(self, line: bytes | bytearray) -> bool:
        # Whether the CR at the end is half a line end shows only with the next byte.
        return len(line) - line.endswith(b"\r") > self._max_message_bytes

    def end(self) -> Fault | None:
        # Without a newline a whole message looks like a cut one, and a cut one must not run.
        return cut() if self._line else None

    def expire(self) -> bool:
        # What follows may be the rest of the line, so all of it goes up to the next line end.
        expired = bool(self._line)
        self._line, self._dropping = bytearray(), self._dropping or expired
        return expired


def _cut_at_noise(events: list[Event]) -> list[Event]:
    """Let nothing out after the first line that is no JSON."""
    for index, event in enumerate(events):
        if not isinstance(event, Fault) and not event.startswith(_JSON_BEGINS):
            detail = "a message is one line that holds a JSON object or array"
            fault = Fault(error=ParseError(data={"detail": detail}), boundary_lost=True)
            return [*events[:index], fault]
    return events
