"""A process that serves one endpoint, stdio or a socket, until its end; see `Life`.

On stdio a service that is sequential and blocking is served by threads, without an event loop: that
is the quickest start and the shortest way of a request. An `async def`, a deadline or several
requests in flight need a loop, and so do sockets.
"""

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from duet_rpc.collector import pause_collector
from duet_rpc.context import Origin
from duet_rpc.engine.connection import Connection, ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher
from duet_rpc.engine.steps import drive
from duet_rpc.errors import UsageError
from duet_rpc.hosts.quiet import call_when_quiet, read_what_waits
from duet_rpc.hosts.threads import MAX_NESTED, ThreadHost
from duet_rpc.hosts.watch import StandIn
from duet_rpc.ledger.commands import store_words
from duet_rpc.server.endpoints import SocketEndpoint, Stdio
from duet_rpc.server.lifespan import (
    Lifespan,
    LifespanFailed,
    end_lifespan,
    start_lifespan,
)
from duet_rpc.server.logs import Logs
from duet_rpc.server.server import Server, assemble_dispatcher
from duet_rpc.server.shutdown import (
    FACE_GRACE,
    GRACE,
    TICK,
    Drain,
    Life,
    drain_on_loop,
    end_face,
    refuse_for_loop,
    shutdown_methods,
)
from duet_rpc.tracebacks import OwnFault
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.stdio import take_stdio
from duet_rpc.version import __version__
from duet_rpc.wire.framing import Framing

if TYPE_CHECKING:
    import asyncio
    from socket import socket

    Connected = tuple[Channel, Dispatcher, Framing, ConnectionOptions]
    """What a host of stdin and stdout is made of."""

    class Served(Protocol):
        """What is served on an event loop: `_StdioOnLoop`, or a `Listener`."""

        @property
        def connections(self) -> list[Connection]:
            """Those that are open."""

        def begin(self) -> None:
            """Start to read, or to accept."""

        def remove_file(self) -> None:
            """Take the address away, so that no one new comes; any thread."""

        def refuse_queued(self) -> None:
            """Refuse what has not begun; any thread, also while a handler blocks the loop."""

        async def end(self, until: float) -> bool:
            """Finish what was read; return whether every handler has ended in time."""


OnStart = Callable[[Any], object]

being_imported: list[str] = []
"""What is being imported in order to be served; no one else may serve meanwhile."""

_POLLRDHUP = 0x2000


def run_on_stdio(server: Server, endpoint: Stdio, logs: Logs, on_start: OnStart) -> str | None:
    """Serve on stdin and stdout until the end; return why it came when everything is answered.

    `on_start` is called with the host before anything is read.
    """
    if being_imported:
        raise UsageError(
            "this file is being served by `duet-rpc serve`, so put its own run() under"
            ' `if __name__ == "__main__":`'
        )
    channel = take_stdio()
    life = Life(logs, grace=GRACE if server.face is None else FACE_GRACE)
    lifespan = Lifespan(server.dependencies)
    dispatcher = assemble_dispatcher(
        server, logs, values=lifespan.values, levels=logs, end=life.speak
    )
    # The messages that ask for the end start its clock also when they have to wait.
    options = ConnectionOptions(
        origin=Origin(connection_id="stdio", transport="stdio"),
        shutdown_methods=shutdown_methods(server),
        on_shutdown_queued=life.end,
    )
    connected = channel, dispatcher, endpoint.make_framing(server.policy, server.face), options
    logs.begin(__version__, **store_words(server.service, server.commands))
    if os.isatty(channel.read_fd):
        logs.note("info", "waiting for messages from this terminal; Ctrl-D ends")
    life.begin()

    def start(host: Any) -> None:
        on_start(host)
        # No sooner: what lies in the pipe has waited until it is read.
        server.commands.begin()

    try:
        if not _needs_loop(dispatcher, lifespan):
            _run_on_threads(connected, life, lifespan, logs, start, server.commands.caught_up)
        elif not _run_on_loop(
            lambda: _StdioOnLoop(connected, life, logs, start, server.commands.caught_up),
            *(life, lifespan, logs),
        ):
            life.cut_off()
    except LifespanFailed:
        raise
    except Exception as error:  # a fault of our own, not of a handler's
        logs.failure("the daemon cannot go on", OwnFault(error))
        logs.flush(0.5)
        sys.exit(1)
    life.finish()
    return life.reason


def _needs_loop(dispatcher: Dispatcher, lifespan: Lifespan) -> bool:
    """Tell whether threads are not enough: a deadline has to be answered while its handler runs."""
    return (
        lifespan.needs_loop
        or dispatcher.policy.max_in_flight > 1
        or any(method.is_async or method.timeout is not None for method in dispatcher.service)
    )


def run_on_socket(
    server: Server, endpoint: SocketEndpoint, listening: "socket", logs: Logs, on_start: OnStart
) -> str | None:
    """Serve a socket until a signal ends it; return which, when everything is answered."""
    logs.begin(__version__, **store_words(server.service, server.commands))
    life = Life(logs, may_go_on=True)
    life.begin()
    lifespan = Lifespan(server.dependencies)

    def listen() -> "Served":
        return endpoint.make_listener(listening, server, logs, on_start, lifespan.values)

    if _run_on_loop(listen, life, lifespan, logs):
        life.finish()
    else:
        life.cut_off()
    return life.reason


