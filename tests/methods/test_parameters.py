"""Parameters: read from hints, bound by name and by position, refused at registration."""

import functools
import math
import sqlite3
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Optional, Protocol
from uuid import UUID

import msgspec
import pytest
from msgspec import UNSET, Raw, UnsetType

from duet_rpc.context import Context, Transaction
from duet_rpc.errors import InvalidParams, RpcError, UsageError
from duet_rpc.methods.parameters import Bound, Parameters


def of(
    handler: Callable[..., Any], *, takes_key: bool = False, ignore_unknown: bool = False
) -> Parameters:
    return Parameters.of(
        handler, "m", takes_key=takes_key, ignore_unknown=ignore_unknown, scope=globals()
    )


def call(handler: Callable[..., Any], params: bytes | None, **options: bool) -> Any:
    parameters = of(handler, **options)
    return parameters.call(parameters.bind(params).values, None, None)


def refused(handler: Callable[..., Any], params: bytes | None, **options: bool) -> Any:
    with pytest.raises(InvalidParams) as caught:
        call(handler, params, **options)
    return caught.value.data


def wrong(handler: Callable[..., Any], **options: bool) -> str:
    with pytest.raises(UsageError) as caught:
        of(handler, **options)
    return str(caught.value)


def add(a: int, b: int = 10) -> int:
    return a + b


@pytest.mark.parametrize(
    ("params", "expected"),
    [(b"[1,2]", 3), (b"[1]", 11), (b'{"a":1,"b":2}', 3), (b'{"a":1}', 11), (b'{"b":2,"a":1}', 3)],
)
def test_params_are_bound_by_position_and_by_name(params: bytes, expected: int) -> None:
    assert call(add, params) == expected


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (None, "a"),
        (b"{}", "a"),
        (b"[]", "a"),
        (b'{"b":1}', "a"),
        (b'{"a":1,"c":2}', "c"),
        (b"[1,2,3]", "params"),
        (b'[1,"2"]', "b"),
        (b'{"a":"1"}', "a"),
        (b"[null]", "a"),
    ],
)
def test_what_does_not_fit_names_the_parameter(params: bytes | None, param: str) -> None:
    assert refused(add, params)["param"] == param


def test_unknown_params_are_dropped_where_that_is_declared() -> None:
    assert call(add, b'{"a":1,"c":2}', ignore_unknown=True) == 11
    assert call(add, b"[1,2,3]", ignore_unknown=True) == 3


def test_a_handler_without_parameters() -> None:
    def nothing() -> str:
        return "called"

    for params in (None, b"{}", b"[]", b'{"_meta":{}}'):
        assert call(nothing, params) == "called"
    assert refused(nothing, b"[1]")["expected"] == "at most 0 values"
    assert refused(nothing, b'{"a":1}')["expected"] == "no parameters"


def test_parameters_without_hints_take_anything() -> None:
    def anything(a, b=None):  # type: ignore[no-untyped-def]
        return [a, b]

    assert call(anything, b'[{"x":[1]}]') == [{"x": [1]}, None]


def test_positional_only_parameters_have_names_too() -> None:
    def divide(a: int, /, b: int) -> float:
        return a / b

    assert call(divide, b"[6,3]") == 2
    assert call(divide, b'{"b":3,"a":6}') == 2


def test_keyword_only_parameters_are_not_reached_by_position() -> None:
    def search(text: str, *, limit: int = 10, tags: list[str] = ["x"]) -> Any:  # noqa: B006
        return text, limit, tags

    assert call(search, b'["a"]') == ("a", 10, ["x"])
    assert call(search, b'{"text":"a","limit":3}') == ("a", 3, ["x"])
    assert refused(search, b'["a",3]')["expected"] == "at most 1 values"


def test_a_required_keyword_only_parameter_leaves_names_alone() -> None:
    def search(text: str = "", *, limit: int) -> Any:
        return text, limit

    assert call(search, b'{"limit":3}') == ("", 3)
    assert refused(search, b"[3]") == {
        "param": "params",
        "expected": "object",
        "received": "array",
    }


def test_all_positions_may_go_into_one_list() -> None:
    def total(*numbers: int) -> int:
        return sum(numbers)

    assert call(total, b"[1,2,4]") == 7
    assert call(total, None) == 0
    assert refused(total, b'{"numbers":[1]}')["expected"] == "array"
    assert refused(total, b'[1,"a"]')["param"] == "numbers[1]"
    assert of(total).rest is int and of(add).rest is UNSET


@dataclass
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)


class Box(msgspec.Struct):
    corner: Point
    sides: list[float] = []


def test_dataclasses_and_structs_are_made() -> None:
    def area(box: Box, by: Point | None = None) -> Any:
        return box, by

    assert call(area, b'[{"corner":{"x":1},"sides":[2,3]},{"x":4,"y":5}]') == (
        Box(Point(1), [2, 3]),
        Point(4, 5),
    )


