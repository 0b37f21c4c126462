"""One client: revisions side by side, lists, completions, log lines, changes, outcomes, batches."""

import json
from typing import Any, Literal

import pytest

from duet_rpc import Context, Service
from duet_rpc.errors import UsageError
from duet_rpc.mcp import Mcp, ResourceNotFound
from duet_rpc.policy import AGENT, replace
from tests.mcp.in_hand import InHand
from tests.mcp.line import MODERN, MODERN_META, PREFIX, REVISIONS, McpLine

HANDSHAKES = REVISIONS[:-1]


def make_service() -> Service:
    service = Service("desk", version="2", description="A desk.")

    @service.query(inline=True)
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    @service.query(inline=True)
    def echo(value: Any) -> Any:
        return value

    @service.query(inline=True)
    def quote(text: str) -> str:
        if text == "fail":
            raise ValueError("a secret")
        return text

    @service.query(inline=True)
    def unwritable() -> Any:
        return object()

    @service.command
    def write(text: str) -> int:
        return len(text)

    @service.query
    def speak(ctx: Context) -> None:
        ctx.logger.debug("a %s", "detail")
        ctx.logger.warning("a warning")

    @service.resource("notes://{day}")
    def day(day: int) -> str:
        """What was noted on a day."""
        if day > 31:
            raise ResourceNotFound()
        return f"day {day}"

    @service.resource("files://{path*}", mime_type="text/x-python")
    def file(path: str) -> bytes:
        return path.encode()

    @service.prompt
    def review(code: str, tone: Literal["kind", "keen", "strict"] = "kind") -> str:
        """Review some code."""
        return f"Review {code}, be {tone}"

    @service.completion("review", "code")
    def codes(value: str, arguments: dict[str, str]) -> list[str]:
        return [f"{value}{n}" for n in range(150)] if value else list(arguments)

    return service


def modern(method: str, **params: Any) -> str:
    message = {"jsonrpc": "2.0", "id": "m", "method": method}
    return json.dumps({**message, "params": {**params, "_meta": MODERN_META}})


def test_a_connection_is_not_pinned_to_an_era() -> None:
    client = InHand(make_service())
    call = {"name": "desk_add", "arguments": {"a": 1}}
    (answer,) = client.send(modern("tools/call", **call))
    assert answer["result"]["resultType"] == "complete"
    assert "resultType" not in client.call("desk_add", a=1)
    (discovered,) = client.send(modern("server/discover"))
    assert discovered["result"]["supportedVersions"] == REVISIONS[::-1]


def test_a_method_belongs_to_its_revisions() -> None:
    client = InHand(make_service())
    for method in ("ping", "initialize", "logging/setLevel", "resources/subscribe"):
        (answer,) = client.send(modern(method))
        assert answer["error"]["code"] == -32601
    for method in ("server/discover", "subscriptions/listen", "nonsense"):
        assert client.ask(method)["error"]["code"] == -32601


def test_a_revision_that_is_not_served_is_refused_with_those_that_are() -> None:
    client = InHand(make_service())
    for version in ("2027-01-01", "2025-06-18"):
        meta = {**MODERN_META, PREFIX + "protocolVersion": version}
        error = client.ask("tools/list", {"_meta": meta})["error"]
        assert error["code"] == -32022
        assert error["data"] == {"supported": REVISIONS[::-1], "requested": version}


@pytest.mark.parametrize("asked", ["2019-01-01", MODERN, "nonsense"])
def test_a_handshake_for_another_revision_agrees_on_the_newest_that_has_one(asked: str) -> None:
    client = InHand(make_service())
    opening = {"protocolVersion": asked, "capabilities": {}}
    assert client.ask("initialize", opening)["result"]["protocolVersion"] == HANDSHAKES[-1]


def test_without_a_handshake_there_are_two_ways_to_begin() -> None:
    client = InHand.__new__(InHand)
    InHand.__init__(client, make_service())
    session = client._connection.requests.session
    assert session is not None
    session.revision = None  # type: ignore[attr-defined]
    error = client.ask("tools/list")["error"]
    assert error["code"] == -32602
    assert "initialize" in error["message"] and "protocolVersion" in error["message"]
    assert client.ask("ping")["result"] == {}


