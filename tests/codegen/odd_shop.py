"""A service with one of everything that a written interface has to get right."""

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec import field as struct_field

from duet_rpc import Context, Name, RpcError, Service, Whole

shop = Service("shop", version="2.1", description='A "shop" for tests')
Cents = NewType("Cents", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Address(TypedDict):
    street: str
    city: NotRequired[str]


@dataclass(frozen=True)
class Shop:
    """It is called as the interface would be."""

    name: str
    owner: "Person | None" = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Person:
    name: str
    friends: "list[Person]" = field(default_factory=list)
    colour: Colour = Colour.RED


class Circle(Struct, tag="circle", frozen=True):
    radius: float


class Square(Struct, tag="square", rename="camel"):
    side_length: float
    is_filled: bool = False
    corners: list[Point] = struct_field(default_factory=list)


class OutOfStock(RpcError):
    code, message = 900, 'There is no "more" of it'


class Declared(RpcError):
    code, message = 901, "Declared"


@shop.query(name="shop.list", errors=[Declared])
def list_shops(colour: Colour = Colour.RED, limit: int = 10) -> list[Shop]:
    """List the shops. "Quoted", and with a \\ in it."""
    return [Shop("a", Person("b", colour=colour))][:limit]


@shop.query
async def watch(shape: Circle | Square, ctx: Context) -> AsyncIterator[Point]:
    """Watch a shape."""
    side = shape.radius if isinstance(shape, Circle) else shape.side_length
    for number in range(int(side)):
        yield Point(number)


@shop.command
def sell(
    item: str,
    idempotency_key: str,
    *,
    price: Cents,
    from_: Annotated[str, Name("from")] = "here",
    extras: dict[str, int] = {},  # noqa: B006
    note: str | UnsetType = UNSET,
) -> tuple[str, int, Cents]:
    if item == "none":
        raise OutOfStock()
    return (from_, len(extras), price)


@shop.query(name="textDocument/hover")
def hover(params: Whole[Address]) -> str:
    return params["street"]


@shop.query
def add_up(*values: int) -> int:
    return sum(values)


@shop.query(name="shop.import")
def import_(when: datetime, how: Literal["a", "b"] = "a") -> Optional[datetime]:  # noqa: UP045
    return when if how == "a" else None


@shop.notification
def ring(size: Size = Size.SMALL, times: Annotated[int, Meta(ge=1)] = 1) -> None: ...


@shop.subscription
async def visitors(door: Size = Size.SMALL) -> AsyncIterator[Person]:
    """Tell who comes in."""
    for name in ("Ada", "Bo"):
        yield Person(name, [], Colour.BLUE)


@shop.query
def anything(value: Any, many: dict, some: "set[str] | None" = None) -> Raw:  # type: ignore[type-arg]
    """Take anything, and say so in a sentence that is much longer than what a docstring of one
    line can hold.
    """
    return Raw(b"[1]")


admin = Service("admin")


@admin.query
def list_all() -> "dict[str, Shop]":
    return {}


shop.include(admin)
