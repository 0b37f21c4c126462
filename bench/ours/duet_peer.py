"""duet-rpc in the roles of the driver protocol; the one file that follows its API.

The first argument may name a variant:

    concurrent    serves as agents are served: sixteen handlers in flight on an event loop, answers
                  that are ready together share a write; the rest have one in flight, no loop, and
                  a write for each answer
    blocking      calls with the client that needs no loop; several at once from as many threads
    uvloop        calls with the asyncio client on uvloop
    raw           passes values through undecoded: the server's handler, and the client, which
                  encodes what it sends but takes the answer as it came
    raw-server    the same handler; the client decodes the answer
    dispatcher    leaves the connection out of the work in process: no order, no queue, no ids in
                  flight, as in the peers' dispatchers
    link, exchange
                  the work in process over a link that keeps messages whole, or each message as an
                  exchange without a connection
    store=URL     keeps commands in a store (`store=`: in none), with a whole window in flight
    context, async, worker, command
                  as concurrent, but `add` takes a `Context`, is an `async def`, runs in a worker
                  thread, or is a command whose records are kept in memory

Before it may stand `tools`: the same methods are called as tools of an agent (MCP); or `lines`: the
same, without MCP. Both are served as agents are, with a message a line.

Before all may stand `counted`: instructions are counted, and nothing may depend on the clock. Under
callgrind a loop takes so long that its watch comes to read in its place, now more and now less.

One role more than the protocol has: `ledger URL COUNT` runs commands through the ledger alone.
"""

from __future__ import annotations

import sys
from typing import Any

from bench import driver
from duet_rpc import Context, Service
from duet_rpc.policy import AGENT, EDITOR, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

HANDLERS = ("context", "async", "worker", "command")
IN_PROCESS = ("dispatcher", "link", "exchange")
VARIANTS = ("concurrent", "blocking", "uvloop", "raw", "raw-server", *IN_PROCESS, *HANDLERS)
is_counted = sys.argv[1] == "counted"
if is_counted:
    del sys.argv[1]
spoken = sys.argv.pop(1) if sys.argv[1] in ("tools", "lines") else ""
variant = sys.argv.pop(1) if sys.argv[1] in VARIANTS else ""
serves_agents = spoken or variant in ("concurrent", *HANDLERS)
policy = AGENT if serves_agents else replace(EDITOR, max_batch=50)
store = None
if sys.argv[1].startswith("store="):
    store = sys.argv.pop(1)[6:]
    policy = replace(AGENT, max_in_flight=64)

service = Service()


if variant == "context":

    @service.query(inline=True, name="add")
    def add_with_context(a: int, b: int, ctx: Context) -> int:
        return a + b

elif variant == "async":

    @service.query(name="add")
    async def add_on_loop(a: int, b: int) -> int:
        return a + b

elif variant == "worker":

    @service.query(name="add")
    def add_in_thread(a: int, b: int) -> int:
        return a + b

elif variant == "command":
    import gc

    # Only instructions are counted here. The ledger keeps every outcome, so a collection takes
    # longer the more there are, and whether one more of them falls into the count is chance.
    gc.disable()

    @service.command(name="add")
    async def add_once(a: int, b: int) -> int:
        return a + b

else:

    @service.query(inline=True)
    def add(a: int, b: int) -> int:
        return a + b


if variant.startswith("raw"):
    import msgspec

    @service.query(inline=True)
    def echo(value: msgspec.Raw) -> msgspec.Raw:
        return value

else:

    @service.query(inline=True, name="echo")
    def echo_decoded(value: Any) -> Any:
        return value


if store is not None:
    # Only here: a single `async def` moves the whole service to an event loop.
    @service.command
    async def commit(a: int, b: int) -> int:
        return a + b


def serve() -> None:
    from duet_rpc import Server
    from duet_rpc.server.logs import Logs

    if is_counted:
        from duet_rpc.hosts.watch import LoopWatch

        LoopWatch.TICK = 3600.0
    face = None
    if spoken == "tools":
        from duet_rpc.mcp import Mcp

        face = Mcp()
    # The one thing that is not the default: "started" and "ended" would clutter the terminal.
    server = Server(service, policy=policy, store=store or None, face=face)
    server.run_stdio(framing="ndjson" if spoken else "lsp", logs=Logs(level="warn"))


def listen(path: str) -> None:
    from duet_rpc import Server
    from duet_rpc.server.logs import Logs

    server = Server(service, policy=AGENT)
    server.run_unix(path, logs=Logs(level="warn"), max_connections=2_000)


