"""One connection driven by hand: bytes in, bytes out, no loop, no threads, no clock.

`exchange` is the whole of it for most tests: what goes in as bodies comes out as answers. A `Line`
is for tests about order: handlers whose names are in `held` do not run until the test says so, so
that queueing, limits, duplicates and cancellation happen in exactly one way.
"""

import json
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from duet_rpc.context import Context, ItemSink, Origin, Peer, Reply, SubscriberSink
from duet_rpc.engine.connection import Connection, ConnectionOptions
from duet_rpc.engine.dispatch import CommandLedger, Job, encode_result, make_dispatcher
from duet_rpc.engine.exchange import Exchanges
from duet_rpc.engine.subscriptions import Outflow
from duet_rpc.errors import RpcError
from duet_rpc.hooks import Hooks
from duet_rpc.hosts.debug import connection_class
from duet_rpc.policy import Policy
from duet_rpc.service import Service
from duet_rpc.wire.dialect import JSONRPC, Dialect
from duet_rpc.wire.framing import Fault, Frame, Framing, HeaderFraming, join_frame
from duet_rpc.wire.framing.whole import WholeFraming
from duet_rpc.wire.messages import encode_notification


class Wire(bytes):
    """Bytes for the stream as they are; plain bytes are a body that gets its frame."""


class LogLine(NamedTuple):
    """One line of the log."""

    severity: str
    text: str
    fields: dict[str, Any]


class Recorder:
    """A log that can be asked what it was told."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self.failures: list[BaseException] = []

    def note(self, severity: str, text: str, **fields: Any) -> None:
        self.lines.append(LogLine(severity, text, fields))

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        self.failures.append(error)
        reference = f"ref-{len(self.failures)}"
        self.lines.append(LogLine("error", text, {**fields, "reference": reference}))
        return reference

    def told(self) -> list[tuple[str, str]]:
        return [(line.severity, line.text) for line in self.lines]


class HandHost:
    """Runs handlers at once, or holds them open until the test lets them go on."""

    has_loop = False

    def __init__(self, held: Iterable[str]) -> None:
        self.held = set(held)
        self.connection: Connection | None = None
        self.exchanges: Exchanges | None = None
        self.writes: list[bytes] = []
        self.open: list[Job] = []
        self.cancelled: list[Job] = []
        self.behind = False
        self.dialect = JSONRPC

    def write(self, data: Frame) -> None:
        self.writes.append(join_frame(data))

    def write_own(self, data: Frame) -> None:
        self.writes.append(join_frame(data))

    def start(self, job: Job) -> None:
        if job.method.name in self.held:
            job.has_begun = True
            self.open.append(job)
        else:
            self.run(job)

    def run(self, job: Job) -> None:
        connection = self.connection
        assert connection is not None
        if job.method.is_async:
            member = run_without_waiting(connection.dispatcher.run_async(job))
        else:
            member = connection.run_lent(job)
        if self.exchanges is not None:
            self.exchanges.finish(job, member)
        else:
            connection.requests.finish(job, member)

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job)

    def reclaim(self) -> None:
        raise AssertionError("no one takes the token in these tests")

    @property
    def peer(self) -> Peer:
        return self

    def notify(self, method: str, params: Any) -> None:
        assert self.connection is not None
        self.connection.calls.notify(method, json.dumps(params).encode())

    def notify_outside(self, method: str, params: Any) -> None:
        self.notify(method, params)

    gone = None

    def call(
        self, ctx: Context | None, method: str, params: Any, timeout: float | None, returns: Any
    ) -> Reply[Any]:
        raise NotImplementedError("a handler here cannot wait for its peer")

    def send_ahead(self, ctx: Context, spell: Callable[[], bytes | None]) -> None:
        assert self.connection is not None
        self.connection.calls.notify(self.dialect.progress, spell())

    def open_stream(self, ctx: Context) -> ItemSink | None:
        return None

    @property
    def takes_subscriptions(self) -> bool:
        return self.exchanges is None

    def open_subscription(self, ctx: Context) -> SubscriberSink:
        assert self.connection is not None
        connection = self.connection
        return HandSink(connection.requests.subscribe(ctx, self, connection.outgoing.flush))

    def send_notification(self, method: str, params: bytes) -> None:
        assert self.connection is not None
        body = encode_notification(method, params)
        self.connection.outgoing.send_own(self.connection.framing.frame(body))
        self.connection.outgoing.flush()

    def progress(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def logger(self, ctx: Context) -> Any:
        raise NotImplementedError


class HandSink:
    """Where the items of a subscription go whose generator never waits."""

    def __init__(self, flow: Outflow) -> None:
        self._flow = flow

    def send(self, value: Any) -> None:
        self._flow.put(encode_result(value))

    async def ready(self) -> None:
        pass

    async def drain(self) -> None:
        pass


def run_without_waiting(coroutine: Coroutine[Any, Any, bytes]) -> bytes:
    """Run a coroutine that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: bytes = stop.value
        return result
    raise AssertionError("it waits for something")


