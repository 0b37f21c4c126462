"""What a type hint lets in: whether JSON can carry it, how deep its values nest.

Asked once, at registration, so that a handler that cannot be served is a `UsageError` there. A type
that does not read every byte of its value has no known depth (`UNKNOWN`).
"""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

import msgspec

from duet_rpc.errors import UsageError
from duet_rpc.wire.messages import SHALLOW, shallow_json

UNKNOWN = float("inf")
"""How deep a value nests whose type does not tell."""


def check_parameter(name: str, hint: Any, method: str) -> float:
    """Refuse what cannot be decoded; return how deep a value can nest."""
    if name.startswith("__"):
        raise UsageError(f"{method}: {name} is a name for Python's own use; choose another")
    try:
        described = msgspec.inspect.type_info(hint)
        parts = list(_parts(described, set()))
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"{method}: parameter {name} cannot be decoded: {error}") from None
    if (foreign := next(_foreign(parts), None)) is not None:
        raise UsageError(
            f"{method}: parameter {name} holds {foreign.__name__}, which JSON cannot carry;"
            " use a dataclass, a msgspec.Struct, plain types, or Any for whatever comes"
        )
    if _has_keys_that_are_no_text(parts):
        raise UsageError(f"{method}: parameter {name} holds a dict {_KEYS_ARE_TEXT}")
    return _nesting(described)


def check_returns(hint: Any, method: str) -> None:
    """Refuse a result that cannot be sent."""
    try:
        parts = list(_parts(msgspec.inspect.type_info(hint), set()))
    except (TypeError, ValueError, NameError):
        # More can be sent than can be told apart when it comes: look at the parts one by one.
        for part in get_args(hint):
            check_returns(part, method)
        return
    if (foreign := next(filter(_never_sent, _foreign(parts)), None)) is not None:
        raise UsageError(
            f"{method}: it returns {foreign.__name__}, which JSON cannot carry; return a dataclass,"
            " a msgspec.Struct or plain types, or say Any if it is one of them after all"
        )
    if _has_keys_that_are_no_text(parts):
        raise UsageError(f"{method}: it returns a dict {_KEYS_ARE_TEXT}")


def _never_sent(cls: type) -> bool:
    """Tell whether no object of a class can be written, nor of a class that stands for others."""
    stands_for_others = (
        cls is object or getattr(cls, "__abstractmethods__", None) or hasattr(cls, "_is_protocol")
    )
    return not stands_for_others and not issubclass(cls, (dict, list, tuple, set, frozenset))


def _foreign(parts: Iterable[Any]) -> Iterator[type]:
    """Find the classes in a type that msgspec cannot make out of JSON."""
    return (part.cls for part in parts if isinstance(part, msgspec.inspect.CustomType))


def _has_keys_that_are_no_text(parts: Iterable[Any]) -> bool:
    return any(
        isinstance(part, msgspec.inspect.DictType) and isinstance(part.key_type, _NO_TEXT)
        for part in parts
    )


def _parts(described: Any, seen: set[int]) -> Iterator[Any]:
    """Go through a type and all that it is made of."""
    if isinstance(described, tuple):
        for part in described:
            yield from _parts(part, seen)
    elif isinstance(described, _DESCRIPTIONS) and id(described) not in seen:
        seen.add(id(described))  # a type may hold itself
        yield described
        yield from _parts(msgspec.structs.astuple(described), seen)


def _nesting(described: Any) -> float:
    """Say how deep a value can nest, if its type reads every byte of it."""
    if isinstance(described, _SCALARS):
        return 0
    match described:
        case msgspec.inspect.UnionType(types=parts):
            return max(map(_nesting, parts))
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return 1 + max(_nesting(key), _nesting(value))
        case msgspec.inspect.CollectionType(item_type=item):
            return 1 + _nesting(item)
    return UNKNOWN  # an object may have members that its type does not name


def bound_nesting(hint: Any) -> tuple[Any, float] | None:
    """Put a type that does not nest deep in place of one that takes anything; None if it is none.

    A hint that holds such a one further inside stays as it is.
    """
    value: Any = shallow_json()
    if hint is Any:
        return value, SHALLOW
    if hint in (list, list[Any]):
        return list[value], 1 + SHALLOW
    if hint in (dict, dict[str, Any]):
        return dict[str, value], 1 + SHALLOW
    return None


_SCALARS = (
    msgspec.inspect.NoneType,
    msgspec.inspect.BoolType,
    msgspec.inspect.IntType,
    msgspec.inspect.FloatType,
    msgspec.inspect.StrType,
    msgspec.inspect.EnumType,
    msgspec.inspect.LiteralType,
)
_DESCRIPTIONS = (msgspec.inspect.Type, msgspec.inspect.Field)
_NO_TEXT = (
    msgspec.inspect.NoneType,
    msgspec.inspect.BoolType,
    msgspec.inspect.CollectionType,
    msgspec.inspect.TupleType,
    msgspec.inspect.DictType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.StructType,
)
_KEYS_ARE_TEXT = (
    "whose keys JSON cannot carry: there they are text, which numbers and enums can be written as;"
    " use a list of pairs"
)
