"""What holds for any input at all, through a whole connection.

The most important one: a plain request, decoded by the types of its method, gets the very bytes
that the long way gives it. The two are compared over generated requests, whole, broken, in batches,
and with others in flight.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from duet_rpc.context import Context
from duet_rpc.engine.dispatch import Failure, Job
from duet_rpc.errors import RpcError
from duet_rpc.ledger.fingerprint import fingerprint
from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy, replace
from duet_rpc.service import Service
from tests.conformance.specimen import Note, specimen
from tests.helpers import CARRIERS as ALL_CARRIERS
from tests.helpers import Carrier, Chosen, Line, Wire, exchange, frame

SPECIMEN = specimen()  # registered once: no case here looks at what another one did

policies = st.sampled_from([SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION])

# Ids as they may be spelled.

numbers = st.from_regex(
    r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,4})?", fullmatch=True
)


CARRIERS = ["stream"]


@st.composite
def strings(draw: st.DrawFn) -> str:
    """Spell a string with any mixture of characters and escapes."""
    parts = draw(
        st.lists(
            st.one_of(
                st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'),
                st.sampled_from(['\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t"]),
                st.from_regex(r"\\u(0[0-9a-fA-F]{3}|[1-9a-cA-C][0-9a-fA-F]{3})", fullmatch=True),
                st.just("\\ud83d\\ude00"),
            ),
            max_size=12,
        )
    )
    return '"' + "".join(parts) + '"'


id_texts = st.one_of(numbers, strings(), st.just("null"))


@pytest.mark.clause("ids-1")
@given(policy=policies, id=id_texts, method=st.sampled_from(["get_data", "whoami", "nothing"]))
def test_an_id_comes_back_byte_for_byte(policy: Policy, id: str, method: str) -> None:
    body = f'{{"jsonrpc":"2.0","method":"{method}","id":{id}}}'.encode()
    (answer,) = exchange(policy, SPECIMEN, body)
    assert answer.startswith(b'{"jsonrpc":"2.0","id":%b,' % id.encode())


# Garbage, then a good frame.

NEXT = b'{"jsonrpc":"2.0","id":"next","method":"echo","params":[1]}'
NEXT_ANSWER = b'{"jsonrpc":"2.0","id":"next","result":1}'

noise = st.binary(max_size=60).filter(lambda data: b"content-length" not in data.lower())
framed_noise = st.builds(frame, st.binary(max_size=60))
bad_headers = st.sampled_from(
    [
        b"Content-Length: x\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"Content-Length: 0\r\n\r\n",
        b"Content-Type: text/plain\r\nContent-Length: 3\r\n\r\nabc",
        b"Content-Length: 99999999999999999999\r\n\r\n",
        b"Content-Length: 700\r\n\r\n" + b"y" * 700,
        b"X: " + b"y" * 300 + b"\r\n\r\n",
        b"Content-Length",
        b"\r\n",
        b"{}",
    ]
)
SMALL = replace(EDITOR, max_message_bytes=600, max_header_bytes=256)


@pytest.mark.clause("framing-20")
@given(st.lists(st.one_of(noise, framed_noise, bad_headers), max_size=6), st.integers(1, 50))
@settings(max_examples=100)
def test_any_garbage_and_then_a_good_frame(pieces: list[bytes], size: int) -> None:
    # A blank line ends whatever the garbage has begun; else the good header would be part of it.
    stream = b"".join(pieces) + b"\r\n\r\n" + frame(NEXT)
    line = Line(SMALL, SPECIMEN)
    answers = line.send(*(Wire(stream[at : at + size]) for at in range(0, len(stream), size)))
    assert answers[-1] == NEXT_ANSWER
    assert answers == Line(SMALL, SPECIMEN).send(Wire(stream))


@pytest.mark.clause("messages-7")
@given(policy=policies, body=st.binary(max_size=200))
@settings(max_examples=100)
def test_any_body_has_at_most_one_answer_and_harms_nothing(policy: Policy, body: bytes) -> None:
    line = Line(policy, SPECIMEN)
    answers = line.send(body)
    assert len(answers) <= 1
    for answer in answers:
        assert json.loads(answer)["jsonrpc"] == "2.0"
    assert line.send(NEXT) == [NEXT_ANSWER]


# Both ways give the same bytes.


class Refused(RpcError):
    code, message = 77, "Refused"


def simple() -> Service:
    """Make a service whose methods are all fit for the straight line."""
    service = Service()

    @service.query
    def echo(value: Any = None) -> Any:
        return value

    @service.query(notification_allowed=True)
    def add(a: int, b: Annotated[int, Meta(ge=0)] = 3) -> int:
        return a + b

    @service.query
    def pick(kind: Literal["up", "down"], *, note: Note | None = None) -> Any:
        return [kind, note]

    @service.query(ignore_unknown=True)
    def fail(how: str = "bug") -> Any:
        if how == "refuse":
            raise Refused(data={"how": how})
        if how == "object":
            return object()
        raise ValueError(how)

    return service


SIMPLE = simple()


def know_no_types(line: Line) -> None:
    """Have every message of a connection go the long way."""
    line.dispatcher.intake = line.dispatcher.answer_at_once = None


def both_ways(policy: Policy, service: Service, *items: bytes) -> list[bytes]:
    """Send the same to a connection as it is, and to one that knows no straight line."""
    straight, long = Line(policy, service), Line(policy, service)
    assert straight.dispatcher.intake is not None
    know_no_types(long)
    answers = straight.send(*items)
    assert long.send(*items) == answers
    if b"object" not in b"".join(items):  # a result that cannot be sent and that nobody wanted
        assert straight.log.lines == long.log.lines
    return answers


values = st.one_of(
    st.sampled_from(
        [
            "1",
            "0",
            "-1",
            "2.5",
            "null",
            "true",
            '""',
            '"up"',
            '"down"',
            '"bug"',
            '"refuse"',
            "1e999",
        ]
        + ['"object"', "[]", "{}", '{"id":1}', '{"id":"x"}', '{"id":1,"text":"t","more":1}', "NaN"]
        + ['"\\u0075p"', '"é"', "9" * 30, "9" * 5000, "[" * 70 + "]" * 70, '"\\ud800"', "tru"]
    ),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    ).map(lambda value: json.dumps(value, ensure_ascii=False)),
)
names = st.sampled_from(
    ["value", "a", "b", "kind", "note", "how", "x", "_meta", "idempotency_key", "\\u0061"]
)


@st.composite
def objects(draw: st.DrawFn) -> str:
    members = draw(st.lists(st.tuples(names, values), max_size=4))
    return "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"


arrays = st.lists(values, max_size=3).map(lambda items: "[" + ",".join(items) + "]")
params = st.one_of(objects(), objects(), arrays, values)
methods = st.sampled_from(
    ['"echo"', '"add"', '"pick"', '"fail"', '"nothing"', '"ec\\u0068o"', "1", "null", '"$/x"']
)
versions = st.sampled_from(['"2.0"', '"2.0"', '"2.0"', '"2.0"', '"2\\u002e0"', '"1.0"', "2"])
ids = st.one_of(st.sampled_from(["1", '"x"', "0", "-0", "7.0", "true", "[]", '"a\\nb"']), id_texts)


@st.composite
def messages(draw: st.DrawFn) -> str:
    """Write a message: mostly a good one, in any order, with blanks, repeated and odd members."""
    members = [("jsonrpc", draw(versions)), ("method", draw(methods))]
    for name, strategy in (("id", ids), ("params", params)):
        if draw(st.integers(0, 5)):
            members.append((name, draw(strategy)))
    extra = st.tuples(st.sampled_from(["id", "method", "params", "result", "x", "jsonrpc"]), values)
    if not draw(st.integers(0, 4)):
        members += draw(st.lists(extra, max_size=2))
    blank = draw(st.sampled_from(["", "", " ", "\r\n\t"]))
    order = draw(st.permutations(members))
    return blank + "{" + ("," + blank).join(f'"{n}":{blank}{v}' for n, v in order) + "}" + blank


batches = st.lists(messages(), max_size=5).map(lambda items: "[" + ",".join(items) + "]")

ONE = replace(EDITOR, max_batch=4)
STRICT = replace(DEVELOPMENT, max_in_flight=1, max_batch=4)
both_policies = st.sampled_from([ONE, STRICT, EDITOR])


def request(params: str, method: str = "add", id: str = "1") -> str:
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'


@pytest.mark.clause("messages-7")
@given(policy=both_policies, text=messages())
@settings(max_examples=250)
@example(ONE, request('{"a":1}'))
@example(ONE, request('{"a":1,"b":-1}'))
@example(ONE, request('{"a":1,"a":2}'))
@example(ONE, request("[1,2]"))
@example(ONE, request('{"value":1e999}', "echo"))
@example(ONE, request('{"_meta":{"traceparent":"\\ud800"}}', "echo"))
@example(ONE, request('{"how":"object"}', "fail"))
@example(ONE, request('{"how":"refuse"}', "fail", '"x"'))
@example(ONE, request('{"kind":"up","note":{"id":1}}', "pick"))
@example(STRICT, '{"jsonrpc":"2.0","method":"add","params":{"a":1}}')
@example(STRICT, '{"jsonrpc":"2.0","method":"echo"}')
@example(STRICT, '{"jsonrpc":"2.0","method":"fail"}')
@example(ONE, '{"jsonrpc":"2.0","id":1,"method":"add","method":"echo"}')
def test_both_ways_give_the_same_answer(policy: Policy, text: str) -> None:
    both_ways(policy, SIMPLE, text.encode("utf-8", "surrogatepass"))


@pytest.mark.clause("messages-7")
@given(policy=both_policies, text=batches)
@settings(max_examples=150)
@example(ONE, "[" + request('{"a":1}') + "]")
@example(ONE, "[" + request('{"a":1}') + "," + request('{"a":1}') + "]")
@example(ONE, '[{"jsonrpc":"2.0","method":"echo"}]')
@example(STRICT, '[{"jsonrpc":"2.0","method":"echo"},{"jsonrpc":"2.0","method":"add"}]')
@example(ONE, "[" + request('{"how":"object"}', "fail") + "," + request('{"a":1}', id="2") + "]")
def test_both_ways_give_the_same_answer_to_a_batch(policy: Policy, text: str) -> None:
    both_ways(policy, SIMPLE, text.encode("utf-8", "surrogatepass"))


@pytest.mark.clause("messages-7")
@given(text=messages(), at=st.integers(0, 200), byte=st.integers(0, 255), cut=st.booleans())
@settings(max_examples=150)
def test_both_ways_agree_on_broken_requests(text: str, at: int, byte: int, cut: bool) -> None:
    body = bytearray(text.encode("utf-8", "surrogatepass"))
    at %= len(body)
    if cut:
        del body[at]
    else:
        body[at] = byte
    both_ways(ONE, SIMPLE, bytes(body))


def carried(carrier: Carrier, policy: Policy, body: bytes) -> list[bytes]:
    """Give what is answered to a body that is carried so."""
    Chosen.carrier = carrier
    try:
        return Line(policy, SIMPLE).send(body)
    finally:
        Chosen.carrier = "stream"


@pytest.mark.clause("messages-7")
@given(
    policy=both_policies,
    text=st.one_of(messages(), batches),
    at=st.integers(0, 400),
    byte=st.one_of(st.none(), st.integers(0, 255)),
)
@settings(max_examples=300)
def test_a_body_has_the_same_answer_whatever_carries_it(
    policy: Policy, text: str, at: int, byte: int | None
) -> None:
    body = bytearray(text.encode("utf-8", "surrogatepass"))
    if byte is not None and at < len(body):
        body[at] = byte
    first, *others = (carried(carrier, policy, bytes(body)) for carrier in ALL_CARRIERS)
    assert all(other == first for other in others)


@pytest.mark.clause("messages-7")
@given(texts=st.lists(messages(), max_size=8))
@settings(max_examples=100)
def test_both_ways_give_the_same_answers_in_a_stream(texts: list[str]) -> None:
    bodies = [frame(text.encode("utf-8", "surrogatepass")) for text in texts]
    both_ways(ONE, SIMPLE, Wire(b"".join(bodies)), NEXT)


# The same for every kind of method, with handlers in flight and requests that wait.


class Book:
    """A ledger that runs every command and keeps what it was told of it."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def now(self) -> float:
        return 1000.0

    def first_sent(self, age: float, read_at: float) -> float:
        return read_at - age

    def fingerprint(self, method: str, params: bytes | None, without: Sequence[str]) -> bytes:
        return fingerprint(method, params, without)

    def _keep(self, job: Job) -> None:
        ctx = job.context
        assert ctx is not None
        self.told.append((job.id, job.name, job.key, fingerprint(job.name, job.params)))
        self.told.append((told_of(ctx), ctx.first_sent))

    def run(self, job: Job, work: Any, failure: Failure) -> bytes:
        self._keep(job)
        member: bytes = work(None)
        return member

    async def run_async(self, job: Job, work: Any, failure: Failure) -> bytes:
        self._keep(job)
        member: bytes = await work(None)
        return member

    async def run_yielding(self, job: Job, work: Any, failure: Failure) -> bytes:
        raise NotImplementedError

    def outcome(self, principal: str, method: str, key: str, age: float = 0.0) -> Any:
        raise NotImplementedError


