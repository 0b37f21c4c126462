"""When to try again, as one frozen value. It knows no clock: the caller waits."""

from collections.abc import Iterator

import msgspec

from duet_rpc.options import check, is_integer, is_number


class Retry(msgspec.Struct, frozen=True):
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
        tries = is_integer(self.attempts) and self.attempts >= 1
        check("attempts", self.attempts, tries, "a whole number, 1 or more")
        for name in ("first_delay", "max_delay"):
            delay = getattr(self, name)
            check(name, delay, is_number(delay) and delay >= 0, "seconds, 0 or more")
        share = is_number(self.jitter) and 0 <= self.jitter <= 1
        check("jitter", self.jitter, share, "a share, 0 to 1")
        check("total", self.total, is_number(self.total) and self.total > 0, "seconds above 0")

    def delays(self) -> Iterator[float]:
        """Yield the wait before each try after the first."""
        from random import random  # here: few calls are tried again

        delay = self.first_delay
        for _ in range(self.attempts - 1):
            yield delay * (1 - self.jitter * random())
            delay = min(delay * 2, self.max_delay)
