"""The dispatcher: rules before the handler, errors out of it, and the straight line."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from duet_rpc.context import Context, Origin
from duet_rpc.engine.dispatch import Dispatcher, Failure, Job, result_member
from duet_rpc.engine.failures import error_member
from duet_rpc.engine.log import Silence
from duet_rpc.errors import (
    Cancelled,
    InProgress,
    InternalError,
    InvalidParams,
    MethodNotFound,
    RpcError,
)
from duet_rpc.policy import DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy, replace
from duet_rpc.service import Service
from duet_rpc.wire.messages import Notification, Request
from tests.helpers import HandHost, Recorder, run_without_waiting

ORIGIN = Origin(connection_id="c1", transport="memory")
PEER = HandHost(())


class Gone(RpcError):
    code, message = 410, "Gone"


@dataclass
class Fragile:
    kind: str

    def __post_init__(self) -> None:
        if self.kind == "bug":
            raise KeyError("unforeseen")
        if self.kind == "exit":
            raise SystemExit(3)
        if self.kind == "no":
            raise Gone()
        if self.kind == "internal":
            raise InternalError("secret")


def make() -> Service:
    service = Service()

    @service.query
    def add(a: int, b: int) -> int:
        return a + b

    @service.query
    async def later(a: int) -> int:
        return a

    @service.query
    def whoami(ctx: Context) -> Any:
        return [ctx.method, ctx.correlation_id, ctx.connection_id, ctx.principal, ctx.trace_parent]

    @service.query
    def fail(how: str) -> Any:
        raise {
            "gone": Gone(data={"id": 1}),
            "bug": ZeroDivisionError("secret"),
            "exit": SystemExit(1),
            "interrupt": KeyboardInterrupt(),
            "of the peer": RpcError.from_wire(-32601, "Method not found"),
            "own of the peer": RpcError.from_wire(410, "Gone", [1]),
        }[how]

    @service.query
    async def fail_later() -> Any:
        raise ZeroDivisionError("secret")

    @service.query
    def bad_result() -> Any:
        return object()

    @service.query
    def fragile(a: Fragile) -> str:
        return a.kind

    @service.query(notification_allowed=True)
    def touch() -> None: ...

    @service.command
    def pay(amount: int) -> int:
        return amount

    @service.command
    async def pay_later(amount: int) -> int:
        return amount

    @service.command(name="keyed")
    def keyed(amount: int, ctx: Context, idempotency_key: str = "none") -> Any:
        return [idempotency_key, ctx.idempotency_key]

    return service


def dispatcher(policy: Policy = SPEC, **options: Any) -> Dispatcher:
    return Dispatcher(make(), policy, **options)


def prepare(d: Dispatcher, method: str, params: Any = None, id: bytes | None = b"1") -> Job:
    raw = None if params is None else json.dumps(params).encode()
    message = Notification(method, raw) if id is None else Request(id, method, raw)
    return d.prepare(message, PEER, ORIGIN)


def run(d: Dispatcher, method: str, params: Any = None, id: bytes | None = b"1") -> Any:
    """Run one request; return the member as a value, result or error object."""
    job = prepare(d, method, params, id)
    member = run_without_waiting(d.run_async(job)) if job.method.is_async else d.run(job)
    (value,) = json.loads(b"{%b}" % member).values()
    return value


def refused(d: Dispatcher, method: str, params: Any = None, id: bytes | None = b"1") -> RpcError:
    with pytest.raises(RpcError) as caught:
        prepare(d, method, params, id)
    return caught.value


def test_a_request_is_run_and_its_result_encoded() -> None:
    assert run(dispatcher(), "add", [1, 2]) == 3
    assert run(dispatcher(), "later", {"a": 7}) == 7


def test_an_unknown_method_is_refused() -> None:
    error = refused(dispatcher(), "nothing")
    assert type(error) is MethodNotFound
    assert error.data == {"detail": "no method 'nothing' is served here"}


def test_the_name_of_an_unknown_method_is_said_short_and_printable() -> None:
    d = dispatcher()
    assert refused(d, "a\x1b[31m\nb\u202e").data["detail"] == "no method 'a?[31m?b?' is served here"
    said = refused(d, "n" * 10_000).data["detail"]
    assert said == f"no method '{'n' * 77}...' is served here"
    error = refused(d, "private")
    assert d.facts("private", error) == {}, "the log has it in its field for the method"


def test_params_are_checked_before_the_handler() -> None:
    assert refused(dispatcher(), "add", [1, "2"]).data["param"] == "b"


@pytest.mark.parametrize(
    ("policy", "method", "id", "reason"),
    [
        (DEVELOPMENT, "pay", None, "command-requires-id"),
        (DEVELOPMENT, "pay", b"null", "command-requires-id"),
        (DEVELOPMENT, "pay", b"0", None),
        (DEVELOPMENT, "add", None, "notification-not-allowed"),
        (DEVELOPMENT, "add", b"null", None),
        (DEVELOPMENT, "touch", None, None),
        (SPEC, "pay", None, None),
        (SPEC, "pay", b"null", None),
        (SPEC, "add", None, None),
        (EDITOR, "add", None, None),
    ],
)
def test_ids_and_notifications_follow_the_policy(
    policy: Policy, method: str, id: bytes | None, reason: str | None
) -> None:
    params = {"pay": [1], "add": [1, 2], "touch": None}[method]
    if reason is None:
        assert prepare(dispatcher(policy), method, params, id).id == id
    else:
        error = refused(dispatcher(policy), method, params, id)
        assert (error.code, error.reason) == (-32600, reason)
        assert method in error.data["detail"]


# The idempotency key.


def test_a_key_is_found_beside_the_params_and_in_meta() -> None:
    d = dispatcher(PRODUCTION)
    assert prepare(d, "pay", {"amount": 1, "idempotency_key": "k"}).key == "k"
    assert prepare(d, "pay", {"amount": 1, "_meta": {"idempotency_key": "k"}}).key == "k"
    both = {"amount": 1, "idempotency_key": "k", "_meta": {"idempotency_key": "k"}}
    assert prepare(d, "pay", both).key == "k"


def test_two_different_keys_are_refused() -> None:
    both = {"amount": 1, "idempotency_key": "a", "_meta": {"idempotency_key": "b"}}
    for policy in (PRODUCTION, DEVELOPMENT):
        error = refused(dispatcher(policy), "pay", both)
        assert (error.code, error.reason) == (-32602, "idempotency-key-invalid")
        assert error.data["received"] == "two different keys"


def test_a_retry_tells_its_age() -> None:
    meta = {"retry": {"attempt": 2, "age_ms": 350}}
    job = prepare(dispatcher(), "pay", {"amount": 1, "idempotency_key": "k", "_meta": meta})
    assert job.retry is not None and (job.retry.attempt, job.retry.age) == (2, 0.35)
    assert prepare(dispatcher(), "pay", {"amount": 1, "idempotency_key": "k"}).retry is None
    assert prepare(dispatcher(), "add", {"a": 1, "b": 2, "_meta": meta}).retry is None


def test_a_retry_whose_age_cannot_be_read_is_refused() -> None:
    params = {"amount": 1, "idempotency_key": "k", "_meta": {"retry": {"attempt": 2}}}
    error = refused(dispatcher(), "pay", params)
    assert (error.code, error.data["param"]) == (-32602, "_meta.retry")
    assert prepare(dispatcher(), "add", {"a": 1, "b": 2, "_meta": {"retry": 7}}).retry is None


def test_a_key_makes_a_context_and_reaches_a_handler_that_asks() -> None:
    d = dispatcher(PRODUCTION)
    assert run(d, "keyed", {"amount": 1, "idempotency_key": "k"}) == ["k", "k"]
    assert run(d, "keyed", {"amount": 1, "_meta": {"idempotency_key": "k"}}) == ["k", "k"]
    assert run(dispatcher(), "keyed", {"amount": 1}) == ["none", None]


def test_a_key_is_optional_where_the_policy_says_so() -> None:
    assert prepare(dispatcher(DEVELOPMENT), "pay", {"amount": 1}).key is None
    error = refused(dispatcher(PRODUCTION), "pay", {"amount": 1})
    assert (error.code, error.reason) == (-32602, "idempotency-key-missing")
    assert error.data["received"] == "nothing"
    assert error.data["detail"].startswith("pay is a command and needs a key: client.command")


@pytest.mark.parametrize(
    ("key", "received"),
    [
        ("", "0 characters"),
        ("k" * 256, "256 characters"),
        ("a\nb", "unprintable characters"),
        (7, "another value"),
        (None, "another value"),
        ([], "another value"),
        (["x"] * 9999, "another value"),
    ],
)
def test_a_key_is_a_printable_string(key: Any, received: str) -> None:
    for policy in (PRODUCTION, DEVELOPMENT):
        error = refused(dispatcher(policy), "pay", {"amount": 1, "idempotency_key": key})
        assert (error.code, error.reason) == (-32602, "idempotency-key-invalid")
        assert error.data["received"] == received
        assert error.data["expected"] == "string of 1 to 255 printable characters"


def test_the_longest_key_passes() -> None:
    key = "é" * 255
    assert prepare(dispatcher(), "pay", {"amount": 1, "idempotency_key": key}).key == key


def test_a_key_may_be_spelled_in_the_longest_way() -> None:
    params = b'{"amount":1,"idempotency_key":"%b"}' % (b"\\ud83d\\ude00" * 255)
    job = dispatcher().prepare(Request(b"1", "pay", params), PEER, ORIGIN)
    assert job.key == "\U0001f600" * 255


def test_a_key_that_is_no_number_either_is_refused() -> None:
    params = b'{"amount":1,"idempotency_key":1e999}'
    with pytest.raises(InvalidParams):
        dispatcher().prepare(Request(b"1", "pay", params), PEER, ORIGIN)


def test_a_key_for_a_query_is_refused_as_that() -> None:
    error = refused(dispatcher(), "add", {"a": 1, "b": 2, "idempotency_key": "k"})
    assert error.data == {
        "param": "idempotency_key",
        "expected": "no key (add is a query)",
        "received": "a key",
    }


def test_a_query_has_no_key() -> None:
    assert (
        prepare(dispatcher(), "add", {"a": 1, "b": 2, "_meta": {"idempotency_key": 7}}).key is None
    )


@pytest.mark.parametrize("meta", [1, [], "x", {"traceparent": 7}, {"other": {"a": 1}}])
def test_meta_of_other_programs_is_left_alone(meta: Any) -> None:
    assert run(dispatcher(), "whoami", {"_meta": meta})[-1] is None


# The context.


def test_a_context_tells_the_handler_about_its_request() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    d = dispatcher()
    assert run(d, "whoami", {"_meta": {"traceparent": trace}}, b"7") == [
        "whoami",
        "7",
        "c1",
        "local",
        trace,
    ]


@pytest.mark.parametrize(
    ("id", "text"),
    [(b"1.0", "1.0"), (b'"a\\u0062"', "ab"), (b"null", "null"), (b"0", "0"), (b'""', "")],
)
def test_the_correlation_id_is_the_requests_id(id: bytes, text: str) -> None:
    assert run(dispatcher(), "whoami", id=id)[1] == text


def test_a_message_without_id_gets_a_correlation_id_of_its_own() -> None:
    d = dispatcher()
    assert d.correlation_id(None, "c1") == "c1-n1"
    assert d.correlation_id(None, "c2") == "c2-n2"


# What a handler raises.


def test_a_declared_error_is_the_answer() -> None:
    assert run(dispatcher(), "fail", ["gone"]) == {
        "code": 410,
        "message": "Gone",
        "data": {"id": 1},
    }


@pytest.mark.parametrize("how", ["bug", "exit", "interrupt", "of the peer"])
def test_anything_else_is_logged_and_told_as_a_reference(how: str) -> None:
    log = Recorder()
    assert run(dispatcher(log=log), "fail", [how]) == {
        "code": -32603,
        "message": "Internal error",
        "data": {"reference": "ref-1"},
    }
    (line,) = log.lines
    assert (line.severity, line.text) == ("error", "handler failed")
    assert line.fields == {
        "method": "fail",
        "id": b"1",
        "correlation_id": "1",
        "connection_id": "c1",
        "reference": "ref-1",
    }


def test_an_async_handler_fails_alike() -> None:
    log = Recorder()
    assert run(dispatcher(log=log), "fail_later")["data"] == {"reference": "ref-1"}
    assert isinstance(log.failures[0], ZeroDivisionError)


class Trouble(RpcError):
    """A family; it has no code."""


class Forgetful(RpcError):
    code, message = 4003, "Forgetful"

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)


MISUSED: dict[str, tuple[Callable[[], RpcError], str]] = {
    "a family": (lambda: Trouble("secret"), "Trouble has no code of its own"),
    "the root": (lambda: RpcError("secret"), "RpcError has no code of its own"),
    "a reserved code": (lambda: RpcError("secret", code=-32001), "-32001 is reserved"),
    "a code set later": (lambda: Forgetful(code=-32001), "-32001 is reserved"),
    "a code that is no number": (lambda: Forgetful(code="secret"), "a code is an integer"),
    "an internal error": (lambda: InternalError("secret"), "secret"),
}


@pytest.mark.parametrize("kind", ["query", "command", "at once"])
@pytest.mark.parametrize("how", MISUSED)
def test_an_error_that_no_handler_may_answer_is_an_internal_one(how: str, kind: str) -> None:
    make_error, why = MISUSED[how]
    service, log = Service(), Recorder()

    def handler() -> None:
        raise make_error()

    register = service.command if kind == "command" else service.query
    register(name="fail")(handler)
    if kind == "at once":
        answer = at_once(service, log=log)(body("fail"))
        error = json.loads(answer)["error"]
    else:
        error = run(Dispatcher(service, SPEC, log=log), "fail")
    assert error == {
        "code": -32603,
        "message": "Internal error",
        "data": {"reference": "ref-1"},
    }
    (line,) = log.lines
    assert why in f"{line.text} {log.failures[0]}"
    assert line.fields["reference"] == "ref-1"


def test_an_error_whose_constructor_forgets_ours_is_answered() -> None:
    service = Service()

    @service.query
    def fail() -> None:
        raise Forgetful(what="keys")

    told = {"code": 4003, "message": "Forgetful"}
    assert run(Dispatcher(service, SPEC), "fail") == told
    assert json.loads(at_once(service)(body("fail")))["error"] == told


def test_an_error_of_ones_own_may_be_passed_on_from_a_peer() -> None:
    assert run(dispatcher(), "fail", ["own of the peer"])["code"] == 410


def test_a_failure_after_a_cancellation_is_no_news() -> None:
    log = Recorder()
    d = dispatcher(log=log)
    job = prepare(d, "add", [1, 2])
    job.answered = True
    assert type(d.failure(asyncio.CancelledError(), job)) is Cancelled
    assert log.lines == []


def test_a_result_that_cannot_be_written_is_told_and_logged_with_its_cause() -> None:
    log = Recorder()
    answer = run(dispatcher(log=log), "bad_result")
    assert (answer["code"], answer["data"]["reason"]) == (-32016, "result-unserializable")
    assert answer["data"]["reference"] == "ref-1"
    assert isinstance(log.failures[0].__cause__, TypeError)


@pytest.mark.parametrize("inside", [False, True])
def test_a_forgotten_await_is_hinted_at_in_the_log(inside: bool) -> None:
    async def later() -> int:
        return 1

    forgotten = later()
    service, log = Service(), Recorder()

    @service.query
    def total() -> Any:
        return [forgotten] if inside else forgotten

    try:
        answer = run(Dispatcher(service, SPEC, log=log), "total")
    finally:
        forgotten.close()
    assert answer["code"] == -32016 and "await" not in json.dumps(answer)
    assert "an await is missing" in log.lines[0].text


@pytest.mark.parametrize("kind", ["bug", "exit", "internal"])
def test_a_type_that_fails_in_its_own_check_is_an_internal_error(kind: str) -> None:
    log = Recorder()
    error = refused(dispatcher(log=log), "fragile", [{"kind": kind}])
    assert (error.code, error.data) == (-32603, {"reference": "ref-1"})
    assert log.lines[0].fields["correlation_id"] == "1"


def test_a_type_may_refuse_with_an_error_of_its_own() -> None:
    assert refused(dispatcher(), "fragile", [{"kind": "no"}]).code == 410


def test_a_silent_log_gives_a_reference_too() -> None:
    assert run(dispatcher(), "fail", ["bug"])["data"] == {"reference": "unlogged"}
    Silence().note("warn", "nothing")


# The seam to the ledger.


class Remembering:
    """A ledger that runs every command and keeps what it was asked."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []

    def now(self) -> float:
        return 0.0

    def first_sent(self, age: float, read_at: float) -> float:
        return read_at - age

    def run(self, job: Job, work: Callable[[Any], bytes], failure: Failure) -> bytes:
        self.keys.append(job.key)
        if job.key == "busy":
            raise InProgress(data={"retry_after_ms": 5})
        return work("a transaction")

    async def run_async(
        self, job: Job, work: Callable[[Any], Awaitable[bytes]], failure: Failure
    ) -> bytes:
        self.keys.append(job.key)
        return await work("a transaction")


