"""Exceptions without their text: what they are and where they happened.

The text of an exception may hold anything that its code had in hand, so it can hold a caller's
value. A type, a code of the system's or a database's own, a file, a line and its source cannot.

`format_places` is a traceback of that kind. `OwnFault` carries one through a log that formats
exceptions by itself: it is for faults of the runtime's own code, whose texts no one has written
with the caller's values in mind.
"""

import os
from collections.abc import Iterator

_CODES = ("sqlstate", "sqlite_errorname")
_MAX_LINKS = 50
"""Causes and members that are followed; a chain of thousands is one loop that went on failing."""


def describe_type(error: BaseException) -> str:
    """Give an exception's type, and its code where the system or a database has given it one."""
    cls = type(error)
    name = (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return f"{name} ({os.strerror(error.errno)})"
    codes = (getattr(error, attribute, None) for attribute in _CODES)
    code = next((code for code in codes if isinstance(code, str) and code.isidentifier()), None)
    return name if code is None else f"{name} ({code})"


def format_places(error: BaseException) -> str:
    """Format a traceback with the types of its exceptions in place of their texts and notes."""
    return "".join(_format(error, set()))


def _format(error: BaseException, seen: set[int]) -> Iterator[str]:
    import traceback

    chain = list(_chain(error, seen))
    for link, joint in reversed(chain):
        if link.__traceback__ is not None:
            yield "Traceback (most recent call last):\n"
            yield from traceback.format_tb(link.__traceback__)
        yield f"{describe_type(link)}\n"
        if isinstance(link, BaseExceptionGroup):
            for number, member in enumerate(link.exceptions, 1):
                if id(member) in seen or len(seen) >= _MAX_LINKS:
                    continue
                yield f"  member {number} of the group:\n"
                for lines in _format(member, seen):
                    yield "".join(f"    {line}\n" for line in lines.splitlines())
        yield joint


def _chain(error: BaseException, seen: set[int]) -> Iterator[tuple[BaseException, str]]:
    """Yield an exception and what led to it, newest first, each with what joins it to the newer."""
    link: BaseException | None = error
    joint = ""
    while link is not None and id(link) not in seen and len(seen) < _MAX_LINKS:
        seen.add(id(link))
        yield link, joint
        if link.__cause__ is not None:
            link, joint = link.__cause__, "\nwhich was the cause of:\n\n"
        else:
            link = None if link.__suppress_context__ else link.__context__
            joint = "\nduring whose handling came:\n\n"


class OwnFault(Exception):
    """A fault of the runtime's own code, named by its type; the traceback is the original's."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(describe_type(error))
        self.__traceback__ = error.__traceback__
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None and cause is not error:
            self.add_note(f"after {describe_type(cause)}")
