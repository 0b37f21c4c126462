"""Keeps what would tidy up away from large messages: Python's collector, and the C library's.

A message of nine megabytes becomes hundreds of thousands of objects, none of which can be in a
cycle. The collector looks at all of them several times while they are made, and that takes as long
as the decoding itself. So it is paused (`collector`).

That moves everything else that is young as well, and the collector, which counts what comes to be,
begins to count anew. Where large messages come often it would never come to its oldest generation,
and whatever ended in a cycle would stay for good. So what was moved unseen is counted here, and the
oldest generation is collected by the rule of the collector's own: when a quarter as many objects
have been added as there were.

The memory of each large message, its value and its answer is given back to the system, and taken
anew for the next one, page by page. That takes longer than all else that is done to a large text.
"""

import gc
from collections.abc import Callable
from typing import Any

from duet_rpc.collector import is_tuned, pause_collector

LARGE = 64 * 1024
"""Bytes from which on a pause pays."""

_KEPT = 20 * 1024 * 1024

_FEWEST = 7_000
"""Objects for which a collection pays, however few there were; the collector has ten times 700."""
_FOR_EACH = 100
"""Objects that are thought to come with each message: those that die are taken off the count."""


def keep_memory() -> None:
    """Have the C library keep the memory of large messages for the next ones, when one comes.

    glibc never maps blocks smaller than the largest mapped one that was ever freed, and keeps twice
    as much free memory at the top of its heap. So we free a block that no one has touched, and that
    a message of the usual limit and its encoding fit in. Elsewhere it has no effect.
    """
    bytes(_KEPT)


class _Moved:
    """Counts the objects that were moved to the oldest generation unseen."""

    def __init__(self) -> None:
        self._moved = 0
        self._enough = _FEWEST

    def count(self) -> None:
        """Count what is young now, and is about to be moved; collect if that is enough."""
        youngest, young, _ = gc.get_count()
        self._moved += youngest + young * gc.get_threshold()[0] + _FOR_EACH
        if self._moved > self._enough:
            self._moved = 0
            gc.collect()
            self._enough = max(_FEWEST, len(gc.get_objects()) // 4)


_moved = _Moved()


def decode_large(decode: Callable[[Any], Any], body: Any) -> Any:
    """Decode without collecting; leaves alone a collector that the program itself has tuned."""
    if is_tuned():
        return decode(body)
    _moved.count()
    with pause_collector():
        return decode(body)