def test_commands_with_a_key_go_through_the_ledger() -> None:
    ledger = Remembering()
    d = dispatcher(ledger=ledger)
    assert run(d, "pay", {"amount": 1, "idempotency_key": "a"}) == 1
    assert run(d, "pay_later", {"amount": 2, "idempotency_key": "b"}) == 2
    assert run(d, "pay", {"amount": 3}) == 3
    assert run(d, "pay_later", {"amount": 4}) == 4
    assert run(d, "add", [1, 2]) == 3
    assert ledger.keys == ["a", "b"]
    assert run(d, "pay", {"amount": 1, "idempotency_key": "busy"})["code"] == -32013


# The straight line.


def at_once(service: Service, policy: Policy = EDITOR, log: Recorder | None = None) -> Any:
    intake = Dispatcher(service, policy, log=log).intake
    assert intake is not None
    return intake.answer_at_once


def body(method: str, params: str = "", id: str = "1") -> bytes:
    rest = f',"params":{params}' if params else ""
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}"{rest}}}'.encode()


def test_a_plain_request_is_answered_at_once() -> None:
    answer = at_once(make())
    assert answer(body("add", '{"a":1,"b":2}')) == b'{"jsonrpc":"2.0","id":1,"result":3}'
    assert answer(body("touch", id='"x"')) == b'{"jsonrpc":"2.0","id":"x","result":null}'
    assert answer(body("touch", id="0")) == b'{"jsonrpc":"2.0","id":0,"result":null}'
    assert answer(body("touch", id='""')) == b'{"jsonrpc":"2.0","id":"","result":null}'
    assert answer(body("touch", "{}")) == b'{"jsonrpc":"2.0","id":1,"result":null}'
    assert answer(bytearray(body("touch"))) == b'{"jsonrpc":"2.0","id":1,"result":null}'


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"[]",
        b"{",
        body("nothing"),
        body("add"),
        body("add", "[1,2]"),
        body("add", '{"a":1}'),
        body("touch", id="-0"),
        body("touch", id="1.0"),
        body("touch", id="null"),
        body("touch", id='"\\u0061"'),
        body("touch", id="true"),
        body("touch", "null"),
        body("later", '{"a":"x"}'),
        body("pay", '{"amount":"x"}'),
        body("fragile", '{"a":{"kind":"bug"}}'),
        body("fragile", '{"a":{"kind":"exit"}}'),
        body("fragile", '{"a":{"kind":"no"}}'),
        b'{"jsonrpc":"1.0","id":1,"method":"touch"}',
        b'{"jsonrpc":"2.0","id":1,"method":"touch","x":"\xff"}',
        b'{"jsonrpc":"2.0","id":1,"method":"touch","x":%b}' % (b"[" * 70 + b"]" * 70),
        b'{"jsonrpc":"2.0","id":1,"result":1}',
    ],
)
def test_anything_odd_goes_the_long_way(odd: bytes) -> None:
    assert at_once(make())(odd) is None


