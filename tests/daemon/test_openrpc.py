"""`rpc.discover`: the document fits the OpenRPC meta-schema and says what the functions say."""

import datetime
import enum
import functools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import attrs
import jsonschema
import msgspec
import pydantic
import pytest
from jsonschema.protocols import Validator
from msgspec.structs import replace
from referencing import Registry
from referencing.jsonschema import DRAFT7

from duet_rpc import Context, InvalidParams, Name, RpcError, Service
from duet_rpc.methods.names import WholeMark
from duet_rpc.server.description import describe, read_method, write_method, write_param
from duet_rpc.server.openrpc import Document, read_openrpc, write_openrpc
from tests.daemon.process import Process

META_SCHEMA = Path(__file__).parent.parent / "data" / "openrpc-meta-schema.json"


def meta_schema() -> Validator:
    """Make what validates documents; the schema of schemas that it names is draft 7."""
    draft_7 = DRAFT7.create_resource(jsonschema.Draft7Validator.META_SCHEMA)
    named = [
        ("https://meta.json-schema.tools/", draft_7),
        ("https://meta.json-schema.tools", draft_7),
    ]
    registry: Registry[Any] = Registry().with_resources(named)
    return jsonschema.Draft7Validator(json.loads(META_SCHEMA.read_text()), registry=registry)


def document(service: Service) -> dict[str, Any]:
    """Describe a service, check the document, and return it as it reads on the wire."""
    made: dict[str, Any] = json.loads(
        msgspec.json.encode(write_openrpc(describe(service, name="test", version="1.2.3")))
    )
    meta_schema().validate(made)
    return made


def method(service: Service) -> dict[str, Any]:
    """Describe a service of one method."""
    [described] = document(service)["methods"]
    assert isinstance(described, dict)
    return described


def param(service: Service) -> dict[str, Any]:
    """Describe the one parameter of the one method."""
    [described] = method(service)["params"]
    assert isinstance(described, dict)
    return described


def test_a_parameter_that_may_be_absent_is_not_required_and_has_no_default() -> None:
    service = Service()

    @service.query
    def find(
        text: str, limit: int | None | msgspec.UnsetType = msgspec.UNSET
    ) -> str | msgspec.UnsetType:
        return text

    described = method(service)
    first, second = described["params"]
    assert (first["required"], second["required"]) == (True, False)
    schema = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert second == {"name": "limit", "required": False, "schema": schema}
    assert described["result"]["schema"] == {"type": "string"}
    assert "Unset" not in json.dumps(described)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Node(msgspec.Struct):
    name: str
    children: list["Node"] = []


NOTHING_GIVEN = object()