def _run_on_threads(
    connected: "Connected",
    life: Life,
    lifespan: Lifespan,
    logs: Logs,
    on_start: OnStart,
    on_caught_up: Callable[[], object],
) -> None:
    host = ThreadHost(*connected)
    host.channel.keeps_memory = True
    host.on_input_end = lambda: life.end("end of input")
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + 30 * MAX_NESTED))
    life.on_end = host.wake
    life.on_stop = host.connection.requests.close_down
    life.on_last_chance = partial(_refuse_queued, host)
    stand_in = StandIn(host, until=lambda: life.ending)
    drive(start_lifespan(lifespan, life))
    on_start(host)
    host.connection.begin()
    read_what_waits(host, lambda: not (life.ending or host.outbox.lost))
    on_caught_up()
    while not life.ending:
        if host.outbox.lost:  # also while we read what waited: a turn would wait for ever
            life.end("the peer is gone")
        else:
            host.turn()
    stand_in.call()
    until = life.deadline - TICK - lifespan.teardown
    drain = Drain(host, until, nullcontext(), lambda: life.lingers)
    while (seconds := drain.step()) is not None:
        host.turn(seconds)
    host.close()
    drive(end_lifespan(lifespan, life, logs))


def _refuse_queued(host: ThreadHost) -> None:
    """Refuse what has not begun; any thread."""
    # At once, for our thread may go from one short handler to the next and never look at its mail.
    host.connection.requests.close_down()
    host.post(host.connection.refuse_queued)


def _run_on_loop(make: "Callable[[], Served]", life: Life, lifespan: Lifespan, logs: Logs) -> bool:
    """Serve on an event loop until the end; return whether every handler has ended in time."""
    with pause_collector():
        import asyncio

    async def serve() -> bool:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_uncaught_to(logs))
        ending = asyncio.Event()
        served = make()

        def on_end() -> None:
            served.remove_file()  # now, for a blocked loop would never come to it
            loop.call_soon_threadsafe(ending.set)

        life.on_end = on_end
        life.on_last_chance = served.refuse_queued
        if life.ending:  # a signal was faster
            on_end()
        try:
            await start_lifespan(lifespan, life)
        except BaseException:
            await served.end(0.0)
            raise
        served.begin()
        await ending.wait()
        connections = served.connections
        finished = await served.end(life.deadline - TICK - lifespan.teardown)
        if not finished:
            life.cut_off()
        await end_lifespan(lifespan, life, logs, connections)
        return finished

    return asyncio.run(serve())


_IN_CALLBACK = "Exception in callback"
"""How asyncio begins a sentence that goes on with the callback's arguments, which may be values."""


def _log_uncaught_to(
    logs: Logs,
) -> "Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]":
    """Make what logs an exception that no one caught, in our log instead of asyncio's."""

    def log(loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = context.get("message", "an exception that no one caught")
        if text.startswith(_IN_CALLBACK):
            text = "an exception in a callback of the event loop"
        if error is not None:
            logs.failure(text, error)
        else:
            logs.note("error", text)

    return log


class _StdioOnLoop:
    """Stdin and stdout on the running event loop.

    An `async def` that blocks keeps the loop; a watch reads and writes in its place meanwhile.
    """

    def __init__(
        self,
        connected: "Connected",
        life: Life,
        logs: Logs,
        on_start: OnStart,
        on_caught_up: Callable[[], object],
    ) -> None:
        with pause_collector():
            from duet_rpc.hosts.loop import LoopHost
            from duet_rpc.hosts.watch import LoopWatch
            from duet_rpc.hosts.workers import Workers

        self._life = life
        self._on_start = on_start
        self._on_caught_up = on_caught_up
        self._workers = Workers()
        host = self._host = LoopHost(
            *connected,
            workers=self._workers,
            on_end=lambda it: life.end("end of input" if it.input_ended else "the peer is gone"),
        )
        life.on_stop = host.connection.requests.close_down
        # The end of the input is a reason to end, also while nothing runs.
        self._watch = LoopWatch(lambda: (host,), logs, idle_events=_POLLRDHUP)
        host.on_traffic = self._watch.call
        host.on_input_end = lambda: life.end("end of input")

    @property
    def connections(self) -> list[Connection]:
        """The one there is."""
        return [self._host.connection]

    def begin(self) -> None:
        """Start to read."""
        self._watch.begin()
        host = self._host
        self._on_start(host)
        host.begin()
        call_when_quiet(host.loop, lambda: host.turns, self._on_caught_up)

    def remove_file(self) -> None:
        """There is none."""

    def refuse_queued(self) -> None:
        """Refuse what has not begun; any thread."""
        refuse_for_loop((self._host,))

    async def end(self, until: float) -> bool:
        """Answer what was read, linger if we are asked for the end, close."""
        finished = await drain_on_loop(self._host, until, lambda: self._life.lingers)
        finished &= await end_face(self._host.dispatcher, until)
        self._workers.close()
        return finished
