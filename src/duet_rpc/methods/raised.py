"""Which error classes a handler raises: read from its compiled code, and from that of its helpers.

A class counts if the code names it anywhere but in an `except` clause. Helpers are the functions
and methods that the code names, of files that belong to the same program as the handler; those that
it is handed at run time cannot be seen. Nothing is called, and nothing is imported.

It is read when somebody asks, for a class may be defined below the handler that raises it.
"""

import types
from collections.abc import Iterable, Iterator
from typing import Any

from duet_rpc.errors import RpcError

_LOADS = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_CLASSDEREF"}
)
_SILENT = frozenset({"EXTENDED_ARG", "CACHE", "NOP"})
_FOREIGN = ("site-packages", "dist-packages")
_MOST_HELPERS = 500
"""Functions that are looked at for one handler; a larger program declares its errors."""


def find_errors(handler: Any) -> list[type[RpcError]]:
    """List the error classes with a code that a handler or its helpers raise, in their order."""
    first = _unwrap(handler)
    if first is None:
        return []
    home = _find_home(first[0])
    pending, seen = [first], {first[0].__code__}
    found: dict[type[RpcError], None] = {}
    for function, owner in pending:
        for thing in _list_named(function, owner):
            if isinstance(thing, type):
                if issubclass(thing, RpcError) and thing.code != RpcError.code:
                    found[thing] = None  # a class without a code of its own is a base class
                continue
            helper = _unwrap(thing)
            if helper is None or helper[0].__code__ in seen or len(seen) == _MOST_HELPERS:
                continue
            if _is_at_home(helper[0], home):
                seen.add(helper[0].__code__)
                pending.append(helper)
    return list(found)


Function = tuple[types.FunctionType, type | None]
"""A function and, of a method, the class of its object."""


class _Member:
    """A function that was found as a member of a class."""

    def __init__(self, function: Any, owner: type) -> None:
        self.function = function
        self.owner = owner


def _unwrap(thing: Any) -> Function | None:
    """Find the function behind decorators, partials and bound methods; None if there is none."""
    owner: type | None = None
    for _ in range(_MOST_HELPERS):  # a proxy may have any attribute, for ever
        if isinstance(thing, _Member):
            owner, thing = thing.owner, thing.function
        elif isinstance(thing, types.MethodType):
            owner = thing.__self__ if isinstance(thing.__self__, type) else type(thing.__self__)
            thing = thing.__func__
        elif isinstance(thing, (staticmethod, classmethod)):
            thing = thing.__func__
        elif hasattr(type(thing), "func"):  # a functools.partial
            thing = thing.func
        elif isinstance(thing, types.FunctionType):
            if not hasattr(thing, "__wrapped__"):
                return thing, owner
            thing = thing.__wrapped__
        elif isinstance(call := _find_attribute(thing, "__call__"), _Member):
            thing = call
        else:
            return None
    return None


def _find_home(function: types.FunctionType) -> str:
    """Find the directory below which the program of a function lies."""
    path = function.__code__.co_filename.replace("\\", "/")
    if "/" not in path:
        return path  # typed in, or made by `exec`: no file
    for _ in range(1 + (function.__module__ or "").count(".")):
        path = path.rpartition("/")[0]
    return path + "/"


def _is_at_home(function: types.FunctionType, home: str) -> bool:
    path = function.__code__.co_filename.replace("\\", "/")
    return path.startswith(home) and not any(word in path[len(home) :] for word in _FOREIGN)


def _list_named(function: types.FunctionType, owner: type | None) -> Iterator[Any]:
    """Go through what the code of a function names, but for what it only catches."""
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            pass  # not bound yet
    own = function.__code__.co_varnames[:1] if owner is not None else ()
    for code in _list_code(function.__code__):
        yield from _list_loaded(code, scope, {name: owner for name in own})


def _list_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """Go through a code object and those of the functions and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_code(constant)


def _list_loaded(
    code: types.CodeType, scope: dict[str, Any], owners: dict[str, Any]
) -> Iterator[Any]:
    from dis import get_instructions  # here: a server that describes nothing does not need it

    held: list[list[Any]] = []
    """What has just been loaded, until the next instruction shows what for."""
    for step in get_instructions(code):
        name = step.opname
        if name in _LOADS:
            held.append([scope.get(step.argval)])
        elif name.startswith("LOAD_FAST"):
            last = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
            held.append([owners.get(last)])
        elif name in ("LOAD_ATTR", "LOAD_METHOD") and held:
            held[-1] = [_find_attribute(each, step.argval) for each in held[-1]]
        elif name == "BUILD_TUPLE" and step.arg:
            parts = held[-step.arg :]
            held[-step.arg :] = [[each for part in parts for each in part]]
        elif name == "CHECK_EXC_MATCH" and held:
            held.pop()  # caught, which is not raised
        elif name not in _SILENT:
            yield from _flatten(held)
            held = []


def _flatten(held: Iterable[list[Any]]) -> Iterator[Any]:
    return (each for loaded in held for each in loaded if each is not None)


def _find_attribute(thing: Any, name: str) -> Any:
    """Look an attribute up without running anything; None if it cannot be seen."""
    if thing is None:
        return None
    if isinstance(thing, types.ModuleType):
        return vars(thing).get(name)
    owner = thing if isinstance(thing, type) else type(thing)
    found = next((vars(cls)[name] for cls in owner.__mro__ if name in vars(cls)), None)
    is_function = isinstance(found, (types.FunctionType, staticmethod, classmethod))
    return _Member(found, owner) if is_function else found
