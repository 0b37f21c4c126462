"""What a tool says of itself: descriptions, schemas, options."""

from datetime import datetime
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from duet_rpc import Service, Whole
from duet_rpc.errors import UsageError
from duet_rpc.mcp import Icon, ToolOptions
from duet_rpc.mcp.tools import MAX_DESCRIPTION, make_tools
from tests.mcp.in_hand import InHand

service = Service("bank")


@service.command
def transfer(
    source: Annotated[str, Meta(description="who pays")], cents: int, why: str = ""
) -> int:
    """Move money.

    It cannot be moved back.

    Args:
        source: not this
        cents: how much, in cents
        why: shown to
            both of them
    """
    return cents


@pytest.mark.clause("tools-3")
def test_parameters_are_described_by_hints_and_by_the_docstring() -> None:
    said = InHand(service).tools()["bank_transfer"]
    assert said["description"] == "Move money.\n\nIt cannot be moved back."
    properties = said["inputSchema"]["properties"]
    assert properties["source"]["description"] == "who pays"
    assert properties["cents"]["description"] == "how much, in cents"
    assert properties["why"] == {
        "type": "string",
        "default": "",
        "description": "shown to both of them",
    }


@pytest.mark.clause("tools-3")
def test_a_description_that_is_given_goes_before_the_docstring() -> None:
    other = Service()
    other.query(name="a", description="Given.")(lambda: None)
    other.query(name="b.much_more")(lambda: None)
    tools = InHand(other).tools()
    assert tools["a"]["description"] == "Given."
    assert tools["b_much_more"]["description"] == "B much more."


@pytest.mark.parametrize(
    ("doc", "end"),
    [
        ("A paragraph.\n\n" * 200, "A paragraph."),
        ("One sentence. " * 200, "One sentence."),
        ("word " * 500, "word ..."),
        ("x" * 5000, "x ..."),
    ],
)
@pytest.mark.clause("tools-3")
def test_a_long_docstring_is_cut_where_it_hurts_least(doc: str, end: str) -> None:
    def talk() -> None: ...

    talk.__doc__ = doc
    long = Service()
    long.query(talk)
    description = InHand(long).tools()["talk"]["description"]
    assert MAX_DESCRIPTION // 2 < len(description) <= MAX_DESCRIPTION and description.endswith(end)


class Span(Struct):
    """A stretch of time.

    Attributes:
        start: when it begins
    """

    start: datetime
    end: datetime | None = None


@pytest.mark.clause("tools-8")
def test_times_are_marked_as_times_in_arguments() -> None:
    times = Service()

    @times.query
    def book(
        at: datetime, spans: list[Span], naive: Annotated[datetime, Meta(tz=False)], also: str
    ) -> Span:
        return spans[0]

    @times.query
    def whole(params: Whole[Span]) -> datetime | None:
        return params.end

    tools = InHand(times).tools()
    schema = tools["book"]["inputSchema"]
    assert schema["properties"]["at"] == {"type": "string", "format": "date-time"}
    assert schema["properties"]["naive"] == {"type": "string"}
    assert schema["properties"]["also"] == {"type": "string"}
    span = schema["$defs"]["Span"]["properties"]
    assert span["start"]["format"] == "date-time"
    assert span["end"]["anyOf"] == [{"type": "string", "format": "date-time"}, {"type": "null"}]
    # A result may have no time zone, which the format wants: clients would refuse it.
    assert "format" not in tools["book"]["outputSchema"]["properties"]["start"]
    properties = tools["whole"]["inputSchema"]["properties"]
    assert properties["start"] == {
        "type": "string",
        "format": "date-time",
        "description": "when it begins",
    }


@pytest.mark.parametrize("tool", [{"title": "x"}, "x", ToolOptions])
def test_what_is_no_tool_options_is_refused_with_advice(tool: Any) -> None:
    with pytest.raises(UsageError, match=r"notes\.f: tool is .*; give ToolOptions\(\.\.\.\)"):
        Service("notes").query(name="notes.f", tool=tool)(lambda: None)
    with pytest.raises(UsageError, match=r"notes\.f: tool is .*; give ToolOptions\(\.\.\.\)"):
        Service("notes").command(name="notes.f", tool=tool)(lambda: None)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"input_schema": []}, "a dict with texts as its keys"),
        ({"input_schema": {"type": "array"}}, '"type": "object"'),
        ({"input_schema": {"type": "object", "x": object()}}, "cannot be written as JSON"),
        ({"icons": ["https://example.com/x.png"]}, "a list of Icon"),
        ({"meta": {1: 2}}, "a dict with texts as its keys"),
        ({"title": 3}, "a text, or None"),
        ({"destructive": 1}, "True, False or None"),
        ({"task": "maybe"}, '"forbidden", "optional" or "required"'),
    ],
)
def test_options_that_cannot_work_are_refused(options: Any, advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        ToolOptions(**options)


OWN: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "$defs": {"city": {"$anchor": "c", "type": "string", "minLength": 2}},
    "anyOf": [{"required": ["city"]}],
    "additionalProperties": False,
}


