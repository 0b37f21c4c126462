"""Subscriptions: answered at once, items with rising numbers, one end; over connections only."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from duet_rpc import RpcError, Service
from duet_rpc.policy import AGENT, DEVELOPMENT, EDITOR, PRODUCTION, SPEC, Policy, replace
from duet_rpc.wire.dialect import JSONRPC, LSP, MCP, Dialect
from tests.helpers import Line, notification, refusal, request

CARRIERS = ["stream", "message link"]
ALL = [SPEC, EDITOR, AGENT, DEVELOPMENT, PRODUCTION]


def name(policy: Policy) -> str:
    return policy.name


every_preset = pytest.mark.parametrize("policy", ALL, ids=name)


class Sold(RpcError):
    code, message = 900, "Sold"


def market() -> Service:
    service = Service()

    @service.subscription
    async def prices(n: int, fails: str = "", resume_after: int = 0) -> AsyncIterator[int]:
        for cents in range(resume_after, n):
            yield cents
        if fails == "declared":
            raise Sold(data={"at": n})
        if fails == "unforeseen":
            raise ValueError("secret")
        if fails == "unserializable":
            yield object()  # type: ignore[misc]

    @service.query
    def add(a: int, b: int) -> int:
        return a + b

    return service


def said(sent: list[bytes]) -> list[Any]:
    """Reduce answers to their result or error, and notifications to method and params."""
    found: list[Any] = []
    for message in map(json.loads, sent):
        if "method" in message:
            assert "id" not in message
            found.append((message["method"], message["params"]))
        else:
            found.append(message.get("result", message.get("error")))
    return found


@pytest.mark.clause("subscriptions-1")
@every_preset
@pytest.mark.parametrize("dialect", [JSONRPC, LSP, MCP], ids=lambda dialect: dialect.name)
def test_the_answer_comes_first_then_items_then_the_end(policy: Policy, dialect: Dialect) -> None:
    line = Line(policy, market(), dialect=dialect)
    assert said(line.send(request("prices", {"n": 2}))) == [
        {"subscription": 1},
        ("$/item", {"subscription": 1, "seq": 1, "value": 0}),
        ("$/item", {"subscription": 1, "seq": 2, "value": 1}),
        ("$/end", {"subscription": 1}),
    ]
    assert said(line.send(request("prices", {"n": 0}))) == [
        {"subscription": 2},
        ("$/end", {"subscription": 2}),
    ]


@pytest.mark.clause("subscriptions-2")
def test_numbers_follow_the_one_to_go_on_after() -> None:
    line = Line(SPEC, market())
    assert said(line.send(request("prices", {"n": 9, "resume_after": 7}))) == [
        {"subscription": 1},
        ("$/item", {"subscription": 1, "seq": 8, "value": 7}),
        ("$/item", {"subscription": 1, "seq": 9, "value": 8}),
        ("$/end", {"subscription": 1}),
    ]
    [answer] = line.send(request("prices", {"n": 9, "resume_after": -1}))
    assert refusal(answer).code == -32602


@pytest.mark.clause("subscriptions-3")
@every_preset
def test_an_unsubscription_of_nothing_is_ignored(policy: Policy) -> None:
    line = Line(policy, market())
    line.send(request("prices", {"n": 1}))
    for params in ({"subscription": 1}, {"subscription": "x"}, {}, [1], None):
        assert line.send(notification("$/unsubscribe", params)) == []
    assert line.log.lines == []


@pytest.mark.clause("subscriptions-5")
@pytest.mark.parametrize(
    ("fails", "code"), [("declared", 900), ("unforeseen", -32603), ("unserializable", -32016)]
)
def test_the_error_of_a_handler_is_that_of_the_end(fails: str, code: int) -> None:
    line = Line(SPEC, market())
    sent = line.send(request("prices", {"n": 1, "fails": fails}))
    assert b"secret" not in b"".join(sent)
    *_, (method, params) = said(sent)
    assert method == "$/end" and params["error"]["code"] == code
    if fails == "declared":
        assert params["error"] == {"code": 900, "message": "Sold", "data": {"at": 1}}
    else:
        assert params["error"]["data"]["reference"] == "ref-1"


@pytest.mark.clause("subscriptions-6")
@every_preset
def test_its_slot_is_free_afterwards(policy: Policy) -> None:
    line = Line(replace(policy, max_in_flight=1), market())
    for _ in range(5):
        line.send(request("prices", {"n": 1}))
        assert said(line.send(request("add", [1, 2]))) == [3]
    assert line.connection.idle


@pytest.mark.clause("subscriptions-7")
def test_the_preset_limit() -> None:
    assert {policy.max_subscriptions for policy in ALL} == {1024}


@pytest.mark.clause("subscriptions-11")
@every_preset
def test_it_needs_an_id(policy: Policy) -> None:
    line = Line(policy, market())
    answers = line.send(notification("prices", {"n": 1}))
    assert len(answers) == policy.answers_refused_notifications
    for answer in answers:
        assert refusal(answer).reason == "notification-not-allowed"
    assert line.log.lines[0].fields["reason"] == "notification-not-allowed"


@pytest.mark.clause("subscriptions-11")
@pytest.mark.carriers("exchange")
@every_preset
def test_an_exchange_has_none(policy: Policy) -> None:
    [answer] = Line(policy, market()).send(request("prices", {"n": 1}))
    error = json.loads(answer)["error"]
    assert error["code"] == -32601
    assert "needs a connection that stays open" in error["data"]["detail"]
