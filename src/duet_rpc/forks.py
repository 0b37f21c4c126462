"""A forked child is neither a second server nor a second client on its parent's connections.

The child has a copy of everything: descriptors, queues, locks as other threads held them. What two
processes must not use is registered by `tell_in_child`; in a child, before any line of the program
runs there, its `forked` makes a harmless copy of it. Nothing is asked on the way of a request.

A handler whose child returns, raises or exits ends that process (`leave`): above it there is only a
server, and that is the parent's.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Protocol
from weakref import ref

FORKED = "this process is a copy, made by fork: what its parent has opened is the parent's"


class Copied(Protocol):
    """Something that must not be used by two processes."""

    def forked(self) -> None:
        """Become harmless: this is the copy in a child. Nothing may be waited for."""
        ...


# By id, as long as they live. What takes one out is no Python code, unlike that of a `WeakSet`, in
# which an interrupt (Ctrl-C) would be lost.
_copied: dict[int, "ref[Copied]"] = {}
_renewed: dict[int, tuple["ref[Any]", dict[str, Callable[[], object]]]] = {}
_left_to_parent: list[object] = []


def tell_in_child(thing: Copied) -> None:
    """Have the copies of a thing in forked children called `forked`."""
    _copied[id(thing)] = ref(thing, partial(_copied.pop, id(thing)))


def renew_in_child(thing: object, **fresh: Callable[[], object]) -> None:
    """Have the copies of a thing in forked children begin with these attributes made anew.

    For locks, which threads of the parent may have held, and for what those threads were using.
    """
    _renewed[id(thing)] = ref(thing, partial(_renewed.pop, id(thing))), fresh


def leave_to_parent(*things: object) -> None:
    """Keep copies of what is the parent's as they are: to close one could be to tell a server."""
    _left_to_parent.extend(things)


def _tell() -> None:
    for copied in list(_copied.values()):
        thing = copied()
        if thing is not None:
            thing.forked()
    for renewed, fresh in list(_renewed.values()):
        holder = renewed()
        if holder is not None:
            for name, make in fresh.items():
                leave_to_parent(getattr(holder, name))
                setattr(holder, name, make())


os.register_at_fork(after_in_child=_tell)


def leave(error: BaseException | None) -> NoReturn:
    """End this process, a child, as its handler has ended: by this error, or by returning."""
    status: object = 0
    if isinstance(error, SystemExit):
        status = 0 if error.code is None else error.code
    elif error is not None:
        status = 1
    try:
        if error is not None and not isinstance(error, SystemExit):
            import traceback

            traceback.print_exception(error)
        elif not isinstance(status, int):
            sys.stderr.write(f"{status}\n")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF if isinstance(status, int) else 1)
