"""What every host serves in these tests, and the program that is one of the hosts.

python -m tests.hosts.served HOST POLICY ARGUMENT...      (see `table.py`, which starts it)

A handler that a case needs goes here: into `plain` if it is a `def` without a timeout, so that the
daemon that takes one request at a time serves it too; into `more` otherwise. What a handler says
to the test it writes to stderr (`say`), which is the log of every host.
"""

import asyncio
import atexit
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from duet_rpc import Client, Context, RemotePeer, RpcError, Server, Service, Whole, blocking
from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.errors import CallTimeout, ConnectionLost, UsageError
from duet_rpc.hooks import (
    ConnectionClosed,
    ConnectionOpened,
    Event,
    Hooks,
    Invocation,
    RequestEnded,
)
from duet_rpc.hosts.exchange import ExchangeHost
from duet_rpc.hosts.loop import LoopHost
from duet_rpc.hosts.workers import Workers
from duet_rpc.policy import preset, replace
from duet_rpc.server.logs import Logs
from duet_rpc.server.server import assemble_dispatcher
from duet_rpc.testing.memory import MemoryServer
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.link import Link
from duet_rpc.transports.messages import MessageChannel
from duet_rpc.wire.dialect import find_dialect
from duet_rpc.wire.framing import Fault, HeaderFraming, framing

plain, more = Service(), Service()


def say(text: str) -> None:
    """Write a line where the test reads it."""
    os.write(2, f"{text}\n".encode())


def wait_for_file(path: str) -> None:
    """Keep this thread until the test has made a file."""
    while not os.path.exists(path):
        time.sleep(0.01)


# Handlers. Those of `more` are the `async def` twins, under the same name with `_async` behind it.


@plain.query
def add(a: int, b: int) -> int:
    """Answer at once."""
    return a + b


@plain.query
def hold(until: str) -> str:
    """Keep the thread, whichever it is."""
    say("holding")
    wait_for_file(until)
    return "let go"


@more.query
async def hold_async(until: str) -> str:
    """Keep the event loop, as one should not."""
    say("holding")
    wait_for_file(until)
    return "let go"


@plain.query
def origin(ctx: Context) -> Any:
    """Tell where the request comes from."""
    return {name: getattr(ctx.origin, name) for name in ctx.origin.__struct_fields__}


@plain.query
def heed(ctx: Context) -> None:
    """Keep the thread until the caller cancels."""
    say("heeding")
    while not ctx.cancelled:
        time.sleep(0.01)
    say("heeded")


@more.query
async def heed_async(ctx: Context) -> None:
    """Keep the event loop until then."""
    heed(ctx)


@plain.query
def log(ctx: Context) -> str:
    """Write a line to the log of this request."""
    ctx.logger.warning("a line of the %s", "handler")
    return ctx.connection_id


@more.query
async def log_async(ctx: Context) -> str:
    """Do the same on the loop."""
    ctx.logger.warning("a line of the %s", "handler")
    return ctx.connection_id


@more.query(timeout=60)
def deadline(ctx: Context) -> float | None:
    """Tell how many seconds are left."""
    return None if ctx.deadline is None else ctx.deadline - time.monotonic()


@more.query(timeout=60)
async def deadline_async(ctx: Context) -> float | None:
    """Tell the same on the loop."""
    return None if ctx.deadline is None else ctx.deadline - time.monotonic()


@plain.query
def call_and_dawdle(seconds: float, ctx: Context) -> float:
    """Call the peer, do something else for as long as the call may take, and then wait for it."""
    reply = ctx.call("never.answered", timeout=seconds)
    time.sleep(seconds)
    begun = time.monotonic()
    try:
        reply.result()
    except CallTimeout:
        return time.monotonic() - begun
    raise AssertionError("it was answered")


@more.query
async def call_and_dawdle_async(seconds: float, ctx: Context) -> float:
    """Do the same in a coroutine."""
    reply = ctx.call("never.answered", timeout=seconds)
    await asyncio.sleep(seconds)
    begun = time.monotonic()
    try:
        await reply
    except CallTimeout:
        return time.monotonic() - begun
    raise AssertionError("it was answered")


