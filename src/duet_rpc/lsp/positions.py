"""Positions and offsets: units of the wire on one side, indices into a Python text on the other.

A position counts lines, which end with LF, CR LF or CR and nothing else, and in its line units of
the encoding that client and server have agreed on: bytes of UTF-8, code units of UTF-16 (which is
what every client knows) or code points.

It knows texts and numbers; no documents, no messages.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import Literal, Protocol, TypeAlias

from duet_rpc.lsp.types import Position
from duet_rpc.startup import pattern

Encoding: TypeAlias = Literal["utf-8", "utf-16", "utf-32"]


class PositionLike(Protocol):
    """A position: ours, or that of lsprotocol."""

    @property
    def line(self) -> int:
        """Which line, from 0."""
        ...

    @property
    def character(self) -> int:
        """How many units into the line."""
        ...


class RangeLike(Protocol):
    """A range: ours, or that of lsprotocol."""

    @property
    def start(self) -> PositionLike:
        """Where it begins."""
        ...

    @property
    def end(self) -> PositionLike:
        """Where it ends."""
        ...


_LINE_END = r"\r\n|\n|\r"


def line_starts(text: str) -> list[int]:
    """List where each line begins; there is always one."""
    if "\r" in text:
        return [0, *(found.end() for found in pattern(_LINE_END).finditer(text))]
    starts = list(accumulate((len(line) + 1 for line in text.split("\n")), initial=0))
    starts.pop()  # after the last line
    return starts


def line_text(text: str, starts: list[int], line: int) -> str:
    """Cut a line out of a text, without its end."""
    begin = starts[line]
    if line + 1 == len(starts):
        return text[begin:]
    end = starts[line + 1] - 1
    if text[end] == "\n" and end > begin and text[end - 1] == "\r":
        end -= 1
    return text[begin:end]


def index_in_line(line: str, units: int, encoding: Encoding) -> tuple[int, bool]:
    """Say at which index of a line so many units end, and whether that is inside of the character.

    Behind the end of the line is its end. Inside of a character is where it begins.
    """
    if encoding == "utf-32" or line.isascii():
        return min(max(units, 0), len(line)), False
    if encoding == "utf-16":
        before = line.encode("utf-16-le", "surrogatepass")[: 2 * max(units, 0)]
        found = before.decode("utf-16-le", "surrogatepass")
        index = len(found)
        # Cut within a pair, its first half is left; a lone one of the line itself is whole.
        is_inside = index > 0 and found[-1] != line[index - 1]
        return index - is_inside, is_inside
    found = line.encode("utf-8", "surrogatepass")[: max(units, 0)].decode("utf-8", "ignore")
    return len(found), False


def units_of(text: str, encoding: Encoding) -> int:
    """Count the units of a part of a line."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-16":
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(text.encode("utf-8", "surrogatepass"))


def find_offset(
    text: str, starts: list[int], position: PositionLike, encoding: Encoding
) -> tuple[int, bool]:
    """Say which index of a text a position is, and whether it is inside of the character there."""
    if position.line < 0:
        return 0, False
    if position.line >= len(starts):
        return len(text), False
    index, is_inside = index_in_line(
        line_text(text, starts, position.line), position.character, encoding
    )
    return starts[position.line] + index, is_inside


def find_position(text: str, starts: list[int], offset: int, encoding: Encoding) -> Position:
    """Say at which position an index of a text is; within the end of a line is before it."""
    offset = min(max(offset, 0), len(text))
    line = bisect_right(starts, offset) - 1
    before = line_text(text, starts, line)[: offset - starts[line]]
    return Position(line, units_of(before, encoding))


def join_halves(text: str) -> str:
    """Make one character of the two halves of a surrogate pair that have come to be neighbours."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