def told_of(ctx: Context) -> list[Any]:
    retry = None if ctx.retry is None else [ctx.retry.attempt, ctx.retry.age_ms]
    ids = [ctx.method, ctx.correlation_id, ctx.connection_id, ctx.principal]
    return [*ids, ctx.trace_parent, ctx.progress_token, ctx.idempotency_key, retry, ctx.deadline]


def every_kind() -> Service:
    """Make a service of methods nearly all of which need more than a call."""
    service = Service()

    @service.query(inline=True)
    def echo(ctx: Context, value: Any = None) -> Any:
        return [value, told_of(ctx)]

    @service.query(notification_allowed=True)
    async def add(a: int, b: Annotated[int, Meta(ge=0)] = 3) -> int:
        return a + b

    @service.query(timeout=5.0)
    def pick(kind: Literal["up", "down"], *, note: Note | None = None) -> Any:
        return [kind, note]

    @service.query(ignore_unknown=True)
    async def fail(ctx: Context, how: str = "bug") -> Any:
        if how == "refuse":
            raise Refused(data={"how": how})
        if how == "object":
            return object()
        raise ValueError(how)

    @service.query
    def total(*values: int) -> int:
        return sum(values)

    @service.query
    def beside(_meta: Any = None, b: int = 0) -> Any:
        return [_meta, b]

    @service.command(notification_allowed=True)
    def pay(a: int, ctx: Context) -> Any:
        return [a, told_of(ctx)]

    @service.command
    async def store(idempotency_key: str | None, a: int = 0) -> Any:
        return [idempotency_key, a]

    @service.command(dedupe="arguments")
    def once(a: int, ctx: Context) -> Any:
        return [a, told_of(ctx)]

    @service.query(inline=True)
    def plain(a: int = 0) -> int:
        return a

    return service


