"""Keeps what would tidy up away from large messages: Python's collector, and the C library's.

A message of nine megabytes becomes hundreds of thousands of objects, none of which can be in a
cycle. The collector looks at all of them several times while they are made, and that takes as long
as the decoding itself. So it is paused; then the new objects are moved to the oldest generation
unseen, for merely to pause it would only put the work off.

The memory of each large message, its value and its answer is given back to the system, and taken
anew for the next one, page by page. That takes longer than all else that is done to a large text.
"""

import gc
from collections.abc import Callable
from typing import Any

LARGE = 64 * 1024
"""Bytes from which on a pause pays."""

_KEPT = 20 * 1024 * 1024


def keep_memory() -> None:
    """Have the C library keep the memory of large messages for the next ones, when one comes.

    glibc never maps blocks smaller than the largest mapped one that was ever freed, and keeps twice
    as much free memory at the top of its heap. So we free a block that nobody has touched, and that
    a message of the usual limit and its encoding fit in. Elsewhere it has no effect.
    """
    bytes(_KEPT)


def decode_large(decode: Callable[[Any], Any], body: Any) -> Any:
    """Decode without collecting; leaves alone a collector that the program itself has tuned."""
    if not gc.isenabled() or gc.get_freeze_count():
        return decode(body)
    gc.disable()
    try:
        return decode(body)
    finally:
        gc.freeze()
        gc.unfreeze()
        gc.enable()