class Overdrawn(RpcError):
    code, message = 1001, "Overdrawn"


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (int, {"type": "integer"}),
        (str, {"type": "string"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["up", "down"], {"enum": ["down", "up"]}),
        (Colour, {"$ref": "#/components/schemas/Colour"}),
        (Point, {"$ref": "#/components/schemas/Point"}),
        (Node, {"$ref": "#/components/schemas/Node"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (Annotated[int, msgspec.Meta(ge=1, lt=10)], {"minimum": 1, "exclusiveMaximum": 10}),
        (Annotated[str, msgspec.Meta(pattern="^a")], {"type": "string", "pattern": "^a"}),
        (
            tuple[int, str],
            {"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False},
        ),
    ],
    ids=str,
)
def test_every_kind_of_parameter_has_its_schema(hint: Any, schema: dict[str, Any]) -> None:
    service = Service()

    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = hint
    service.query(handler)
    described = param(service)
    assert described["name"] == "value"
    assert described["required"] is True
    assert schema.items() <= described["schema"].items()


def test_types_with_names_stand_in_the_components() -> None:
    service = Service()

    @service.query
    def move(start: Point, tree: Node) -> list[Point]:
        return [start]

    schemas = document(service)["components"]["schemas"]
    assert schemas["Point"]["properties"] == {
        "x": {"type": "integer"},
        "y": {"type": "integer", "default": 0},
    }
    assert schemas["Point"]["required"] == ["x"]
    assert schemas["Node"]["properties"]["children"]["items"] == {
        "$ref": "#/components/schemas/Node"
    }


def test_defaults_and_required_flags() -> None:
    service = Service()

    @service.query
    def handler(a: int, b: int = 2, c: Colour = Colour.RED, d: Any = NOTHING_GIVEN) -> None: ...

    a, b, c, d = method(service)["params"]
    assert a == {"name": "a", "required": True, "schema": {"type": "integer"}}
    assert b == {"name": "b", "required": False, "schema": {"type": "integer", "default": 2}}
    assert c["schema"] == {"allOf": [{"$ref": "#/components/schemas/Colour"}], "default": "red"}
    assert d == {"name": "d", "required": False, "schema": {}}


def test_the_way_to_call_is_said() -> None:
    service = Service()

    @service.query
    def a_either(x: int) -> None: ...

    @service.query
    def b_by_name(*, x: int) -> None: ...

    @service.query
    def c_any_number(*values: int) -> int:
        return len(values)

    either, by_name, variadic = document(service)["methods"]
    assert either["paramStructure"] == "either"
    assert by_name["paramStructure"] == "by-name"
    assert variadic["paramStructure"] == "by-position"
    assert variadic["x-variadic"] is True
    assert variadic["params"] == [
        {"name": "values", "required": False, "schema": {"type": "integer"}}
    ]


def test_context_is_no_parameter() -> None:
    service = Service()

    @service.query
    def handler(ctx: Context, x: int) -> None: ...

    assert param(service)["name"] == "x"


def test_kinds_and_promises() -> None:
    service = Service("bank", description="Accounts")

    @service.query
    def balance() -> int:
        """Say what is there.

        In cents.
        """
        return 0

    @service.command
    def pay() -> None: ...

    @service.command(retry_safe=True)
    def rename() -> None: ...

    made = document(service)
    balance_, pay_, rename_ = made["methods"]
    assert made["info"] == {"title": "test", "version": "1.2.3", "description": "Accounts"}
    assert made["openrpc"] == "1.3.2"
    assert balance_["name"] == "bank.balance"
    assert balance_["description"] == "Say what is there."
    assert balance_["result"] == {"name": "result", "schema": {"type": "integer"}}
    assert balance_["x-kind"] == "query"
    assert "x-promise" not in balance_
    assert (pay_["x-kind"], rename_["x-kind"]) == ("command", "command")
    assert pay_["x-promise"] != rename_["x-promise"]


def test_errors_that_a_handler_names() -> None:
    service = Service()

    class Trouble(RpcError):
        pass

    class Frozen(Trouble):
        code, message = 1002, "Frozen"

    @service.query
    def pay(amount: int) -> None:
        if amount:
            raise Overdrawn(data={"short": amount})
        try:
            raise Frozen()
        except Trouble:  # a family, which has no code
            raise

    assert method(service)["errors"] == [
        {"code": 1001, "message": "Overdrawn"},
        {"code": 1002, "message": "Frozen"},
    ]


class Declined(RpcError):
    code, message = 1003, "Declined"


def ask_the_bank(cents: int) -> None:
    raise Overdrawn(data={"short": cents})


@pytest.mark.clause("errors-14")
def test_errors_that_are_declared_or_raised_by_a_helper() -> None:
    service = Service()

    @service.query(errors=[Declined])
    def pay(cents: int) -> None:
        ask_the_bank(cents)
        raise InvalidParams()

    assert method(service)["errors"] == [
        {"code": -32602, "message": "Invalid params"},
        {"code": 1001, "message": "Overdrawn"},
        {"code": 1003, "message": "Declined"},
    ]
    [described] = describe(service, with_schemas=False).methods
    written = write_method(described)
    assert [error["code"] for error in written["errors"]] == [1001, 1003]
    read = read_method(written)
    assert read is not None and read.errors == described.errors[1:]


def test_a_result_without_a_schema_is_anything() -> None:
    service = Service()

    class Odd(Protocol):
        pass

    @service.query
    def handler() -> Odd:
        return 1

    assert method(service)["result"]["schema"] == {}


def test_handlers_that_are_not_plain_functions() -> None:
    service = Service()

    def add(a: int, b: int) -> int:
        return a + b

    class Callable:
        def __call__(self, text: str) -> str:
            return text

    service.query(name="add_one")(functools.partial(add, 1))
    service.query(name="object")(Callable())
    names = [described["name"] for described in document(service)["methods"]]
    assert names == ["add_one", "object"]


def test_the_daemon_describes_itself() -> None:
    with Process("rpc") as daemon:
        made = daemon.call("rpc.discover")
    meta_schema().validate(made)
    assert made["info"]["title"] == "duet-rpc"
    assert {"initialize", "shutdown", "rpc.discover"} <= {m["name"] for m in made["methods"]}


def test_a_document_is_read_as_it_was_described() -> None:
    """What a client learns from our document is what the server made it from."""

    class NoAccount(RpcError):
        code, message = 404, "No account"

    service = Service("bank", errors=[NoAccount])

    @service.query
    def total(*values: float) -> float:
        return sum(values)

    @service.command
    def pay(node: Node, cents: Annotated[int, msgspec.Meta(ge=1)] = 100, *, to: str) -> list[Node]:
        """Pay somebody."""
        raise NoAccount()

    described = describe(service)
    read = read_openrpc(msgspec.convert(write_openrpc(described), Document))
    assert read.schemas == described.schemas
    assert read.names == described.names == ["bank.pay", "bank.total"]
    for ours, theirs in zip(described.methods, read.methods, strict=True):
        params = tuple(replace(param, type="") for param in ours.params)
        theirs_bare = [replace(param, schema=None) for param in theirs.params]
        assert theirs_bare == [replace(param, schema=None) for param in params]
        assert replace(theirs, params=(), source={}) == replace(ours, params=(), returns=None)


def test_a_short_description_is_read_as_it_was_written() -> None:
    service = Service()

    @service.command(retry_safe=True)
    def pay(cents: int, to: str = "a: b") -> Node:
        raise NotImplementedError

    [described] = describe(service, with_schemas=False).methods
    assert write_method(described) == {
        "name": "pay",
        "params": ["cents: integer", 'to: string = "a: b"'],
        "returns": "Node",
        "kind": "command",
        "promise": "retry-safe",
    }
    read = read_method(write_method(described))
    assert read is not None
    assert [write_param(param) for param in read.params] == [
        "cents: integer",
        'to: string = "a: b"',
    ]
    assert (read.kind, read.promise, read.returns) == ("command", "retry-safe", "Node")
    assert read_method({"name": 3}) is None


class Tag(pydantic.BaseModel):
    word: str = pydantic.Field(alias="theWord")


class Item(pydantic.BaseModel):
    """A thing to buy."""

    count: Annotated[int, pydantic.Field(gt=0)]
    tags: list[Tag] = []
    place: tuple[int, str] | None = None


class Receipt(pydantic.BaseModel):
    cents: int = 0

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def euros(self) -> float:
        return self.cents / 100


@attrs.define
class Basket:
    items: list[Item]
    owner: str = "nobody"


@pytest.mark.clause("params-8")
def test_models_have_their_own_schemas() -> None:
    service = Service()

    @service.query
    def buy(item: Item, baskets: dict[str, Basket], or_none: Item | None = None) -> Receipt:
        raise NotImplementedError

    made = document(service)
    [described] = made["methods"]
    schemas = made["components"]["schemas"]
    assert [param["schema"] for param in described["params"]] == [
        {"$ref": "#/components/schemas/Item"},
        {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Basket"}},
        {"anyOf": [{"$ref": "#/components/schemas/Item"}, {"type": "null"}], "default": None},
    ]
    assert described["result"]["schema"] == {"$ref": "#/components/schemas/Receipt"}
    assert schemas["Item"]["properties"]["count"]["exclusiveMinimum"] == 0
    assert schemas["Item"]["properties"]["tags"]["items"] == {"$ref": "#/components/schemas/Tag"}
    assert schemas["Tag"]["required"] == ["theWord"]
    assert schemas["Basket"]["properties"]["items"]["items"] == {
        "$ref": "#/components/schemas/Item"
    }
    # A model of results alone is described as it is written.
    assert schemas["Receipt"]["required"] == ["euros"]
    jsonschema.Draft7Validator.check_schema(schemas["Item"])
    for schema in schemas.values():
        assert "prefixItems" not in json.dumps(schema)


@pytest.mark.clause("params-8")
def test_a_model_may_have_the_name_of_another_class() -> None:
    service = Service()

    @dataclass
    class Item:  # beside the model of this name
        size: int

    model = globals()["Item"]

    def swap(a: Any, b: Any) -> None: ...

    swap.__annotations__ = {"a": Item, "b": model}
    service.query(swap)
    made = document(service)
    one, another = [param["schema"]["$ref"] for param in made["methods"][0]["params"]]
    assert (one, another) == ("#/components/schemas/Item", "#/components/schemas/pydantic.Item")
    assert made["components"]["schemas"]["Item"]["required"] == ["size"]
    assert made["components"]["schemas"]["pydantic.Item"]["required"] == ["count"]


class Odd(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    what: functools.partial  # type: ignore[type-arg]


def test_a_model_without_a_schema_is_anything() -> None:
    service = Service()

    @service.query
    def take(odd: Odd, item: Item) -> None: ...

    schemas = [param["schema"] for param in method(service)["params"]]
    assert schemas == [{}, {"$ref": "#/components/schemas/Item"}]


@pytest.mark.clause("params-8")
def test_wire_names_are_described() -> None:
    service = Service(rename="camel", ignore_unknown=True)

    @service.query
    def find(sender: Annotated[str, Name("from")], max_items: int = 3) -> None: ...

    described = method(service)
    assert [param["name"] for param in described["params"]] == ["from", "maxItems"]
    assert described["x-ignore-unknown"] is True
    [short] = describe(service, with_schemas=False).methods
    assert write_method(short)["params"] == ["from: string", "maxItems: integer = 3"]
    assert write_method(short)["ignore_unknown"] is True
    read = read_method(write_method(short))
    assert read is not None and read.ignores_unknown


class Search(msgspec.Struct, rename="camel"):
    """What to look for."""

    text: str
    max_items: Annotated[int, msgspec.Meta(ge=1)] = 10


@pytest.mark.clause("params-8")
@pytest.mark.parametrize(
    ("hint", "params", "lines"),
    [
        (
            Search,
            [
                {"name": "text", "required": True, "schema": {"type": "string"}},
                {
                    "name": "maxItems",
                    "required": False,
                    "schema": {"type": "integer", "minimum": 1, "default": 10},
                },
            ],
            ["text: string", "maxItems: integer >= 1 = 10"],
        ),
        (
            Tag,
            [
                {
                    "name": "theWord",
                    "required": True,
                    "schema": {"title": "Theword", "type": "string"},
                }
            ],
            ["theWord: string"],
        ),
        (
            Tag | None,
            [
                {
                    "name": "theWord",
                    "required": True,
                    "schema": {"title": "Theword", "type": "string"},
                }
            ],
            ["theWord: string"],
        ),
    ],
)
def test_the_members_of_what_takes_all_params_are_its_params(
    hint: Any, params: list[Any], lines: list[str]
) -> None:
    service = Service()

    def find(params: Any) -> None: ...

    find.__annotations__ = {"params": Annotated[hint, WholeMark()]}
    service.query(find)
    described = method(service)
    assert described["params"] == params
    assert described["paramStructure"] == "by-name" and "x-whole" not in described
    [short] = describe(service, with_schemas=False).methods
    assert write_method(short)["params"] == lines


@pytest.mark.clause("params-8")
@pytest.mark.parametrize(
    ("hint", "structure"),
    [(dict[str, int], "by-name"), (list[int], "by-position"), (Any, "either")],
)
def test_all_params_of_another_type_are_said_to_be_all(hint: Any, structure: str) -> None:
    service = Service()

    def find(everything: Any) -> None: ...

    find.__annotations__ = {"everything": Annotated[hint, WholeMark()]}
    service.query(find)
    described = method(service)
    assert [param["name"] for param in described["params"]] == ["params"]
    assert (described["paramStructure"], described["x-whole"]) == (structure, True)
    [short] = describe(service, with_schemas=False).methods
    assert write_method(short)["whole"] is True
    read = read_method(write_method(short))
    assert read is not None and read.is_whole
    [again] = read_openrpc(msgspec.convert(document(service), Document)).methods
    assert again.is_whole


def test_a_subscription() -> None:
    service = Service()

    @service.subscription(when_slow="drop-oldest")
    async def prices(symbol: str, resume_after: int = 0) -> AsyncIterator[float]:
        yield 1.0

    described = method(service)
    assert described["x-kind"] == "subscription"
    assert described["result"]["schema"]["required"] == ["subscription"]
    assert described["x-item"] == {"schema": {"type": "number"}}
    assert described["x-when-slow"] == "drop-oldest"
    [read] = read_openrpc(Document([described])).methods
    assert (read.kind, read.when_slow, read.result) == (
        "subscription",
        "drop-oldest",
        {"type": "number"},
    )
    [known] = describe(service).methods
    written = write_method(known)
    assert written == {
        "name": "prices",
        "params": ["symbol: string", "resume_after: integer = 0"],
        "returns": "number",
        "kind": "subscription",
        "when_slow": "drop-oldest",
    }
    again = read_method(written)
    assert again is not None and (again.kind, again.when_slow) == ("subscription", "drop-oldest")