def test_a_failure_on_the_straight_line_is_logged_alike() -> None:
    log = Recorder()
    answer = at_once(make(), log=log)
    assert json.loads(answer(body("fail", '{"how":"bug"}', id='"x"'), "c9")) == {
        "jsonrpc": "2.0",
        "id": "x",
        "error": {
            "code": -32603,
            "message": "Internal error",
            "data": {"reference": "ref-1"},
        },
    }
    assert log.lines[0].fields == {
        "method": "fail",
        "id": b'"x"',
        "correlation_id": "x",
        "connection_id": "c9",
        "reference": "ref-1",
    }
    assert json.loads(answer(body("bad_result")))["error"]["code"] == -32016
    assert json.loads(answer(body("fail", '{"how":"gone"}')))["error"]["code"] == 410


@pytest.mark.parametrize("method", ["later", "whoami", "pay"])
def test_what_needs_more_than_a_call_comes_back_decoded(method: str) -> None:
    params = {"later": '{"a":1}', "pay": '{"amount":1}'}.get(method, "")
    d = dispatcher(EDITOR)
    assert d.intake is not None
    for read in (d.intake.answer_at_once, d.intake.read):
        message: Any = read(body(method, params, id='"x"'))
        job = d.admit(message, body(method, params), PEER, ORIGIN)
        assert (job.id, job.method.name, job.size) == (b'"x"', method, 0)


