"""Models of pydantic and attrs: what is taken, what is refused at registration, what is loaded."""

import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from duet_rpc import Service, UsageError
from duet_rpc.methods.members import follow, list_defaults, list_members, locate
from duet_rpc.wire.models import ModelMismatch, is_model, make_model, write_model

T = TypeVar("T")


class Point(pydantic.BaseModel):
    x: int
    y: Annotated[int, pydantic.Field(ge=0)] = pydantic.Field(default=0, alias="Y")


class Line(pydantic.BaseModel):
    points: list[Point] = pydantic.Field(default_factory=list)
    pair: tuple[int, Point] | None = None
    either: Point | int = 0


class Many(pydantic.RootModel[list[Point]]):
    """A list of points."""


class Holding(pydantic.BaseModel, Generic[T]):
    held: T


@pydantic.dataclasses.dataclass
class Old:
    x: int


@attrs.define
class Converted:
    x: int = attrs.field(converter=int)


@attrs.define
class Plain:
    x: int
    y: list[int] = attrs.field(factory=list)


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str
    last_name: str = ""


class InPlaces(msgspec.Struct, array_like=True):
    a: int


def limited(x: Annotated[int, pydantic.Field(gt=0)]) -> None: ...


def limited_inside(x: list[Annotated[int, pydantic.Field(gt=0)]]) -> None: ...


def old(x: Old) -> None: ...


def old_inside(x: dict[str, Old]) -> None: ...


def converted(x: list[Converted]) -> None: ...


def union(x: Point | Line) -> None: ...


def union_inside(x: list[Point | int]) -> None: ...


@pytest.mark.clause("params-6")
@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        (limited, "x holds a pydantic.Field outside of a model; give limits by msgspec.Meta"),
        (limited_inside, "a pydantic.Field outside of a model"),
        (old, "Old, a pydantic dataclass; make it a BaseModel"),
        (old_inside, "Old, a pydantic dataclass"),
        (converted, "Converted, whose converter of x does not run on params"),
        (union, "make the union a pydantic.RootModel"),
        (union_inside, "make the union a pydantic.RootModel"),
    ],
)
def test_what_would_go_unchecked_is_refused(handler: Callable[..., Any], advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        Service().query(handler)


@pytest.mark.parametrize(
    "hint", [Point, list[Point], Line | None, Many, Holding[int], dict[str, Holding[Point]], Plain]
)
def test_models_are_taken_and_returned(hint: Any) -> None:
    def take(value: Any) -> Any: ...

    take.__annotations__ = {"value": hint, "return": hint}
    Service().query(take)


def test_members_are_listed_by_wire_names() -> None:
    assert list(list_members(Point)) == ["x", "Y"]
    assert list_members(Renamed) == {"firstName": str, "lastName": str}
    assert list_members(Plain) == {"x": int, "y": list[int]}
    for no_class in (int, list[int], Any, Many, InPlaces, Point | None):
        assert list_members(no_class) == {}
    assert list_defaults(Point) == {"Y": 0}
    assert list_defaults(Renamed) == {"lastName": ""}
    assert list_defaults(Line)["points"] is msgspec.UNSET
    assert list_defaults(Plain) == {"y": msgspec.UNSET}


@pytest.mark.parametrize(
    ("hint", "steps", "found"),
    [
        (Line, ["points", "0", "x"], int),
        (Line, ["pair", "0"], int),
        (Line, ["pair", "1"], Point),
        (Line, ["pair", "7"], Any),
        (Line, ["either", "x"], Any),
        (Many, ["3", "x"], int),
        (Renamed | None, ["firstName"], str),
        (dict[str, Point], ["...", "x"], int),
        (dict[str, Point], ["anything", "x"], int),
        (list[Many], ["0", "0"], Point),
        (int, ["x"], Any),
    ],
)
def test_a_path_is_followed_through_all_of_them(hint: Any, steps: list[str], found: Any) -> None:
    assert follow(hint, steps) == found


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        ({"points": [{"x": "a"}]}, ["points", "0", "x"], "int_parsing"),
        ({"pair": [1, {"x": 1, "Y": -1}]}, ["pair", "1", "Y"], "greater_than_equal"),
        ({"either": {"x": []}}, ["either"], "int_type"),
        ({"pair": 3}, ["pair"], "tuple_type"),
        (3, [], "model_type"),
    ],
)
def test_a_fault_has_its_place(value: Any, place: list[str], kind: str) -> None:
    with pytest.raises(ModelMismatch) as caught:
        make_model(Line, value)
    assert caught.value.kind == kind
    assert locate(caught.value)[0] == place
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert "pydantic" not in str(caught.value)


def test_what_a_model_raises_beyond_refusing_comes_out_as_it_is() -> None:
    class Broken(pydantic.BaseModel):
        @pydantic.model_validator(mode="before")
        @classmethod
        def fail(cls, value: Any) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_model(Broken, {})


def test_models_are_written_under_the_names_that_they_are_read_by() -> None:
    point = Point(x=1, Y=2)
    written = msgspec.json.encode([point], enc_hook=write_model)
    assert written == b'[{"x":1,"Y":2}]'
    assert msgspec.json.decode(written, type=list[Point], dec_hook=make_model) == [point]
    with pytest.raises(TypeError, match="Encoding objects of type object is unsupported"):
        write_model(object())


def test_only_models_are_models() -> None:
    assert is_model(Point) and is_model(Many) and is_model(Holding[int])
    assert not any(map(is_model, (Old, Plain, Renamed, int, None, list[Point])))


def test_pydantic_is_loaded_by_its_users_alone() -> None:
    program = """
import sys
from dataclasses import dataclass
from duet_rpc import Service
from duet_rpc.server.description import describe
from duet_rpc.server.openrpc import write_openrpc

@dataclass
class Note:
    id: int

service = Service(rename="camel", ignore_unknown=True)

@service.query
def get(note: Note) -> list[Note]: ...

write_openrpc(describe(service))
print(*sorted({"pydantic", "pydantic_core", "attrs", "attr"} & set(sys.modules)))
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    assert finished.stdout.split() == []
