"""Every message that leaves the server is one of its revision, by the published schema."""

import json
from typing import Any

import pytest

from tests.mcp.conversation import NO_MESSAGES, NOTIFICATIONS, ODD_META, REQUESTS, with_meta
from tests.mcp.line import MODERN, REVISIONS, Foreseen, McpLine
from tests.mcp.published import published

revisions = pytest.mark.parametrize("revision", REVISIONS)


def only(answers: list[Any]) -> Any:
    [answer] = [each for each in answers if "method" not in each]
    return answer


@revisions
def test_each_answer_fits_the_schema(revision: str) -> None:
    schema, line = published(revision), McpLine(held=False)
    opening = line.open(revision)
    schema.check(only(opening), "server/discover" if revision == MODERN else "initialize")
    for id, (method, params) in enumerate(REQUESTS):
        if method == "initialize" and params:
            continue  # it would agree on another revision
        for message in line.say(method, with_meta(params, revision), id=id):
            schema.check(message, method)
            assert message.get("id", id) == id
    unforeseen = [each for each in line.log.failures if not isinstance(each, Foreseen)]
    assert {type(each).__name__ for each in unforeseen} <= {"Unserializable"}


@revisions
def test_each_request_is_answered_once_under_its_id(revision: str) -> None:
    line = McpLine(held=False)
    line.open(revision)
    for id in (0, -1, 2**53, 10**30, "", "0", "\ud800", "é\U0001f600", 'a"b\\c\n'):
        answer = only(line.say("tools/list", with_meta({}, revision), id=id))
        assert "result" in answer
        assert (type(answer["id"]), answer["id"]) == (type(id), id)


@revisions
def test_notifications_are_not_answered(revision: str) -> None:
    line = McpLine(held=False)
    line.open(revision)
    for method, params in NOTIFICATIONS:
        assert line.say(method, with_meta(params, revision)) == [], method


@revisions
@pytest.mark.parametrize("meta", ODD_META, ids=lambda meta: json.dumps(meta)[:60])
def test_odd_metadata(revision: str, meta: Any) -> None:
    line = McpLine(held=False)
    line.open(revision)
    params = {"name": "zoo_steps", "arguments": {"count": 2}, "_meta": meta}
    for message in line.say("tools/call", params, id=1):
        # What names the newest revision, even wrongly, is answered in it or with an error.
        is_modern = isinstance(meta, dict) and any("protocolVersion" in name for name in meta)
        published(MODERN if is_modern else revision).check(message, "tools/call")


@revisions
@pytest.mark.parametrize("line_", NO_MESSAGES, ids=lambda line: repr(line[:60]))
def test_what_is_no_message_is_answered_at_most_once(revision: str, line_: bytes) -> None:
    line = McpLine(held=False)
    line.open(revision)
    answers = line.send(line_)
    assert len(answers) <= 1
    if answers and isinstance(answers[0], list):
        assert revision == "2025-03-26", "where there are batches"
        [answers] = answers
    for answer in answers:
        published(revision).check_answer(answer, None)
        assert answer["error"]["code"] in (-32700, -32600, -32601, -32602)
    assert only(line.say("tools/list", with_meta({}, revision), id="after"))["id"] == "after"


@revisions
def test_before_the_opening(revision: str) -> None:
    for method, params in REQUESTS:
        line = McpLine(held=False)
        for message in line.say(method, params, id=1):
            # No revision was agreed on: it is answered as the newest with a handshake.
            published("2025-11-25").check(message, method)


def test_a_batch_where_there_are_batches() -> None:
    line, schema = McpLine(held=False), published("2025-03-26")
    line.open("2025-03-26")
    asked = {id: each for id, each in enumerate(REQUESTS[:40])}
    batch = [
        {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        for id, (method, params) in asked.items()
        if params is not None
    ]
    [answers] = [each for each in line.send(json.dumps(batch).encode()) if isinstance(each, list)]
    assert sorted(each["id"] for each in answers) == [each["id"] for each in batch]
    for answer in answers:
        schema.check_answer(answer, asked[answer["id"]][0])


@pytest.mark.parametrize("revision", [each for each in REVISIONS if each != "2025-03-26"])
def test_a_batch_elsewhere_is_one_error(revision: str) -> None:
    line = McpLine(held=False)
    line.open(revision)
    answer = only(line.send(b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]'))
    published(revision).check_answer(answer, None)
    assert answer["error"]["code"] == -32600
