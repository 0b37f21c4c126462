"""Frames that are ready to be sent, answers and calls of our own, until the host gets them.

Where several handlers may be in flight, answers that are ready together share a write. A framing
whose messages keep their own boundaries gets a write for each.
"""

from collections.abc import Callable
from typing import Protocol

from duet_rpc.wire.framing import Frame, join_frame

JOIN = 16
"""Messages that may share a write. More make both ends take turns instead of overlapping."""


class FrameWriter(Protocol):
    """What moves frames to the peer."""

    def write(self, data: Frame) -> None:
        """Send, or keep until the peer reads; calls `congest` when too much is kept."""
        ...

    def write_own(self, data: Frame) -> None:
        """Do the same for what answers no request, which does not count there."""
        ...


class Outgoing:
    """The frames of one connection that have not been handed to the host."""

    __slots__ = ("_join", "_one_by_one", "_writer", "answers", "joins", "own", "send_own")

    def __init__(self, writer: FrameWriter, *, join: int, one_by_one: bool) -> None:
        """`join` answers share a write at most; `one_by_one` frames never do."""
        self.answers: list[Frame] = []
        self.own: list[Frame] = []
        """Calls of ours; what is in `answers` was there before."""
        self.send_own: Callable[[Frame], None] = self.own.append
        """Have something sent that answers no request, with the next flush."""
        self.joins: bool = join > 1
        self._writer = writer
        self._join = join
        self._one_by_one = one_by_one

    def send(self, frame: Frame) -> None:
        """Have an answer sent, together with those that are ready with it."""
        if self.own:
            self.flush()
        self.answers.append(frame)
        if len(self.answers) >= self._join:
            self.flush()

    def flush(self) -> None:
        """Hand what is ready to the host."""
        answers, own = self.answers, self.own
        if answers:
            self._writer.write(answers.pop() if len(answers) == 1 else _join_all(answers))
        if own:
            if len(own) == 1:
                self._writer.write_own(own.pop())
            elif self._one_by_one:
                while own:
                    self._writer.write_own(own.pop(0))
            else:
                self._writer.write_own(_join_all(own))


def _join_all(frames: list[Frame]) -> Frame:
    try:
        data = b"".join(frames)  # type: ignore[arg-type]
    except TypeError:  # a large one is among them
        data = b"".join(map(join_frame, frames))
    frames.clear()
    return data
