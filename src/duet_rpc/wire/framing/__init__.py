"""Where one message ends and the next begins: bytes in, message bodies and faults out.

A framing decides sizes, headers and recovery. It knows no JSON, no clock and no I/O: the host feeds
it what was read, answers the faults it hands back, and tells it when a frame has taken too long.
Three laws hold in this file:

- Input never raises. Whatever arrives, the next good frame after it comes out.
- However a stream is cut into reads, the same bodies and faults come out in the same order.
- Memory follows the bytes that came, not the length that a peer claims. Of what is refused at most
  its ends are kept.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from duet_rpc.options import check
from duet_rpc.wire.framing.frames import (
    MAX_HEADER_BYTES,
    MAX_HEADER_LINES,
    MAX_MESSAGE_BYTES,
    Event,
    Fault,
    Frame,
    join_frame,
)
from duet_rpc.wire.framing.header import HeaderFraming

__all__ = [
    "MAX_HEADER_BYTES",
    "MAX_HEADER_LINES",
    "MAX_MESSAGE_BYTES",
    "Event",
    "Fault",
    "Frame",
    "Framing",
    "HeaderFraming",
    "check_framing",
    "framing",
    "join_frame",
]


class Framing(Protocol):
    """What the peer of one connection sends, cut into messages; and the form of what it gets."""

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
    def begun(self) -> bytes:
        """How the body under way begins, as far as it came and is kept."""

    @property
    def bulk(self) -> bool:
        """Whether a large body is under way that is wanted, and much of it is missing."""

    @property
    def started(self) -> int:
        """A number that changes when another frame gets under way, and not while it grows."""

    def encode(self, body: bytes) -> bytes:
        """Return the frame of one body, in one piece."""

    def frame(self, body: bytes) -> Frame:
        """Return what to write for one body."""

    def frame_around(self, before: bytes, body: bytes, after: bytes) -> Frame:
        """Return what to write for a body of these three parts, of which the second is large."""

    @property
    def joins(self) -> bool:
        """Whether frames may share a write: not where the link keeps their boundaries."""

    @property
    def prefixes(self) -> Sequence[bytes]:
        """What makes a frame of a small body when it stands before it, by the body's length.

        A writer of many looks here first, and asks `frame` for the rest."""


def check_framing(name: str) -> None:
    """Refuse the name of a framing that there is not."""
    check("framing", name, name in ("lsp", "ndjson", "auto"), '"lsp", "ndjson" or "auto"')


def framing(
    name: Literal["lsp", "ndjson", "auto", "whole"],
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_header_bytes: int = MAX_HEADER_BYTES,
    keeps_ends: bool = False,
    only_json: bool = False,
) -> Framing:
    """Make the framing of this name; "auto" becomes the one that the peer's first byte shows.

    "whole" is for links that keep the boundaries of messages; users cannot ask for it by name.
    One that `keeps_ends` tells also how a message that it drops begins and ends, for connections
    that wait for answers. Lines with `only_json` end at the first one that is none, for sockets.
    """
    # Imported where they are asked for: nearly every daemon starts with headers.
    if name == "ndjson":
        from duet_rpc.wire.framing.line import LineFraming

        return LineFraming(
            max_message_bytes=max_message_bytes, keeps_ends=keeps_ends, only_json=only_json
        )
    if name == "auto":
        from duet_rpc.wire.framing.auto import AutoFraming

        return AutoFraming(
            max_message_bytes=max_message_bytes,
            max_header_bytes=max_header_bytes,
            keeps_ends=keeps_ends,
        )
    if name == "whole":
        from duet_rpc.wire.framing.whole import WholeFraming

        return WholeFraming(max_message_bytes=max_message_bytes, keeps_ends=keeps_ends)
    return HeaderFraming(
        max_message_bytes=max_message_bytes,
        max_header_bytes=max_header_bytes,
        keeps_ends=keeps_ends,
    )
