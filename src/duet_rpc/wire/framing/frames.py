"""What every framing gives and takes: faults with their answer ready, and frames in parts."""

from typing import Any, Final, TypeAlias

import msgspec

from duet_rpc.errors import InvalidRequest, ParseError, RpcError

MAX_MESSAGE_BYTES: Final = 10 * 1024 * 1024
MAX_HEADER_BYTES: Final = 8 * 1024
MAX_HEADER_LINES: Final = 32


BLANKS: Final = b" \t\r\n"
END: Final = 256
"""Bytes at either end of a message that tell whose answer it is: some servers write the id last."""
LARGE: Final = 64 * 1024
"""Bytes from which on a body is sent in parts, and read in larger pieces."""
_JOINED = 16 * 1024


class Fault(msgspec.Struct, frozen=True):
    """Something in the stream that is no message, with the answer that it deserves (id null)."""

    error: RpcError
    boundary_lost: bool
    """No one can know where the next frame begins: a network socket is closed after the answer."""
    stray: bool = False
    """The bytes directly follow a complete body and start no header. If that body was no JSON, the
    two are one fault, and the body's answer is enough."""
    dropped: bool = False
    """The refusal was reported before; this shows what the refused message looked like. It comes
    twice, when the beginning is known and when the end is."""
    head: bytes = b""
    tail: bytes = b""


Event: TypeAlias = bytes | bytearray | Fault

Frame: TypeAlias = bytes | tuple[bytes | memoryview, ...]
"""What is written for one body; parts of it, one after the other, if the body is a large one."""


def join_frame(frame: Frame) -> bytes:
    """Put a frame into one piece."""
    return frame if isinstance(frame, bytes) else b"".join(frame)


def in_parts(before: bytes, body: bytes, after: bytes) -> Frame:
    """Put something around a large body without a copy of it, which takes new memory.

    What stands around it shares a write with an end of it: a header alone would wake the peer.
    """
    middle = memoryview(body)[_JOINED:-_JOINED]
    return before + body[:_JOINED], middle, body[-_JOINED:] + after


def refusal(reason: str, detail: str, **numbers: Any) -> Fault:
    """Make the fault for a frame that is not wanted, though its end is known."""
    error = InvalidRequest.because(reason, detail=detail, **numbers)
    return Fault(error=error, boundary_lost=False)


def oversize(limit: int, **numbers: int) -> Fault:
    return refusal("oversize", "send less at once", limit=limit, **numbers)


def cut() -> Fault:
    error = ParseError(data={"detail": "the input ended inside a message"})
    return Fault(error=error, boundary_lost=True)