Carrier = Literal["stream", "message link", "exchange"]
CARRIERS: tuple[Carrier, ...] = ("stream", "message link", "exchange")
"""What carries the bodies of a `Line`: a stream with headers; a link that keeps the boundaries of
messages; exchanges without a connection, one for each body."""


class Chosen:
    """The carrier of every `Line` that does not ask for a framing of its own."""

    carrier: Carrier = "stream"


class Line:
    """One connection with a host that the test drives, or a series of exchanges with it."""

    def __init__(
        self,
        policy: Policy,
        service: Service,
        *,
        held: Iterable[str] = (),
        framing: Framing | None = None,
        ledger: CommandLedger | None = None,
        dialect: Dialect = JSONRPC,
        hooks: Sequence[Hooks] = (),
        **options: Any,
    ) -> None:
        self.log = Recorder()
        self.host = HandHost(held)
        self.host.dialect = dialect
        self._carrier: Carrier = "stream" if framing is not None else Chosen.carrier
        self.framing = framing if framing is not None else _framing(policy, self._carrier)
        self.dispatcher = make_dispatcher(
            service, policy, ledger=ledger, log=self.log, dialect=dialect, hooks=hooks
        )
        self.origin = Origin(connection_id="c1", transport="memory")
        self._connection = connection_class(self.dispatcher)(
            self.dispatcher,
            self.framing,
            self.host,
            ConnectionOptions(origin=self.origin, **options),
        )
        self.host.connection = self._connection
        self._exchanges = Exchanges(self.dispatcher, self.host)
        if self._carrier == "exchange":
            self.host.exchanges = self._exchanges
        self._seen = 0
        self._connection.begin()

    @property
    def connection(self) -> Connection:
        """The connection, where there is one."""
        assert self._carrier != "exchange", "an exchange has no connection"
        return self._connection

    def send(self, *items: bytes) -> list[bytes]:
        """Let bodies (or `Wire` bytes) arrive, each in a read of its own; return new answers."""
        for item in items:
            if self._carrier == "exchange":
                assert not isinstance(item, Wire), "an exchange takes bodies"
                self._exchanges.take(item, self.origin, self._deliver)
                continue
            data = item if isinstance(item, Wire) else self.framing.encode(item)
            self.connection.receive(bytes(data))
        return self.answers()

    def refuse(self) -> None:
        """The queue has been full for too long; an exchange does not wait for that."""
        if self._carrier != "exchange":
            self.connection.refuse()

    def close_down(self) -> None:
        """Begin to shut down."""
        if self._carrier == "exchange":
            self._exchanges.refuse_queued()
        else:
            self.connection.requests.close_down()

    def abandon(self, job: Job, error: RpcError) -> None:
        """The time of a handler is over."""
        if self._carrier == "exchange":
            self._exchanges.abandon(job, error)
        else:
            self.connection.abandon(job, error)

    def _deliver(self, answer: bytes | None) -> None:
        if answer is not None:
            self.host.write(answer)

    def _go_on(self) -> None:
        if self._carrier == "exchange":
            self._exchanges.go_on()
        else:
            self.connection.go_on()

    def end(self) -> list[bytes]:
        """Let the input end."""
        self.connection.end_of_input()
        return self.answers()

    def release(self, id: bytes | None = None) -> list[bytes]:
        """Let one held handler run to its end: that of this id, or the oldest."""
        jobs = self.host.open
        job = jobs[0] if id is None else next(job for job in jobs if job.id == id)
        jobs.remove(job)
        self.host.run(job)
        self._go_on()
        return self.answers()

    def release_all(self) -> list[bytes]:
        """Let held handlers run until none is open."""
        while self.host.open:
            self.host.run(self.host.open.pop(0))
            self._go_on()
        return self.answers()

    @property
    def running(self) -> list[bytes | None]:
        """The ids of the handlers that are held open."""
        return [job.id for job in self.host.open]

    def sent(self) -> list[bytes]:
        """Return the bodies of everything that was ever written."""
        if not self.framing.joins:
            return list(self.host.writes)
        return bodies(b"".join(self.host.writes), self.framing)

    def answers(self) -> list[bytes]:
        """Return the bodies written since the last time."""
        new = self.sent()
        seen, self._seen = self._seen, len(new)
        return new[seen:]