def test_only_what_is_small_and_made_of_scalars_is_decoded_before_its_turn() -> None:
    service = make()
    service.query(name="sum")(lambda *values: sum(values))
    service.query(name="each")(lambda a: a)
    intake = Dispatcher(service, SPEC).intake
    assert intake is not None
    assert intake.read_waiting(body("later", '{"a":1}')) is not None
    assert intake.read_waiting(body("pay", '{"amount":1}')) is not None
    assert intake.read_waiting(body("fragile", '{"a":{"kind":"good"}}')) is None
    assert intake.read_waiting(body("sum", "[1,2]")) is None
    assert intake.read_waiting(body("each", '{"a":1}')) is None  # it may be anything
    assert intake.read_waiting(body("later", '{"a":1}' + " " * 1100)) is None


def test_where_several_may_be_in_flight_only_inline_queries_are_answered_at_once() -> None:
    assert not isinstance(at_once(make(), SPEC)(body("touch")), bytes)
    service = Service()
    service.query(name="quick", inline=True)(lambda: 1)
    service.query(name="slow")(lambda: 1)
    answer = at_once(service, SPEC)
    assert answer(body("quick")) == b'{"jsonrpc":"2.0","id":1,"result":1}'
    assert not isinstance(answer(body("slow")), bytes)


