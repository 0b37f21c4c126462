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
        held = [work]
        try:
            self._pool.submit(_run_held, held)
        except RuntimeError:
            # No thread could be started, but the pool has it in its queue and may come to it later:
            # whoever takes it out decides whether it runs.
            if _taken_from(held) is not None:
                raise

    def close(self) -> None:
        """Take no more work; what runs is not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _run_held(held: list[Callable[[], None]]) -> None:
    work = _taken_from(held)
    if work is not None:
        work()


def _taken_from(held: list[Callable[[], None]]) -> Callable[[], None] | None:
    try:
        return held.pop()
    except IndexError:
        return None
