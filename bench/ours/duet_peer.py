"""duet-rpc in the roles of the driver protocol; the one file that follows its API.

The first argument may name a variant. `concurrent` serves with sixteen handlers in flight on an
event loop, where the rest have one in flight and no loop. `dispatcher` leaves the connection out of
the work in process: no order, no queue, no ids in flight, as in the peers' dispatchers. `uvloop`
runs the client on uvloop.
"""

from __future__ import annotations

import sys
from typing import Any

from bench import driver
from duet_rpc import Service
from duet_rpc.policy import AGENT, EDITOR, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from contextlib import AbstractAsyncContextManager

VARIANTS = ("concurrent", "dispatcher", "uvloop")
variant = sys.argv.pop(1) if sys.argv[1] in VARIANTS else ""
policy = AGENT if variant == "concurrent" else replace(EDITOR, max_batch=50)
store = None
if sys.argv[1].startswith("store="):
    # Commands are kept in a store in the folder that follows, with all of a window in flight.
    store = {"memory": "memory:", "sqlite": f"sqlite:///{sys.argv[2]}/commands.db"}[sys.argv[1][6:]]
    policy = replace(AGENT, max_in_flight=64)
    del sys.argv[1:3]

service = Service()


@service.query(inline=True)
def add(a: int, b: int) -> int:
    return a + b


@service.query(inline=True)
def echo(value: Any) -> Any:
    return value


if store:
    # Only here: a single `async def` moves the whole service to an event loop.
    @service.command
    async def commit(a: int, b: int) -> int:
        return a + b


def serve() -> None:
    from duet_rpc import Server
    from duet_rpc.logs import Logs

    Server(service, policy=policy, store=store).run_stdio(logs=Logs(level="warn"))


def connect(program: list[str]) -> AbstractAsyncContextManager[driver.Call]:
    """Every call has its own timeout, the client's usual one."""
    from contextlib import asynccontextmanager

    from duet_rpc.client import Client

    @asynccontextmanager
    async def client() -> AsyncIterator[driver.Call]:
        async with Client.spawn(*program, "serve") as connected:
            yield connected.call

    return client()


def run_on_uvloop(work: Coroutine[Any, Any, Any]) -> Any:
    import uvloop

    return uvloop.run(work)


def dispatch() -> driver.Answer:
    """A connection fed with whole messages: everything but framing and descriptors."""
    from duet_rpc.connection import Connection
    from duet_rpc.dispatch import Dispatcher

    dispatcher = Dispatcher(service, policy)
    if variant == "dispatcher":
        assert dispatcher.answer_at_once, "both methods are simple ones"
        return dispatcher.answer_at_once

    sent: list[bytes] = []

    class Whole:
        """Messages that need no framing, as on a transport that keeps boundaries itself."""

        partial = False

        def feed(self, data: bytes) -> list[bytes]:
            return [data]

        def encode(self, body: bytes) -> bytes:
            return body

    class Host:
        """Runs handlers at once and keeps what is written."""

        peer: Any = None
        write = sent.append

        def start(self, job: Any) -> None:
            connection.finish(job, connection.run_lent(job))

    framing: Any = Whole()
    host: Any = Host()
    connection = Connection(dispatcher, framing, host, id="bench")
    receive = connection.receive

    def answer(data: bytes) -> bytes | None:
        receive(data)
        return sent.pop() if sent else None

    return answer


if __name__ == "__main__":
    run = run_on_uvloop if variant == "uvloop" else None
    driver.main(serve=serve, connect=connect, dispatch=dispatch, run=run)
