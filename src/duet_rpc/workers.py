"""Threads for handlers that block; started when the first one comes."""

from collections.abc import Callable
from typing import Any


class Workers:
    """Threads for handlers without async; shared by the connections of one server."""

    # Handlers in flight are limited per connection. One that waits for its peer gives up its place
    # but keeps its thread, so there may be more threads than places.
    MAX = 256

    def __init__(self) -> None:
        self._pool: Any = None

    def run(self, work: Callable[[], None]) -> None:
        """Run something on a thread of its own."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self.MAX, thread_name_prefix="duet-rpc handler")
        self._pool.submit(work)

    def close(self) -> None:
        """Take no more work; what runs is not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
