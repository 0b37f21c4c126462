"""What classes are made of, by the names that JSON has for it.

For words about what does not fit, and for descriptions: a path into params is followed through the
hints, and through the members of dataclasses, structs, attrs classes, TypedDicts and models alike.
"""

import types
from collections.abc import Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Struct, UnsetType, inspect

from duet_rpc.wire.models import ModelMismatch, is_model


def list_members(hint: Any) -> dict[str, Any]:
    """List the hints of a class's members, by wire names; none if it is no such class."""
    hint = _strip(hint)
    if is_model(hint):
        return {} if is_root(hint) else _list_fields(hint)
    if not isinstance(hint, type) or not _has_members(hint):
        return {}
    try:
        hints = get_type_hints(hint, include_extras=True)
    except (TypeError, NameError):
        return {}
    if not issubclass(hint, Struct):
        return hints
    if hint.__struct_config__.array_like:
        return {}
    names = zip(hint.__struct_fields__, hint.__struct_encode_fields__, strict=True)
    return {wire: hints[name] for name, wire in names}


def list_defaults(hint: Any) -> dict[str, Any]:
    """List the defaults of the members that may be left out; UNSET where none is known."""
    hint = _strip(hint)
    if is_model(hint):
        return {
            name: UNSET if field.default_factory is not None else field.default
            for name, field in _name_fields(hint).items()
            if not field.is_required()
        }
    described: Any = inspect.type_info(hint)
    return {
        field.encode_name: UNSET if field.default is NODEFAULT else field.default
        for field in described.fields
        if not field.required
    }


def follow(hint: Any, steps: Sequence[str]) -> Any:
    """Follow a path into a type; `Any` where it cannot be followed."""
    for step in steps:
        hint = _step_into(hint, step)
    return hint


def locate(fault: ModelMismatch) -> tuple[list[str], Any]:
    """Find the path and the type of what does not fit in a model.

    Within a union there is no telling which alternative was meant: the path ends before it.
    """
    hint: Any = fault.model
    steps: list[str] = []
    for step in map(str, fault.place):
        if len(list_alternatives(_unwrap(hint))) > 1:
            break
        hint = _step_into(hint, step)
        steps.append(step)
    return steps, hint


def list_alternatives(hint: Any) -> list[Any]:
    """List what a union holds but for null and what is not given; of another type, itself."""
    if not is_union(hint):
        return [hint]
    return [part for part in get_args(hint) if part not in (type(None), UnsetType)]


def is_union(hint: Any) -> bool:
    """Tell whether a hint has alternatives."""
    return get_origin(hint) is Union or isinstance(hint, types.UnionType)


def is_root(cls: Any) -> bool:
    """Tell whether a model stands for one value of another type."""
    return bool(getattr(cls, "__pydantic_root_model__", False))


def _step_into(hint: Any, step: str) -> Any:
    alternatives = list_alternatives(_unwrap(hint))
    hint = _unwrap(alternatives[0]) if len(alternatives) == 1 else Any
    inner = get_args(hint)
    if inner and (step == "..." or step.isdigit()):
        fixed = get_origin(hint) is tuple and Ellipsis not in inner
        index = int(step) if fixed else -1 if step == "..." else 0
        return inner[index] if index < len(inner) else Any
    if len(inner) == 2 and get_origin(hint) is not tuple:  # a member of a dict
        return inner[1]
    return list_members(hint).get(step, Any)


def _unwrap(hint: Any) -> Any:
    """Find the type behind its limits, and behind models that stand for another type."""
    hint = _strip(hint)
    while is_model(hint) and is_root(hint):
        hint = _strip(_list_fields(hint)["root"])
    return hint


def _strip(hint: Any) -> Any:
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


def _has_members(cls: type) -> bool:
    marks = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__", "__required_keys__")
    return any(hasattr(cls, mark) for mark in (*marks, "_fields"))


def _list_fields(model: Any) -> dict[str, Any]:
    """List the hints of a model's fields."""
    return {
        name: Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        for name, field in _name_fields(model).items()
    }


def _name_fields(model: Any) -> dict[str, Any]:
    """Name the fields of a model as it reads them."""
    return {
        field.validation_alias if isinstance(field.validation_alias, str) else name: field
        for name, field in model.__pydantic_fields__.items()
    }
