"""One message a line: NDJSON, and MCP over stdio."""

from collections.abc import Sequence

import msgspec

from duet_rpc.framing.frames import (
    BLANKS,
    HEAD,
    LARGE,
    MAX_MESSAGE_BYTES,
    Event,
    Fault,
    Frame,
    cut,
    in_parts,
    oversize,
)


class LineFraming:
    """One message a line: NDJSON, and MCP over stdio. Blank lines mean nothing."""

    def __init__(
        self, *, max_message_bytes: int = MAX_MESSAGE_BYTES, keeps_heads: bool = False
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._keeps_heads = keeps_heads
        self._line = bytearray()
        self._dropping = False
        self.started = 0

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
            self._line, self._dropping = bytearray(), False
        for line in lines:
            if len(line) > self._max_message_bytes and self._is_oversize(line.lstrip(BLANKS)):
                events.append(self._too_long(line.lstrip(BLANKS)))
            elif body := line.strip(BLANKS):
                events.append(body)
        if rest:
            self._extend(rest, events)
        return events

    def _extend(self, piece: bytes, events: list[Event]) -> None:
        """Keep a part of a line, unless the line is being dropped or becomes too long by it."""
        if self._dropping:
            return
        if not self._line:
            piece = piece.lstrip(BLANKS)
            self.started += bool(piece)
        self._line += piece
        if self._is_oversize(self._line):
            events.append(self._too_long(self._line))
            self._line, self._dropping = bytearray(), True

    def _too_long(self, line: bytes | bytearray) -> Fault:
        fault = oversize(self._max_message_bytes)
        # As much as is sure to have come, however the line was cut into reads.
        head = bytes(line[: min(HEAD, self._max_message_bytes)]) if self._keeps_heads else b""
        return msgspec.structs.replace(fault, head=head)

    def _is_oversize(self, line: bytes | bytearray) -> bool:
        # Whether the CR at the end is half a line end shows only with the next byte.
        return len(line) - line.endswith(b"\r") > self._max_message_bytes

    def end(self) -> Fault | None:
        # Without a newline a whole message looks like a cut one, and a cut one must not run.
        return cut() if self._line else None

    def expire(self) -> bool:
        # What follows cannot be told from the rest of the line, so all of it goes up to its end.
        expired = bool(self._line)
        self._line, self._dropping = bytearray(), self._dropping or expired
        return expired
