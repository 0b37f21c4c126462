r"""Lone surrogates: a string may hold any JSON escape, also `\ud83d` alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from typing import Any, Literal

import pytest
from msgspec import Raw

from duet_rpc import Context, RpcError, Service
from duet_rpc.ledger import Ledger, Store
from duet_rpc.ledger.commands import Commands
from duet_rpc.ledger.fingerprint import fingerprint
from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy, replace
from duet_rpc.wire.framing import Framing, HeaderFraming
from duet_rpc.wire.framing.line import LineFraming
from tests.helpers import Line, Wire, data_of, exchange, frame, refusal, result, whole_and_by_byte

ALL = [SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION]
every_preset = pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
every_store = pytest.mark.parametrize(
    "kind", ["memory", "sqlite", "postgres", "valkey"], indirect=True
)


class Half(RpcError):
    code, message = 7, "half \ud83d"


def served() -> Service:
    service = Service()

    @service.query
    def echo(value: Any) -> Any:
        return value

    @service.query(inline=True)
    def at_once(text: str) -> str:
        return text

    @service.query
    async def later(text: str) -> str:
        return text

    @service.query
    def rest(*values: Any) -> list[Any]:
        return list(values)

    @service.query
    def raw(value: Raw) -> Any:
        return bytes(value).decode()

    @service.query
    def typed(
        text: str, count: int = 0, mode: Literal["up", "down"] = "up", exact: Decimal = Decimal(0)
    ) -> str:
        return f"{text} {count} {mode} {exact}"

    @service.query
    def half() -> str:
        return "\ud83d"

    @service.query(inline=True)
    def half_at_once() -> list[str]:
        return ["\ud83d"]

    @service.query
    def fail(text: str) -> None:
        raise Half(data={text: [text]})

    @service.query
    def correlated(ctx: Context) -> list[str | None]:
        return [ctx.correlation_id, ctx.trace_parent]

    @service.command
    def put(text: str) -> str:
        return text

    return service


def call(method: str, params: bytes = b"", id: bytes = b"1") -> bytes:
    more = b',"params":' + params if params else b""
    return b'{"jsonrpc":"2.0","id":%b,"method":"%b"%b}' % (id, method.encode(), more)


def one(policy: Policy, body: bytes) -> bytes:
    (answer,) = exchange(policy, served(), body)
    return answer


STRINGS = [
    rb'"\ud83d"',
    rb'"half \uD83D of it"',
    rb'"\ude00\ud83d"',
    rb'"\ud83d\ud83d\ude00"',
    rb'"\\ud83d\ud83d\\"',
]


@pytest.mark.clause("messages-10")
@every_preset
@pytest.mark.parametrize("text", STRINGS)
@pytest.mark.parametrize("method", ["at_once", "later", "typed"])
def test_it_reaches_the_handler_and_comes_back(policy: Policy, method: str, text: bytes) -> None:
    expected = json.loads(text) + (" 0 up 0" if method == "typed" else "")
    for params in (b'{"text":%b}', b"[%b]"):
        assert result(one(policy, call(method, params % text))) == expected


@pytest.mark.clause("messages-10")
@every_preset
def test_in_keys_and_anywhere_inside(policy: Policy) -> None:
    value = rb'{"\ud83d":[{"a\ude00":["\ud83d"]},1.0,%b]}' % (b"9" * 30)
    assert result(one(policy, call("echo", b'{"value":%b}' % value))) == json.loads(value)
    assert result(one(policy, call("rest", b"[%b]" % value))) == [json.loads(value)]
    assert result(one(policy, call("raw", b'{"value": %b}' % value))) == value.decode()


@pytest.mark.clause("messages-10", "ids-1")
@every_preset
@pytest.mark.parametrize("id", [rb'"\ud83d"', rb'"\uD83D"', rb'"\ude00 \\ud83d"'])
def test_an_id_is_echoed_as_it_was_spelled(policy: Policy, id: bytes) -> None:
    answer = one(policy, call("at_once", b'{"text":"a"}', id))
    assert answer == b'{"jsonrpc":"2.0","id":%b,"result":"a"}' % id
    spelled = id[1:-1].decode()
    assert result(one(policy, call("correlated", id=id)))[0] == spelled
    assert one(policy, call("nothing", id=id)).startswith(b'{"jsonrpc":"2.0","id":%b,' % id)


@pytest.mark.clause("messages-10")
@every_preset
def test_unknown_members_and_unknown_methods(policy: Policy) -> None:
    body = rb'{"\ud83d":"\ud83d","jsonrpc":"2.0","id":5,"method":"at_once","params":["a"]}'
    assert result(one(policy, body)) == "a"
    body = rb'{"jsonrpc":"2.0","id":5,"method":"no \ud83d"}'
    assert refusal(one(policy, body)) == (-32601, "Method not found", None, 5)
    assert data_of(one(policy, body)) == {"detail": "no method 'no ?' is served here"}


@pytest.mark.clause("messages-10")
@every_preset
@pytest.mark.parametrize(
    ("params", "param"),
    [
        (rb'{"text":"a","count":"\ud83d"}', "count"),
        (rb'{"text":"a","mode":"\ud83d"}', "mode"),
        (rb'{"text":"a","exact":"\ud83d"}', "exact"),
        (rb'["a","\ud83d"]', "count"),
        (rb'{"text":1,"mode":"\ud83d"}', "text"),
    ],
)
def test_where_a_type_cannot_hold_it_the_params_are_invalid(
    policy: Policy, params: bytes, param: str
) -> None:
    answer = one(policy, call("typed", params, b'"x"'))
    assert refusal(answer) == (-32602, "Invalid params", None, "x")
    assert data_of(answer)["param"] == param


@pytest.mark.clause("messages-10")
def test_an_unknown_name_is_named() -> None:
    answer = one(SPEC, call("typed", rb'{"text":"a","\ud83d":1}'))
    assert refusal(answer).code == -32602 and data_of(answer)["received"] == "an unknown name"


@pytest.mark.clause("messages-10")
@every_preset
def test_other_values_beside_it_are_as_exact_as_ever(policy: Policy) -> None:
    params = rb'{"text":"\ud83d","exact":0.12345678901234567890123}'
    assert result(one(policy, call("typed", params))) == "\ud83d 0 up 0.12345678901234567890123"


@pytest.mark.clause("messages-10")
@every_preset
def test_results_and_errors_that_hold_one(policy: Policy) -> None:
    assert one(policy, call("half")) == rb'{"jsonrpc":"2.0","id":1,"result":"\ud83d"}'
    assert one(policy, call("half_at_once")) == rb'{"jsonrpc":"2.0","id":1,"result":["\ud83d"]}'
    error = json.loads(one(policy, call("fail", rb'{"text":"\ude00"}')))["error"]
    assert error == {"code": 7, "message": "half \ud83d", "data": {"\ude00": ["\ude00"]}}


@pytest.mark.clause("messages-10")
def test_batches() -> None:
    items = [
        call("at_once", rb'["\ud83d"]', b"1"),
        call("half_at_once", id=b"2"),
        call("at_once", rb'["a"]', rb'"\ud83d"'),
        rb'"\ud83d"',
        rb'{"jsonrpc":"2.0","method":"at_once","params":["\ud83d"]}',
    ]
    for policy in (SPEC, AGENT):
        answers = json.loads(one(policy, b"[%b]" % b",".join(items)))
        assert [answer["id"] for answer in answers] == [1, 2, "\ud83d", None]
        assert [answer.get("result") for answer in answers] == ["\ud83d", ["\ud83d"], "a", None]
        assert answers[3]["error"]["code"] == -32600
        plain = json.loads(one(policy, b"[%b]" % b",".join(items[1:2])))
        assert plain == [{"jsonrpc": "2.0", "id": 2, "result": ["\ud83d"]}]
    many = b"[%b]" % b",".join([call("half", rb'["\ud83d"]')] * 101)
    assert refusal(one(SPEC, many)).reason == "batch-too-large"
    assert refusal(one(EDITOR, many)).reason == "batch-not-supported"


@pytest.mark.clause("messages-10")
def test_notifications_run() -> None:
    line = Line(SPEC, served())
    assert line.send(rb'{"jsonrpc":"2.0","method":"at_once","params":["\ud83d"]}') == []
    assert line.log.lines == []


@pytest.mark.carriers("stream", "message link")
@pytest.mark.clause("messages-10")
@every_preset
def test_a_cancellation_finds_its_request(policy: Policy) -> None:
    line = Line(policy, served(), held=["later"])
    assert line.send(call("later", b'["a"]', rb'"\ud83d"')) == []
    cancel = rb'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"\ud83d"}}'
    if policy.max_in_flight > 1:
        again = line.send(call("later", b'["a"]', rb'"\ud83d"'))
        assert refusal(again[0]).reason == "duplicate-id"
    (answer,) = line.send(cancel)
    assert refusal(answer) == (-32800, "Request cancelled", "cancelled", "\ud83d")


@pytest.mark.clause("messages-10")
def test_beside_the_params() -> None:
    line = Line(SPEC, served())
    (answer,) = line.send(call("correlated", rb'{"_meta":{"traceparent":"\ud83d","x":"\ud83d"}}'))
    assert result(answer) == ["1", "\ud83d"]
    (answer,) = line.send(call("correlated", rb'{"_meta":{"\ud83d":1,"traceparent":"a"}}'))
    assert result(answer) == ["1", "a"]


@pytest.mark.carriers("stream")
@pytest.mark.clause("messages-10")
@pytest.mark.parametrize("framing", [HeaderFraming, LineFraming], ids=["lsp", "ndjson"])
def test_however_it_is_cut(framing: Any) -> None:
    body = call("at_once", rb'["\ud83d"]', rb'"\ude00"')
    wire = framing.encode(body)
    for cut in range(1, len(wire)):
        made: Framing = framing()
        line = Line(SPEC, served(), framing=made)
        (answer,) = line.send(Wire(wire[:cut]), Wire(wire[cut:]))
        assert answer == rb'{"jsonrpc":"2.0","id":"\ude00","result":"\ud83d"}'
    assert len(whole_and_by_byte(SPEC, served(), frame(body))) == 1


# Limits hold as without it.


@pytest.mark.clause("messages-10")
@every_preset
def test_it_is_no_way_around_the_limits(policy: Policy) -> None:
    deep = call("echo", rb'["\ud83d",%b]' % (b"[" * 64 + b"]" * 64))
    assert refusal(one(policy, deep)).code == -32700
    for text in (rb'["\ud83d",NaN]', b'["\\ud83d","\xff"]', b'["\\ud83d","\xed\xa0\x80"]'):
        assert refusal(one(policy, call("echo", text))).code == -32700
    for number in (b"1e999", b"9" * 5000):
        answer = one(policy, call("echo", rb'[["\ud83d",%b]]' % number))
        assert refusal(answer) == (-32602, "Invalid params", None, 1)
    small = replace(policy, max_message_bytes=2000)
    huge = call("echo", rb'["\ud83d%b"]' % (b"x" * 2000))
    assert refusal(exchange(small, served(), huge)[0]).reason == "oversize"


@pytest.mark.clause("messages-10")
@pytest.mark.parametrize(
    "value",
    [
        b'"' + rb"\ud83d" * 1_600_000 + b'"',
        b"[" + b",".join([rb'"\ud83d"'] * 1_000_000) + b"]",
        rb'["\ud83d"' + b",1" * 4_500_000 + b"]",
        rb'"\ud83d' + rb"\\" * 4_500_000 + b'"',
    ],
    ids=["one string", "many strings", "one among numbers", "backslashes"],
)
def test_ten_megabytes_of_it(value: bytes) -> None:
    assert result(one(SPEC, call("echo", b"[%b]" % value))) == json.loads(value)


# Commands.


@pytest.fixture
def open_commands(store: Store) -> Iterator[Callable[[], Commands]]:
    """Open the commands of one more server on the store."""
    with ExitStack() as opened:

        def make() -> Commands:
            made = Commands(lambda: Ledger(store))
            opened.callback(made.close)
            return made

        yield make


@pytest.mark.clause("messages-10")
@every_store
def test_a_command_is_replayed(open_commands: Callable[[], Commands]) -> None:
    line = Line(SPEC, served(), ledger=open_commands())
    params = rb'{"text":"\ud83d","idempotency_key":"one"}'
    (first,) = line.send(call("put", params, rb'"\ud83d"'))
    assert first == rb'{"jsonrpc":"2.0","id":"\ud83d","result":"\ud83d"}'
    # The same value in another spelling is the same request, on another connection as well.
    again = Line(SPEC, served(), ledger=open_commands())
    (second,) = again.send(call("put", rb'{"idempotency_key":"one","text":"\uD83D"}', b"2"))
    assert second == rb'{"jsonrpc":"2.0","id":2,"result":"\ud83d"}'
    (other,) = again.send(call("put", rb'{"idempotency_key":"one","text":"\uD83E"}', b"3"))
    assert refusal(other).reason == "idempotency-key-reused"


@pytest.mark.clause("messages-10")
@every_store
@pytest.mark.parametrize(
    "params",
    [
        rb'{"text":"a","idempotency_key":"\ud83d"}',
        rb'{"text":"a","_meta":{"idempotency_key":"k \udc00"}}',
    ],
)
def test_a_key_needs_printable_characters(
    open_commands: Callable[[], Commands], params: bytes
) -> None:
    line = Line(SPEC, served(), ledger=open_commands())
    (answer,) = line.send(call("put", params))
    assert refusal(answer) == (-32602, "Invalid params", "idempotency-key-invalid", 1)


@pytest.mark.clause("messages-10")
def test_fingerprints_tell_values_apart_and_not_spellings() -> None:
    def of(params: bytes) -> bytes:
        return fingerprint("put", params)

    assert of(rb'{"a":"\ud83d","b":1.50}') == of(rb'{ "b":1.5, "\u0061":"\uD83d"}')
    different = [
        rb'{"a":"\ud83d"}',
        rb'{"a":"\ud83e"}',
        rb'{"a":"\ufffd"}',
        rb'{"a":"\\ud83d"}',
        rb'{"a":["\ud83d"]}',
        rb'{"a":"\ud83d","b":1}',
        rb'{"a":"\ud83d","b":1.0}',
        rb'{"a":"\ud83d","b":0.12345678901234567890}',
        rb'{"a":"\ud83d","b":0.12345678901234567891}',
        rb'{"a":"\ud83d\ude00"}',
    ]
    assert len({of(params) for params in different}) == len(different)
    assert of(rb'{"a":"\ud83d\ude00"}') == of('{"a":"😀"}'.encode())
    assert of(rb'{"a":"\ud83d","_meta":{"x":"\ud83d"}}') == of(rb'{"a":"\ud83d"}')


# In a process of its own: the log on stderr, and the outcome of a command.

PROGRAM = """
from duet_rpc import Context, Server, Service
service = Service()

