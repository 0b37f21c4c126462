"""When to try again, as one frozen value. It knows no clock: the caller waits."""

import random
from collections.abc import Iterator

import msgspec

from duet_rpc.errors import UsageError


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a query, or a command with its key, is sent before its failure is the answer.

    The wait doubles from `first_delay` to `max_delay`, each shortened at random by up to `jitter`
    of itself, so that many clients do not come back at the same moment. No try begins after
    `total`.
    """

    attempts: int = 3
    first_delay: float = 0.1
    max_delay: float = 2.0
    jitter: float = 0.5
    total: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_delay < 0 or self.max_delay < 0 or self.total <= 0:
            raise UsageError("a Retry has at least one attempt and no negative times")
        if not 0 <= self.jitter <= 1:
            raise UsageError("the jitter of a Retry is a share: 0 to 1")

    def delays(self) -> Iterator[float]:
        """Yield the wait before each try after the first."""
        delay = self.first_delay
        for _ in range(self.attempts - 1):
            yield delay * (1 - self.jitter * random.random())
            delay = min(delay * 2, self.max_delay)