@plain.query
def report(ctx: Context) -> None:
    """Report progress."""
    for done in range(3):
        ctx.progress(done, total=3, message=f"page {done}")


@plain.query
def report_then(end: str, ctx: Context) -> str:
    """Report progress. Then return, fail, or wait to be cancelled."""
    ctx.progress(1, total=4)
    ctx.progress("nearly", message="half of it")
    ctx.progress(3, total=4)
    ctx.progress(2, total=4, message="back")
    if end == "fail":
        raise ValueError(end)
    while end == "wait" and not ctx.cancelled:
        time.sleep(0.005)
    if end == "wait":
        ctx.progress(4, total=4)
    return end


@plain.query
def call_back(ctx: Context) -> Any:
    """Call the peer and give its answer."""
    return ctx.call("question", timeout=60).result()


@plain.query
def call_with_bad_timeouts(ctx: Context) -> list[str]:
    """Tell what became of calls with timeouts that are none."""
    outcomes = []
    for timeout in (-1, float("nan"), "1", True):
        try:
            ctx.call("never.sent", timeout=timeout)  # type: ignore[arg-type]
            outcomes.append(f"{timeout!r} was taken")
        except UsageError as error:
            outcomes.append(str(error))
    return outcomes


@plain.query
def leave_behind(what: str) -> None:
    """Leave something that the end of the process waits for."""
    if what in ("thread", "both"):
        threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
    if what in ("hook", "both"):
        atexit.register(time.sleep, 600)
    if what == "pool":
        ThreadPoolExecutor().submit(time.sleep, 600)


changes: list[int] = []


@plain.notification
def change(number: int) -> None:
    """Keep a number, in a thread where there are threads."""
    time.sleep(0.002 if number % 3 == 0 else 0)
    changes.append(number)


@more.notification
async def change_async(number: int) -> None:
    """Keep a number, after some turns of the loop."""
    for _ in range(5 if number % 3 == 0 else 0):
        await asyncio.sleep(0)
    changes.append(number)


@plain.query
def changed() -> list[int]:
    """Tell what was kept so far."""
    return list(changes)


@more.query(inline=True)
def changed_inline() -> list[int]:
    """Tell the same, on the thread that reads."""
    return list(changes)


# Dependencies, and the exceptions of a library.


class Visit:
    """What is opened for one request."""

    def __init__(self, method: str) -> None:
        self.method = method


class AsyncVisit(Visit):
    """The same, opened by an `async def`."""


class Forbidden(RpcError):
    """What a dependency refuses."""

    code, message = 403, "Forbidden"


class Missing(RpcError):
    """What the library's `LookupError` is to callers."""

    code, message = 404, "Missing"


@plain.dependency
def visit(ctx: Context) -> Iterator[Visit]:
    """Say when it is opened and closed, and what it sees of the handler."""
    say(f"open {ctx.method}")
    try:
        yield Visit(ctx.method)
        say(f"done {ctx.method}")
    except Exception as error:
        say(f"saw {type(error).__name__} {ctx.method}")
        if isinstance(error, PermissionError):
            raise Forbidden() from error
        raise
    finally:
        say(f"close {ctx.method}")


@more.dependency
async def visit_async(visit: Visit) -> AsyncIterator[AsyncVisit]:
    """Be opened inside of another."""
    await asyncio.sleep(0)
    say(f"open inner {visit.method}")
    yield AsyncVisit(visit.method)
    await asyncio.sleep(0)
    say(f"close inner {visit.method}")


def _use(visit: Visit, fails: str) -> str:
    say(f"use {visit.method}")
    if fails:
        raise {"permission": PermissionError, "lookup": KeyError, "other": ValueError}[fails]()
    return visit.method


@plain.query
def use(visit: Visit, fails: str = "") -> str:
    """Use what is opened for this request, or fail."""
    return _use(visit, fails)


@plain.command
def use_command(visit: Visit, fails: str = "") -> str:
    """Do the same in a command."""
    return _use(visit, fails)


@more.query(inline=True)
def use_inline(visit: Visit, fails: str = "") -> str:
    """Do the same on the thread that reads."""
    return _use(visit, fails)


@more.query
async def use_async(visit: AsyncVisit, fails: str = "") -> str:
    """Do the same on the loop."""
    return _use(visit, fails)


