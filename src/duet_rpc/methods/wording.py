"""Types and values in JSON's words, for callers who write another language.

`type_name` says a hint, `accepted_values` lists a closed set, and `explain` turns msgspec's
sentence about params that do not fit into what a caller can act on: which parameter, what was
expected, what kind of value came. No value is repeated: errors end in logs, and the value may be a
password. The text of an exception that a type's own check raises is never passed on either: it was
not written for the peer. `explain_result` does the same for a result, on the caller's side.
"""

import enum
from collections.abc import (
    Collection,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
    Set,
)
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Raw, UnsetType

from duet_rpc.errors import InvalidParams
from duet_rpc.methods.members import follow, is_union, list_members, locate
from duet_rpc.startup import pattern
from duet_rpc.wire.models import ModelMismatch
from duet_rpc.wire.surrogates import CANNOT_HOLD, decode_value

_JSON_NAMES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    None: "null",
    Any: "any",
    list: "array",
    tuple: "array",
    set: "array",
    frozenset: "array",
    Collection: "array",
    Sequence: "array",
    MutableSequence: "array",
    Set: "array",
    MutableSet: "array",
    dict: "object",
    Mapping: "object",
    MutableMapping: "object",
    Raw: "any",
    bytes: "string",
}

_LIMITS = {
    "gt": "> {}",
    "ge": ">= {}",
    "lt": "< {}",
    "le": "<= {}",
    "multiple_of": "a multiple of {}",
    "min_length": "of length >= {}",
    "max_length": "of length <= {}",
    "pattern": "matching {}",
}


def type_name(hint: Any) -> str:
    """Say a hint in JSON's words: `string`, `array of integer`, `integer >= 0`, `"up" | "down"`."""
    if is_limited(hint):
        return _write_limits(type_name(hint.__origin__), hint.__metadata__)
    values = accepted_values(hint)
    if values is not None:
        return " | ".join(map(_spell, values))
    if is_union(hint):
        return " | ".join(type_name(part) for part in _alternatives(hint))
    origin = get_origin(hint)
    if origin is not None:
        outer = _JSON_NAMES.get(origin, getattr(origin, "__name__", "object"))
        inner = [part for part in get_args(hint) if part is not Ellipsis]
        if outer == "array" and inner:
            return f"array of {' | '.join(dict.fromkeys(type_name(part) for part in inner))}"
        return outer
    if hint in _JSON_NAMES:
        return _JSON_NAMES[hint]
    return getattr(hint, "__name__", str(hint))


def accepted_values(hint: Any) -> list[Any] | None:
    """List the values of a closed set; None if the set is open."""
    if is_limited(hint):
        return accepted_values(hint.__origin__)
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [member.value for member in hint]
    if is_union(hint):
        closed: list[Any] = []
        for part in _alternatives(hint):
            values = [None] if part is type(None) else accepted_values(part)
            if values is None:
                return None
            closed += values
        return closed
    return None


def _alternatives(hint: Any) -> list[Any]:
    """List what a union holds and JSON can carry: a param that is not given is no value."""
    return [part for part in get_args(hint) if part is not UnsetType]


def is_limited(hint: Any) -> bool:
    """Tell whether a hint says more than a type."""
    return hasattr(hint, "__metadata__")


