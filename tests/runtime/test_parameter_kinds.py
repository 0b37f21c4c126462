"""Every kind of parameter over every way to call: each case is a row, each way a column.

A case says how one parameter is declared, what callers send for it, what the handler gets, and
what is refused in which words. A way is a kind of handler, or of message. A new kind of parameter
is one more row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from msgspec import Raw

from duet_rpc import Client, Context, InvalidParams, Name, Service, Whole, testing

UNKNOWN = "an unknown name"


class Note(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    id: Annotated[int, pydantic.Field(gt=0)]
    text: str = pydantic.Field(default="", max_length=5)
    order: Literal["oldest", "newest"] = "oldest"
    tags: list[str] = []


class Aliased(pydantic.BaseModel):
    max_items: int = pydantic.Field(alias="maxItems")


class Either(pydantic.RootModel[Note | Aliased]):
    """What is one of two models."""


class Checked(pydantic.BaseModel):
    even: int
    inner: Note | None = None
    by_name: dict[str, Note] = {}
    either: int | list[int] = 0

    @pydantic.field_validator("even")
    @classmethod
    def check_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"the secret {value} is odd")
        return value


@attrs.define
class Pair:
    left: int = attrs.field(validator=attrs.validators.ge(0))
    right: str = "r"


@dataclass(slots=True)
class Page:
    note: Note
    others: list[Note] = field(default_factory=list)
    last: Note | None = None


class Sheet(msgspec.Struct, rename="camel"):
    first_note: Note
    page_size: int = 10


class Options(TypedDict):
    limit: int
    note: NotRequired[Note]


@attrs.frozen
class Folder:
    note: Note


Anything = Whole[Any]
NoteOrNull = Whole[Note | None]
TwoValues = Whole[tuple[int, str]]


class Case(NamedTuple):
    name: str
    hint: Any
    sent: Any
    """The params by name, or the array of one that takes nothing else."""
    value: Any
    """What the handler gets."""
    refused: tuple[tuple[Any, str, str, str], ...] = ()
    """Params, and the param, what was expected and what came, as the refusal says it."""
    argument: str = "value"
    array: Any = None
    """The params by position."""
    answer: Any = None
    """What a handler answers that returns what it got, if that is not what was sent."""
    service: dict[str, Any] = {}


CASES = [
    Case(
        "a name that is a keyword",
        Annotated[str, Name("from")],
        {"from": "a"},
        "a",
        (
            ({"from": 1}, "from", "string", "integer"),
            ({}, "from", "string", "nothing"),
            ({"value": "a"}, "value", "a parameter named from", UNKNOWN),
            ([1], "from", "string", "integer"),
        ),
        array=["a"],
        answer="a",
    ),
    Case(
        "a name with a dash, and limits",
        Annotated[int, msgspec.Meta(ge=0), Name("max-items")],
        {"max-items": 3},
        3,
        (
            ({"max-items": -1}, "max-items", "integer >= 0", "another integer"),
            ([], "max-items", "integer >= 0", "nothing"),
        ),
        array=[3],
        answer=3,
    ),
    Case(
        "camel case by a rule",
        int,
        {"maxItems": 3},
        3,
        (
            ({"max_items": 3}, "max_items", "a parameter named maxItems", UNKNOWN),
            ({"maxItems": "3"}, "maxItems", "integer", "string"),
        ),
        argument="max_items",
        array=[3],
        answer=3,
        service={"rename": "camel"},
    ),
    Case(
        "a name of its own before the rule",
        Annotated[int, Name("MAX")],
        {"MAX": 3},
        3,
        (({"maxItems": 3}, "maxItems", "a parameter named MAX", UNKNOWN),),
        argument="max_items",
        array=[3],
        answer=3,
        service={"rename": "camel"},
    ),
    Case(
        "unknown params are dropped",
        int,
        {"value": 3, "other": [4]},
        3,
        (({"other": 4}, "value", "integer", "nothing"),),
        array=[3, 4],
        answer=3,
        service={"ignore_unknown": True},
    ),
    Case(
        "a model",
        Note,
        {"value": {"id": 1, "text": "milk"}},
        Note(id=1, text="milk"),
        (
            ({"value": {"id": 0}}, "value.id", "integer > 0", "another integer"),
            ({"value": {"id": "x"}}, "value.id", "integer > 0", "string"),
            ({"value": {"id": 1.5}}, "value.id", "integer > 0", "number"),
            ({"value": {}}, "value.id", "integer > 0", "nothing"),
            (
                {"value": {"id": 1, "text": "secret"}},
                "value.text",
                "string of length <= 5",
                "another string",
            ),
            (
                {"value": {"id": 1, "order": "secret"}},
                "value.order",
                '"oldest" | "newest"',
                "another string",
            ),
            ({"value": {"id": 1, "tags": ["a", 2]}}, "value.tags[1]", "string", "integer"),
            ({"value": {"id": 1, "tags": 2}}, "value.tags", "array of string", "integer"),
            (
                {"value": {"id": 1, "secret": 2}},
                "value.secret",
                "a member named id, text, order or tags",
                UNKNOWN,
            ),
            ({"value": 7}, "value", "object", "integer"),
            ({"value": None}, "value", "object", "null"),
            ({}, "value", "Note", "nothing"),
            ([{"id": 0}], "value.id", "integer > 0", "another integer"),
        ),
        array=[{"id": 1, "text": "milk"}],
        answer={"id": 1, "text": "milk", "order": "oldest", "tags": []},
    ),
    Case(
        "a model with another name for a field",
        Aliased,
        {"value": {"maxItems": 3}},
        Aliased(maxItems=3),
        (
            ({"value": {"maxItems": "x"}}, "value.maxItems", "integer", "string"),
            ({"value": {"max_items": 3}}, "value.maxItems", "integer", "nothing"),
        ),
        array=[{"maxItems": 3}],
        answer={"maxItems": 3},
    ),
    Case(
        "a model with a check of its own, and models inside",
        Checked,
        {"value": {"even": 2, "inner": {"id": 1}, "by_name": {"a": {"id": 2}}}},
        Checked(even=2, inner=Note(id=1), by_name={"a": Note(id=2)}),
        (
            ({"value": {"even": 3}}, "value.even", "integer", "another integer"),
            ({"value": {"even": 2, "inner": 3}}, "value.inner", "object", "integer"),
            (
                {"value": {"even": 2, "inner": {"id": 0}}},
                "value.inner.id",
                "integer > 0",
                "another integer",
            ),
            (
                {"value": {"even": 2, "by_name": {"k": {}}}},
                "value.by_name.k.id",
                "integer > 0",
                "nothing",
            ),
            (
                {"value": {"even": 2, "either": "x"}},
                "value.either",
                "integer | array of integer",
                "another string",
            ),
        ),
        array=[{"even": 2, "inner": {"id": 1}, "by_name": {"a": {"id": 2}}}],
        answer={
            "even": 2,
            "inner": {"id": 1, "text": "", "order": "oldest", "tags": []},
            "by_name": {"a": {"id": 2, "text": "", "order": "oldest", "tags": []}},
            "either": 0,
        },
    ),
    Case(
        "one of two models",
        Either,
        {"value": {"maxItems": 3}},
        Either(Aliased(maxItems=3)),
        (({"value": {"maxItems": "x"}}, "value", "Either", "another object"),),
        array=[{"maxItems": 3}],
        answer={"maxItems": 3},
    ),
    Case(
        "a list of models",
        list[Aliased],
        {"value": [{"maxItems": 1}, {"maxItems": 2}]},
        [Aliased(maxItems=1), Aliased(maxItems=2)],
        (
            (
                {"value": [{"maxItems": 1}, {"maxItems": "x"}]},
                "value[1].maxItems",
                "integer",
                "string",
            ),
        ),
        array=[[{"maxItems": 1}, {"maxItems": 2}]],
        answer=[{"maxItems": 1}, {"maxItems": 2}],
    ),
    Case(
        "a dict of models",
        dict[str, Aliased],
        {"value": {"a": {"maxItems": 1}}},
        {"a": Aliased(maxItems=1)},
        (({"value": {"a": {}}}, "value[...].maxItems", "integer", "nothing"),),
        array=[{"a": {"maxItems": 1}}],
        answer={"a": {"maxItems": 1}},
    ),
    Case(
        "a model or null",
        Aliased | None,
        {"value": None},
        None,
        (({"value": {"maxItems": None}}, "value.maxItems", "integer", "null"),),
        array=[None],
    ),
    Case(
        "a dataclass that holds models",
        Page,
        {"value": {"note": {"id": 1}, "others": [{"id": 2}]}},
        Page(Note(id=1), [Note(id=2)]),
        (
            (
                {"value": {"note": {"id": 1}, "others": [{"id": 0}]}},
                "value.others[0].id",
                "integer > 0",
                "another integer",
            ),
            ({"value": {"note": {"id": 1}, "last": 3}}, "value.last", "object", "integer"),
            ({"value": {}}, "value.note", "Note", "nothing"),
        ),
        array=[{"note": {"id": 1}, "others": [{"id": 2}]}],
        answer={
            "note": {"id": 1, "text": "", "order": "oldest", "tags": []},
            "others": [{"id": 2, "text": "", "order": "oldest", "tags": []}],
            "last": None,
        },
    ),
    Case(
        "a struct with a rule of its own that holds a model",
        Sheet,
        {"value": {"firstNote": {"id": 1}}},
        Sheet(Note(id=1)),
        (
            ({"value": {"firstNote": {}}}, "value.firstNote.id", "integer > 0", "nothing"),
            (
                {"value": {"firstNote": {"id": 1}, "pageSize": "x"}},
                "value.pageSize",
                "integer",
                "string",
            ),
        ),
        array=[{"firstNote": {"id": 1}}],
        answer={
            "firstNote": {"id": 1, "text": "", "order": "oldest", "tags": []},
            "pageSize": 10,
        },
    ),
    Case(
        "a typed dict that holds a model",
        Options,
        {"value": {"limit": 1, "note": {"id": 1}}},
        {"limit": 1, "note": Note(id=1)},
        (({"value": {"limit": 1, "note": {}}}, "value.note.id", "integer > 0", "nothing"),),
        array=[{"limit": 1, "note": {"id": 1}}],
        answer={"limit": 1, "note": {"id": 1, "text": "", "order": "oldest", "tags": []}},
    ),
    Case(
        "an attrs class that holds a model",
        Folder,
        {"value": {"note": {"id": 1}}},
        Folder(Note(id=1)),
        (({"value": {"note": {}}}, "value.note.id", "integer > 0", "nothing"),),
        array=[{"note": {"id": 1}}],
        answer={"note": {"id": 1, "text": "", "order": "oldest", "tags": []}},
    ),
    Case(
        "an attrs class with a check",
        list[Pair],
        {"value": [{"left": 1}]},
        [Pair(1)],
        (
            ({"value": [{"left": -1}]}, "value[0]", "Pair", "another object"),
            ({"value": [{"left": "x"}]}, "value[0].left", "integer", "string"),
            ({"value": [{}]}, "value[0].left", "integer", "nothing"),
        ),
        array=[[{"left": 1}]],
        answer=[{"left": 1, "right": "r"}],
    ),
    Case(
        "all params, as a dataclass",
        Whole[Page],
        {"note": {"id": 1}},
        Page(Note(id=1)),
        (
            ({}, "note", "Note", "nothing"),
            ([], "note", "Note", "nothing"),
            ({"note": {"id": 0}}, "note.id", "integer > 0", "another integer"),
            ([{"id": 1}], "params", "object", "array"),
        ),
        answer={
            "note": {"id": 1, "text": "", "order": "oldest", "tags": []},
            "others": [],
            "last": None,
        },
    ),
    Case(
        "all params, as a struct",
        Whole[Sheet],
        {"firstNote": {"id": 1}},
        Sheet(Note(id=1)),
        (({"firstNote": {"id": 1}, "pageSize": "x"}, "pageSize", "integer", "string"),),
        answer={
            "firstNote": {"id": 1, "text": "", "order": "oldest", "tags": []},
            "pageSize": 10,
        },
    ),
    Case(
        "all params, as a model",
        Whole[Note],
        {"id": 1},
        Note(id=1),
        (
            ({"id": 0}, "id", "integer > 0", "another integer"),
            ({"secret": 0, "id": 1}, "secret", "a member named id, text, order or tags", UNKNOWN),
            ([1], "params", "object", "array"),
        ),
        answer={"id": 1, "text": "", "order": "oldest", "tags": []},
    ),
    Case(
        "all params, as a model or null",
        NoteOrNull,
        {"id": 1},
        Note(id=1),
        (({"id": 0}, "id", "integer > 0", "another integer"), ({}, "id", "integer > 0", "nothing")),
        answer={"id": 1, "text": "", "order": "oldest", "tags": []},
    ),
    Case(
        "all params, as a tuple",
        TwoValues,
        [1, "a"],
        (1, "a"),
        (
            ([1], "params", "array of length 2", "another array"),
            ([1, 2], "params[1]", "string", "integer"),
        ),
        array=[1, "a"],
        answer=[1, "a"],
    ),
    Case(
        "all params, as a typed dict",
        Whole[Options],
        {"limit": 1},
        {"limit": 1},
        (({"limit": "x"}, "limit", "integer", "string"),),
        answer={"limit": 1},
    ),
    Case(
        "all params, as a dict",
        Whole[dict[str, int]],
        {"a": 1, "b": 2},
        {"a": 1, "b": 2},
        (({"a": "x"}, "params[...]", "integer", "string"), ([1], "params", "object", "array")),
        answer={"a": 1, "b": 2},
    ),
    Case(
        "all params, as a list",
        Whole[list[int]],
        [1, 2],
        [1, 2],
        (([1, "x"], "params[1]", "integer", "string"), ({"a": 1}, "params", "array", "object")),
        array=[1, 2],
        answer=[1, 2],
    ),
    Case(
        "all params, whatever they are",
        Anything,
        {"a": [1]},
        {"a": [1]},
        array=[{"a": 1}],
        answer={"a": [1]},
    ),
]


class Way(NamedTuple):
    name: str
    kind: str = "query"
    with_context: bool = False
    is_async: bool = False
    options: dict[str, Any] = {}


WAYS = [
    Way("a query that is answered inline", options={"inline": True}),
    Way("a query with a context", with_context=True),
    Way("an async query", is_async=True),
    Way("a query in a worker thread"),
    Way("a command with a key", kind="command"),
    Way("an async command with a context", kind="command", with_context=True, is_async=True),
    Way("a batch of queries", options={"inline": True}),
    Way("a batch of async queries", is_async=True),
]


def make_service(case: Case, way: Way, seen: list[Any]) -> Service:
    """Make a service with one method, `take`, that returns what it gets."""
    service = Service(**case.service)
    before = "ctx, " if way.with_context else ""
    source = f"def take({before}{case.argument}):\n    seen.append({case.argument})\n"
    source += f"    return {case.argument}\n"
    names: dict[str, Any] = {"seen": seen}
    exec("async " + source if way.is_async else source, names)
    names["take"].__annotations__ = {"ctx": Context, case.argument: case.hint, "return": Any}
    getattr(service, way.kind)(**way.options)(names["take"])
    return service


async def send(client: Client, way: Way, params: Any) -> Any:
    """Call the method in one of the ways."""
    if way.name.startswith("a batch"):
        async with client.batch() as batch:
            items = [batch.query("take", params), batch.query("take", params)]
        return [item.result() for item in items][0]
    if way.kind == "command" and isinstance(params, dict):
        return await client.command("take", params, key="k")
    return await client.call("take", params)


table = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
columns = pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])


@pytest.mark.clause("messages-8", "params-1", "params-2", "params-4", "params-6")
@table
@columns
async def test_what_is_sent_reaches_the_handler(case: Case, way: Way) -> None:
    seen: list[Any] = []
    async with testing.connect(make_service(case, way, seen)) as client:
        assert await send(client, way, case.sent) == case.answer
        if case.array is not None:
            await send(client, way, case.array)
    assert seen[0] == case.value and type(seen[0]) is type(case.value)
    assert case.array is None or len(seen) > 1


@pytest.mark.clause("errors-5", "params-7")
@table
@columns
async def test_what_does_not_fit_is_refused_in_our_words(case: Case, way: Way) -> None:
    seen: list[Any] = []
    async with testing.connect(make_service(case, way, seen)) as client:
        for params, param, expected, received in case.refused:
            with pytest.raises(InvalidParams) as caught:
                await send(client, way, params)
            data = dict(caught.value.data)
            data.pop("accepted", None)
            assert data == {"param": param, "expected": expected, "received": received}
            for word in ("pydantic", "attrs", "http", "secret "):
                assert word not in str(caught.value)
    assert seen == []


Call = Callable[[Client], Any]


@pytest.mark.clause("params-4")
@columns
async def test_raw_params_are_as_they_came(way: Way) -> None:
    seen: list[Any] = []
    case = Case("raw", Whole[Raw], None, None, argument="params")
    sent = b'{"a": 1.50, "_meta": {"x": 1}}'
    async with testing.connect(make_service(case, way, seen)) as client:
        await client.call("take", Raw(sent))
        await client.call("take", Raw(b"[1.50]"))
        await client.call("take")
    assert list(map(bytes, seen)) == [sent, b"[1.50]", b"{}"]


@pytest.mark.clause("params-5")
@columns
async def test_what_travels_beside_is_no_part_of_all_params(way: Way) -> None:
    seen: list[Any] = []
    case = Case("whole", Whole[dict[str, Any]], None, None, argument="params")
    async with testing.connect(make_service(case, way, seen)) as client:
        await client.call("take", {"a": 1, "_meta": {"traceparent": "00-1"}})
        await client.call("take", Raw(b'{"a":1,"_met\\u0061":{}}'))
        if way.kind == "command":
            await client.command("take", {"a": 1}, key="one")
            await client.command("take", {"a": 1}, key="one")  # which is not run again
    assert seen == [{"a": 1}] * (3 if way.kind == "command" else 2)


class WithMeta(msgspec.Struct):
    a: int
    _meta: dict[str, Any] = {}


@pytest.mark.clause("params-5")
@columns
async def test_a_type_that_has_a_meta_gets_it(way: Way) -> None:
    seen: list[Any] = []
    case = Case("whole", Whole[WithMeta], None, None, argument="params")
    async with testing.connect(make_service(case, way, seen)) as client:
        await client.call("take", {"a": 1, "_meta": {"x": 1}})
    assert seen == [WithMeta(1, {"x": 1})]


@pytest.mark.clause("params-4")
async def test_no_params_are_the_default() -> None:
    service = Service()
    seen: list[Any] = []

    @service.query(inline=True)
    def take(params: Whole[Note | None] = None) -> None:
        seen.append(params)

    @service.query
    def count(params: Whole[list[int]]) -> int:
        return len(params)

    async with testing.connect(service) as client:
        none: Any
        for none in (None, {}, [], Raw(b" [ ] "), Raw(b"{ }"), {"_meta": {}}):
            await client.call("take", none)
        await client.call("take", {"id": 1})
        assert await client.call("count") == 0
    assert seen == [*[None] * 6, Note(id=1)]


@pytest.mark.clause("params-4")
async def test_a_default_of_all_params_is_fresh_for_each_call() -> None:
    service = Service()

    @service.query
    def add(params: Whole[dict[str, int]] = {}) -> int:  # noqa: B006  (which is what is tested)
        params[str(len(params))] = 1
        return len(params)

    async with testing.connect(service) as client:
        assert [await client.call("add") for _ in range(2)] == [1, 1]


class WithKey(msgspec.Struct):
    idempotency_key: str


async def test_a_key_that_does_not_fit_a_type_that_has_one_is_named_as_such() -> None:
    service = Service()

    @service.command
    def take(params: Whole[WithKey]) -> None: ...

    async with testing.connect(service) as client:
        with pytest.raises(InvalidParams) as refused:
            await client.call("take", Raw(b'{"idempotency_key":5}'))
    assert refused.value.data["expected"] == "string"


@pytest.mark.clause("params-4")
async def test_an_empty_object_with_a_space_is_the_default() -> None:
    service = Service()

    @service.query
    def take(params: Whole[dict[str, int]] = {"a": 1}) -> Any:  # noqa: B006
        return params

    async with testing.connect(service) as client:
        assert await client.call("take", Raw(b"{ }")) == {"a": 1}


@pytest.mark.clause("params-4")
async def test_a_context_sees_what_travels_beside_all_params() -> None:
    service = Service()

    @service.query
    def trace(ctx: Context, params: Whole[dict[str, int]]) -> Any:
        return [ctx.trace_parent, params]

    @service.command
    def key(ctx: Context, params: Whole[Note]) -> Any:
        return ctx.idempotency_key

    async with testing.connect(service) as client:
        sent = {"a": 1, "_meta": {"traceparent": "00-1-2-3"}}
        assert await client.call("trace", sent) == ["00-1-2-3", {"a": 1}]
        assert await client.command("key", {"id": 1}, key="order-17") == "order-17"


async def test_large_params_are_taken_whole_too() -> None:
    service = Service()

    @service.query(inline=True)
    def count(params: Whole[list[Note]]) -> int:
        return len(params)

    @service.query(inline=True)
    def size(value: Annotated[list[Note], Name("the-value")]) -> int:
        return len(value)

    many = [{"id": number + 1, "text": "milk"} for number in range(5000)]
    async with testing.connect(service) as client:
        assert await client.call("count", many) == 5000
        assert await client.call("size", {"the-value": many}) == 5000
        many[4711]["id"] = 0
        with pytest.raises(InvalidParams) as caught:
            await client.call("size", {"the-value": many})
        assert caught.value.data["param"] == "the-value[4711].id"


async def test_lone_surrogates_beside_and_in_models() -> None:
    service = Service()

    @service.query
    def take(note: Annotated[Note, Name("the-note")], text: str = "") -> Any:
        return [note, text]

    @service.query
    def whole(params: Whole[dict[str, str]]) -> Any:
        return params

    async with testing.connect(service) as client:
        note = {"id": 1, "text": "a", "order": "oldest", "tags": []}
        half = "\ud83d"
        assert await client.call("take", {"the-note": note, "text": half}) == [note, half]
        with pytest.raises(InvalidParams) as caught:
            await client.call("take", {"the-note": {"id": 1, "text": half}})
        assert caught.value.data["param"] == "the-note"
        assert await client.call("whole", {"a": half, "_meta": {"b": half}}) == {"a": half}
