"""No framing: for links that keep the boundaries of messages themselves, as WebSocket does.

What is fed is one message. Nothing can be cut, late or out of step; only the size is checked.
"""

from collections.abc import Sequence

import msgspec

from duet_rpc.wire.framing.frames import (
    END,
    MAX_MESSAGE_BYTES,
    Event,
    Fault,
    Frame,
    oversize,
)


class WholeFraming:
    """Each piece of data is one message, in both directions."""

    joins = False
    prefixes: Sequence[bytes] = ()
    partial = False
    bulk = False
    begun = b""
    started = 0

    def __init__(
        self, *, max_message_bytes: int = MAX_MESSAGE_BYTES, keeps_ends: bool = False
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._keeps_ends = keeps_ends

    def feed(self, data: bytes) -> list[Event]:
        if len(data) <= self._max_message_bytes:
            return [data]
        fault = oversize(self._max_message_bytes)
        if not self._keeps_ends:
            return [fault]
        # In two steps, as from a stream: what an answer's head tells, and what its end adds.
        head = msgspec.structs.replace(fault, dropped=True, head=data[:END])
        return [fault, head, msgspec.structs.replace(head, tail=data[-END:])]

    def end(self) -> Fault | None:
        return None

    def expire(self) -> bool:
        return False

    @staticmethod
    def encode(body: bytes) -> bytes:
        return body

    @staticmethod
    def frame(body: bytes) -> Frame:
        return body

    @staticmethod
    def frame_around(before: bytes, body: bytes, after: bytes) -> Frame:
        return b"".join((before, body, after))