def test_a_query_with_a_deadline_is_never_answered_at_once() -> None:
    service = Service()
    service.query(name="quick")(lambda: 1)
    service.query(name="limited", timeout=1.0)(lambda: 1)
    answer = at_once(service, EDITOR)
    assert isinstance(answer(body("quick")), bytes)
    assert not isinstance(answer(body("limited")), bytes)


def test_depth_is_the_policys_also_on_the_straight_line() -> None:
    service = Service()
    service.query(name="echo")(lambda a: a)
    answer = at_once(service, replace(EDITOR, max_depth=3))
    assert answer(body("echo", '{"a":[1]}')) is not None
    assert answer(body("echo", '{"a":[[1]]}')) is None


DEEP = "[" * 70 + "]" * 70


@pytest.mark.parametrize("length", [0, 200], ids=["short", "long"])
@pytest.mark.parametrize(
    "more",
    [
        f'"_meta":{DEEP}',
        f'"_\\u006deta":{DEEP}',
        '"_meta":"\udcff"',
        f'"more":{DEEP}',
        '"text":"\udcff"',
    ],
    ids=["deep meta", "deep meta, spelled otherwise", "broken meta", "unknown", "broken text"],
)
def test_types_that_read_every_byte_do_not_hide_what_they_have_not_read(
    more: str, length: int
) -> None:
    service = Service()

    @service.query
    def count(texts: list[str], text: str = "") -> int:
        return len(texts)

    answer = at_once(service, BATCHES)
    good = body("count", '{"texts":["%s"]}' % ("\u00e9" * length))
    assert json.loads(answer(good))["result"] == 1
    assert json.loads(answer(batch(good)))[0]["result"] == 1
    plain = body("count", '{"texts":["%s"],MORE}' % ("e" * length))
    odd = plain.replace(b"MORE", more.encode("utf-8", "surrogateescape"))
    assert answer(odd) is None
    assert answer(batch(odd)) is None


