"""Writes type hints as Python text, and collects what has to be imported for them.

A class is imported from its module, or copied where the reader of the text cannot import that
module; which it is, is decided outside. What cannot be written for a type checker is `Any`.
"""

import enum
import sys
import types
import typing
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin

from duet_rpc.errors import UsageError
from duet_rpc.methods.names import WholeMark

_BARE = {list: "[Any]", set: "[Any]", frozenset: "[Any]", dict: "[str, Any]", tuple: "[Any, ...]"}


class NameTaken(UsageError):
    """A class that is to be copied is called as something else in the module is."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} would mean two things: say --types import")
        self.name: str = name


class HintWriter:
    """Writes the hints of one module."""

    def __init__(self, own: str, taken: Iterable[str], is_copied: Callable[[Any], bool]) -> None:
        """`own` is what the module defines; `taken` names mean something else in its class."""
        self.imports: dict[str, set[str]] = {}
        """The names to be imported from each module."""
        self.modules: set[str] = set()
        """The modules to be imported whole."""
        self._own = own
        self.copied: list[Any] = []
        """The classes that the text has to define, in the order in which they were met."""
        self._taken = set(taken)
        self._is_copied = is_copied
        self._known: dict[str, Any] = {}
        """What each name that was written means."""

    def name(self, module: str, name: str) -> str:
        """Import a name and say how it is written."""
        if name == self._own:
            raise NameTaken(name)
        if self._known.setdefault(name, module) != module or name in self._taken:
            self.modules.add(module)
            return f"{module}.{name}"
        self.imports.setdefault(module, set()).add(name)
        return name

    def write(self, hint: Any) -> str:
        """Write a hint."""
        if hint is None or hint is types.NoneType:
            return "None"
        if hint is Any:
            return self.name("typing", "Any")
        if hint is Ellipsis:
            return "..."
        if isinstance(hint, list):  # of the arguments of a function
            return f"[{', '.join(map(self.write, hint))}]"
        if isinstance(hint, TypeVar):
            return self.name("typing", "Any")
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is typing.Annotated:
            inner = self.write(arguments[0])
            is_whole = any(isinstance(each, WholeMark) for each in arguments[1:])
            return f"{self.name('duet_rpc', 'Whole')}[{inner}]" if is_whole else inner
        if origin in (Union, types.UnionType):
            return " | ".join(dict.fromkeys(map(self.write, arguments)))
        if origin is Literal:
            written = ", ".join(map(self.write_value, arguments))
            return f"{self.name('typing', 'Literal')}[{written}]"
        if origin is not None:
            written = ", ".join(map(self.write, arguments)) or "()"
            return f"{self.write_class(origin)}[{written}]"
        if hint in _BARE:
            bare = _BARE[hint]
            self.name("typing", "Any")
            return self.write_class(hint) + bare
        return self.write_class(hint)

    def write_class(self, cls: Any) -> str:
        """Write the name of a class, and see that it is there."""
        if not isinstance(cls, type) and not isinstance(cls, NewType):
            return self.name("typing", "Any")
        name: str = cls.__name__
        if cls.__module__ == "builtins":
            if name not in self._taken:
                return name
            self.modules.add("builtins")
            return f"builtins.{name}"
        if not self._is_copied(cls):
            outer, _, rest = str(getattr(cls, "__qualname__", name)).partition(".")
            return self.name(cls.__module__, outer) + (f".{rest}" if rest else "")
        if cls not in self.copied:
            self.copied.append(cls)
            is_new = self._known.setdefault(name, cls) is cls
            if not is_new or name == self._own or name in self._taken:
                raise NameTaken(name)
        return name

    def write_value(self, value: Any) -> str:
        """Write a constant; raise `ValueError` for what is none."""
        if isinstance(value, enum.Enum):
            return f"{self.write_class(type(value))}.{value.name}"
        if type(value) is str:
            return quote(value)
        if value is None or type(value) in (bool, int, bytes):
            return repr(value)
        if type(value) is float and value == value and abs(value) != inf:
            return repr(value)
        if type(value) is tuple:
            parts = [self.write_value(each) for each in value]
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        raise ValueError(value)

    def write_imports(self) -> list[str]:
        """Write the lines that import what was written."""
        lines: list[str] = []
        for rank in range(3):
            plain = sorted(each for each in self.modules if _rank(each) == rank)
            named = sorted(each for each in self.imports if _rank(each) == rank)
            if plain or named:
                lines += ["", *(f"import {each}" for each in plain)]
                lines += [_write_from(each, sorted(self.imports[each])) for each in named]
        return lines[1:]


def quote(text: str) -> str:
    """Write a text as Python does, in double quotes where that needs no escape."""
    written = repr(text)
    return written if '"' in written or written[0] == '"' else f'"{written[1:-1]}"'


def _rank(module: str) -> int:
    """Say in which group of imports a module stands."""
    if module == "__future__":
        return 0
    return 1 if module.partition(".")[0] in sys.stdlib_module_names else 2


def _write_from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 100:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