@pytest.mark.parametrize("revision", HANDSHAKES)
def test_batches_are_taken_in_the_one_revision_that_has_them(revision: str) -> None:
    client = InHand(make_service(), revision=revision)
    one = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    call = {**one, "params": {"name": "desk_add", "arguments": {"a": 1}}}
    opening = {"jsonrpc": "2.0", "id": 3, "method": "initialize"}
    bad = {**call, "id": 2, "params": {"name": "desk_add", "arguments": {"a": "x"}}}
    (answers,) = client.send(json.dumps([call, bad, opening]))
    if revision != "2025-03-26":
        assert answers["error"]["code"] == -32600
        return
    assert [each["id"] for each in answers] == [1, 2, 3]
    assert answers[0]["result"]["content"] == [{"type": "text", "text": "2"}]
    assert answers[1]["result"]["isError"] is True
    assert answers[2]["error"]["code"] == -32600
    (refused,) = client.send(json.dumps([{**call, "id": id} for id in range(51)]))
    assert refused["error"]["code"] == -32600


def test_lists_come_in_pages() -> None:
    client = InHand(make_service(), face=Mcp(page_size=2))
    names, cursor = [], None
    while True:
        params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
        page = client.ask("tools/list", params)["result"]
        names += [tool["name"] for tool in page["tools"]]
        assert len(page["tools"]) <= 2
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert names == sorted(names) and len(names) == 7
    for wrong in ("", "x", "from-1", "from-99", "from-" + "9" * 99):
        assert client.ask("tools/list", {"cursor": wrong})["error"]["code"] == -32602


def test_resources_are_found_by_their_addresses() -> None:
    client = InHand(make_service())
    read = client.ask("resources/read", {"uri": "notes://12"})["result"]
    assert read == {"contents": [{"uri": "notes://12", "mimeType": "text/plain", "text": "day 12"}]}
    blob = client.ask("resources/read", {"uri": "files://a/b%20c"})["result"]["contents"][0]
    assert blob["mimeType"] == "text/x-python" and blob["blob"] == "YS9iIGM="
    for unknown in ("notes://today", "notes://1/2", "other://1", "notes://32"):
        error = client.ask("resources/read", {"uri": unknown})["error"]
        assert error["code"] == -32002 and error["data"] == {"uri": unknown}
        (answer,) = client.send(modern("resources/read", uri=unknown))
        assert answer["error"]["code"] == -32602


def test_completions_come_from_functions_and_from_closed_sets() -> None:
    client = InHand(make_service())

    def complete(argument: str, value: str, of: str = "review", **more: Any) -> Any:
        ref = {"type": "ref/prompt", "name": of}
        asked = {"ref": ref, "argument": {"name": argument, "value": value}, **more}
        return client.ask("completion/complete", asked)

    many = complete("code", "p")["result"]["completion"]
    assert len(many["values"]) == 100 and many["total"] == 150 and many["hasMore"] is True
    chosen = complete("code", "", context={"arguments": {"tone": "kind"}})
    assert chosen["result"]["completion"]["values"] == ["tone"]
    assert complete("tone", "k")["result"]["completion"]["values"] == ["kind", "keen"]
    assert complete("tone", "k", of="nothing")["error"]["code"] == -32602


def test_log_lines_are_sent_to_who_wants_them() -> None:
    client = InHand(make_service())

    def lines(answers: list[Any]) -> list[tuple[str, str]]:
        said = [each["params"] for each in answers if each.get("method") == "notifications/message"]
        return [(each["level"], each["data"]) for each in said]

    call = '{"jsonrpc":"2.0","id":"l","method":"tools/call","params":{"name":"desk_speak"}}'
    assert lines(client.send(call)) == [("warning", "a warning")]
    assert client.ask("logging/setLevel", {"level": "debug"})["result"] == {}
    assert lines(client.send(call)) == [("debug", "a detail"), ("warning", "a warning")]
    assert client.ask("logging/setLevel", {"level": "loud"})["error"]["code"] == -32602
    assert lines(client.send(modern("tools/call", name="desk_speak"))) == []
    meta = {**MODERN_META, PREFIX + "logLevel": "error"}
    asked = {"jsonrpc": "2.0", "id": "e", "method": "tools/call"}
    loud = {**asked, "params": {"name": "desk_speak", "_meta": meta}}
    assert lines(client.send(json.dumps(loud))) == []
    no_levels: list[Any] = ["loud", 3, ["error"], {}]
    for no_level in no_levels:
        loud["params"] = {"name": "desk_speak", "_meta": meta | {PREFIX + "logLevel": no_level}}
        (refusal,) = client.send(json.dumps(loud))
        assert refusal["error"]["code"] == -32602


