"""Debug runs: `DUET_DEBUG=1` has every connection check its own accounts.

It is no setting of a service's, so it has no option beside it. A value other than 1 is a file to
which violations are appended, so that those of child processes are seen as well. With `python -O`,
or without the variable, nothing of this is loaded.
"""

import os
from typing import NoReturn

from duet_rpc.engine.connection import Connection
from duet_rpc.engine.dispatch import Dispatcher

VARIABLE = "DUET_DEBUG"


def connection_class(dispatcher: Dispatcher | None = None) -> type[Connection]:
    """Choose what to make connections of: in a debug run, what checks itself; what tells hooks."""
    plain: type[Connection] = Connection
    if dispatcher is not None and type(dispatcher) is not Dispatcher:
        from duet_rpc.engine.hooks import HookedConnection

        plain = HookedConnection
    if not __debug__ or os.environ.get(VARIABLE, "0") in ("", "0"):
        return plain
    from duet_rpc.hosts.invariants import CheckedConnection

    if plain is Connection:
        return CheckedConnection
    return type("CheckedHookedConnection", (CheckedConnection, plain), {"__slots__": ()})


def violated(what: str) -> NoReturn:
    """Report a broken invariant, in the file if there is one, and raise it."""
    file = os.environ.get(VARIABLE, "0")
    if file not in ("", "0", "1"):
        import traceback  # a cold start's cost, and nothing is wrong then

        with open(file, "a") as report:
            report.write(f"{what}\n{''.join(traceback.format_stack())}\n")
    raise AssertionError(what)