@plain.exception_handler(LookupError)
@more.exception_handler(LookupError)
def find_missing(error: LookupError) -> RpcError:
    """Make an error that callers know of one that they do not."""
    return Missing()


@more.query
async def sleep_async() -> None:
    """Wait until it is cancelled."""
    say("sleeping")
    try:
        await asyncio.sleep(600)
    finally:
        say("cancelled")


# Lifespans and middleware: for the cases that ask for them.


class Outer:
    """What the first lifespan yields."""


class Inner:
    """What the second one yields."""


def add_lifespans(service: Service, how: str, *, is_async: bool) -> Service:
    """Add two lifespans to a service, and a handler that is given what they yield."""
    living = Service()

    @living.lifespan
    def outer() -> Iterator[Outer]:
        say("outer starts")
        if how == "hangs":
            wait_for_file("/never")
        yield Outer()
        say("outer ends")
        if how == "blocks":
            wait_for_file("/never")

    def start() -> Inner:
        say("inner starts")
        if how == "fails":
            raise OSError("no such pool")
        return Inner()

    def inner(outer: Outer) -> Iterator[Inner]:
        yield start()
        say("inner ends")

    async def inner_async(outer: Outer) -> AsyncIterator[Inner]:
        await asyncio.sleep(0)
        yield start()
        await asyncio.sleep(0)
        say("inner ends")

    living.lifespan(inner_async if is_async else inner)

    @living.query
    def living_on(outer: Outer, inner: Inner) -> list[str]:
        """Name what it is given."""
        return [type(outer).__name__, type(inner).__name__]

    return service.with_fallback(living)


class Refused(RpcError):
    """What the middleware answers."""

    code, message = 429, "Refused"


def add_middleware(service: Service) -> Service:
    """Add middleware that is around both kinds of handlers, and listens to events."""
    guarded = Service()
    guarded.include(service)

    @guarded.around
    def guard(call: Invocation) -> Iterator[None]:
        say(f"guard {call.method}")
        if call.method == "effect":
            raise Refused(data={"principal": call.context.principal})
        try:
            yield
        except RpcError as error:
            say(f"guard saw {error.code}")
            raise

    @guarded.on(RequestEnded)
    def audit(event: RequestEnded) -> None:
        say(f"audit {event.method} {0 if event.error is None else event.error.code}")

    return guarded


# A peer that outlives its request.


@plain.query
def remember(until: str, ctx: Context) -> None:
    """Keep the peer, and talk to it from a thread when the test says so."""

    def talk(peer: RemotePeer) -> None:
        wait_for_file(until)
        peer.notify("reminder", {"n": 1})
        say(f"the peer answered {peer.call('question', timeout=60).result()}")
        wait_for_file(until + ".gone")
        while peer.is_connected:
            time.sleep(0.01)
        for act in (peer.notify, peer.call):
            try:
                act("too.late")
            except ConnectionLost:
                say("the peer is gone")

    threading.Thread(target=talk, args=[ctx.peer], daemon=True).start()


# Streams.


@more.query
async def stream(n: int, fail_at: int = -1) -> AsyncIterator[int]:
    """Yield numbers, and fail at one of them; say how far it came."""
    number = 0
    try:
        for number in range(n):
            if number == fail_at:
                raise ValueError("of the stream")
            yield number
    finally:
        say(f"stream ended at {number}")


class Span(msgspec.Struct):
    """The params of a stream, as one value."""

    n: int


@more.query
async def stream_whole(params: Whole[Span]) -> AsyncIterator[int]:
    """Yield numbers; its params are one value."""
    for number in range(params.n):
        yield number


@more.query
async def stream_token(n: int, partialResultToken: str) -> AsyncIterator[str]:
    """Yield texts; the token is a param of its own."""
    for number in range(n):
        yield f"{partialResultToken} {number}"


@more.query
async def stream_visit(n: int, visit: AsyncVisit, fails: str = "") -> AsyncIterator[int]:
    """Yield numbers while a dependency is open, and fail after the last of them."""
    try:
        for number in range(n):
            say(f"use {visit.method}")
            yield number
        if fails:
            _use(visit, fails)
    finally:
        say(f"use ends {visit.method}")