def connect(program: list[str], starts: bool = False) -> AbstractAsyncContextManager[driver.Call]:
    """Every call has its own timeout, the client's usual one."""
    from contextlib import asynccontextmanager

    from duet_rpc import Client

    @asynccontextmanager
    async def client() -> AsyncIterator[driver.Call]:
        async with Client.spawn(*program, "serve") as connected:

            def command(method: str, params: dict[str, Any]) -> Awaitable[Any]:
                key = params.pop("idempotency_key")
                return connected.command(method, params, key=key)

            def untouched(method: str, params: dict[str, Any]) -> Awaitable[Any]:
                return connected.call(method, params, returns=msgspec.Raw)

            if any(word.startswith("store=") for word in program):
                yield command
            elif starts:
                yield connected.start
            else:
                yield untouched if variant == "raw" else connected.call

    return client()


def connect_blocking(program: list[str]) -> AbstractContextManager[driver.Submit]:
    from contextlib import contextmanager

    from duet_rpc.blocking import Client

    @contextmanager
    def client() -> Iterator[driver.Submit]:
        with Client.spawn(*program, "serve") as connected:
            call = connected.call
            yield lambda method, params: driver.Done(call(method, params))

    return client()


def run_on_uvloop(work: Coroutine[Any, Any, Any]) -> Any:
    import uvloop

    return uvloop.run(work)


def dispatch() -> driver.Answer:
    """A connection fed with whole messages: everything but framing and descriptors."""
    from duet_rpc.context import Origin
    from duet_rpc.engine.connection import Connection, ConnectionOptions
    from duet_rpc.engine.dispatch import Dispatcher
    from duet_rpc.engine.exchange import Exchanges
    from duet_rpc.wire.framing.whole import WholeFraming

    dispatcher = Dispatcher(service, policy)
    if variant == "dispatcher":
        assert dispatcher.intake, "it has methods"
        return dispatcher.intake.answer_at_once  # type: ignore[return-value]  # both are simple

    sent: list[bytes] = []

    class Whole:
        """Messages that need no framing, as on a transport that keeps boundaries itself."""

        joins = True
        partial = False
        prefixes = ()

        def feed(self, data: bytes) -> list[bytes]:
            return [data]

        def frame(self, body: bytes) -> bytes:
            return body

    class Host:
        """Runs handlers at once and keeps what is written."""

        peer: Any = None
        write = sent.append

        def start(self, job: Any) -> None:
            connection.requests.finish(job, connection.run_lent(job))

    framing: Any = WholeFraming() if variant == "link" else Whole()
    host: Any = Host()
    origin = Origin(connection_id="bench", transport="memory")
    if variant == "exchange":
        exchanges = Exchanges(dispatcher, host)

        def answer_alone(data: bytes) -> bytes | None:
            exchanges.take(data, origin, sent.append)  # type: ignore[arg-type]
            return sent.pop()

        return answer_alone
    connection = Connection(dispatcher, framing, host, ConnectionOptions(origin=origin))
    receive = connection.receive

    def answer(data: bytes) -> bytes | None:
        receive(data)
        return sent.pop() if sent else None

    return answer


def ledger(url: str, count: int) -> dict[str, float]:
    """Claim and finish in this process, one command after the other: from a thread, from a loop."""
    import asyncio
    from secrets import token_hex
    from time import perf_counter

    from duet_rpc.ledger import Command, Ledger, Promise, Ran, open_store

    book = Ledger(open_store(url))
    ran = Ran(b'"result":3')

    def command() -> Command:
        return Command("local", "commit", token_hex(16), b"f" * 32, Promise.AT_MOST_ONCE)

    def threaded(count: int) -> None:
        for _ in range(count):
            driver.check(book.run(command(), lambda _: ran), ran.body)

    async def on_loop(count: int) -> None:
        async def work(_: object) -> Ran:
            return ran

        for _ in range(count):
            driver.check(await book.run_async(command(), work), ran.body)

    def rate(run: Callable[[int], object]) -> float:
        run(10)
        start = perf_counter()
        run(count)
        return count / (perf_counter() - start)

    with asyncio.Runner() as runner:
        found = {"thread": rate(threaded), "loop": rate(lambda n: runner.run(on_loop(n)))}
    book.close()
    return found


if __name__ == "__main__":
    if sys.argv[1] == "ledger":
        import json

        print(json.dumps(ledger(sys.argv[2], int(sys.argv[3]))))
        sys.exit()
    is_blocking = variant == "blocking"
    driver.main(
        serve=serve,
        listen=listen,
        connect=None if is_blocking else connect,
        connect_starting=lambda program: connect(program, starts=True),
        connect_blocking=connect_blocking if is_blocking else None,
        threads=is_blocking,
        raw=variant == "raw",
        dispatch=dispatch,
        run=run_on_uvloop if variant == "uvloop" else None,
    )