def test_a_type_that_nests_deeper_than_the_policy_is_looked_at() -> None:
    service = Service()
    service.query(name="sum")(nested)
    answer = at_once(service, replace(BATCHES, max_depth=4))
    flat, deep = body("sum", '{"a":[[]]}'), body("sum", '{"a":[[1]]}' + " " * 100)
    assert answer(flat) is not None and answer(deep) is not None
    assert answer(batch(flat)) is None  # five deep


def nested(a: list[list[int]]) -> int:
    return len(a)


def test_a_method_must_be_named_although_there_is_only_one() -> None:
    service = Service()
    service.query(name="only")(lambda: 1)
    answer = at_once(service)
    assert answer(body("only")) == b'{"jsonrpc":"2.0","id":1,"result":1}'
    for odd in (b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"2.0","id":1,"result":1}', body("other")):
        assert answer(odd) is None


def test_members() -> None:
    assert result_member([1]) == b'"result":[1]'
    assert error_member(Gone()) == b'"error":{"code":410,"message":"Gone"}'
    assert json.loads(b"{%b}" % error_member(InvalidParams()))["error"]["code"] == -32602


def test_a_notification_is_run_and_nothing_is_answered() -> None:
    log, seen = Recorder(), []
    service = Service()
    service.query(name="note")(lambda a: seen.append(a))
    service.query(name="fail")(lambda: 1 / 0)
    answer = at_once(service, log=log)
    assert answer(b'{"jsonrpc":"2.0","method":"note","params":{"a":1}}') == b""
    assert seen == [1]
    assert answer(b'{"jsonrpc":"2.0","method":"fail"}', "c9") == b""
    assert log.told() == [("error", "handler failed"), ("error", "notification failed")]
    assert {line.fields["correlation_id"] for line in log.lines} == {"c9-n1"}
    assert {line.fields["connection_id"] for line in log.lines} == {"c9"}