EVERY_KIND = every_kind()
kinds = st.sampled_from(
    [f'"{method.name}"' for method in EVERY_KIND]
    + ['"nothing"', '"p\\u0061y"', '"$/cancelRequest"']
)
keys = st.sampled_from(
    ['"k"', '"k"', '"other"', '""', "null", "7", '"\\u006b"', '"' + "x" * 300 + '"', "[[]]", '"é"']
)
metas = st.sampled_from(
    [
        "null",
        "1",
        "{}",
        '{"idempotency_key":"k"}',
        '{"idempotency_key":"m"}',
        '{"traceparent":"00-1"}',
        '{"traceparent":7,"progressToken":"t","more":[]}',
        '{"progressToken":5}',
        '{"retry":{"attempt":2,"age_ms":1500}}',
        '{"retry":{"attempt":1,"age_ms":-1}}',
        '{"retry":{"attempt":3,"age_ms":0},"idempotency_key":"k"}',
        "[" * 70 + "]" * 70,
    ]
)


@st.composite
def kind_objects(draw: st.DrawFn) -> str:
    members = draw(st.lists(st.tuples(names, values), max_size=2))
    for name, strategy in (("a", st.just("1")), ("idempotency_key", keys), ("_meta", metas)):
        if draw(st.booleans()):
            members.append((name, draw(strategy)))
    return "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"


