"""Keeps Python's cyclic collector away from large decodes.

A message of nine megabytes becomes hundreds of thousands of objects, none of which can be in a
cycle. The collector looks at all of them several times while they are made, and that takes as long
as the decoding itself. So it is paused; then the new objects are moved to the oldest generation
unseen, for merely to pause it would only put the work off.
"""

import gc
from collections.abc import Callable
from typing import Any

LARGE = 64 * 1024
"""Bytes from which on a pause pays."""


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