def test_a_notification_that_has_to_be_refused_goes_the_long_way() -> None:
    policy = replace(DEVELOPMENT, max_in_flight=1)
    answer = at_once(make(), policy)
    assert answer(b'{"jsonrpc":"2.0","method":"add","params":{"a":1,"b":2}}') is None
    assert answer(b'{"jsonrpc":"2.0","method":"touch"}') == b""
    assert answer(b'[{"jsonrpc":"2.0","method":"add","params":{"a":1,"b":2}}]') is None


def batch(*bodies: bytes) -> bytes:
    return b"[%b]" % b",".join(bodies)


BATCHES = replace(EDITOR, max_batch=4)


def test_a_batch_of_plain_requests_is_answered_at_once() -> None:
    log = Recorder()
    answer = at_once(make(), BATCHES, log)
    note = b'{"jsonrpc":"2.0","method":"touch"}'
    add = body("add", '{"a":1,"b":2}', id="7")
    fail = body("fail", '{"how":"gone"}', id="8")
    assert json.loads(answer(batch(add, note, fail))) == [
        {"jsonrpc": "2.0", "id": 7, "result": 3},
        {"jsonrpc": "2.0", "id": 8, "error": {"code": 410, "message": "Gone", "data": {"id": 1}}},
    ]
    assert answer(batch(note, note)) == b""
    mixed = json.loads(answer(batch(add, body("bad_result", id="9"), fail)))
    assert [item["id"] for item in mixed] == [7, 9, 8]
    assert mixed[1]["error"]["code"] == -32016


@pytest.mark.parametrize(
    "odd",
    [
        b"[]",
        b"[1]",
        batch(body("touch"), body("touch")),
        batch(body("touch", id="-0")),
        batch(body("touch", id='"\\u0061"')),
        batch(body("touch"), body("nothing", id="2")),
        batch(*(body("touch", id=str(number)) for number in range(1, 6))),
        batch(body("touch"), b'{"jsonrpc":"2.0","id":2,"method":"touch","x":"\xff"}'),
    ],
)
def test_a_batch_with_anything_odd_in_it_goes_the_long_way(odd: bytes) -> None:
    assert at_once(make(), BATCHES)(odd) is None
    assert at_once(make(), EDITOR)(odd) is None


def test_correlation_is_made_once_for_a_job() -> None:
    d = dispatcher()
    job = prepare(d, "add", [1, 2], id=None)
    assert d.correlate(job) == d.correlate(job) == "c1-n1"
