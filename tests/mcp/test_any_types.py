"""Tools made of any type hints: none breaks a rule of a host, and their schemas hold.

Each example is a service of a few functions that return what they are given. Every schema is one of
JSON Schema 2020-12; every value that is sent fits the input schema, and every result fits the
output schema, as strictly as a client may look at it.
"""

import dataclasses
import enum
import itertools
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import FunctionType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, Union
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from msgspec import Meta, Struct

from duet_rpc import Service, Whole
from duet_rpc.mcp.host_rules import Offered, find_problems
from duet_rpc.mcp.tools import make_tools
from tests.mcp.in_hand import InHand

STRICT = FormatChecker(formats=())
"""Formats as the strictest client checks them, which is the one in TypeScript."""
_DATE, _TIME = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"
for _name, _pattern in {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(?!$)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}.items():
    STRICT.checks(_name)(
        lambda value, known=_pattern: (
            not isinstance(value, str) or re.fullmatch(known, value) is not None
        )
    )
KNOWN_FORMATS = set(STRICT.checkers)


class Typed(NamedTuple):
    """A hint, its values, and of which kinds of JSON they are."""

    hint: Any
    values: st.SearchStrategy[Any]
    kinds: frozenset[str]


def typed(hint: Any, values: st.SearchStrategy[Any], *kinds: str) -> Typed:
    return Typed(hint, values, frozenset(kinds))


class Colour(enum.Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Tree(Struct):
    """A tree, which holds trees."""

    name: str
    when: datetime | None = None
    children: "list[Tree]" = []


@dataclasses.dataclass
class Linked:
    value: int
    following: Optional["Linked"] = None


class Left(Struct, tag=True):
    x: int


class Right(Struct, tag="right", rename="camel"):
    the_name: str = ""


ZONES = st.none() | st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30))])
WHOLE = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.builds(Tree, st.text(max_size=3)),
    lambda inner: st.builds(Tree, st.text(max_size=3), st.none(), st.lists(inner, max_size=2)),
    max_leaves=4,
)
LINKS: st.SearchStrategy[Linked] = st.recursive(
    st.builds(Linked, WHOLE), lambda inner: st.builds(Linked, WHOLE, inner), max_leaves=3
)
SCALARS = [
    typed(int, WHOLE, "int"),
    typed(float, NUMBERS, "float", "int"),
    typed(bool, st.booleans(), "bool"),
    typed(str, st.text(max_size=5), "str"),
    typed(None, st.none(), "null"),
    typed(datetime, st.datetimes(timezones=ZONES), "str"),
    typed(Annotated[datetime, Meta(tz=True)], st.datetimes(timezones=st.just(UTC)), "str"),
    typed(date, st.dates(), "str"),
    typed(time, st.times(), "str"),
    typed(timedelta, st.timedeltas(timedelta(-999), timedelta(999)), "str"),
    typed(Decimal, st.decimals(allow_nan=False, allow_infinity=False), "str", "int", "float"),
    typed(UUID, st.uuids(), "str"),
    typed(bytes, st.binary(max_size=5), "str"),
    typed(Colour, st.sampled_from(Colour), "str"),
    typed(Level, st.sampled_from(Level), "int"),
    typed(Literal["a", "b"], st.sampled_from(["a", "b"]), "str"),
    typed(Literal[1, "b", None], st.sampled_from([1, "b", None]), "int", "str", "null"),
    typed(Annotated[int, Meta(ge=0, le=9)], st.integers(0, 9), "int"),
    typed(
        Annotated[str, Meta(max_length=3, pattern="^a*$", description="some a's")],
        st.sampled_from(["", "a", "aaa"]),
        "str",
    ),
]
RECURSIVE = [
    typed(Tree, TREES, "object", "struct"),
    typed(Linked, LINKS, "object"),
]
ANYTHING = [
    typed(Any, st.none() | WHOLE | st.text(max_size=3) | st.lists(WHOLE, max_size=2), "any"),
]
_number = itertools.count()