def exchange(policy: Policy, service: Service, *items: bytes) -> list[bytes]:
    """Let bodies (or `Wire` bytes) arrive at a fresh connection; return the bodies it answers."""
    return Line(policy, service).send(*items)


def whole_and_by_byte(policy: Policy, service: Service, data: bytes) -> list[bytes]:
    """Let a stream arrive in one read, in single bytes, in pairs: the answers must not differ."""
    answers = Line(policy, service).send(Wire(data))
    for size in (1, 2):
        line = Line(policy, service)
        pieces = [Wire(data[at : at + size]) for at in range(0, len(data), size)]
        assert line.send(*pieces) == answers
    return answers


def _framing(policy: Policy, carrier: Carrier) -> Framing:
    if carrier != "stream":
        return WholeFraming(max_message_bytes=policy.max_message_bytes)
    return HeaderFraming(
        max_message_bytes=policy.max_message_bytes, max_header_bytes=policy.max_header_bytes
    )


def bodies(data: bytes, framing: Framing | None = None) -> list[bytes]:
    """Cut what was written into bodies; it must be whole frames and nothing else."""
    reader = HeaderFraming() if framing is None else type(framing)()
    found = []
    for event in reader.feed(data):
        assert not isinstance(event, Fault), event
        found.append(bytes(event))
    assert not reader.partial, "a torn frame"
    return found


def frame(body: bytes) -> Wire:
    """Put a body into its frame."""
    return Wire(HeaderFraming.encode(body))


def request(method: str, params: Any = None, id: Any = 1) -> bytes:
    """Write a request; params None leaves them out."""
    message = {"jsonrpc": "2.0", "id": id, "method": method}
    return json.dumps(message if params is None else {**message, "params": params}).encode()


def notification(method: str, params: Any = None) -> bytes:
    """Write a notification."""
    message = {"jsonrpc": "2.0", "method": method}
    return json.dumps(message if params is None else {**message, "params": params}).encode()


def cancel(id: Any) -> bytes:
    """Write a cancellation."""
    return notification("$/cancelRequest", {"id": id})


class Refusal(NamedTuple):
    """An error answer, reduced to what the contract states."""

    code: int
    message: str
    reason: str | None
    id: Any


def refusal(answer: bytes) -> Refusal:
    """Read an error answer."""
    message = json.loads(answer)
    assert set(message) == {"jsonrpc", "id", "error"} and message["jsonrpc"] == "2.0", message
    error = message["error"]
    data = error.get("data")
    reason = data.get("reason") if isinstance(data, dict) else None
    return Refusal(error["code"], error["message"], reason, message["id"])


def data_of(answer: bytes) -> Any:
    """Read `error.data` of an answer."""
    return json.loads(answer)["error"].get("data")


def result(answer: bytes) -> Any:
    """Read the result of an answer."""
    message = json.loads(answer)
    assert set(message) == {"jsonrpc", "id", "result"} and message["jsonrpc"] == "2.0", message
    return message["result"]


def ids(answers: Iterable[bytes]) -> list[Any]:
    """Read the ids of answers, in their order."""
    return [json.loads(answer)["id"] for answer in answers]


def service_of(**handlers: Callable[..., Any]) -> Service:
    """Make a service of queries by name."""
    service = Service()
    for name, handler in handlers.items():
        service.query(name=name)(handler)
    return service
