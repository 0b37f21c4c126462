"""Parameters: what holds for a family of signatures, by name and by position."""

import enum
import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from duet_rpc.errors import InvalidParams
from duet_rpc.methods.parameters import Parameters


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float = 0.0


class Kind(NamedTuple):
    """A type of parameter, with values that fit, and one that does not."""

    hint: Any
    values: st.SearchStrategy[Any]
    wrong: Any
    closed: bool = False


KINDS = [
    Kind(int, st.integers(), "1"),
    Kind(str, st.text(), 1),
    Kind(bool, st.booleans(), 1),
    Kind(float, st.floats(allow_nan=False, allow_infinity=False), "1.0"),
    Kind(int | None, st.one_of(st.none(), st.integers()), []),
    Kind(list[int], st.lists(st.integers(), max_size=3), {}),
    Kind(dict[str, bool], st.dictionaries(st.text(), st.booleans(), max_size=3), []),
    Kind(Colour, st.sampled_from(Colour), "green", True),
    Kind(Literal["a", "b"], st.sampled_from(["a", "b"]), "c", True),
    Kind(Annotated[int, Meta(ge=0, le=9)], st.integers(0, 9), 10),
    Kind(Point, st.builds(Point, st.integers(), st.floats(-9, 9)), [1, 2]),
    Kind(Point | None, st.one_of(st.none(), st.builds(Point, st.integers())), "x"),
    Kind(tuple[int, str], st.tuples(st.integers(), st.text()), [1]),
]


class Chosen(NamedTuple):
    """One parameter of a generated signature, and the value it is called with."""

    name: str
    kind: Kind
    value: Any
    default: bool
    named: bool


@st.composite
def signatures(draw: st.DrawFn) -> list[Chosen]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    required = draw(st.integers(0, len(kinds)))
    positional = draw(st.integers(0, len(kinds)))
    return [
        Chosen(f"p{n}", kind, draw(kind.values), n >= required, n >= positional)
        for n, kind in enumerate(kinds)
    ]


DEFAULT = object()


def build(chosen: list[Chosen]) -> Parameters:
    """Define a function with this signature; it gives back what it was called with."""
    parts = []
    for n, parameter in enumerate(chosen):
        if parameter.named and not (n and chosen[n - 1].named):
            parts.append("*")
        parts.append(f"{parameter.name}: h{n}" + (" = DEFAULT" if parameter.default else ""))
    names = ", ".join(parameter.name for parameter in chosen)
    scope: dict[str, Any] = {f"h{n}": parameter.kind.hint for n, parameter in enumerate(chosen)}
    scope["DEFAULT"] = DEFAULT
    exec(f"def handler({', '.join(parts)}): return [{names}]", scope)
    return Parameters.of(scope["handler"], "m", takes_key=False, ignore_unknown=False, scope=scope)


def encoded(value: Any) -> bytes:
    def plain(item: Any) -> Any:
        return item.value if isinstance(item, enum.Enum) else asdict(item)

    return json.dumps(value, default=plain).encode()


def called(parameters: Parameters, params: bytes | None) -> Any:
    return parameters.call(parameters.bind(params).values, None, None)


@given(signatures(), st.data())
@settings(max_examples=150)
def test_what_fits_is_bound(chosen: list[Chosen], data: st.DataObject) -> None:
    parameters = build(chosen)
    values = [parameter.value for parameter in chosen]
    by_name = data.draw(st.permutations([(p.name, p.value) for p in chosen]))
    assert called(parameters, encoded(dict(by_name))) == values
    given_by_position = [p for p in chosen if not p.named]
    if all(p.default for p in chosen if p.named) and given_by_position:
        body = encoded([p.value for p in given_by_position])
        assert called(parameters, body) == [DEFAULT if p.named else p.value for p in chosen]
    needed = {p.name: p.value for p in chosen if not p.default}
    assert called(parameters, encoded(needed) if needed else None) == [
        DEFAULT if p.default else p.value for p in chosen
    ]


@given(signatures(), st.data())
@settings(max_examples=150)
def test_what_does_not_fit_is_told_by_its_name(chosen: list[Chosen], data: st.DataObject) -> None:
    parameters = build(chosen)
    broken = data.draw(st.sampled_from(chosen))
    values = {p.name: p.kind.wrong if p is broken else p.value for p in chosen}
    bodies = [encoded(values)]
    if not any(p.named for p in chosen):
        bodies.append(encoded(list(values.values())))
    for body in bodies:
        with pytest.raises(InvalidParams) as caught:
            parameters.bind(body)
        told = caught.value.data
        assert told["param"].startswith(broken.name)
        assert told["expected"] and told["received"]
        assert ("accepted" in told) == broken.kind.closed


@given(signatures(), st.data())
@settings(max_examples=100)
def test_what_is_missing_is_told_by_its_name(chosen: list[Chosen], data: st.DataObject) -> None:
    required = [p for p in chosen if not p.default]
    if not required:
        return
    parameters = build(chosen)
    missing = data.draw(st.sampled_from(required))
    values = {p.name: p.value for p in chosen if p is not missing}
    with pytest.raises(InvalidParams) as caught:
        parameters.bind(encoded(values) if values else None)
    assert caught.value.data["param"] == missing.name
    assert caught.value.data["received"] == "nothing"


@given(signatures(), st.text(min_size=1).filter(lambda name: not name.startswith("p")))
@settings(max_examples=100)
def test_what_is_unknown_is_told_by_its_name(chosen: list[Chosen], name: str) -> None:
    parameters = build(chosen)
    values = {**{p.name: p.value for p in chosen}, name: 1}
    if name == "_meta":
        assert called(parameters, encoded(values)) == [p.value for p in chosen]
        return
    with pytest.raises(InvalidParams) as caught:
        parameters.bind(encoded(values))
    assert caught.value.data["expected"].startswith("a parameter named p0")
