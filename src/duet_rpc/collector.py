"""Pauses the garbage collector where thousands of objects come to be, and none of them is garbage.

So it is with the modules of a program, and with large messages (`wire.large`). The collector would
look at all of them several times: a fourteenth of the start of a small daemon, half of the time
that a message takes. This module comes before all others, so it imports nothing else.
"""

import gc


def is_tuned() -> bool:
    """Tell whether the program itself has tuned the collector, which is then left alone."""
    return not gc.isenabled() or gc.get_freeze_count() > 0


class pause_collector:
    """Collects no garbage in a `with` block.

    What was made in it is moved to the oldest generation unseen, for merely to pause the collector
    would only put the work off.
    """

    def __enter__(self) -> None:
        self._pauses = not is_tuned()
        if self._pauses:
            gc.disable()

    def __exit__(self, *exception: object) -> None:
        if self._pauses:
            gc.freeze()
            gc.unfreeze()
            gc.enable()
