"""How deep a JSON text nests, and whether it is UTF-8: what msgspec does not look at.

Depth is measured at the speed of C and in little memory: no object for each bracket or string.
"""

import functools
import itertools
from typing import Any


def is_json_text(body: bytes | bytearray, max_depth: int) -> bool:
    """Check what msgspec does not look at in values it skips: UTF-8, and nesting depth."""
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError:
            return False
    # A value nested n deep needs 2n bytes, so small bodies need no look at all.
    return len(body) <= 2 * max_depth or not is_deeper_than(body, max_depth)


SHALLOW = 8
"""How deep nearly all large values nest at most. Each level more doubles what the type of such
values takes to build: 2 ms for these."""


@functools.cache
def shallow_json() -> Any:
    """Make the type of all JSON values that nest at most `SHALLOW` deep, decoded as `Any` is.

    It reads every byte and cannot go deep, so a large value of it needs no second look, which takes
    a quarter of the time that its decoding takes. What does not fit may still be good JSON.
    """
    scalar: Any = None | bool | int | float | str
    value = scalar
    for _ in range(SHALLOW):
        value = scalar | list[value] | dict[str, value]  # type: ignore[valid-type]
    return value


_CHUNK = 64 * 1024
_WORTH_A_SEARCH = 8 * 1024
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_LEAF = b"\x01\xff"


def is_balanced(body: bytes | bytearray) -> bool:
    """Tell whether as many brackets close as open, outside of strings that end."""
    steps = _steps(body)
    return steps.count(b"\x01") == steps.count(b"\xff")


def is_deeper_than(body: bytes | bytearray, max_depth: int) -> bool:
    """Tell whether a text nests deeper than so many brackets."""
    if not _opens_more_than(body, max_depth):
        return False
    steps = _steps(body)
    if b"\x01" * (max_depth + 1) in steps:
        return True
    # Leaves, most of what there is, take one level away from every nest when they are cut off.
    cuts, before = 0, 2 * len(steps)
    while 3 * before >= 4 * len(steps) > 0:
        before = len(steps)
        steps = steps.replace(_LEAF, b"")
        cuts += len(steps) < before
    return max(itertools.accumulate(memoryview(steps).cast("b")), default=0) + cuts > max_depth


def _opens_more_than(body: bytes | bytearray, count: int) -> bool:
    if len(body) < _WORTH_A_SEARCH:
        return body.count(b"[") + body.count(b"{") > count
    # To look for the next one is much faster than to count where there are few.
    for bracket in b"[{":
        at = body.find(bracket)
        while at >= 0:
            if not count:
                return True
            count -= 1
            at = body.find(bracket, at + 1)
    return False


def _steps(body: bytes | bytearray) -> bytes | bytearray:
    """Reduce a text to its brackets outside of strings: 1 for each that opens, -1 that closes."""
    if b"\\" in body:
        # Escapes first, on the whole text: a pair of backslashes is one character, and then a
        # backslash before a quote means that the string goes on.
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(None, _NO_MARKS)
    if 2 * marks.count(b'""') == marks.count(b'"'):
        # No bracket stands between the two quotes of any string, as in nearly all texts.
        return marks.translate(_STEPS, b'"')
    outside: list[bytes] = []
    quoted = 0
    for at in range(0, len(marks), _CHUNK):
        parts = marks[at : at + _CHUNK].replace(b'""', b"").split(b'"')
        outside.append(b"".join(parts[quoted::2]))
        quoted ^= (len(parts) - 1) & 1
    return b"".join(outside).translate(_STEPS)
