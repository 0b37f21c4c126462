"""What hosts and the model APIs behind them take of a server, as data: one entry for each rule.

A host is a program that starts servers and shows their tools to a model. Where a rule is broken,
some of them refuse the tool, or all tools at once; others cut, ask or give up earlier than one
expects. `duet-rpc mcp check` goes through the rules before a host does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.json import encode

from duet_rpc.mcp.schemas import COMBINED, REFERENCE, list_references
from duet_rpc.mcp.tools import MAX_DESCRIPTION, MAX_NAME, Tool
from duet_rpc.service import Kind
from duet_rpc.startup import pattern

Severity = Literal["error", "warning"]

TOOL_NAME = rf"[a-zA-Z0-9_-]{{1,{MAX_NAME}}}"
PROPERTY_NAME = r"[a-zA-Z0-9_.-]{1,64}"
SERVER_NAME = r"[a-zA-Z0-9_-]+"
MAX_SCHEMA_BYTES = 5000
MAX_TOOLS = 128
MAX_TOOLS_CURSOR = 40
ZED_SECONDS, CODEX_SECONDS = 60, 300

NOT_CHECKED = (
    "Not checked, because it is not known before a call: the size of results. Claude Code takes"
    " 25,000 tokens of one."
)


class Offered(Struct, frozen=True, kw_only=True):
    """What a host would be offered."""

    server: str
    """The name that the server has in the host's configuration."""
    tools: Mapping[str, Tool]
    has_store: bool = True
    """Whether commands are remembered longer than the process lives."""


class HostRule(Struct, frozen=True, kw_only=True):
    """One rule: of whom, how bad it is to break it, how it is found and mended."""

    id: str
    severity: Severity
    """An error makes a host refuse something; a warning is for the author to weigh."""
    hosts: str
    """Whose rule it is."""
    advice: str
    of_tool: Callable[[Tool, Offered], str | None] | None = None
    """Says in which way a tool breaks it, if it does."""
    of_server: Callable[[Offered], str | None] | None = None
    """Says in which way the server as a whole does."""


class Finding(Struct, frozen=True, kw_only=True):
    """A rule that is broken."""

    rule: str
    severity: Severity
    tool: str | None
    """None if it is not about one tool."""
    hosts: str
    problem: str
    advice: str


def find_problems(offered: Offered, rules: "Iterable[HostRule] | None" = None) -> list[Finding]:
    """Find what breaks a rule: errors first, in the order of the rules."""
    found = [each for rule in (RULES if rules is None else rules) for each in _apply(rule, offered)]
    return sorted(found, key=lambda finding: finding.severity != "error")


def _apply(rule: HostRule, offered: Offered) -> Iterator[Finding]:
    broken: list[tuple[str | None, str | None]] = []
    if rule.of_server is not None:
        broken.append((None, rule.of_server(offered)))
    if rule.of_tool is not None:
        broken += [(name, rule.of_tool(tool, offered)) for name, tool in offered.tools.items()]
    for tool_name, problem in broken:
        if problem is not None:
            yield Finding(
                rule=rule.id,
                severity=rule.severity,
                tool=tool_name,
                hosts=rule.hosts,
                problem=problem,
                advice=rule.advice,
            )


def full_name(tool: Tool, offered: Offered) -> str:
    """Say the name that a model sees, which tells the servers of a host apart."""
    return f"mcp__{offered.server}__{tool.name}"


def _check_name(tool: Tool, offered: Offered) -> str | None:
    if pattern(TOOL_NAME).fullmatch(tool.name):
        return None
    return f"the name is not 1 to {MAX_NAME} of a-z, A-Z, 0-9, _ and -"


def _check_full_name(tool: Tool, offered: Offered) -> str | None:
    name = full_name(tool, offered)
    if len(name) <= MAX_NAME:
        return None
    return f"{name} has {len(name)} characters, {MAX_NAME} are allowed"


def _check_server_name(offered: Offered) -> str | None:
    if pattern(SERVER_NAME).fullmatch(offered.server):
        return None
    return f"the server's name {offered.server!r} is not made of a-z, A-Z, 0-9, _ and -"