def test_mutable_defaults_are_fresh_for_each_call() -> None:
    def collect(
        a: list[int] = [1],  # noqa: B006
        b: dict[str, int] = {},  # noqa: B006
        c: set[int] = {1},  # noqa: B006
        d: Box = Box(Point(1)),  # noqa: B008
        e: Point = Point(1),  # noqa: B008
    ) -> Any:
        return a, b, c, d, e

    parameters = of(collect)
    first, second = (parameters.call(parameters.bind(None).values, None, None) for _ in "ab")
    assert first == second == ([1], {}, {1}, Box(Point(1)), Point(1))
    for one, other in list(zip(first, second, strict=True))[:4]:
        assert one is not other


def test_any_object_may_be_a_default() -> None:
    marker = object()

    def find(after: Any = marker, when: float = 1.5) -> Any:
        return after, when

    assert call(find, None) == (marker, 1.5)


def absent(a: int | None | UnsetType = UNSET, *, b: str | UnsetType = UNSET) -> Any:
    return [a, b]


class Holder:
    def method(self, a: int | None | UnsetType = UNSET, *, b: str | UnsetType = UNSET) -> Any:
        return [a, b]


@pytest.mark.parametrize("handler", [absent, Holder().method, functools.partial(absent)])
def test_what_is_not_given_is_told_from_null(handler: Callable[..., Any]) -> None:
    for none_given in (None, b"{}"):
        assert call(handler, none_given) == [UNSET, UNSET]
    assert call(handler, b'{"a":null}') == call(handler, b"[null]") == [None, UNSET]
    assert call(handler, b'{"a":1,"b":"x"}') == [1, "x"]
    assert [parameter.required for parameter in of(handler).listed] == [False, False]
    assert refused(handler, b'{"a":"x"}') == {
        "param": "a",
        "expected": "integer | null",
        "received": "string",
    }


def test_a_key_that_was_not_given_can_be_told_too() -> None:
    def pay(idempotency_key: str | UnsetType = UNSET) -> Any:
        return idempotency_key

    parameters = of(pay, takes_key=True)
    for key in (None, "k"):
        bound = parameters.bind(None)
        parameters.give_key(bound.values, key)
        assert parameters.call(bound.values, None, None) == (key or UNSET)


def test_the_name_of_what_is_not_given_is_our_own_affair() -> None:
    class Inner(msgspec.Struct):
        mood: Literal["up", "down"] | UnsetType = UNSET

    def must(a: int | UnsetType, b: Inner | UnsetType = UNSET) -> None: ...

    assert refused(must, b"{}") == {"param": "a", "expected": "integer", "received": "nothing"}
    data = refused(must, b'{"a":1,"b":{"mood":"x"}}')
    assert (data["param"], data["expected"]) == ("b.mood", '"up" | "down"')
    assert data["accepted"] == ["up", "down"]
    assert "Unset" not in str(refused(must, b'{"a":1,"b":3}'))


def test_context_and_transaction_are_handed_in_and_not_listed() -> None:
    def handler(a: int, ctx: Context, tx: Transaction, *, b: int = 2) -> Any:
        return a, ctx, tx, b

    parameters = of(handler)
    assert [parameter.name for parameter in parameters.listed] == ["a", "b"]
    assert (parameters.context, parameters.transaction) == ("ctx", "tx")
    ctx: Any = object()
    assert parameters.call(parameters.bind(b"[1]").values, ctx, "tx") == (1, ctx, "tx", 2)


def test_an_optional_context_and_a_drivers_connection_count_too() -> None:
    def handler(
        ctx: Optional[Context] = None,  # noqa: UP045
        db: sqlite3.Connection | None = None,
        *,
        tx: sqlite3.Connection,
    ) -> None:
        raise AssertionError

    assert "db" in wrong(handler)  # a union of it is no transaction

    def good(ctx: Context | None, *, tx: sqlite3.Connection) -> Any:
        return ctx, tx

    parameters = of(good)
    assert (parameters.context, parameters.transaction) == ("ctx", "tx")
    assert parameters.call(parameters.bind(None).values, None, "tx") == (None, "tx")


def test_hints_may_be_written_as_text() -> None:
    def handler(a: "Point", b: "int | None" = None) -> "list[int]":
        return [a.x, b or 0]

    parameters = of(handler)
    assert parameters.returns == list[int]
    assert call(handler, b'[{"x":3}]') == [3, 0]