def _spell(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else "null" if value is None else str(value)


def _write_limits(name: str, metadata: tuple[Any, ...]) -> str:
    limits = [
        form.format(limit)
        for meta in metadata
        for field, form in _LIMITS.items()
        if (limit := getattr(meta, field, None)) is not None
    ]
    return " ".join([name, ", ".join(limits)]) if limits else name


# What does not fit.

_MISSING = "Object missing required field `"
_UNKNOWN = "Object contains unknown field `"
_TOO_SHORT = r"Expected `array` of (?:at least )?length \d+, got (\d+)"
_TOO_LONG = r"Expected `array` of at most length (\d+)"
_WRONG_TYPE = r"Expected `([^`]*)`, got `([^`]*)`"
_BEYOND_LIMIT = r"Expected `([^`]*)` (.*)"
_STEP = r"\[(\.\.\.|\d+)\]|([^.\[]+)"

UNKNOWN_NAME = "an unknown name"
"""What was received in place of a parameter, or a member, that there is."""

_anything = msgspec.json.Decoder()
_MAX_LOOK = 4096
_MAX_SENTENCE = 4096
_MAX_SHOWN = 80


def invalid(param: str, expected: str, received: str, hint: Any = Any) -> InvalidParams:
    """Make the error that names a parameter; a closed set is listed."""
    data: dict[str, Any] = {"param": param, "expected": expected, "received": received}
    accepted = accepted_values(hint)
    if accepted is not None:
        data["accepted"] = accepted
    return InvalidParams(data=data)


def explain(
    error: msgspec.ValidationError,
    params: bytes,
    hints: Mapping[str, Any],
    positions: list[str],
    rest: str | None = None,
) -> InvalidParams:
    """Say what is wrong with params.

    `positions` are the names of the parameters that an array fills; `rest` is the name of the one
    that takes all of it.
    """
    text = str(error)
    # Found from the end: what stands before may be the caller's own text, of any length, and may
    # itself look like a path. So only as much of either is looked at as msgspec writes by itself.
    at = text.rfind(" - at `", max(0, len(text) - _MAX_SENTENCE))
    at = len(text) if at < 0 else at
    sentence, path = text[: min(at, _MAX_SENTENCE)], text[at:]
    steps = [
        inner or name for inner, name in pattern(_STEP).findall(path.rpartition("$")[2].rstrip("`"))
    ]
    values = steps
    if rest is not None:
        steps = [rest, *steps]
    elif steps and steps[0].isdigit():
        steps = [positions[int(steps[0])], *steps[1:]]
    param = _join(steps)
    hint = _hint_at(hints, steps)
    if isinstance(error.__cause__, ModelMismatch):
        return _explain_mismatch(error.__cause__, steps)
    if error.__cause__ is not None:  # a type's own check
        return invalid(param, type_name(hint), _kind_at(params, values), hint)
    if sentence.startswith(_MISSING):
        steps = [*steps, sentence[len(_MISSING) : -1]]
        hint = _hint_at(hints, steps)
        return invalid(_join(steps), type_name(hint), "nothing", hint)
    if sentence.startswith(_UNKNOWN):
        name = sentence[len(_UNKNOWN) :].removesuffix("`")
        return invalid(_join([*steps, _shorten(name)]), _list_known(hints, steps), UNKNOWN_NAME)
    if not steps and (match := pattern(_TOO_SHORT).match(sentence)):
        name = positions[int(match[1])]
        return invalid(name, type_name(hints[name]), "nothing", hints[name])
    if not steps and (match := pattern(_TOO_LONG).match(sentence)):
        return invalid("params", f"at most {match[1]} values", "more")
    if match := pattern(_WRONG_TYPE).match(sentence):
        exact = accepted_values(hint) is not None or is_limited(hint)
        expected = type_name(hint) if exact else _json_words(match[1])
        return invalid(param, expected, _json_words(match[2]), hint)
    if match := pattern(_BEYOND_LIMIT).match(sentence):
        expected = f"{_json_words(match[1])} {match[2]}"
        return invalid(param, expected, _kind_at(params, values), hint)
    if sentence == CANNOT_HOLD:
        return invalid(param, "text without lone surrogates", "a lone surrogate")
    if sentence.endswith("out of range"):
        return invalid(param, type_name(hint), "a number out of range", hint)
    return invalid(param, type_name(hint), _kind_at(params, values), hint)


def _explain_mismatch(fault: ModelMismatch, steps: list[str]) -> InvalidParams:
    """Say what is wrong with a model that a path leads to."""
    inner, hint = locate(fault)
    param = _join([*steps, *map(_shorten, inner)])
    if len(inner) < len(fault.place):  # in one of several alternatives
        return invalid(param, type_name(hint), _say_kind(fault.value, inner, "another "), hint)
    if fault.kind == "missing":
        return invalid(param, type_name(hint), "nothing", hint)
    if fault.kind == "extra_forbidden":
        return invalid(
            param, _list_known({"": follow(fault.model, inner[:-1])}, [""]), UNKNOWN_NAME
        )
    if fault.kind in ("model_type", "model_attributes_type", "dataclass_type"):
        return invalid(param, "object", _say_kind(fault.value, inner))
    expected = type_name(getattr(hint, "__origin__", hint) if is_limited(hint) else hint)
    kind = _say_kind(fault.value, inner)
    differs = expected.split(" ")[0] in _JSON_NAMES.values() and expected.split(" ")[0] != kind
    return invalid(param, type_name(hint), kind if differs else f"another {kind}", hint)


def _list_known(hints: Mapping[str, Any], steps: list[str]) -> str:
    """Say which names there are: of the parameters, or of the members of what a path leads to."""
    kind, names = "parameter", list(hints)
    if steps:
        kind, names = (
            "member",
            list(list_members(_hint_at(hints, steps))),
        )
        if not names:
            return "a known member"
    if not names:
        return "no parameters"
    *others, last = names
    return f"a {kind} named " + (f"{', '.join(others)} or {last}" if others else last)


def _join(steps: list[str]) -> str:
    """Write a path as people do: `note.tags[0]`."""
    path = "".join(f"[{step}]" if step == "..." or step.isdigit() else f".{step}" for step in steps)
    return path.removeprefix(".") or "params"


def _hint_at(hints: Mapping[str, Any], steps: list[str]) -> Any:
    """Follow a path through the hints; `Any` where it cannot be followed."""
    return follow(hints.get(steps[0], Any), steps[1:]) if steps else Any


def _kind_at(params: bytes, steps: list[str]) -> str:
    """Say what kind of value a path leads to; a large message is not worth a second decoding."""
    if len(params) > _MAX_LOOK or "..." in steps:
        return "another value"
    try:
        value = decode_value(_anything, params)
    except msgspec.ValidationError:
        return "another value"
    return _say_kind(value, steps, "another ")


def _say_kind(value: Any, steps: list[str], before: str = "") -> str:
    """Say what kind of value a path into a decoded one leads to."""
    try:
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (LookupError, TypeError, ValueError):
        return f"{before}value"
    return before + _JSON_NAMES[type(value)]


def explain_result(error: Exception) -> str:
    """Say in what a result differs from the type that was asked for, without its values."""
    text = str(error)
    if error.__cause__ is not None or not isinstance(error, msgspec.DecodeError):
        return "a type's own check refused it"
    at = text.rfind(" - at `", max(0, len(text) - _MAX_SENTENCE))
    path = "" if at < 0 else text[at:]
    if text.startswith(_UNKNOWN):
        return f"it has a member that the type does not{path}"
    if text.startswith("Invalid "):  # "Invalid enum value 'x'", "Invalid value 'x'", "Invalid UUID"
        return f"it holds a value that the type does not{path}"
    return text if len(text) <= _MAX_SENTENCE else "it does not fit the type"


def printable(text: str) -> str:
    """Say a caller's own word back: short, and without what a terminal would act on."""
    return "".join(each if each.isprintable() else "?" for each in _shorten(text))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _json_words(words: str) -> str:
    """Say Python's type names, as msgspec spells them, in JSON's words."""
    named = {"int": "integer", "str": "string", "float": "number", "bool": "boolean"}
    names = pattern(r"\b(int|str|float|bool)\b")
    return names.sub(lambda match: named[match[0]], words)