@st.composite
def kind_messages(draw: st.DrawFn) -> str:
    """Write a message to any of these methods; a good one more often than not."""
    members = [("jsonrpc", '"2.0"'), ("method", draw(kinds))]
    if draw(st.integers(0, 5)):
        usual = st.integers(1, 9).map(str)
        members.append(("id", draw(st.one_of(usual, usual, ids))))
    if draw(st.integers(0, 5)):
        members.append(("params", draw(st.one_of(kind_objects(), kind_objects(), arrays))))
    if not draw(st.integers(0, 9)):
        members.append(("x", draw(values)))
    order = draw(st.permutations(members))
    return "{" + ",".join(f'"{n}":{v}' for n, v in order) + "}"


FEW = replace(AGENT, max_in_flight=2, max_queued=6)
FEW_STRICT = replace(PRODUCTION, max_in_flight=2, max_queued=6, max_batch=4)
ORDERED = replace(AGENT, max_in_flight=2, max_queued=4, ordered_commands=True)
kind_policies = st.sampled_from(
    [FEW, FEW_STRICT, ORDERED, EDITOR, ONE, AGENT, PRODUCTION, DEVELOPMENT]
)


def both_ways_held(
    policy: Policy, held: set[str], steps: list[str | None], closes: bool = False
) -> None:
    """Send the same to both, with some handlers held open; None lets the oldest of them end."""
    found = []
    for is_plain in (True, False):
        book = Book()
        line = Line(policy, EVERY_KIND, held=held, ledger=book)
        if not is_plain:
            know_no_types(line)
        seen: list[Any] = []
        for step in steps:
            if step is not None:
                seen.append(line.send(step.encode("utf-8", "surrogatepass")))
            elif line.host.open:
                seen.append(line.release())
            seen.append(line.running)
        if closes:
            line.connection.refuse_queued()
        seen.append(line.release_all())
        cancelled = [job.id for job in line.host.cancelled]
        stats = line.connection.requests.stats
        counts = (stats.requests, stats.faults, stats.refused, line.connection.idle)
        # A message without id that waits gets its number as it comes, or as it begins.
        all_of_it = repr((seen, cancelled, counts, line.log.lines, book.told))
        found.append(re.sub(r"c1-n\d+", "c1-n", all_of_it))
    assert found[0] == found[1]


