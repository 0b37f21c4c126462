"""What methods promise; known to services, which need not load the ledger or the engine for it."""

import enum
from typing import Literal, TypeAlias

Dedupe: TypeAlias = Literal["arguments"]
"""What makes two calls of a command the same where its callers send no key."""
DEDUPE_WINDOW = 600.0
"""Seconds for which they are the same, unless a command says otherwise."""

WhenSlow: TypeAlias = Literal["lagged", "drop-oldest", "wait"]
"""What a subscription does whose subscriber is too slow: it ends, drops the oldest item, or waits.
"""


class Promise(enum.Enum):
    """What a command declares about a crash in the middle of it."""

    TRANSACTIONAL = "transactional"
    """Effects and record commit together: both or neither."""
    AT_MOST_ONCE = "at-most-once"
    """Never run again by itself; a run that was cut off leaves its outcome unknown."""
    RETRY_SAFE = "retry-safe"
    """The handler bears being run again, and is, after a run that was cut off."""
