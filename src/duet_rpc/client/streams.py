"""Streams of the asyncio client: `async for hit in client.stream("search", ...)`.

The call is sent when the first item is asked for, or when the block is entered. What is known of
the items is in `engine.inflow`; here is the waiting, and the end: a stream that is left early is
cancelled at the server, by the end of its block, by `close`, or when nothing refers to it any more.
"""

import asyncio
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from duet_rpc.client.stream_call import StreamCall
from duet_rpc.errors import UsageError

if TYPE_CHECKING:
    from duet_rpc.client.client import Client
    from duet_rpc.engine.calls import Calls

T = TypeVar("T")


class Stream(Generic[T]):
    """The items of a streaming call, for one task.

    `async with` cancels the call when the block is left; without it, the call is cancelled as soon
    as nothing refers to the stream.
    """

    def __init__(self, client: "Client", call: StreamCall) -> None:
        self._client = client
        self._call = call
        self._calls: Calls | None = None
        """Of the connection on which it was sent."""
        self._waits = False

    async def __aenter__(self) -> "Stream[T]":
        await self._begin()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __aiter__(self) -> "Stream[T]":
        return self

    async def __anext__(self) -> T:
        if self._waits:
            raise UsageError("another task waits for the next item of this stream")
        if self._calls is None:
            await self._begin()
        while not self._call.inflow.items:
            if self._call.inflow.ended:
                await self._ended()
            else:
                await self._wait()
        raw = self._call.inflow.take()
        assert self._calls is not None, "items come on a connection"
        self._call.grant(self._calls)
        try:
            item: T = self._call.decode(raw)
        except BaseException:
            self.close()
            raise
        return item

    async def _ended(self) -> None:
        """See to the end: raise it."""
        self._end()

    def _end(self) -> NoReturn:
        error = self._call.failure()
        self.close()
        if error is not None:
            raise error
        raise StopAsyncIteration

    async def _begin(self) -> None:
        if self._calls is None:
            if self._call.inflow.ended:
                self._end()
            try:
                async with asyncio.timeout(self._call.wait_timeout):
                    host = await self._client._ensure_connected()
            except TimeoutError:
                raise self._call.not_begun() from None
            self._calls = host.connection.calls
            self._call.send(self._calls)
            host.connection.outgoing.flush()

    async def _wait(self) -> None:
        """Wait until something came or the stream has ended, up to its timeout."""
        loop, inflow = asyncio.get_running_loop(), self._call.inflow
        changed: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        inflow.on_change = wake
        self._waits = True
        try:
            async with asyncio.timeout(self._call.wait_timeout):
                await changed
        except TimeoutError:
            self._client._counted.timeouts += 1
            inflow.end(self._call.too_late())
        finally:
            inflow.on_change = None
            self._waits = False

    def close(self) -> None:
        """Take no more items; a call that has not ended is cancelled. Idempotent."""
        if self._calls is None:
            self._call.inflow.end(None)
        elif self._call.leave(self._calls):
            self._client._counted.cancelled += 1

    def __del__(self) -> None:
        # On any thread, at any moment, and perhaps after a constructor that has failed.
        calls: Calls | None = getattr(self, "_calls", None)
        if calls is not None and self._call.is_open(calls):
            try:
                self._client._loop.call_soon_threadsafe(self._call.leave, calls)
            except RuntimeError:
                pass  # the loop is closed, and the connection with it