def test_what_is_called_may_be_a_method_a_partial_an_object_or_wrapped() -> None:
    class Counter:
        def up(self, by: int = 1) -> int:
            return by + 1

        def __call__(self, by: int) -> int:
            return by + 2

    def wrapped(by: int) -> int:
        return by + 4

    @functools.wraps(wrapped)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    assert call(Counter().up, b"[1]") == 2
    assert call(Counter(), b"[1]") == 3
    assert call(wrapper, b"[1]") == 5
    assert call(functools.partial(add, b=5), b"[1]") == 6
    assert refused(Counter(), b'["a"]')["expected"] == "integer"
    assert refused(functools.partial(add, 5), b'["a"]')["expected"] == "integer"


def test_a_builtin_with_a_signature_takes_anything() -> None:
    assert call(len, b'["abc"]') == 3


# The key and _meta travel beside the params.


def bound(handler: Callable[..., Any], params: bytes | None) -> Bound:
    return of(handler, takes_key=True).bind(params)


def test_the_key_is_taken_out_before_the_handler_is_bound() -> None:
    found = bound(add, b'{"a":1,"idempotency_key":"k","_meta":{"x":1}}')
    assert isinstance(found.key, Raw) and isinstance(found.meta, Raw)
    assert (bytes(found.key), bytes(found.meta)) == (b'"k"', b'{"x":1}')
    assert bound(add, b'{"a":1}').key is UNSET
    assert bound(add, b"[1]").key is UNSET and bound(add, b"[1]").meta is UNSET
    assert refused(add, b'{"a":1,"idempotency_key":"k"}')["param"] == "idempotency_key"


def test_beside_no_values_meta_travels_in_an_object() -> None:
    def total(*values: int) -> int:
        return sum(values)

    found = of(total).bind(b'{"_meta":{"x":1}}')
    assert isinstance(found.meta, Raw)
    assert (found.values, found.key, bytes(found.meta)) == ([], UNSET, b'{"x":1}')
    assert call(total, b'{"_meta":{}}') == 0
    told = {"param": "params", "expected": "array", "received": "object"}
    assert refused(total, b'{"values":[1]}') == refused(total, b'{"_meta":{},"a":1}') == told


def test_a_handler_that_asks_for_the_key_gets_it() -> None:
    def pay(amount: int, idempotency_key: str) -> Any:
        return amount, idempotency_key

    parameters = of(pay, takes_key=True)
    for params in (b'{"amount":1,"idempotency_key":"k"}', b'[1,"k"]'):
        found = parameters.bind(params)
        assert isinstance(found.key, Raw) and bytes(found.key) == b'"k"'
        parameters.give_key(found.values, "k")
        assert parameters.call(found.values, None, None) == (1, "k")
    found = parameters.bind(b'{"amount":1}')
    parameters.give_key(found.values, "from _meta")
    assert parameters.call(found.values, None, None) == (1, "from _meta")
    with pytest.raises(InvalidParams) as caught:
        parameters.give_key(parameters.bind(b'{"amount":1}').values, None)
    assert caught.value.data["param"] == "idempotency_key"


def test_a_handler_may_do_without_the_key() -> None:
    def pay(idempotency_key: str | None = None) -> Any:
        return idempotency_key

    parameters = of(pay, takes_key=True)
    found = parameters.bind(None)
    assert found.key is UNSET
    parameters.give_key(found.values, None)
    assert parameters.call(found.values, None, None) is None
    of(add, takes_key=True).give_key(bound(add, b"[1]").values, "k")  # nobody asked


def test_for_a_query_the_key_is_a_parameter_like_any_other() -> None:
    def find(idempotency_key: int) -> int:
        return idempotency_key

    assert call(find, b"[3]") == 3


def test_a_parameter_may_be_called_meta() -> None:
    def show(_meta: dict[str, int]) -> Any:
        return _meta

    assert call(show, b'{"_meta":{"a":1}}') == {"a": 1}
    assert of(show).bind(b'{"_meta":{"a":1}}').meta is UNSET


def test_a_command_has_no_values_without_names() -> None:
    def remove(*ids: int, ctx: Context) -> None: ...

    with pytest.raises(
        UsageError, match=r"\*ids .* no place for its idempotency key; make it a list"
    ):
        of(remove, takes_key=True)
    assert of(remove).rest is int


# What a type's own check raises.


@dataclass
class Fragile:
    kind: str

    def __post_init__(self) -> None:
        if self.kind == "bug":
            raise KeyError("unforeseen")
        if self.kind == "no":
            raise RpcError("said on purpose", code=7)


def test_what_a_type_raises_beyond_refusing_comes_out_as_it_is() -> None:
    def take(a: Fragile) -> None: ...

    parameters = of(take)
    with pytest.raises(KeyError):
        parameters.bind(b'[{"kind":"bug"}]')
    with pytest.raises(RpcError, match="said on purpose"):
        parameters.bind(b'[{"kind":"no"}]')


# Refused at registration, with what to do instead.


class Foreign:
    pass