@more.subscription
async def watch(n: int, then: str = "end", resume_after: int = 0) -> AsyncIterator[int]:
    """Yield numbers, and then end, fail or wait for ever."""
    say("watch begins")
    number = resume_after
    try:
        for number in range(resume_after, n):
            yield number
        if then == "fail":
            raise ValueError("of the subscription")
        if then == "refuse":
            raise Forbidden(data={"after": n})
        if then == "wait":
            await asyncio.get_running_loop().create_future()
    finally:
        say(f"watch ended at {number}")


@more.subscription
async def watch_visit(n: int, visit: AsyncVisit, fails: str = "") -> AsyncIterator[int]:
    """Yield numbers inside of a dependency, and then wait."""
    try:
        for number in range(n):
            say("use watch_visit")
            yield number
        if fails:
            _use(visit, fails)
        await asyncio.get_running_loop().create_future()
    finally:
        say("use ends watch_visit")


async def flood(n: int) -> AsyncIterator[str]:
    """Yield more than any buffer holds."""
    made = 0
    say("flood begins")
    try:
        while made < n:
            made += 1
            yield "x" * 10_000
            await asyncio.sleep(0)
    finally:
        say(f"flood ended at {made}")


more.subscription(name="flood_lagged")(flood)
more.subscription(name="flood_drop", when_slow="drop-oldest")(flood)
more.subscription(name="flood_wait", when_slow="wait")(flood)


@more.query
async def stream_large(n: int) -> AsyncIterator[str]:
    """Yield texts that fill every buffer."""
    sent = 0
    say("large stream begins")
    try:
        while sent < n:
            yield "x" * 50_000
            sent += 1
    finally:
        say(f"large stream ended at {sent}")


# Forks. Each gives the exit status of its child.


def _end_child(how: str) -> int:
    if how == "exit":
        sys.exit(7)
    if how == "raise":
        raise ValueError("of the child")
    return 0


def _status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@plain.query
def fork(how: str) -> int:
    """Fork, where a plain `def` runs."""
    pid = os.fork()
    return _status(pid) if pid else _end_child(how)


@plain.query
def fork_with_context(how: str, ctx: Context) -> int:
    """Fork, where a `def` runs that wants to know about its request; try to use it in the child."""
    pid = os.fork()
    if pid:
        return _status(pid)
    try:
        ctx.notify("never.sent")
    except UsageError:
        return _end_child(how)
    return 99


@plain.command
def fork_command(how: str) -> int:
    """Fork in a command, whose record is the parent's to write."""
    pid = os.fork()
    return _status(pid) if pid else _end_child(how)


@more.query(inline=True)
def fork_inline(how: str) -> int:
    """Fork on the thread that reads."""
    pid = os.fork()
    return _status(pid) if pid else _end_child(how)


@more.query
async def fork_async(how: str) -> int:
    """Fork in a task."""
    pid = os.fork()
    if pid:
        return _status(pid)
    if how == "await":
        await asyncio.sleep(0)
        os._exit(99)
    return _end_child(how)


@more.query
async def fork_below(how: str) -> int:
    """Fork in a task or a callback of a handler; the child awaits."""
    loop = asyncio.get_running_loop()
    forked: asyncio.Future[int] = loop.create_future()

    async def part() -> None:
        pid = os.fork()
        if pid == 0:
            await asyncio.sleep(0)
            os._exit(99)
        forked.set_result(pid)

    def callback() -> None:
        forked.set_result(os.fork())

    if how == "task":
        await asyncio.gather(part())
    else:
        loop.call_soon(callback)
    pid = await forked
    if pid == 0:
        os._exit(99)
    return _status(pid)


