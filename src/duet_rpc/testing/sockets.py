"""Servers on real sockets for the length of a test: reachable when the block begins, gone after it.

    async with serve(service) as address, Client.connect(address) as client: ...

    with serve_in_thread(service, Unix(path)) as address: ...

What is tested over a socket is what memory does not have: several clients, addresses, reconnecting.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from duet_rpc.server.endpoints import SocketEndpoint, Tcp
from duet_rpc.server.server import Server
from duet_rpc.service import Service
from duet_rpc.testing.memory import loop_in_thread

_DRAIN = 2.0


@asynccontextmanager
async def serve(
    served: Server | Service, endpoint: SocketEndpoint | None = None, *, drain: float = _DRAIN
) -> AsyncIterator[str]:
    """Serve on a socket, in a task of this loop; gives the address once clients can connect.

    Without an endpoint it is a free port of this machine. What a lifespan raises is raised here,
    when the block is entered or left. At the end, requests that run have `drain` seconds.
    """
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = served if isinstance(served, Server) else Server(served)
    where = Tcp("127.0.0.1", 0) if endpoint is None else endpoint
    serving = asyncio.create_task(server.serve(where, drain=drain, on_start=started.set_result))
    try:
        both: list[asyncio.Future[Any]] = [started, serving]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            await serving  # which raises why it could not begin
        yield started.result()
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@contextmanager
def serve_in_thread(
    served: Server | Service, endpoint: SocketEndpoint | None = None, *, drain: float = _DRAIN
) -> Iterator[str]:
    """Do the same in the loop of a thread of its own, for tests that block."""
    ready: Future[str] = Future()
    over = asyncio.Event()

    async def run() -> None:
        try:
            async with serve(served, endpoint, drain=drain) as address:
                ready.set_result(address)
                await over.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    with loop_in_thread() as loop:
        serving = asyncio.run_coroutine_threadsafe(run(), loop)
        address = ready.result()
        try:
            yield address
        finally:
            loop.call_soon_threadsafe(over.set)
            serving.result()
