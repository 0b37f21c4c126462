"""Runs the lifespans of a service: started before the first request is read, ended after the last.

One logic for every way to serve. Where there is no event loop, no lifespan is async, and the same
coroutines run to their end in one step. Imports `asyncio` late, for a cold start.
"""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duet_rpc.around.dependencies import Dependencies
    from duet_rpc.engine.connection import Connection
    from duet_rpc.server.logs import Logs
    from duet_rpc.server.shutdown import Life

TEARDOWN = 0.4
"""Seconds of a daemon's last ones that are kept for its lifespans, if it has any."""
_TICK = 0.01


class LifespanFailed(Exception):
    """The lifespans of a daemon could not start; its `__cause__` says why."""


class Lifespan:
    """What is open while a service is served once, and the values that it has given."""

    def __init__(self, dependencies: "Dependencies | None") -> None:
        self.values: dict[Any, Any] = {} if dependencies is None else dependencies.make_values()
        self._providers = [] if dependencies is None else dependencies.lifespans
        self._stack = AsyncExitStack()

    @property
    def needs_loop(self) -> bool:
        """Whether one of them is async."""
        return any(provider.is_async for provider in self._providers)

    @property
    def teardown(self) -> float:
        """Seconds to keep for the end."""
        return TEARDOWN if self._providers else 0.0

    async def start(self) -> None:
        """Start every lifespan, in order; if one fails, end those before it and raise its error."""
        for provider in self._providers:
            try:
                await provider.enter(self._stack, self.values)
            except BaseException as error:
                error.add_note(f"the lifespan {provider.name} failed to start; nothing is served")
                # Those before it see why, as they would in one `with` statement.
                await self._stack.__aexit__(type(error), error, error.__traceback__)
                raise

    async def end(self, connections: "Iterable[Connection]" = ()) -> None:
        """End every lifespan, in reverse order, once the handlers of these connections have ended.

        Those that can be cancelled have been; for the others it does not wait for ever. What a
        lifespan raises comes out of here when all have ended.
        """
        if self._providers:
            await _wait_for_handlers(list(connections))
            await self._stack.aclose()


async def start_lifespan(lifespan: Lifespan, life: "Life") -> None:
    """Start the lifespans of a daemon; raise `LifespanFailed` if one fails."""
    usual, life.unfinished = life.unfinished, "a lifespan has not started"
    try:
        await lifespan.start()
    except Exception as error:
        raise LifespanFailed("a lifespan failed to start; nothing is served") from error
    life.unfinished = usual


async def end_lifespan(
    lifespan: Lifespan, life: "Life", logs: "Logs", connections: "Iterable[Connection]" = ()
) -> None:
    """End the lifespans of a daemon, which logs what they raise and ends all the same."""
    life.unfinished = "a lifespan has not ended"
    try:
        await lifespan.end(connections)
    except Exception as error:
        logs.failure("a lifespan failed to end", error)


async def _wait_for_handlers(connections: "list[Connection]") -> None:
    if all(connection.idle for connection in connections):
        return
    import asyncio

    loop = asyncio.get_running_loop()
    until = loop.time() + TEARDOWN / 2
    while loop.time() < until:
        # A connection that is closed tells no one when its last handler ends.
        await asyncio.sleep(_TICK)
        if all(connection.idle for connection in connections):
            return