AT_ONCE = {"plain", "beside"}
"""What a straight line may answer by itself: no host can hold it."""
held = st.sets(st.sampled_from([m.name for m in EVERY_KIND if m.name not in AT_ONCE]))
cancels = st.integers(1, 9).map(
    lambda id: f'{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":{id}}}}}'
)
kind_batches = st.lists(kind_messages(), max_size=4).map(lambda items: "[" + ",".join(items) + "]")


@pytest.mark.clause("messages-7")
@given(policy=kind_policies, text=kind_messages())
@settings(max_examples=300)
@example(PRODUCTION, request('{"a":1,"idempotency_key":"k"}', "pay"))
@example(PRODUCTION, request('{"a":1,"_meta":{"idempotency_key":"k"}}', "store"))
@example(PRODUCTION, request('{"a":1}', "store"))
@example(AGENT, request('{"a":1}', "store"))
@example(AGENT, '{"jsonrpc":"2.0","method":"pay","params":{"a":1}}')
@example(PRODUCTION, '{"jsonrpc":"2.0","method":"pay","params":{"a":1}}')
@example(AGENT, request("[1,2]", "total"))
@example(AGENT, request('{"_meta":{}}', "total"))
@example(AGENT, request('{"_meta":{"traceparent":"x","progressToken":"p"}}', "echo"))
@example(AGENT, request('{"_meta":[1],"b":2}', "beside"))
@example(AGENT, '{"jsonrpc":"2.0","method":"echo"}')
def test_both_ways_give_the_same_answer_of_every_kind_of_method(policy: Policy, text: str) -> None:
    both_ways_held(policy, set(), [text])


@pytest.mark.clause("order-1", "ids-4")
@given(
    policy=kind_policies,
    held=held,
    steps=st.lists(
        st.one_of(kind_messages(), kind_messages(), cancels, kind_batches, st.none()), max_size=14
    ),
    closes=st.booleans(),
)
@settings(max_examples=300)
@example(FEW, {"add"}, [request('{"a":1}', id=str(n)) for n in range(1, 14)], False)
@example(FEW, {"add"}, [request('{"a":1}', id=str(n)) for n in range(1, 7)], True)
@example(FEW, {"add"}, [request('{"a":1}')] * 3, False)
@example(EDITOR, {"add"}, [request('{"a":1}')] * 3, False)
def test_both_ways_agree_on_what_is_in_flight_and_what_waits(
    policy: Policy, held: set[str], steps: list[str | None], closes: bool
) -> None:
    both_ways_held(policy, held, steps, closes)
