"""The framing that the peer's first byte shows."""

from collections.abc import Sequence

from duet_rpc.wire.framing.frames import (
    BLANKS,
    MAX_HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    Event,
    Fault,
    Frame,
)
from duet_rpc.wire.framing.header import HeaderFraming
from duet_rpc.wire.framing.line import LineFraming


class AutoFraming:
    """The framing that the peer's first byte shows: JSON begins a line, anything else a header."""

    joins = True

    def __init__(
        self,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_header_bytes: int = MAX_HEADER_BYTES,
        keeps_ends: bool = False,
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._keeps_ends = keeps_ends
        self._decided = False
        self._framing: HeaderFraming | LineFraming = HeaderFraming(
            max_message_bytes=max_message_bytes,
            max_header_bytes=max_header_bytes,
            keeps_ends=keeps_ends,
        )

    def encode(self, body: bytes) -> bytes:
        """Return the frame of a body; one with a header while the peer has said nothing."""
        return self._framing.encode(body)

    def frame(self, body: bytes) -> Frame:
        return self._framing.frame(body)

    def frame_around(self, before: bytes, body: bytes, after: bytes) -> Frame:
        return self._framing.frame_around(before, body, after)

    @property
    def prefixes(self) -> Sequence[bytes]:
        return self._framing.prefixes

    @property
    def partial(self) -> bool:
        return self._framing.partial

    @property
    def begun(self) -> bytes:
        return self._framing.begun

    @property
    def bulk(self) -> bool:
        return self._framing.bulk

    @property
    def started(self) -> int:
        return self._framing.started

    def feed(self, data: bytes) -> list[Event]:
        if not self._decided and (text := data.lstrip(BLANKS)):
            self._decided = True
            if text.startswith((b"{", b"[")):
                self._framing = LineFraming(
                    max_message_bytes=self._max_message_bytes, keeps_ends=self._keeps_ends
                )
        return self._framing.feed(data)

    def end(self) -> Fault | None:
        return self._framing.end()

    def expire(self) -> bool:
        return self._framing.expire()
