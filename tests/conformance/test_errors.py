"""Errors: the table of errors, and what error replies never hold."""

import json
from typing import Any

import pytest

from duet_rpc.errors import INVALID_REQUEST_REASONS, DeadlineExceeded, RpcError, UsageError
from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy, replace
from duet_rpc.service import Service
from tests.conformance.specimen import specimen
from tests.helpers import Line, Wire, data_of, exchange, notification, refusal, request, result

ALL = [SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION]
every_preset = pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)


def one(policy: Policy, body: bytes) -> bytes:
    (answer,) = exchange(policy, specimen(), body)
    return answer


@pytest.mark.clause("errors-1")
@every_preset
def test_parse_error(policy: Policy) -> None:
    assert refusal(one(policy, b"{")) == (-32700, "Parse error", None, None)


BATCH_OF_THREE = b"[%b]" % b",".join([request("echo")] * 3)

REASONS: dict[str, tuple[Policy, bytes]] = {
    "batch-not-supported": (EDITOR, BATCH_OF_THREE),
    "batch-too-large": (replace(SPEC, max_batch=2), BATCH_OF_THREE),
    "command-requires-id": (DEVELOPMENT, notification("pay")),
    "invalid-envelope": (SPEC, b"{}"),
    "invalid-id-type": (SPEC, request("echo", id=True)),
    "notification-not-allowed": (DEVELOPMENT, notification("echo")),
    "oversize": (replace(SPEC, max_message_bytes=100), request("echo", ["x" * 100])),
}
REASONS_OF_STREAMS: dict[str, tuple[Policy, bytes]] = {
    "bad-charset": (
        SPEC,
        Wire(b"Content-Type: application/vscode-jsonrpc;charset=x\r\nContent-Length: 0\r\n\r\n"),
    ),
    "header-too-large": (SPEC, Wire(b"x" * 9000)),
    "invalid-content-length": (SPEC, Wire(b"Content-Length: x\r\n\r\n")),
    "oversize": (SPEC, Wire(b"Content-Length: 999999999\r\n\r\n")),
    "unsupported-content-type": (SPEC, Wire(b"Content-Type: a/b\r\nContent-Length: 0\r\n\r\n")),
}


@pytest.mark.clause("errors-3")
@pytest.mark.parametrize("reason", REASONS)
def test_invalid_request_says_why_in_one_word_and_what_to_do(reason: str) -> None:
    check_reason(reason, *REASONS[reason])


@pytest.mark.carriers("stream")
@pytest.mark.clause("errors-3")
@pytest.mark.parametrize("reason", REASONS_OF_STREAMS)
def test_so_does_one_about_the_stream(reason: str) -> None:
    check_reason(reason, *REASONS_OF_STREAMS[reason])


def check_reason(reason: str, policy: Policy, sent: bytes) -> None:
    answer = one(policy, sent)
    found = refusal(answer)
    assert (found.code, found.reason, found.id) == (-32600, reason, None)
    assert len(data_of(answer)["detail"]) > 10


@pytest.mark.clause("errors-2")
def test_the_words_are_a_closed_list() -> None:
    elsewhere = {"duplicate-id", "too-many-subscriptions"}
    assert set(REASONS) | set(REASONS_OF_STREAMS) | elsewhere == INVALID_REQUEST_REASONS


@pytest.mark.clause("errors-4")
@every_preset
def test_method_not_found_is_never_silence(policy: Policy) -> None:
    answer = one(policy, request("foobar", id="x"))
    assert refusal(answer) == (-32601, "Method not found", None, "x")
    assert data_of(answer)["detail"]


@pytest.mark.clause("errors-5", "messages-8")
@every_preset
@pytest.mark.parametrize(
    ("method", "params", "data"),
    [
        (
            "subtract",
            {"minuend": 1},
            {"param": "subtrahend", "expected": "integer", "received": "nothing"},
        ),
        ("subtract", [1], {"param": "subtrahend", "expected": "integer", "received": "nothing"}),
        (
            "subtract",
            [1, "2"],
            {"param": "subtrahend", "expected": "integer", "received": "string"},
        ),
        ("subtract", [1, 2, 3], {"param": "params", "expected": "at most 2 values"}),
        (
            "subtract",
            {"minuend": 1, "subtrahend": 2, "x": 3},
            {"param": "x", "expected": "a parameter named minuend or subtrahend"},
        ),
        (
            "level",
            ["loud"],
            {
                "param": "level",
                "expected": '"debug" | "info"',
                "received": "another string",
                "accepted": ["debug", "info"],
            },
        ),
        ("level", {"level": "info", "note": {}}, {"param": "note.id", "received": "nothing"}),
        ("sum", [1, None], {"param": "numbers[1]", "expected": "integer", "received": "null"}),
        ("sum", {"a": 1}, {"param": "params", "expected": "array", "received": "object"}),
    ],
)
def test_invalid_params_say_which_what_and_what_came(
    policy: Policy, method: str, params: Any, data: dict[str, Any]
) -> None:
    answer = one(policy, request(method, params, id=3))
    assert refusal(answer) == (-32602, "Invalid params", None, 3)
    found = data_of(answer)
    assert set(found) >= {"param", "expected", "received"}
    assert {name: found[name] for name in data} == data
    assert ("accepted" in found) == (method == "level" and params == ["loud"])


