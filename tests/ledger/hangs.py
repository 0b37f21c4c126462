"""For programs that fork: a process that hangs ends itself, and says where its threads are."""

import faulthandler
import signal

PATIENCE = 100
"""In seconds. The programs take one or two; a machine with other work may take ten times that."""


def end_if_it_hangs() -> None:
    """Bound the time of this process. To be called in each child too: an alarm is not copied."""
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(PATIENCE)