@plain.query
def fork_and_stay() -> int:
    """Fork a child that stays, and give its number."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    return pid


@plain.query
def effect(path: str) -> None:
    """Leave a trace."""
    with open(path, "a") as file:
        file.write("x")


@plain.command
def keep(name: str, until: str) -> str:
    """Say that it begins, and go on until the test has made a file."""
    say(f"keeping {name}")
    wait_for_file(until)
    say(f"kept {name}")
    return name


@more.command
async def keep_async(name: str, until: str) -> str:
    """Do the same on the loop, which goes on meanwhile."""
    say(f"keeping {name}")
    await asyncio.to_thread(wait_for_file, until)
    say(f"kept {name}")
    return name


@plain.command
def ask_back(ctx: Context) -> Any:
    """Do something that the peer cannot answer before it has called a command."""
    say("asking back")
    return ctx.call("question", timeout=60).result()


@more.command
async def ask_back_async(ctx: Context) -> Any:
    """Do the same in a coroutine."""
    say("asking back")
    return await ctx.call("question", timeout=60)


@more.query(inline=True)
def effect_inline(path: str) -> None:
    """Leave a trace, on the thread that reads."""
    effect(path)


@plain.query
def work_in_processes(numbers: list[int]) -> list[int]:
    """Have children of `multiprocessing` do it."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, numbers)


@more.query(inline=True)
def hold_inline(until: str) -> str:
    """Keep the thread that reads, as an inline handler should not."""
    say("holding")
    wait_for_file(until)
    return "let go"


# The hosts.


class Saying(Hooks):
    """Says every event, and what is run, to the test."""

    def on(self, event: Event) -> None:
        """Say its name and, where it has one, its method."""
        say(f"event {type(event).__name__} {getattr(event, 'method', '')}".rstrip())

    def around(self, call: Invocation, next: Any) -> Any:
        """Say what a `def` is and answered; put a sum right."""
        result = next(call)
        say(f"around {call.method} {bytes(result).decode()}")
        return 1000 if call.method == "add" else result

    async def around_async(self, call: Invocation, next: Any) -> Any:
        """Say the same of an `async def`."""
        result = await next(call)
        say(f"around {call.method} {bytes(result).decode()}")
        return result


class Greeting(Hooks):
    """Talks to each peer outside of any request, for as long as it is there."""

    def __init__(self) -> None:
        self.peers: set[RemotePeer] = set()

    def on(self, event: Event) -> None:
        """Greet who comes; say whether who is gone can still be told something."""
        if isinstance(event, ConnectionOpened):
            self.peers.add(event.peer)
            event.peer.notify("welcome", {"connection": event.origin.connection_id})
        elif isinstance(event, ConnectionClosed):
            self.peers.remove(event.peer)
            try:
                event.peer.notify("goodbye")
            except ConnectionLost:
                say(f"gone, {len(self.peers)} left, connected: {event.peer.is_connected}")


class Given:
    """Opens a link to the test, over the descriptors that it has left us."""

    def __init__(self, kind: str, *descriptors: str) -> None:
        self.ended = threading.Event()
        numbers = [int(number) for number in descriptors]
        if kind == "socket":
            channel = Channel.over(socket.socket(fileno=numbers[0]))
        else:
            channel = Channel(*numbers)
        self._link = Link(
            channel,
            is_network=kind == "socket",
            loss=lambda: ConnectionLost("the test closed the connection"),
            end=self._end,
        )

    def open(self, timeout: float | None = None) -> Link:
        """Give the link."""
        return self._link

    def _end(self) -> None:
        self._link.channel.close()
        self.ended.set()


def run_client(service: Service, options: dict[str, Any], *given: str) -> None:
    """Serve the test as a blocking client, until the connection ends."""
    opener = Given(*given)
    with blocking.Client(opener, service=service, log=Logs(), **options):
        opener.ended.wait()


def run_asyncio_client(service: Service, options: dict[str, Any], *given: str) -> None:
    """Serve the test as an asyncio client, until the connection ends."""

    async def live() -> None:
        opener = Given(*given)
        async with Client(opener, service=service, log=Logs(), **options):
            await asyncio.to_thread(opener.ended.wait)

    asyncio.run(live())


def run_in_memory(service: Service, options: dict[str, Any], descriptor: str) -> None:
    """Serve the test as `testing.connect` serves its client, until the connection ends."""

    async def live() -> None:
        policy, dialect = options["policy"], find_dialect(options["dialect"])
        server = MemoryServer(service, policy, None, "lsp", None, Logs(), dialect, options["hooks"])
        async with server:
            server._serve(socket.socket(fileno=int(descriptor)))
            while not server.hosts[0].closed:
                await server.hosts[0].moved(None)

    asyncio.run(live())