def members(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[dict[str, tuple[Typed, bool]]]:
    """Members of a class: a type each, and whether they may be left out."""
    names = st.sampled_from(["a", "b_c", "kind", "enum", "default", "items", "properties"])
    return st.dictionaries(names, st.tuples(inner, st.booleans()), min_size=1, max_size=3)


@st.composite
def structs(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    fields: list[Any] = []
    values: dict[str, Any] = {}
    for name, (each, optional) in draw(members(inner)).items():
        has_default = optional and not each.kinds & {"array", "object", "any"}
        default = draw(each.values) if has_default else None
        fields.append((name, each.hint, default) if has_default else (name, each.hint))
        values[name] = each.values
    array_like = draw(st.booleans()) and draw(st.booleans())
    options: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {
                "rename": st.sampled_from([None, "camel", "kebab"]),
                "omit_defaults": st.booleans(),
                "forbid_unknown_fields": st.booleans(),
                "tag": st.sampled_from([None, True]),
            }
        )
    )
    cls = msgspec.defstruct(
        f"Struct{next(_number)}", fields, kw_only=True, array_like=array_like, **options
    )
    kind = "array" if array_like else "object"
    return typed(cls, st.builds(cls, **values), kind, "struct")


@st.composite
def dataclass_types(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    fields: list[Any] = []
    values: dict[str, Any] = {}
    for name, (each, optional) in draw(members(inner)).items():
        values[name] = each.values
        field: Any = dataclasses.field(kw_only=True)
        if optional:
            default = draw(each.values)
            field = dataclasses.field(
                kw_only=True, default_factory=itertools.repeat(default).__next__
            )
        fields.append((name, each.hint, field))
    cls = dataclasses.make_dataclass(f"Data{next(_number)}", fields)
    return typed(cls, st.builds(cls, **values), "object")


@st.composite
def typed_dicts(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    drawn = draw(members(inner))
    hints = {
        name: NotRequired[each.hint] if optional else each.hint
        for name, (each, optional) in drawn.items()
    }
    make: Any = TypedDict
    cls = make(f"Dict{next(_number)}", hints)
    needed = {name: each.values for name, (each, optional) in drawn.items() if not optional}
    others = {name: each.values for name, (each, optional) in drawn.items() if optional}
    return typed(cls, st.fixed_dictionaries(needed, optional=others), "object")


@st.composite
def named_tuples(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    drawn = draw(members(inner))
    make: Any = NamedTuple
    cls = make(f"Tuple{next(_number)}", [(name, each.hint) for name, (each, _) in drawn.items()])
    values = {name: each.values for name, (each, _) in drawn.items()}
    return typed(cls, st.builds(cls, **values), "array")


@st.composite
def unions(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    chosen: list[Typed] = []
    for each in draw(st.lists(inner, min_size=1, max_size=3)):
        if all(not each.kinds & other.kinds for other in chosen) and "any" not in each.kinds:
            chosen.append(each)
    if draw(st.booleans()) and all(not each.kinds & {"object", "struct"} for each in chosen):
        chosen.append(typed(Left, st.builds(Left, WHOLE), "object", "struct"))
        chosen.append(typed(Right, st.builds(Right, st.text(max_size=3)), "object", "struct"))
    if not chosen:
        return SCALARS[0]
    return Typed(
        Union[tuple(each.hint for each in chosen)],  # noqa: UP007
        st.one_of([each.values for each in chosen]),
        frozenset().union(*(each.kinds for each in chosen)),
    )


def collections(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    few = 3
    elements = st.sampled_from([each for each in SCALARS if each.hint is not float])
    return st.one_of(
        inner.map(lambda t: typed(list[t.hint], st.lists(t.values, max_size=few), "array")),  # type: ignore[name-defined]
        inner.map(
            lambda t: typed(
                tuple[t.hint, ...],  # type: ignore[name-defined]
                st.lists(t.values, max_size=few).map(tuple),
                "array",
            )
        ),
        st.lists(inner, max_size=3).map(
            lambda ts: typed(
                tuple[tuple(t.hint for t in ts)],  # type: ignore[misc]
                st.tuples(*(t.values for t in ts)),
                "array",
            )
        ),
        elements.map(lambda t: typed(set[t.hint], st.sets(t.values, max_size=few), "array")),  # type: ignore[name-defined]
        elements.map(
            lambda t: typed(frozenset[t.hint], st.frozensets(t.values, max_size=few), "array")  # type: ignore[name-defined]
        ),
        inner.map(
            lambda t: typed(
                dict[str, t.hint],  # type: ignore[name-defined]
                st.dictionaries(st.text(max_size=3), t.values, max_size=few),
                "object",
            )
        ),
        inner.map(
            lambda t: typed(
                dict[int, t.hint],  # type: ignore[name-defined]
                st.dictionaries(WHOLE, t.values, max_size=few),
                "object",
            )
        ),
    )


def classes(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        structs(inner), dataclass_types(inner), typed_dicts(inner), named_tuples(inner)
    )


TYPES: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from([*SCALARS, *RECURSIVE, *ANYTHING]),
    lambda inner: st.one_of(collections(inner), classes(inner), unions(inner)),
    max_leaves=5,
)


def echo(value):  # type: ignore[no-untyped-def]  # each copy has hints of its own
    """Say it again.

    Args:
        value: what is said
    """
    return value


def make_handler(hint: Any, returns: Any, default: tuple[Any, ...] = ()) -> Callable[..., Any]:
    handler = FunctionType(echo.__code__, globals(), "echo", default)
    handler.__annotations__ = {"value": hint, "return": returns}
    handler.__doc__ = echo.__doc__
    return handler


def check_schema(schema: Any) -> None:
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    spelled = json.dumps(schema)
    assert set(re.findall(r'"format": "([^"]*)"', spelled)) <= KNOWN_FORMATS


def check_call(client: InHand, tool: Any, arguments: Any) -> None:
    Draft202012Validator(tool["inputSchema"]).validate(arguments)
    result = client.call(tool["name"], **arguments)
    assert "isError" not in result, result
    structured = result["structuredContent"]
    if "outputSchema" in tool:
        Draft202012Validator(tool["outputSchema"], format_checker=STRICT).validate(structured)
    text = result["content"][0]["text"]
    value = structured.get("result")
    if not isinstance(value, str) or structured != {"result": text}:
        assert json.loads(text) in (structured, value)


@pytest.mark.clause("tools-4", "tools-5", "results-2", "hosts-3")
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data(), some=st.lists(TYPES, min_size=1, max_size=3), policy=st.booleans())
def test_schemas_hold_for_any_types(data: st.DataObject, some: list[Typed], policy: bool) -> None:
    service = Service("any")
    values = []
    for number, each in enumerate(some):
        note(f"{number}: {each.hint}")
        value = data.draw(each.values)
        values.append(value)
        default = (data.draw(each.values),) if data.draw(st.booleans()) else ()
        register = service.command if data.draw(st.booleans()) else service.query
        register(name=f"any.echo{number}")(make_handler(each.hint, each.hint, default))
        if each.kinds <= {"object", "struct"} and isinstance(each.hint, type):
            whole_hint: Any = Whole
            handler = make_handler(whole_hint[each.hint], each.hint)
            service.query(name=f"any.whole{number}")(handler)
    tools = make_tools(service, list(service), key_required=policy)
    broken = find_problems(Offered(server="any", tools=tools))
    assert [each for each in broken if each.severity == "error"] == []
    client = InHand(service)
    listed = client.tools()
    for tool in listed.values():
        check_schema(tool["inputSchema"])
        if "outputSchema" in tool:
            check_schema(tool["outputSchema"])
    for number, value in enumerate(values):
        sent = json.loads(msgspec.json.encode(value))
        tool = listed[f"any_echo{number}"]
        described = tool["inputSchema"]["properties"]["value"].get("description")
        assert described in ("what is said", "some a's")
        check_call(client, tool, {"value": sent})
        whole = listed.get(f"any_whole{number}")
        if whole is not None and "idempotency_key" not in sent:
            check_call(client, whole, sent)
