"""What the contract says of tools and their results, in every revision that has them."""

from typing import Any

import pytest
from msgspec import Struct

from duet_rpc import RpcError, Service
from duet_rpc.errors import Overloaded, UsageError
from duet_rpc.mcp import (
    Content,
    EmbeddedResource,
    Image,
    ResourceContents,
    ResourceLink,
    Text,
    ToolOptions,
)
from duet_rpc.policy import AGENT, PRODUCTION
from tests.mcp.in_hand import InHand

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
EVERY = pytest.mark.parametrize("revision", REVISIONS)


class NoteNotFound(RpcError):
    """Raised by `notes.get`."""

    code = 404
    message = "Note not found"


class Note(Struct):
    id: int
    text: str


service = Service("notes")
runs: list[str] = []


@service.query
def get(id: int) -> Note:
    """Get a note."""
    if id > 9:
        raise NoteNotFound(data={"id": id})
    return Note(id, "milk")


@service.query
def count() -> int:
    """Count the notes."""
    return 3


@service.query
def first() -> str:
    """Say the first note."""
    return 'buy "milk"'


@service.command
def add(text: str) -> int:
    """Add a note."""
    runs.append(text)
    return len(runs)


@service.query
def fail() -> None:
    """Fail without having foreseen it."""
    raise ValueError("a secret of the database")


@service.query
def busy() -> None:
    """Be busy."""
    raise Overloaded(data={"reason": "overloaded", "retry_after_ms": 20})


@service.query
def picture() -> list[Content]:
    """Show a picture."""
    return [Text("a cat"), Image(b"png"), ResourceLink("cat://1", "cat")]


@service.query(tool=ToolOptions(hidden=True))
def secret() -> None: ...


@service.notification
def heard() -> None: ...


@EVERY
@pytest.mark.clause("tools-1")
def test_queries_and_commands_are_tools_sorted_by_name(revision: str) -> None:
    names = [name for name in InHand(service, revision=revision).tools() if name[:6] == "notes_"]
    assert names == [
        f"notes_{name}" for name in ("add", "busy", "count", "fail", "first", "get", "picture")
    ]


@pytest.mark.clause("tools-1")
def test_odd_characters_become_an_underscore() -> None:
    odd = Service()
    odd.query(name="größe/von.a b")(lambda: None)
    assert list(InHand(odd).tools()) == ["gr__e_von_a_b"]


@pytest.mark.clause("tools-2")
def test_names_that_no_host_takes_are_refused_at_the_start() -> None:
    twice = Service()
    twice.query(name="a.b")(lambda: None)
    twice.query(name="a_b")(lambda: None)
    with pytest.raises(UsageError, match=r"a_b and a\.b would both be the tool a_b"):
        InHand(twice)
    long = Service()
    long.query(name="x" * 65)(lambda: None)
    with pytest.raises(UsageError, match="64 characters at most; give it a shorter name="):
        InHand(long)


@pytest.mark.clause("tools-6")
def test_all_four_hints_are_stated() -> None:
    made = Service()
    made.query(name="read")(lambda: None)
    made.command(name="act")(lambda: None)
    made.command(name="again", retry_safe=True)(lambda: None)
    said = ToolOptions(destructive=False, open_world=True, idempotent=True)
    made.command(name="said", tool=said)(lambda: None)
    names = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    tools = InHand(made, revision="2025-03-26").tools()
    hints = {name: [tool["annotations"][hint] for hint in names] for name, tool in tools.items()}
    assert hints["read"] == [True, False, True, False]
    assert hints["act"] == [False, True, False, False]
    assert hints["again"] == [False, True, True, False]
    assert hints["said"] == [False, False, True, True]
    assert "annotations" not in InHand(made, revision="2024-11-05").tools()["read"]
    required = InHand(made, policy=PRODUCTION).tools()["act"]
    assert required["annotations"]["idempotentHint"] is True, "the key is always there"


@pytest.mark.parametrize(("policy", "required"), [(AGENT, ["text"]), (PRODUCTION, None)])
@pytest.mark.clause("tools-7")
def test_commands_take_a_key(policy: Any, required: list[str] | None) -> None:
    tools = InHand(service, policy=policy).tools()
    schema = tools["notes_add"]["inputSchema"]
    assert schema["required"] == (required or ["text", "idempotency_key"])
    assert "idempotency_key" in schema["properties"]
    assert "idempotency_key" not in tools["notes_get"]["inputSchema"]["properties"]