@pytest.mark.clause("tools-9")
def test_a_schema_of_the_authors_own_is_kept_as_it_is() -> None:
    weather = Service()

    @weather.query(tool=ToolOptions(input_schema=OWN))
    def forecast(city: str) -> str:
        return f"rain in {city}"

    @weather.query(tool=ToolOptions(input_schema=OWN))
    def whole(params: Whole[dict[str, Any]]) -> Any:
        return params

    client = InHand(weather)
    assert client.tools()["forecast"]["inputSchema"] == OWN
    assert client.tools()["whole"]["inputSchema"] == OWN
    assert client.call("forecast", city="Oslo")["structuredContent"] == {"result": "rain in Oslo"}
    assert client.call("whole", city="Oslo")["structuredContent"] == {"city": "Oslo"}


@pytest.mark.clause("tools-9")
def test_a_command_adds_its_key_to_it() -> None:
    made = Service()

    @made.command(tool=ToolOptions(input_schema=OWN))
    def visit(city: str) -> str:
        return city

    schema = InHand(made).tools()["visit"]["inputSchema"]
    assert schema["properties"].keys() == {"city", "idempotency_key"} and "required" not in schema
    assert {**schema, "properties": OWN["properties"]} == OWN


@pytest.mark.parametrize(("name", "words"), [("town", "has city, which"), ("x", "has city, which")])
@pytest.mark.clause("tools-9")
def test_a_schema_that_does_not_fit_the_function_is_refused(name: str, words: str) -> None:
    made = Service()
    handler = eval(f"lambda {name}: None")
    made.query(name="visit", tool=ToolOptions(input_schema=OWN))(handler)
    with pytest.raises(UsageError, match=words):
        InHand(made)
    made = Service()
    made.query(name="visit", tool=ToolOptions(input_schema={"type": "object"}))(handler)
    with pytest.raises(UsageError, match=f"takes {name}, which its input_schema does not"):
        InHand(made)


def test_icons_and_meta_are_told_to_the_revisions_that_have_them() -> None:
    made = Service()
    options = ToolOptions(
        icons=[Icon("data:image/png;base64,AA==", sizes=["48x48"])],
        meta={"com.example/group": "a"},
        title="Look",
    )
    made.query(name="look", tool=options)(lambda: None)
    said = InHand(made).tools()["look"]
    assert said["icons"] == [{"src": "data:image/png;base64,AA==", "sizes": ["48x48"]}]
    assert said["_meta"] == {"com.example/group": "a"} and said["title"] == "Look"
    said = InHand(made, revision="2025-06-18").tools()["look"]
    assert "icons" not in said and said["_meta"] == {"com.example/group": "a"}
    said = InHand(made, revision="2025-03-26").tools()["look"]
    assert "icons" not in said and "_meta" not in said and "title" not in said


def test_the_arguments_of_a_prompt_are_described_in_the_same_ways() -> None:
    made = Service()

    @made.prompt
    def review(code: Annotated[str, Meta(description="what to read")], style: str = "") -> str:
        """Review some code.

        :param style: in which manner
        """
        return code

    (prompt,) = InHand(made).ask("prompts/list")["result"]["prompts"]
    assert prompt["description"] == "Review some code."
    assert prompt["arguments"] == [
        {"name": "code", "required": True, "description": "what to read"},
        {"name": "style", "required": False, "description": "in which manner"},
    ]


def test_a_command_whose_arguments_are_its_key_is_no_task() -> None:
    """Its key is good for a while, and a task is found by its key for a day."""
    service = Service("t")

    @service.command(dedupe="arguments")
    def act() -> int:
        return 1

    tools = make_tools(service, service, key_required=False)
    assert not tools["t_act"].has_task

    @service.command(dedupe="arguments", tool=ToolOptions(task="required"))
    def wait() -> int:
        return 1

    with pytest.raises(UsageError, match="exclude each other"):
        make_tools(service, service, key_required=False)