@pytest.mark.clause("errors-1", "errors-5")
def test_a_missing_or_invalid_key_is_told_under_invalid_params() -> None:
    assert refusal(one(PRODUCTION, request("pay"))).reason == "idempotency-key-missing"
    bad = request("pay", {"idempotency_key": 5})
    assert refusal(one(DEVELOPMENT, bad)) == (
        -32602,
        "Invalid params",
        "idempotency-key-invalid",
        1,
    )


@pytest.mark.clause("errors-6")
@every_preset
def test_an_unforeseen_exception_is_a_reference_that_stands_in_the_log(policy: Policy) -> None:
    line = Line(policy, specimen())
    (answer,) = line.send(request("fail"))
    assert json.loads(answer)["error"] == {
        "code": -32603,
        "message": "Internal error",
        "data": {"reference": "ref-1"},
    }
    (entry,) = line.log.lines
    assert entry.severity == "error" and entry.fields["reference"] == "ref-1"
    # The server lives on.
    assert result(line.send(request("echo", ["still here"]))[0]) == "still here"


@pytest.mark.clause("errors-11")
@every_preset
def test_a_result_that_cannot_be_sent(policy: Policy) -> None:
    line = Line(policy, specimen())
    (answer,) = line.send(request("unserializable"))
    found = refusal(answer)
    assert (found.code, found.reason) == (-32016, "result-unserializable")
    assert isinstance(line.log.failures[0].__cause__, TypeError)


@pytest.mark.clause("errors-1")
def test_overloaded_says_when_to_come_back() -> None:
    line = Line(replace(EDITOR, max_queued=1), specimen(), held={"hold"})
    line.send(request("hold", id=1), request("hold", id=2))
    line.refuse()
    (answer,) = line.send(request("hold", id=3))
    assert refusal(answer) == (-32017, "Overloaded", "overloaded", 3)
    assert data_of(answer)["retry_after_ms"] > 0


@pytest.mark.clause("errors-1")
def test_shutting_down() -> None:
    line = Line(EDITOR, specimen())
    line.close_down()
    assert refusal(line.send(request("echo", id=3))[0]) == (
        -32018,
        "Shutting down",
        "shutting-down",
        3,
    )


@pytest.mark.clause("errors-13")
def test_deadline_exceeded() -> None:
    line = Line(AGENT, specimen(), held={"hold"})
    line.send(request("hold", id=3))
    line.abandon(line.host.open[0], DeadlineExceeded())
    assert refusal(line.answers()[0]) == (-32019, "Deadline exceeded", "deadline-exceeded", 3)


@pytest.mark.clause("errors-8")
@every_preset
def test_an_error_of_ones_own(policy: Policy) -> None:
    answer = one(policy, request("gone", id=3))
    assert json.loads(answer)["error"] == {"code": 410, "message": "Gone", "data": {"id": 7}}


@pytest.mark.clause("errors-8")
def test_own_codes_lie_outside_the_reserved_ones() -> None:
    with pytest.raises(UsageError):
        type("Mine", (RpcError,), {"code": -32001, "__module__": "mine"})


class Leaky:
    """Has its secrets in its text."""

    def __repr__(self) -> str:
        return "token=hunter2"


def leaking() -> Service:
    service = Service()

    @service.query
    def text() -> None:
        raise RuntimeError("token=hunter2 in /home/somebody/.netrc")

    @service.query
    def chain() -> None:
        try:
            raise KeyError("hunter2")
        except KeyError as error:
            raise ValueError(repr(Leaky())) from error

    @service.query(name="result")
    def unserializable() -> Any:
        return {"password": Leaky()}

    @service.query
    def data() -> None:
        raise RpcError("declared", code=5, data=Leaky())

    @service.query
    def group() -> None:
        raise ExceptionGroup("hunter2", [ValueError("hunter2")])

    return service


@pytest.mark.clause("errors-7")
@every_preset
@pytest.mark.parametrize("method", ["text", "chain", "result", "data", "group"])
def test_error_replies_hold_no_text_of_unforeseen_exceptions(policy: Policy, method: str) -> None:
    (answer,) = exchange(policy, leaking(), request(method))
    for secret in (b"hunter2", b"/home", b"Traceback", b"Error:", b"File", b".py", b"line "):
        assert secret not in answer