@service.query
def fail(text: str) -> None:
    raise ValueError(text)

@service.query
def say(text: str, ctx: Context) -> str:
    ctx.logger.warning("heard " + text)
    return text

@service.command
def put(text: str) -> str:
    return text

Server(service).run_stdio(framing="FRAMING")
"""


@pytest.mark.clause("messages-10")
@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
def test_a_daemon_logs_it_and_lives_on(framing: str) -> None:
    encode = HeaderFraming.encode if framing == "lsp" else LineFraming.encode
    asked = [
        call("fail", rb'["\ud83d"]', rb'"\ud83d"'),
        call("say", rb'["\ud83d"]', b"2"),
        call("put", rb'{"text":"\ud83d","idempotency_key":"k"}', b"3"),
        call("rpc.outcome", rb'{"method":"put","idempotency_key":"k"}', b"4"),
        call("rpc.outcome", rb'{"method":"\ud83d","idempotency_key":"k"}', b"5"),
        call("rpc.outcome", rb'{"method":"put","idempotency_key":"\ud83d"}', b"6"),
        call("setLogLevel", rb'["\ud83d"]', b"7"),
        call("\\ud83d", id=b"8"),
    ]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("FRAMING", framing)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdin and daemon.stdout and daemon.stderr
        reader: Framing = HeaderFraming() if framing == "lsp" else LineFraming()
        answers = []
        for body in asked:
            daemon.stdin.write(encode(body))
            daemon.stdin.flush()
            found: list[Any] = []
            while not found:
                assert (data := os.read(daemon.stdout.fileno(), 65536)), daemon.stderr.read()
                found = reader.feed(data)
            answers.append(json.loads(found[0]))
        _, log = daemon.communicate(timeout=30)
    assert daemon.returncode == 0
    assert answers[0]["id"] == "\ud83d" and answers[0]["error"]["code"] == -32603
    assert answers[1]["result"] == answers[2]["result"] == "\ud83d"
    assert answers[3]["result"] == {"state": "done", "result": "\ud83d"}
    assert answers[4]["result"] == {"state": "none"}
    assert answers[5]["error"]["data"]["reason"] == "idempotency-key-invalid"
    assert answers[6]["error"]["data"]["param"] == "level"
    assert answers[7]["error"]["code"] == -32601
    assert b"heard \\ud83d" in log and b"correlation_id=\\ud83d" in log