def test_changes_of_resources_are_told_to_who_listens() -> None:
    service = make_service()
    client = InHand(service)
    client.ask("resources/subscribe", {"uri": "notes://1"})
    wanted = {"resourceSubscriptions": ["notes://1"], "toolsListChanged": True}
    (told,) = client.send(modern("subscriptions/listen", notifications=wanted))
    assert told["method"] == "notifications/subscriptions/acknowledged"
    assert told["params"]["notifications"] == {"resourceSubscriptions": ["notes://1"]}
    assert told["params"]["_meta"] == {PREFIX + "subscriptionId": "m"}

    def updates(uri: str) -> int:
        before = len(client.host.writes)
        service.resource_updated(uri)
        return b"".join(client.host.writes[before:]).count(b"notifications/resources/updated")

    assert updates("notes://1") == 2
    assert updates("notes://2") == 0
    cancel = {"method": "notifications/cancelled", "params": {"requestId": "m"}}
    assert client.send(json.dumps({"jsonrpc": "2.0", **cancel})) == []
    client.ask("resources/unsubscribe", {"uri": "notes://1"})
    assert updates("notes://1") == 0


def test_the_outcome_of_a_command_is_a_tool() -> None:
    client = InHand(make_service())
    known = {"tool": "desk_write", "idempotency_key": "k"}
    assert client.call("outcome", **known)["structuredContent"] == {"state": "none"}
    client.call("desk_write", text="abc", idempotency_key="k")
    told = client.call("outcome", **known)["structuredContent"]
    assert told == {"state": "done", "result": 3}
    wrong = client.call("outcome", tool="desk_add", idempotency_key="k")
    assert wrong["isError"] is True and "desk_write" in wrong["content"][0]["text"]
    other = client.call("desk_write", text="other", idempotency_key="k")
    assert other["isError"] is True and "Choose a new" in other["content"][0]["text"]
    taken = Service()
    taken.query(name="outcome")(lambda: 1)
    taken.command(name="act")(lambda: 1)
    with pytest.raises(UsageError, match="outcome"):
        InHand(taken)


@pytest.mark.parametrize("method", ["ping", "tools/call", "resources/read"])
def test_null_metadata_is_none(method: str) -> None:
    """Some languages write null for what is not given, as Go and Swift do."""
    client = InHand(make_service())
    wanted: dict[str, dict[str, Any]] = {
        "tools/call": {"name": "desk_add", "arguments": {"a": 1}},
        "resources/read": {"uri": "notes://3"},
    }
    params = wanted.get(method, {})
    plain, null = client.ask(method, params), client.ask(method, {**params, "_meta": None})
    assert "result" in plain and null["result"] == plain["result"]
    wrong = client.ask(method, {**params, "_meta": []})
    assert wrong["error"]["code"] == -32602


@pytest.mark.clause("revisions-6")
def test_the_id_of_a_request_that_listens_is_taken() -> None:
    """The answer of another would be taken for the end of it."""
    line = McpLine()
    listens = {"notifications": {}, "_meta": MODERN_META}
    (acknowledged,) = line.say("subscriptions/listen", listens, id=1)
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    call = {"name": "zoo_number", "arguments": {"a": 1}, "_meta": MODERN_META}
    for method, params in (("tools/call", call), ("subscriptions/listen", listens)):
        (refused,) = line.say(method, params, id=1)
        assert refused["error"]["data"]["reason"] == "duplicate-id"
    assert line.say("notifications/cancelled", {"requestId": 1}) == []
    (answer,) = line.say("tools/call", call, id=1)
    assert answer["result"]["resultType"] == "complete"


