# mypy: disable-error-code="import-not-found, misc"
"""aiorpcX: sessions over a socket, which here is a socket pair in place of stdin and stdout.

Its guards against costly peers are off, and its message limit too: the work here is meant.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from functools import partial

import aiorpcx
from aiorpcx.unixsocket import USTransport

from bench import driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any


async def add(a: int, b: int) -> int:
    return a + b


async def echo(value: object) -> object:
    return value


METHODS = {"add": add, "echo": echo}


class Session(aiorpcx.RPCSession):
    cost_hard_limit = 0

    def __init__(self, transport: Any) -> None:
        super().__init__(transport)
        self.connection.max_response_size = 0

    def default_framer(self) -> Any:
        return aiorpcx.NewlineFramer(max_size=0)

    async def handle_request(self, request: Any) -> object:
        return await aiorpcx.handler_invocation(METHODS.get(request.method), request)()


def serve() -> None:
    async def run() -> None:
        factory = partial(USTransport, Session, None, aiorpcx.SessionKind.SERVER)
        loop = asyncio.get_running_loop()
        _, transport = await loop.connect_accepted_socket(factory, socket.socket(fileno=0))
        await transport._closed_event.wait()

    asyncio.run(run())


def listen(path: str) -> None:
    async def run() -> None:
        server = await aiorpcx.serve_us(Session, path, backlog=1024)
        await server.serve_forever()

    asyncio.run(run())


@asynccontextmanager
async def connect(program: list[str]) -> AsyncIterator[driver.Call]:
    ours, theirs = socket.socketpair()
    end = theirs.fileno()
    server = await asyncio.create_subprocess_exec(*program, "serve", stdin=end, stdout=end)
    theirs.close()
    async with aiorpcx.connect_us(sock=ours, session_factory=Session) as session:
        yield session.send_request
    await server.wait()


def dispatch() -> driver.Answer:
    """Its connection object alone, with the handlers called directly: no session, no task."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    connection = aiorpcx.JSONRPCConnection(aiorpcx.JSONRPCv2)

    def answer(data: bytes) -> bytes | None:
        sent = None
        for request in connection.receive_message(data):
            invocation = aiorpcx.handler_invocation(METHODS.get(request.method), request)
            try:
                invocation().send(None)
            except StopIteration as done:
                if isinstance(request, aiorpcx.Request):
                    sent = request.send_result(done.value)
        return sent

    return answer


if __name__ == "__main__":
    driver.main(serve=serve, listen=listen, connect=connect, dispatch=dispatch)
