"""What a type hint lets in: whether JSON can carry it, how deep its values nest.

Asked once, at registration, so that a handler that cannot be served is a `UsageError` there. A type
that does not read every byte of its value has no known depth (`UNKNOWN`).
"""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

import msgspec

from duet_rpc.errors import UsageError
from duet_rpc.wire.depth import SHALLOW, shallow_json
from duet_rpc.wire.models import is_model, make_model

UNKNOWN = float("inf")
"""How deep a value nests whose type does not tell."""


def check_parameter(name: str, hint: Any, method: str) -> float:
    """Refuse what cannot be decoded; return how deep a value can nest."""
    if name.startswith("__"):
        raise UsageError(f"{method}: {name} is a name for Python's own use; choose another")
    try:
        described = msgspec.inspect.type_info(hint)
        parts = list(_parts(described, set()))
        classes = list(_foreign(parts))
        if any(map(is_model, classes)):
            msgspec.json.Decoder(hint, dec_hook=make_model)  # which looks at unions, too
    except (TypeError, ValueError, NameError) as error:
        advice = "; make the union a pydantic.RootModel" if "custom type" in str(error) else ""
        raise UsageError(f"{method}: parameter {name} cannot be decoded: {error}{advice}") from None
    foreign = next((cls for cls in classes if not is_model(cls)), None)
    if foreign is not None:
        raise UsageError(
            f"{method}: parameter {name} holds {foreign.__name__}, which JSON cannot carry;"
            " use a dataclass, a msgspec.Struct, a model, plain types, or Any for whatever comes"
        )
    if (unread := next(_find_unread(hint, parts), None)) is not None:
        raise UsageError(f"{method}: parameter {name} holds {unread}")
    if _has_keys_that_are_no_text(parts):
        raise UsageError(f"{method}: parameter {name} holds a dict {_KEYS_ARE_TEXT}")
    return _nesting(described)


def list_models(hint: Any) -> list[type]:
    """List the models in a type."""
    try:
        parts = list(_parts(msgspec.inspect.type_info(hint), set()))
    except (TypeError, ValueError, NameError):
        return []
    return [cls for cls in _foreign(parts) if is_model(cls)]


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
    if is_model(cls):
        return False
    return not stands_for_others and not issubclass(cls, (dict, list, tuple, set, frozenset))


def _foreign(parts: Iterable[Any]) -> Iterator[type]:
    """Find the classes in a type that msgspec cannot make out of JSON."""
    return (part.cls for part in parts if isinstance(part, msgspec.inspect.CustomType))


def _find_unread(hint: Any, parts: Iterable[Any]) -> Iterator[str]:
    """Find what would be passed over in silence, though it says what may come."""
    for part in _walk(hint):
        for mark in getattr(part, "__metadata__", ()):
            if type(mark).__module__.partition(".")[0] == "pydantic":
                yield "a pydantic.Field outside of a model; give limits by msgspec.Meta"
    for part in parts:
        cls: Any = getattr(part, "cls", None)
        if hasattr(cls, "__pydantic_validator__") and not is_model(cls):
            yield f"{cls.__name__}, a pydantic dataclass; make it a BaseModel or a plain dataclass"
        for field in getattr(cls, "__attrs_attrs__", ()):
            if field.converter is not None:
                yield (
                    f"{cls.__name__}, whose converter of {field.name} does not run on params;"
                    " convert in __attrs_post_init__"
                )


def _walk(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from _walk(part)


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