@pytest.mark.clause("tools-7")
def test_a_repeated_call_has_one_effect_wherever_its_key_is() -> None:
    runs.clear()
    client = InHand(service)
    first = client.call("notes_add", text="milk", idempotency_key="k")
    assert client.call("notes_add", text="milk", idempotency_key="k") == first
    for beside in (
        {"_meta": {"duet-rpc/idempotency-key": "k"}},
        {"_meta": {"idempotency_key": "k"}},
        {"idempotencyKey": "k"},
    ):
        params = {"name": "notes_add", "arguments": {"text": "milk"}, **beside}
        assert client.ask("tools/call", params)["result"] == first
    assert runs == ["milk"]
    failed = client.call("notes_add", text="eggs", idempotency_key="k")
    assert failed["isError"] is True and "Choose a new" in failed["content"][0]["text"]
    assert runs == ["milk"]


@EVERY
@pytest.mark.clause("results-1", "results-2")
def test_results_stand_in_both_places_with_the_same_data(revision: str) -> None:
    client = InHand(service, revision=revision)
    expected: list[tuple[Any, str, Any]] = [
        (client.call("notes_get", id=1), '{"id":1,"text":"milk"}', {"id": 1, "text": "milk"}),
        (client.call("notes_count"), "3", {"result": 3}),
        (client.call("notes_first"), 'buy "milk"', {"result": 'buy "milk"'}),
    ]
    for result, text, structured in expected:
        assert result.pop("content") == [{"type": "text", "text": text}]
        has_structure = revision >= "2025-06-18"
        assert result == ({"structuredContent": structured} if has_structure else {})


@pytest.mark.clause("results-3")
def test_content_goes_out_as_it_is() -> None:
    assert InHand(service).call("notes_picture") == {
        "content": [
            {"type": "text", "text": "a cat"},
            {"type": "image", "data": "cG5n", "mimeType": "image/png"},
            {"type": "resource_link", "uri": "cat://1", "name": "cat"},
        ]
    }
    assert "outputSchema" not in InHand(service).tools()["notes_picture"]
    old = InHand(service, revision="2025-03-26").call("notes_picture")
    assert old["content"][2] == {"type": "text", "text": "cat: cat://1"}


@pytest.mark.clause("results-3")
def test_one_block_is_a_list_of_one() -> None:
    made = Service()

    @made.query
    def read() -> EmbeddedResource:
        return EmbeddedResource(ResourceContents("x://1", text="x"))

    assert InHand(made).call("read") == {
        "content": [{"type": "resource", "resource": {"uri": "x://1", "text": "x"}}]
    }


@EVERY
@pytest.mark.clause("results-4")
def test_an_error_is_a_result_that_a_model_reads(revision: str) -> None:
    result = InHand(service, revision=revision).call("notes_get", id=10)
    assert result["isError"] is True and "structuredContent" not in result
    assert result["content"] == [{"type": "text", "text": 'Note not found\n{"id":10}'}]
    error = result["_meta"]["duet-rpc/error"]
    assert error == {"code": 404, "message": "Note not found", "data": {"id": 10}}


@pytest.mark.clause("results-4", "results-6")
def test_what_to_do_is_part_of_the_text() -> None:
    answer = InHand(service).ask("tools/call", {"name": "notes_busy", "arguments": {}})
    assert "error" not in answer
    first, second = answer["result"]["content"][0]["text"].splitlines()
    assert "verloaded" in first and "in 20 ms" in second and "Nothing was done" in second


@EVERY
@pytest.mark.clause("results-5")
def test_bad_arguments_are_a_result_and_an_unknown_tool_is_an_error(revision: str) -> None:
    client = InHand(service, revision=revision)
    result = client.call("notes_get", id="one")
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("Invalid arguments: id has to be integer")
    assert client.call("notes_get")["isError"] is True
    assert client.call("notes_get", id=1, more=2)["isError"] is True
    unknown = client.ask("tools/call", {"name": "notes_gone", "arguments": {}})
    assert unknown["error"]["code"] == -32602
    assert client.ask("tools/gone")["error"]["code"] == -32601


@pytest.mark.clause("results-7")
def test_the_text_of_an_unforeseen_exception_is_kept_back() -> None:
    result = InHand(service).call("notes_fail")
    text = result["content"][0]["text"]
    assert result["isError"] is True and "Reference: ref-1" in text
    assert "secret" not in str(result)