class Bodies:
    """Carries bodies over a socket for hosts that know no framing, as a WebSocket would."""

    def __init__(self, descriptor: str, take: Callable[[bytes], object]) -> None:
        self._socket = socket.socket(fileno=int(descriptor))
        self._framing = HeaderFraming()
        self._take = take
        self._pid = os.getpid()
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _read(self) -> None:
        data = self._socket.recv(65536)
        for body in self._framing.feed(data):
            assert not isinstance(body, Fault), body
            self._take(bytes(body))
        if not data:
            asyncio.get_running_loop().remove_reader(self._socket)
            self.ended.set()

    def write(self, body: bytes | None) -> bool:
        """Send one body."""
        if body is not None:
            self._socket.sendall(HeaderFraming.encode(body))
        return True

    def close(self) -> None:
        """Close the socket; a forked child leaves it, and the loop that watches it, alone."""
        if os.getpid() == self._pid:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self.ended.set()


def run_message_link(service: Service, options: dict[str, Any], descriptor: str) -> None:
    """Serve the test over a link that carries whole messages, until it ends."""

    async def live() -> None:
        server = Server(service, **options)
        dispatcher = assemble_dispatcher(server, Logs(), shares_thread=True)
        workers = Workers()
        bodies = Bodies(descriptor, lambda body: channel.deliver(body))
        channel = MessageChannel(bodies.write)
        channel.on_close = bodies.close
        host = LoopHost(
            channel,
            dispatcher,
            framing("whole", keeps_ends=True),
            ConnectionOptions(origin=Origin(connection_id="m1", transport="memory")),
            workers=workers,
        )
        host.begin()
        await bodies.ended.wait()
        channel.end()
        while not host.closed:
            await host.moved(None)
        workers.close()

    asyncio.run(live())


def run_exchanges(service: Service, options: dict[str, Any], descriptor: str) -> None:
    """Answer each body of the test by itself, until they end."""

    async def live() -> None:
        server = Server(service, **options)
        dispatcher = assemble_dispatcher(server, Logs(), shares_thread=True)
        workers = Workers()
        host = ExchangeHost(dispatcher, workers=workers)
        origin = Origin(connection_id="x1", transport="memory", can_be_called=False)
        tasks: set[asyncio.Task[None]] = set()

        async def answer(body: bytes) -> None:
            bodies.write(await host.answer(body, origin))

        bodies = Bodies(descriptor, lambda body: tasks.add(asyncio.create_task(answer(body))))
        await bodies.ended.wait()
        host.close()
        workers.close()

    asyncio.run(live())


def choose_service(host: str, rules: dict[str, Any]) -> Service:
    """Give all handlers that a host can serve, and what a case asks for around them."""
    is_alone = host == "stdio one at a time"
    service = plain if is_alone else plain.with_fallback(more)
    if how := rules.pop("lifespan", ""):
        service = add_lifespans(service, how, is_async=not is_alone)
    return add_middleware(service) if rules.pop("middleware", False) else service


def main() -> None:
    """Be the host that the command line says."""
    host, rules, *arguments = sys.argv[1:]
    changes = json.loads(rules)
    options: dict[str, Any] = {"dialect": changes.pop("dialect", "jsonrpc")}
    options["hooks"] = [Saying()] if changes.pop("hooks", False) else []
    if changes.pop("greets", False):
        options["hooks"].append(Greeting())
    service = choose_service(host, changes)
    options["policy"] = replace(preset(changes.pop("preset", "spec")), **changes)
    if host.startswith("stdio"):
        Server(service, **options).run_stdio()
    elif host == "unix":
        Server(service, **options).run_unix(arguments[0], on_start=say)
    elif host == "tcp":
        Server(service, **options).run_tcp("127.0.0.1", 0, on_start=say)
    elif host == "memory":
        run_in_memory(service, options, *arguments)
    elif host == "message link":
        run_message_link(service, options, *arguments)
    elif host == "exchange":
        run_exchanges(service, options, *arguments)
    elif host == "asyncio client":
        run_asyncio_client(service, options, *arguments)
    else:
        run_client(service, options, *arguments)


if __name__ == "__main__":
    main()