def _check_input_type(tool: Tool, offered: Offered) -> str | None:
    if tool.input_schema.get("type") == "object":
        return None
    return 'the root of the input schema is not "type": "object"'


def _check_input_root(tool: Tool, offered: Offered) -> str | None:
    combined = [name for name in COMBINED if name in tool.input_schema]
    return f"{', '.join(combined)} at the root of the input schema" if combined else None


def _check_output_root(tool: Tool, offered: Offered) -> str | None:
    if tool.output_schema is None or tool.output_schema.get("type") == "object":
        return None
    return 'the root of the output schema is not "type": "object"'


def _check_properties(tool: Tool, offered: Offered) -> str | None:
    names = tool.input_schema.get("properties", {})
    odd = [name for name in names if not pattern(PROPERTY_NAME).fullmatch(name)]
    if not odd:
        return None
    return f"parameter {odd[0]!r} is not 1 to 64 of a-z, A-Z, 0-9, _, . and -"


def _check_array(tool: Tool, offered: Offered) -> str | None:
    whole = tool.method.parameters.whole
    if whole is None or whole.structure != "by-position":
        return None
    return "it takes all params as an array, and hosts send an object"


def _check_references(tool: Tool, offered: Offered) -> str | None:
    for schema in (tool.input_schema, tool.output_schema or {}):
        known = {REFERENCE + name for name in schema.get("$defs", {})}
        for reference in list_references(schema):
            is_definition = reference.startswith(REFERENCE)
            if not reference.startswith("#") or (is_definition and reference not in known):
                return f"a schema refers to {reference}, which is not in it"
    return None


def _check_count(offered: Offered) -> str | None:
    count = len(offered.tools)
    return f"there are {count} tools" if count > MAX_TOOLS else None


def _check_count_for_cursor(offered: Offered) -> str | None:
    count = len(offered.tools)
    return f"there are {count} tools" if MAX_TOOLS >= count > MAX_TOOLS_CURSOR else None


def _check_described(tool: Tool, offered: Offered) -> str | None:
    if tool.method.description:
        return None
    return f"no docstring; a model reads {tool.description!r}"


def _check_description_length(tool: Tool, offered: Offered) -> str | None:
    length = len(tool.description)
    if length <= MAX_DESCRIPTION:
        return None
    return f"the description has {length} characters, more than {MAX_DESCRIPTION}"


def _check_size(tool: Tool, offered: Offered) -> str | None:
    size = len(encode(tool.input_schema))
    return f"the input schema has {size} bytes" if size > MAX_SCHEMA_BYTES else None


def _check_recursion(tool: Tool, offered: Offered) -> str | None:
    definitions: dict[str, Any] = tool.input_schema.get("$defs", {})
    refers = {
        name: {each.removeprefix(REFERENCE) for each in list_references(schema)}
        for name, schema in definitions.items()
    }
    for name in sorted(refers):
        seen: set[str] = set()
        waiting = list(refers[name])
        while waiting:
            other = waiting.pop()
            if other == name:
                return f"the input schema holds {name}, which holds itself"
            if other not in seen:
                seen.add(other)
                waiting += refers.get(other, ())
    return None


def _check_hints(tool: Tool, offered: Offered) -> str | None:
    options = tool.options
    if tool.method.kind is Kind.QUERY or options.destructive is not None:
        return None
    return "it does not say whether it destroys, so hosts ask the user before each call"


def _check_store(offered: Offered) -> str | None:
    commands = [tool for tool in offered.tools.values() if tool.method.kind is Kind.COMMAND]
    if offered.has_store or not commands:
        return None
    return "commands are remembered in memory only, until the host ends the process"


def _check_repetition(tool: Tool, offered: Offered) -> str | None:
    if tool.annotate()["idempotentHint"] or tool.options.idempotent is not None:
        return None
    return "a call that is repeated without a key acts twice, and no host sends a key by itself"


def _check_seconds(limit: int) -> Callable[[Tool, Offered], str | None]:
    def check(tool: Tool, offered: Offered) -> str | None:
        timeout = tool.method.timeout
        if timeout is None or timeout <= limit:
            return None
        return f"it may take {timeout:g} s, and the host gives up after {limit} s"

    return check


_LATER = (
    "make it shorter, or raise the timeout of the host; an agent that repeats the call needs the"
    " same idempotency_key"
)

