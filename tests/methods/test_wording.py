"""What callers read: types in JSON's words, and what was wrong with their params."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict, Union
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from duet_rpc.errors import InvalidParams
from duet_rpc.methods.wording import accepted_values, explain, invalid, type_name


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Step(enum.IntEnum):
    ONE = 1
    TWO = 2


@dataclass
class Tag:
    name: str
    level: Level = Level.LOW


@dataclass
class Note:
    id: int
    tags: list[Tag]
    owner: Tag | None = None


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("secret words of the server")


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


class Pair(NamedTuple):
    left: int
    right: Level


class Options(TypedDict):
    level: Level


Uid = NewType("Uid", int)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (str, "string"),
        (int, "integer"),
        (float, "number"),
        (bool, "boolean"),
        (None, "null"),
        (type(None), "null"),
        (Any, "any"),
        (bytes, "string"),
        (list, "array"),
        (dict, "object"),
        (list[int], "array of integer"),
        (set[str], "array of string"),
        (tuple[int, ...], "array of integer"),
        (tuple[int, str, int], "array of integer | string"),
        (dict[str, int], "object"),
        (Mapping[str, int], "object"),
        (Sequence[int], "array of integer"),
        (list[list[bool]], "array of array of boolean"),
        (int | None, "integer | null"),
        (Union[int, str], "integer | string"),  # noqa: UP007
        (Optional[str], "string | null"),  # noqa: UP045
        (Literal["up", "down", 3, None], '"up" | "down" | 3 | null'),
        (Level, '"low" | "high"'),
        (Step, "1 | 2"),
        (Level | None, '"low" | "high" | null'),
        (Annotated[int, Meta(ge=0)], "integer >= 0"),
        (Annotated[int, Meta(ge=0, lt=10)], "integer >= 0, < 10"),
        (Annotated[float, Meta(gt=0.5, le=1)], "number > 0.5, <= 1"),
        (Annotated[int, Meta(multiple_of=3)], "integer a multiple of 3"),
        (Annotated[str, Meta(min_length=1, max_length=5)], "string of length >= 1, of length <= 5"),
        (Annotated[str, Meta(pattern="^a")], "string matching ^a"),
        (Annotated[int, "a comment"], "integer"),
        (list[Annotated[int, Meta(ge=0)]], "array of integer >= 0"),
        (Note, "Note"),
        (Uid, "Uid"),
    ],
)
def test_a_hint_in_jsons_words(hint: Any, words: str) -> None:
    assert type_name(hint) == words


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (Level, ["low", "high"]),
        (Step, [1, 2]),
        (Literal["a", 1], ["a", 1]),
        (Annotated[Level, "a comment"], ["low", "high"]),
        (Level | None, ["low", "high", None]),
        (Level | int, None),
        (int, None),
        (Any, None),
    ],
)
def test_a_closed_set_is_listed(hint: Any, values: list[Any] | None) -> None:
    assert accepted_values(hint) == values


def test_an_error_lists_what_is_accepted() -> None:
    assert invalid("p", "integer", "nothing").data == {
        "param": "p",
        "expected": "integer",
        "received": "nothing",
    }
    assert invalid("p", "x", "y", Level).data["accepted"] == ["low", "high"]


def told(hint: Any, value: bytes, *, array: bool = False) -> tuple[Any, ...]:
    """Decode one parameter that does not fit; return what the caller is told."""
    fields = [("x", hint)]
    params = msgspec.defstruct("P", fields, forbid_unknown_fields=True, array_like=array)
    body = b"[%b]" % value if array else b'{"x":%b}' % value
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=params)
    error = explain(caught.value, body, {"x": hint}, ["x"])
    assert type(error) is InvalidParams and error.message == "Invalid params"
    data = error.data
    return tuple(
        data[name] for name in ("param", "expected", "received", "accepted") if name in data
    )


LEVELS = ["low", "high"]

CASES: list[tuple[Any, bytes, tuple[Any, ...]]] = [
    (int, b'"a"', ("x", "integer", "string")),
    (int, b"1.5", ("x", "integer", "number")),
    (int, b"null", ("x", "integer", "null")),
    (str, b"[]", ("x", "string", "array")),
    (bool, b"1", ("x", "boolean", "integer")),
    (int | str | None, b"1.5", ("x", "integer | string | null", "number")),
    (list[int], b"{}", ("x", "array", "object")),
    (list[int], b'[1,"a"]', ("x[1]", "integer", "string")),
    (dict[str, int], b'{"k":"v"}', ("x[...]", "integer", "string")),
    (dict[int, int], b'{"k":1}', ("x", "integer", "string")),
    (dict[str, Level], b'{"k":"v"}', ("x[...]", '"low" | "high"', "another value", LEVELS)),
    (Level, b'"z"', ("x", '"low" | "high"', "another string", LEVELS)),
    (Level, b"3", ("x", '"low" | "high"', "integer", LEVELS)),
    (Level | None, b'"z"', ("x", '"low" | "high" | null', "another string", [*LEVELS, None])),
    (Step, b"9", ("x", "1 | 2", "another integer", [1, 2])),
    (Literal["a", "b"], b'"c"', ("x", '"a" | "b"', "another string", ["a", "b"])),
    (Literal["a", 1], b"2", ("x", '"a" | 1', "another integer", ["a", 1])),
    (Annotated[int, Meta(ge=0)], b"-1", ("x", "integer >= 0", "another integer")),
    (Annotated[int, Meta(ge=0)], b'"a"', ("x", "integer >= 0", "string")),
    (Annotated[int, Meta(ge=0, le=5)], b"9", ("x", "integer <= 5", "another integer")),
    (Annotated[str, Meta(min_length=3)], b'"a"', ("x", "string of length >= 3", "another string")),
    (
        Annotated[str, Meta(pattern="^a$")],
        b'"b"',
        ("x", "string matching regex '^a$'", "another string"),
    ),
    (
        Annotated[list[int], Meta(max_length=1)],
        b"[1,2]",
        ("x", "array of length <= 1", "another array"),
    ),
    (tuple[int, str], b"[1]", ("x", "array of length 2", "another array")),
    (tuple[int, Level], b'[1,"z"]', ("x[1]", '"low" | "high"', "another string", LEVELS)),
    (Pair, b'[1,"z"]', ("x[1]", "any", "another string")),
    (UUID, b'"a"', ("x", "UUID", "another string")),
    (int, b"9" * 5000, ("x", "integer", "a number out of range")),
    (float, b"1e999", ("x", "number", "a number out of range")),
    (Note, b'{"id":1}', ("x.tags", "array of Tag", "nothing")),
    (Note, b'{"id":"a","tags":[]}', ("x.id", "integer", "string")),
    (
        Note,
        b'{"id":1,"tags":[{"name":"n"},{"name":"n","level":"z"}]}',
        ("x.tags[1].level", '"low" | "high"', "another string", LEVELS),
    ),
    (
        Note,
        b'{"id":1,"tags":[],"owner":{"name":1}}',
        ("x.owner.name", "string", "integer"),
    ),
    (Options, b'{"level":"z"}', ("x.level", '"low" | "high"', "another string", LEVELS)),
    (Options, b"{}", ("x.level", '"low" | "high"', "nothing", LEVELS)),
    (Annotated[Note, "said"], b"{}", ("x.id", "integer", "nothing")),
    (Closed, b'{"b":1}', ("x.b", "a member named a", "an unknown name")),
    (Circle | Square, b'{"type":"star"}', ("x.type", "any", "another string")),
    (Even, b'{"number":3}', ("x", "Even", "another object")),
    (list[Even], b'[{"number":3}]', ("x[0]", "Even", "another object")),
]


@pytest.mark.parametrize("array", [False, True], ids=["by name", "by position"])
@pytest.mark.parametrize(("hint", "value", "expected"), CASES)
def test_what_does_not_fit_is_told(
    hint: Any, value: bytes, expected: tuple[Any, ...], array: bool
) -> None:
    assert told(hint, value, array=array) == expected


def test_values_are_not_repeated_and_huge_ones_not_looked_at() -> None:
    assert told(Level, b'"%b"' % (b"z" * 200))[2] == "another string"
    assert told(Level, b'"%b"' % (b"z" * 5000))[2] == "another value"


def test_a_value_that_cannot_be_read_back_is_not_shown() -> None:
    fields = [("a", int), ("x", Level)]
    params = msgspec.defstruct("P", fields)
    body = b'{"x":"z","a":%b}' % (b"9" * 4400)
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=params)
    assert explain(caught.value, body[:-1] + b" }", {"x": Level}, []).data["received"] == (
        "another value"
    )


def test_words_of_a_types_own_check_stay_here() -> None:
    assert "secret" not in str(told(Even, b'{"number":3}'))


def problem(body: bytes, *fields: tuple[str, Any], array: bool = False) -> Any:
    params = msgspec.defstruct("P", fields, forbid_unknown_fields=True, array_like=array)
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=params)
    return explain(caught.value, body, dict(fields), [name for name, _ in fields]).data


def test_a_missing_parameter_is_named() -> None:
    assert problem(b'{"a":1}', ("a", int), ("b", Level)) == {
        "param": "b",
        "expected": '"low" | "high"',
        "received": "nothing",
        "accepted": LEVELS,
    }
    assert problem(b"[1]", ("a", int), ("b", str), array=True) == {
        "param": "b",
        "expected": "string",
        "received": "nothing",
    }


def test_an_unknown_parameter_is_named_beside_the_known_ones() -> None:
    assert problem(b'{"c":1}', ("a", int), ("b", int)) == {
        "param": "c",
        "expected": "a parameter named a or b",
        "received": "an unknown name",
    }
    assert problem(b'{"c":1}', ("a", int))["expected"] == "a parameter named a"
    assert problem(b'{"d":1}', ("a", int), ("b", int), ("c", int))["expected"] == (
        "a parameter named a, b or c"
    )
    assert problem(b'{"c":1}')["expected"] == "no parameters"
    name = problem(b'{"%b":1}' % (b"n" * 9999), ("a", int))["param"]
    assert name == "n" * 77 + "..."


def test_too_many_values_are_counted() -> None:
    assert problem(b"[1,2]", ("a", int), array=True) == {
        "param": "params",
        "expected": "at most 1 values",
        "received": "more",
    }


def test_text_of_the_caller_that_looks_like_ours_does_no_harm() -> None:
    name = "x - at `$.y[9]"
    data = problem(b'{"%b":1}' % name.encode(), ("a", int))
    assert set(data) == {"param", "expected", "received"}
    data = problem(b'{"a":"z - at `$[7]`"}', ("a", Level))
    assert (data["param"], data["received"]) == ("a", "another string")


def test_values_of_one_list_are_named_after_it() -> None:
    body = b'[1,"a"]'
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=list[int])
    data = explain(caught.value, body, {"numbers": list[int]}, [], "numbers").data
    assert (data["param"], data["expected"]) == ("numbers[1]", "integer")


def test_hints_that_cannot_be_followed_say_any() -> None:
    @dataclass
    class Later:
        inner: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    error = msgspec.ValidationError("Invalid enum value 'z' - at `$.x.inner`")
    assert explain(error, b'{"x":{}}', {"x": Later}, []).data == {
        "param": "x.inner",
        "expected": "any",
        "received": "another value",
    }
    error = msgspec.ValidationError("Invalid enum value 'z' - at `$.x[0].y`")
    assert explain(error, b'{"x":3}', {"x": list}, []).data["received"] == "another value"
    error = msgspec.ValidationError("Invalid enum value 'z' - at `$.x.y`")
    assert explain(error, b'{"x":3}', {"x": int | str}, []).data["expected"] == "any"
