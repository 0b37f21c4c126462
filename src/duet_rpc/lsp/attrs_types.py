"""The classes of lsprotocol, in and out, without its converter.

Building that converter takes longer than all the rest of a start. What it does for one value is
little: names change between snake_case and camelCase, what is None was left out, and of a union the
class is taken whose members came. Nothing here imports lsprotocol: it looks at classes that a
handler has named.
"""

import enum
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from duet_rpc.lsp.features import camel_case


@cache
def wire_names(cls: Any) -> dict[str, str]:
    """Say how the attributes of a class are spelled on the wire."""
    return {attribute.name: camel_case(attribute.name) for attribute in cls.__attrs_attrs__}


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls, vars(sys.modules[cls.__module__]))


@cache
def _list_required(cls: Any) -> frozenset[str]:
    """Name the members that an object of a class cannot be without, as they are on the wire."""
    from attrs import NOTHING  # which is loaded, or there would be no such class

    names = wire_names(cls)
    return frozenset(names[each.name] for each in cls.__attrs_attrs__ if each.default is NOTHING)


@cache
def _list_kept(cls: Any) -> frozenset[str]:
    """Name the attributes that are written although they are None: null means something there."""
    module = sys.modules[cls.__module__]
    is_special = getattr(module, "is_special_property", lambda cls, name: False)
    return frozenset(name for name in wire_names(cls) if is_special(cls, name))


def unstructure(value: Any) -> Any:
    """Make plain values of an object, and of what is in it."""
    cls: Any = type(value)
    if hasattr(cls, "__attrs_attrs__"):
        kept = _list_kept(cls)
        return {
            wire: unstructure(found)
            for name, wire in wire_names(cls).items()
            if (found := getattr(value, name)) is not None or name in kept
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {unstructure(name): unstructure(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [unstructure(each) for each in value]
    return value


def structure(value: Any, hint: Any) -> Any:
    """Make an object of a hint out of plain values; raise `msgspec.ValidationError`."""
    if hasattr(hint, "__attrs_attrs__"):
        return _structure_object(value, hint)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _structure_union(value, get_args(hint))
    if origin is Literal or hint is Any or hint is object:
        return value
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        names, values = get_args(hint)
        return {structure(name, names): structure(each, values) for name, each in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence) and isinstance(value, list):
        if origin is tuple:
            return tuple(value)
        return [structure(each, get_args(hint)[0]) for each in value]
    return msgspec.convert(value, hint)


def _structure_object(value: Any, cls: Any) -> Any:
    if not isinstance(value, dict):
        raise msgspec.ValidationError(f"Expected {cls.__name__}")
    hints, names = _hints(cls), wire_names(cls)
    try:
        return cls(**{
            name: structure(value[wire], hints[name])
            for name, wire in names.items()
            if wire in value
        })  # fmt: skip
    except (TypeError, ValueError):
        missing = ", ".join(sorted(_list_required(cls) - value.keys()))
        what = f"without {missing}" if missing else "with a value out of range"
        raise msgspec.ValidationError(f"{cls.__name__} {what}") from None


def _structure_union(value: Any, hints: tuple[Any, ...]) -> Any:
    """Take the first kind that fits; of classes, the one that has use for most of the members."""
    if value is None and NoneType in hints:
        return None
    if isinstance(value, dict):
        classes = [each for each in hints if hasattr(each, "__attrs_attrs__")]
        fitting = [each for each in classes if _list_required(each) <= value.keys()]
        known = [len(set(wire_names(each).values()) & value.keys()) for each in fitting]
        if fitting:
            return structure(value, fitting[known.index(max(known))])
    for hint in hints:
        if hasattr(hint, "__attrs_attrs__"):
            continue
        try:
            return structure(value, hint)
        except msgspec.ValidationError:
            continue
    raise msgspec.ValidationError("Expected another kind of value")