RULES: tuple[HostRule, ...] = (
    HostRule(
        id="server-name",
        severity="error",
        hosts="Claude Code",
        of_server=_check_server_name,
        advice="give another one: --name",
    ),
    HostRule(
        id="name",
        severity="error",
        hosts="model APIs",
        of_tool=_check_name,
        advice="give the method another name=",
    ),
    HostRule(
        id="full-name",
        severity="error",
        hosts="Claude, and others with a limit of 64",
        of_tool=_check_full_name,
        advice="give the method a shorter name=, or the server a shorter --name",
    ),
    HostRule(
        id="input-type",
        severity="error",
        hosts="all",
        of_tool=_check_input_type,
        advice='say "type": "object" at the root',
    ),
    HostRule(
        id="input-root",
        severity="error",
        hosts="Claude, OpenAI: the whole request is refused",
        of_tool=_check_input_root,
        advice="put it into a property, or leave input_schema to the type hints",
    ),
    HostRule(
        id="property-name",
        severity="error",
        hosts="Claude: the whole request is refused",
        of_tool=_check_properties,
        advice="give the parameter another name, or a Name on the wire",
    ),
    HostRule(
        id="array-params",
        severity="error",
        hosts="all",
        of_tool=_check_array,
        advice="name the parameters one by one, or hide it: ToolOptions(hidden=True)",
    ),
    HostRule(
        id="output-type",
        severity="error",
        hosts="all, until 2025-11-25",
        of_tool=_check_output_root,
        advice='say "type": "object" at the root',
    ),
    HostRule(
        id="reference",
        severity="error",
        hosts="all",
        of_tool=_check_references,
        advice="put what is referred to into $defs; no host follows an address",
    ),
    HostRule(
        id="tools",
        severity="error",
        hosts=f"VS Code takes {MAX_TOOLS}",
        of_server=_check_count,
        advice="serve fewer: ToolOptions(hidden=True), or several services",
    ),
    HostRule(
        id="tools-cursor",
        severity="warning",
        hosts=f"Cursor takes about {MAX_TOOLS_CURSOR}",
        of_server=_check_count_for_cursor,
        advice="serve fewer: ToolOptions(hidden=True), or several services",
    ),
    HostRule(
        id="description",
        severity="warning",
        hosts="all",
        of_tool=_check_described,
        advice="write a docstring: a model chooses tools by it",
    ),
    HostRule(
        id="description-length",
        severity="warning",
        hosts="all: every tool's is in the model's context",
        of_tool=_check_description_length,
        advice="say it in fewer words",
    ),
    HostRule(
        id="schema-size",
        severity="warning",
        hosts=f"Codex shrinks schemas over {MAX_SCHEMA_BYTES} bytes",
        of_tool=_check_size,
        advice="take fewer or simpler parameters: Codex drops descriptions first",
    ),
    HostRule(
        id="recursion",
        severity="warning",
        hosts="Codex prunes it, others refuse it",
        of_tool=_check_recursion,
        advice="take a list that says who is whose parent",
    ),
    HostRule(
        id="hints",
        severity="warning",
        hosts="Codex, VS Code and others",
        of_tool=_check_hints,
        advice="say ToolOptions(destructive=False) if it only adds, or destructive=True",
    ),
    HostRule(
        id="store",
        severity="warning",
        hosts="all",
        of_server=_check_store,
        advice="give --store sqlite:///commands.db, so that a repeated call is known after that",
    ),
    HostRule(
        id="repetition",
        severity="warning",
        hosts="all",
        of_tool=_check_repetition,
        advice='declare dedupe="arguments", retry_safe=True if acting twice does no harm, or'
        " ToolOptions(idempotent=False) if each call is meant",
    ),
    HostRule(
        id="timeout-codex",
        severity="warning",
        hosts=f"Codex waits {CODEX_SECONDS} s",
        of_tool=_check_seconds(CODEX_SECONDS),
        advice=_LATER,
    ),
    HostRule(
        id="timeout-zed",
        severity="warning",
        hosts=f"Zed waits {ZED_SECONDS} s",
        of_tool=_check_seconds(ZED_SECONDS),
        advice=_LATER,
    ),
)
