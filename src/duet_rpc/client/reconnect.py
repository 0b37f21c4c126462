"""Whether a call that finds no connection may make one: one rule for both clients.

`with` makes the first connection. After a loss, whatever is sent makes a new one if the client
reconnects (`reconnect`, or a `retry`) and is not closed; else it fails with that loss. How often a
child process is started again is the business of `transports.restarts`, and what is sent again that
of `attempts`.
"""

import copy

from duet_rpc.client.options import CheckedOptions
from duet_rpc.errors import ConnectionLost, UsageError


def may_reconnect(
    options: CheckedOptions, *, was_connected: bool, closed: bool, opened_by: str
) -> bool:
    """Tell whether a client that has no connection makes one for a call.

    Raises `UsageError` if it has never had any: a mistake of the program, which `opened_by` mends.
    """
    if not was_connected:
        raise UsageError(f"this client is not connected; use `{opened_by}`")
    return options.reconnects and not closed


def copy_loss(lost: Exception | None, otherwise: str = "the client was closed") -> Exception:
    """Make what a call fails with that may not: a copy, for it keeps the frames it is raised in.

    `otherwise` is said where the connection has not reported its own end yet.
    """
    return ConnectionLost(otherwise) if lost is None else copy.copy(lost)
