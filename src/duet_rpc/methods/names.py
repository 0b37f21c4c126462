"""What a parameter is called on the wire, and the marks that a hint may carry.

A parameter has Python's name, unless its service has a rule (`Service(rename="camel")`) or its hint
says otherwise: `Annotated[str, Name("from")]`, which goes before any rule. `Whole[T]` marks the one
parameter that takes all params as they are.

Both ends read hints here: a service, and a client for its `Protocol`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from msgspec import Struct

from duet_rpc.errors import UsageError
from duet_rpc.options import check, is_text

T = TypeVar("T")
M = TypeVar("M")

Rename: TypeAlias = Literal["camel", "pascal", "kebab"] | Callable[[str], str]
"""The rule by which a service names its parameters: a well-known one, or a function of a name."""


class Name(Struct, frozen=True):
    """The name of a parameter on the wire, in its hint: `Annotated[str, Name("from")]`."""

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name)


class WholeMark:
    """Says that a parameter takes all params as they are."""

    def __repr__(self) -> str:
        return "Whole"


Whole = Annotated[T, WholeMark()]
"""All params as one value: `params: Whole[HoverParams]`."""


def find_rule(rename: Rename | None) -> Callable[[str], str]:
    """Find the rule that was asked for; None is to take names as they are."""
    if rename is None:
        return str
    known = isinstance(rename, str) and rename in _RULES
    accepted = '"camel", "pascal", "kebab", or a function that takes a name and returns one'
    check("rename", rename, known or callable(rename), accepted)
    return rename if callable(rename) else _RULES[rename]


def read_name(
    argument: str, hint: Any, rule: Callable[[str], str], fixed: tuple[str, ...] = ()
) -> tuple[str, Any]:
    """Find the wire name of a parameter, and its hint without the mark.

    Those that are `fixed` keep their names: what travels beside params is known by them.
    """
    mark, hint = take_mark(hint, Name)
    if mark is None:
        name = argument if argument in fixed else rule(argument)
        _check_name(name)
        return name, hint
    for word in (argument, mark.name):
        if word in fixed and argument != mark.name:
            raise UsageError(f"{word} travels beside the params: no parameter can be renamed to it")
    return mark.name, hint


def take_mark(hint: Any, kind: type[M]) -> tuple[M | None, Any]:
    """Take the mark of a kind out of a hint; refuse one that stands further inside."""
    metadata = getattr(hint, "__metadata__", ())
    inner = hint.__origin__ if metadata else hint
    if (inside := _find_inside(inner, kind)) is not None:
        raise UsageError(f"{inside} stands inside of a hint; Annotated has to be around all of it")
    mark = next((each for each in metadata if isinstance(each, kind)), None)
    if mark is None:
        return None, hint
    others = tuple(each for each in metadata if each is not mark)
    return mark, Annotated[inner, *others] if others else inner


def _find_inside(hint: Any, kind: type) -> Any:
    for part in get_args(hint):
        for each in getattr(part, "__metadata__", ()):
            if isinstance(each, kind):
                return each
        if (found := _find_inside(part, kind)) is not None:
            return found
    return None


def _check_name(name: Any) -> None:
    sound = is_text(name) and name != "" and name.isprintable() and not set(name) & set('"\\')
    check("the wire name of a parameter", name, sound, "a text without quotes and backslashes")


def _split(name: str) -> tuple[str, list[str]]:
    """Split a name into the underscores before it and its words."""
    words = name.lstrip("_")
    return name[: len(name) - len(words)], [word for word in words.split("_") if word]


def _name_in_camel_case(name: str) -> str:
    before, words = _split(name)
    return before + "".join(words[:1] + [_capitalize(word) for word in words[1:]])


def _name_in_pascal_case(name: str) -> str:
    before, words = _split(name)
    return before + "".join(map(_capitalize, words))


def _name_in_kebab_case(name: str) -> str:
    before, words = _split(name)
    return before + "-".join(words)


def _capitalize(word: str) -> str:
    return word[:1].upper() + word[1:]


_RULES: dict[str, Callable[[str], str]] = {
    "camel": _name_in_camel_case,
    "pascal": _name_in_pascal_case,
    "kebab": _name_in_kebab_case,
}
