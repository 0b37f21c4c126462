"""Each rule of the hosts, broken by one service and kept by another."""

from typing import Annotated, Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from duet_rpc import Name, Service, Whole
from duet_rpc.mcp import ToolOptions
from duet_rpc.mcp.host_rules import (
    MAX_TOOLS,
    MAX_TOOLS_CURSOR,
    RULES,
    Finding,
    Offered,
    find_problems,
)
from duet_rpc.mcp.schemas import REFERENCE
from duet_rpc.mcp.tools import MAX_DESCRIPTION, Tool, make_tools


def tools_of(service: Service) -> dict[str, Tool]:
    return make_tools(service, list(service), key_required=False)


def look(word: str = "") -> list[str]:
    """Look for a word."""
    return [word]


def offer(*handlers: Any, server: str = "notes", **options: Any) -> Offered:
    """Offer functions as queries; options are those of the first."""
    service = Service()
    for handler in handlers:
        service.query(**options)(handler)
        options = {}
    return Offered(server=server, tools=tools_of(service))


def command(**options: Any) -> dict[str, Tool]:
    service = Service()
    service.command(name="act", description="Act.", **options)(lambda: None)
    return tools_of(service)


def changed(**changes: Any) -> Offered:
    """Offer a tool that could not be registered like this."""
    (tool,) = offer(look).tools.values()
    return Offered(server="notes", tools={"look": replace(tool, **changes)})


def many(count: int) -> Offered:
    (tool,) = offer(look).tools.values()
    return Offered(server="notes", tools={f"look{number}": tool for number in range(count)})


class Node(Struct):
    """A node."""

    children: "list[Node]"


def tree(root: Node) -> None:
    """Look at a tree."""


def whole(params: Whole[list[int]]) -> None:
    """Take an array."""


def odd(word: Annotated[str, Name("the word")]) -> None:
    """Take a word."""


def undescribed() -> None: ...


BREAKING: dict[str, Offered] = {
    "server-name": offer(look, server="my notes"),
    "name": changed(name="notes.look"),
    "full-name": offer(look, server="n" * 54),
    "input-type": changed(input_schema={"properties": {}}),
    "input-root": offer(
        look,
        tool=ToolOptions(
            input_schema={"type": "object", "properties": {"word": {}}, "oneOf": [{}]}
        ),
    ),
    "property-name": offer(odd),
    "array-params": offer(whole),
    "output-type": changed(output_schema={"type": "array"}),
    "reference": changed(
        input_schema={"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}}
    ),
    "tools": many(MAX_TOOLS + 1),
    "tools-cursor": many(MAX_TOOLS_CURSOR + 1),
    "description": offer(undescribed),
    "description-length": offer(look, description="x" * (MAX_DESCRIPTION + 1)),
    "schema-size": offer(
        look,
        tool=ToolOptions(
            input_schema={"type": "object", "properties": {"word": {"description": "x" * 5000}}}
        ),
    ),
    "recursion": offer(tree),
    "hints": Offered(server="notes", tools=command(retry_safe=True)),
    "store": Offered(
        server="notes",
        tools=command(retry_safe=True, tool=ToolOptions(destructive=True)),
        has_store=False,
    ),
    "repetition": Offered(server="notes", tools=command(tool=ToolOptions(destructive=True))),
    "timeout-codex": offer(look, timeout=301.0),
    "timeout-zed": offer(look, timeout=61.0),
}
KEEPING = [
    offer(look),
    offer(look, timeout=60.0),
    many(MAX_TOOLS_CURSOR),
    offer(look, server="n" * 53),
    offer(look, description="x" * MAX_DESCRIPTION),
    Offered(server="notes", tools=command(tool=ToolOptions(destructive=True), dedupe="arguments")),
    Offered(server="notes", tools=command(tool=ToolOptions(destructive=True, idempotent=False))),
    Offered(server="notes", tools=offer(look).tools, has_store=False),
]


def test_there_is_a_case_for_each_rule() -> None:
    assert BREAKING.keys() == {rule.id for rule in RULES}
    assert len(RULES) == len(BREAKING), "an id is one rule's"


@pytest.mark.parametrize("rule", BREAKING)
def test_a_rule_that_is_broken_is_found(rule: str) -> None:
    found = find_problems(BREAKING[rule])
    also = {"timeout-codex": {"timeout-zed"}}.get(rule, set())
    assert {each.rule for each in found} == {rule} | also
    for each in found:
        assert isinstance(each, Finding) and each.problem and each.advice and each.hosts


@pytest.mark.parametrize("offered", KEEPING)
def test_what_keeps_the_rules_is_left_alone(offered: Offered) -> None:
    assert find_problems(offered) == []


def test_errors_come_first() -> None:
    found = find_problems(offer(undescribed, odd))
    assert [each.severity for each in found] == ["error", "warning"]


def test_a_definition_that_is_missing_is_found_and_an_anchor_is_not() -> None:
    def refer(to: str) -> list[Finding]:
        schema = {"type": "object", "properties": {"a": {"$ref": to}}}
        return find_problems(changed(input_schema=schema))

    assert [each.rule for each in refer(f"{REFERENCE}Gone")] == ["reference"]
    assert refer("#anchor") == []
