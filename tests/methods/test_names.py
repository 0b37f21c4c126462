"""Wire names: by a rule, by a mark in the hint; and the one parameter that takes all params."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Raw

from duet_rpc import Name, Service, UsageError, Whole
from duet_rpc.methods.names import WholeMark, find_rule, read_name


@pytest.mark.clause("params-2")
@pytest.mark.parametrize(
    ("name", "camel", "pascal", "kebab"),
    [
        ("a", "a", "A", "a"),
        ("max_items", "maxItems", "MaxItems", "max-items"),
        ("from_", "from", "From", "from"),
        ("_private_name", "_privateName", "_PrivateName", "_private-name"),
        ("to_URL_2", "toURL2", "ToURL2", "to-URL-2"),
        ("maxItems", "maxItems", "MaxItems", "maxItems"),
    ],
)
def test_the_rules(name: str, camel: str, pascal: str, kebab: str) -> None:
    named = [find_rule("camel")(name), find_rule("pascal")(name), find_rule("kebab")(name)]
    assert named == [camel, pascal, kebab]
    assert find_rule(None)(name) == name
    assert find_rule(str.upper)(name) == name.upper()


@pytest.mark.parametrize("name", ["max_items", "from_", "_private_name", "url2_x"])
def test_camel_case_is_that_of_msgspec(name: str) -> None:
    struct = msgspec.defstruct("S", [(name, int)], rename="camel")
    assert struct.__struct_encode_fields__ == (find_rule("camel")(name),)


@pytest.mark.parametrize("rename", ["snake", "", 3, True, ["camel"]])
def test_a_rule_that_there_is_not(rename: Any) -> None:
    with pytest.raises(UsageError, match='rename is .*; give "camel", "pascal", "kebab", or a f'):
        Service(rename=rename)


@pytest.mark.parametrize("name", ["", 'a"b', "a\\b", "a\nb", "\ud83d", 3, None])
def test_a_name_that_cannot_be_one(name: Any) -> None:
    with pytest.raises(UsageError, match="the wire name of a parameter is"):
        Name(name)
    service = Service(rename=lambda argument: name)
    with pytest.raises(UsageError, match="get: parameter id: the wire name of a parameter is"):
        service.query(name="get")(lambda id: id)


def test_marks_are_taken_out_of_hints() -> None:
    rule = find_rule("camel")
    assert read_name("a_b", int, rule) == ("aB", int)
    assert read_name("a_b", Annotated[int, Name("x")], rule) == ("x", int)
    limited = Annotated[int, Meta(ge=0), Name("x")]
    assert read_name("a", limited, str) == ("x", Annotated[int, Meta(ge=0)])


def keyword(text: Annotated[str, Name("from")], max_items: int = 3) -> None: ...


def inside(text: Annotated[str, Name("from")] | None = None) -> None: ...


def whole_inside(params: list[Whole[int]]) -> None: ...


def twice(a: int, b: Annotated[int, Name("a")]) -> None: ...


def colliding(max_items: int, maxItems: int) -> None: ...


def meta(context: Annotated[dict[str, Any], Name("_meta")]) -> None: ...


def renamed_meta(_meta: Annotated[int, Name("m")]) -> None: ...


def key(token: Annotated[str, Name("idempotency_key")]) -> None: ...


def beside(params: Whole[dict[str, int]], other: int = 3) -> None: ...


def values(*params: Whole[int]) -> None: ...


def named(params: Annotated[dict[str, int], Name("x"), WholeMark()]) -> None: ...


def number(params: Whole[int | None]) -> None: ...


def key_as_all(idempotency_key: Whole[dict[str, int]]) -> None: ...


@pytest.mark.clause("params-3")
@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        (inside, "Annotated has to be around all of it"),
        (whole_inside, "Annotated has to be around all of it"),
        (twice, "a and b are both called a on the wire"),
        (colliding, "max_items and maxItems are both called maxItems on the wire"),
        (meta, "_meta travels beside the params"),
        (renamed_meta, "_meta travels beside the params"),
        (key, "idempotency_key travels beside the params"),
        (beside, "leaves none to others"),
        (values, "leaves none to others"),
        (named, "takes all params, which have no name"),
        (number, "all params are an object or an array, never integer . null"),
        (key_as_all, "takes all params, which have no name"),
    ],
)
def test_names_that_cannot_work_are_refused(handler: Callable[..., Any], advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        Service(rename="camel").command(handler)


def test_what_travels_beside_keeps_its_name() -> None:
    service = Service(rename="camel")

    @service.command
    def pay(in_cents: int, idempotency_key: str) -> None: ...

    @service.query
    def find(idempotency_key: str) -> None: ...

    @service.query
    def look(_meta: int) -> None: ...

    names = {method.name: [p.name for p in method.parameters.listed] for method in service}
    assert names == {
        "pay": ["inCents", "idempotency_key"],
        "find": ["idempotencyKey"],  # a parameter of a query like any other
        "look": ["_meta"],
    }


def test_methods_keep_their_rules_in_another_service() -> None:
    inner, outer = Service(rename="camel", ignore_unknown=True), Service()
    inner.query(keyword)
    outer.include(inner)
    [method] = outer
    assert [parameter.name for parameter in method.parameters.listed] == ["from", "maxItems"]
    assert method.parameters.ignores_unknown


def test_a_method_decides_for_itself_what_it_ignores() -> None:
    lenient, strict = Service(ignore_unknown=True), Service()
    lenient.query(name="a", ignore_unknown=False)(keyword)
    lenient.query(name="b")(keyword)
    strict.query(name="a")(keyword)
    strict.query(name="b", ignore_unknown=True)(keyword)
    for service in (lenient, strict):
        assert [method.parameters.ignores_unknown for method in service] == [False, True]
    with pytest.raises(UsageError, match="ignore_unknown is 1; give True or False"):
        Service(ignore_unknown=1)  # type: ignore[arg-type]


def test_raw_is_whole_too() -> None:
    service = Service()

    @service.query
    def take(params: Whole[Raw]) -> None: ...

    [method] = service
    bound = method.parameters.bind(b'{"a": 1.50}')
    assert bytes(bound.values.params) == b'{"a": 1.50}'