@pytest.mark.clause("revisions-8")
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("calls", [AGENT.max_in_flight, 40, 300])
def test_the_protocol_itself_is_answered_while_every_slot_is_taken(
    calls: int, revision: str
) -> None:
    """A host takes a server that does not answer its ping for dead, and kills it."""
    line = McpLine()
    line.open(revision)
    meta = {"_meta": MODERN_META} if revision == MODERN else {}
    for number in range(calls):
        line.say("tools/call", {"name": "zoo_hold", **meta}, id=number)
    assert len(line.host.open) == AGENT.max_in_flight
    line.connection.refuse()  # what a host does after a moment if the queue is full
    assert len(line.take()) == max(0, calls - AGENT.max_in_flight - AGENT.max_queued)
    alive = "server/discover" if revision == MODERN else "ping"
    for number, method in enumerate((alive, "tools/list", "prompts/list", "resources/list")):
        (answer,) = line.say(method, meta, id=f"p{number}")
        assert answer["id"] == f"p{number}" and "result" in answer
    assert len(line.host.open) == AGENT.max_in_flight
    for number in range(min(calls, 20)):
        assert [each["id"] for each in line.release(line.host.open[0])] == [number]


@pytest.mark.clause("revisions-8")
def test_a_batch_of_slow_calls_starves_no_one() -> None:
    line = McpLine()
    line.open("2025-03-26")
    slow = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "zoo_hold"}}
    ping = {"jsonrpc": "2.0", "method": "ping", "id": "inside"}
    batch = [{**slow, "id": number} for number in range(40)] + [ping]
    assert line.send(json.dumps(batch).encode()) == []
    assert line.say("ping", id="beside") == [{"jsonrpc": "2.0", "id": "beside", "result": {}}]
    answers: list[Any] = []
    while not answers:
        answers = line.release(line.host.open[0])
    assert len(answers[0]) == 41 and answers[0][-1]["id"] == "inside"


ODD_ENOUGH = [
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_add","arguments":{"a":1}}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_add","arguments":{"a":"x"}}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_add"}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_quote","arguments":{"text":"a\\"b\\u00e9"}}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_quote","arguments":{"text":"fail"}}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_quote","arguments":{"text":"é"}}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_echo","arguments":{"value":{"a":[1,null,"x"]}}}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_echo","arguments":{"value":"\\ud800"}}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_echo","arguments":{"value":'
    + "[" * 70
    + "]" * 70
    + "}}}",
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_unwritable"}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_add","arguments":{"a":1},"x":1}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_add","arguments":{"a":1,"_meta":{}}}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"desk_add","arguments":{"a":1},"_meta":{"progressToken":1}}}',
    '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"nothing"}}',
]


@pytest.mark.parametrize("id", ["1", "0", "-0", '"a"', '"\\u0061"', '"é"', "1.0", "null"])
@pytest.mark.parametrize("line", ODD_ENOUGH)
@pytest.mark.parametrize("revision", HANDSHAKES)
def test_the_fast_path_answers_as_the_slow_one_does(revision: str, line: str, id: str) -> None:
    fast, slow = (InHand(make_service(), revision=revision) for _ in range(2))
    assert fast.dispatcher.answer_at_once is not None
    slow.dispatcher.answer_at_once = slow.dispatcher.intake = None
    answers = []
    for client in (fast, slow):
        before = len(client.host.writes)
        client.send(line % id)
        written = b"".join(client.host.writes[before:])
        answers.append([_without_reference(each) for each in written.splitlines()])
    assert answers[0] == answers[1]
    assert len(answers[0]) == 1


def _without_reference(answer: bytes) -> bytes:
    import re

    return re.sub(rb"[0-9a-f]{12}", b"REFERENCE", answer)


@pytest.mark.clause("order-13")
def test_tools_that_act_run_in_order_beside_those_that_read() -> None:
    service = Service("desk")

    @service.query
    def look(ctx: Context) -> str:
        return "looked"

    @service.command
    def act(number: int) -> int:
        return number

    agent = InHand(service, policy=replace(AGENT, ordered_commands=True))
    agent.host.held = {"desk.look", "desk.act"}

    def call(id: int, tool: str, **arguments: int) -> list[Any]:
        params = {"name": tool, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        return agent.send(json.dumps(message))

    for id in (11, 12):
        call(id, "desk_act", number=id)
    call(13, "desk_look")
    call(14, "desk_act", number=14)
    (unknown,) = call(15, "desk_gone")
    assert unknown["error"]["code"] == -32602
    assert [job.id for job in agent.host.open] == [b"11", b"13"]
    began = []
    while agent.host.open:
        job = agent.host.open.pop(0)
        began.append(job.id)
        agent.host.run(job)
        connection = agent.host.connection
        assert connection is not None
        connection.go_on()
    assert began == [b"11", b"13", b"12", b"14"]