@dataclass
class Tree:
    children: list["Tree"]
    value: "complex | None" = None


@dataclass
class Chain:
    next: Optional["Chain"] = None


def test_a_type_may_hold_itself() -> None:
    def follow(chain: Chain) -> Any:
        return chain.next

    assert call(follow, b'[{"next":{}}]') == Chain()


class Shape(Protocol):
    x: int


def kwargs(**options: int) -> None: ...
def mixed(a: int, *rest: int) -> None: ...
def foreign_inside(a: dict[str, list[Foreign]]) -> None: ...
def foreign_rest(*a: Foreign) -> None: ...
def foreign_deep(a: Tree) -> None: ...
def two_objects(a: Point | Box) -> None: ...
def unknown_hint(a: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def broken_hint(a: "list[") -> None: ...  # type: ignore[valid-type]  # noqa: F722
def bad_attribute(a: "sqlite3.Nothing") -> None: ...  # type: ignore[name-defined]
def of_object(a: object) -> None: ...
def unbound(self, a: int) -> None: ...  # type: ignore[no-untyped-def]
def gives_foreign() -> Foreign: ...  # type: ignore[empty-body]
def gives_foreign_inside() -> dict[str, list[Foreign]]: ...  # type: ignore[empty-body]
def odd_keys(a: list[dict[tuple[int, int], int]]) -> None: ...
def gives_odd_keys() -> dict[tuple[int, int], int]: ...  # type: ignore[empty-body]
def gives_object_keys() -> dict[str, dict[Point, int]]: ...  # type: ignore[empty-body]
def gives_foreign_or_not() -> int | Point | Box | Foreign: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        (kwargs, "m: **options tells callers nothing; name the parameters one by one"),
        (mixed, "make it a list: rest: list[integer]"),
        (foreign_inside, "holds Foreign, which JSON cannot carry; use a dataclass"),
        (foreign_rest, "holds Foreign, which JSON cannot carry"),
        (foreign_deep, "parameter a holds complex, which JSON cannot carry"),
        (of_object, "or Any for whatever comes"),
        (two_objects, "m: parameter a cannot be decoded"),
        (unknown_hint, "the hint 'Missing' is not known where the function stands; import"),
        (broken_hint, "a hint cannot be read"),
        (bad_attribute, "a hint cannot be read"),
        (unbound, "register it on an instance, service.query(instance.unbound)"),
        (gives_foreign, "m: it returns Foreign, which JSON cannot carry; return a dataclass"),
        (gives_foreign_inside, "m: it returns Foreign, which JSON cannot carry"),
        (gives_foreign_or_not, "m: it returns Foreign, which JSON cannot carry"),
        (odd_keys, "m: parameter a holds a dict whose keys JSON cannot carry"),
        (gives_odd_keys, "m: it returns a dict whose keys JSON cannot carry"),
        (gives_object_keys, "m: it returns a dict whose keys JSON cannot carry"),
        (print, "*args beside other parameters"),
        (dict.update, "Python cannot tell its parameters; wrap it in a def"),
    ],
)
def test_a_mistake_shows_at_registration(handler: Callable[..., Any], advice: str) -> None:
    assert advice in wrong(handler)


@pytest.mark.parametrize(
    "hint",
    [
        object,
        Any,
        NoReturn,
        Point | Box,
        list[Point | Box],
        Iterable[Point],
        Counter[str],
        OrderedDict[str, int],
        Shape,
        msgspec.Raw,
        dict[int, str],
        dict[UUID, str],
        dict[Any, str],
    ],
    ids=str,
)
def test_what_can_be_sent_may_be_returned(hint: Any) -> None:
    def handler() -> Any: ...

    handler.__annotations__["return"] = hint
    of(handler)


def test_a_name_that_no_struct_can_have_is_refused() -> None:
    def handler(__a: int) -> None: ...

    with pytest.raises(UsageError, match="m: __a is a name for Python's own use; choose another"):
        of(handler)


def test_a_parameter_may_be_called_self_if_it_has_a_hint() -> None:
    def handler(self: int) -> int:
        return self

    assert call(handler, b"[3]") == 3


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    items: list[int]


@pytest.mark.parametrize(
    ("hint", "nesting"),
    [
        (int, 0),
        (str | None, 0),
        (list[int], 1),
        (dict[str, list[int] | None], 2),
        (tuple[int, ...] | str, 1),
        (Any, math.inf),
        (list[Any], math.inf),
        (Raw, math.inf),
        (Strict, math.inf),
    ],
)
def test_a_closed_type_tells_how_deep_its_values_nest(hint: Any, nesting: float) -> None:
    def handler(a: Any, b: int) -> None: ...

    handler.__annotations__["a"] = hint
    assert of(handler).nesting == nesting
    assert of(handler, ignore_unknown=True).nesting == math.inf
