"""When a server that starts has read what had waited for it: once nothing is there to be read.

Until then a retry may be older than it says, for it was sent to a server that had yet to start; see
`Commands.first_sent`. No clock decides that: on a busy machine a start takes as long as it takes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from duet_rpc.hosts.threads import ThreadHost

MAX_LOOKS = 256
"""Reads after which what comes is new in any case: a pipe or a socket holds no more than those."""
_QUIET_TURNS = 3
"""Turns of a loop in which nothing came: one accepts, the next one reads, and one to be sure."""


def read_what_waits(host: "ThreadHost", goes_on: Callable[[], bool]) -> None:
    """Read until nothing is there, or what is there has come meanwhile."""
    looks = MAX_LOOKS
    while goes_on() and looks and host.channel.has_input():
        looks -= 1
        host.turn()


def call_when_quiet(
    loop: "AbstractEventLoop", count: Callable[[], int], quiet: Callable[[], object]
) -> None:
    """Call back when nothing came for some turns of the loop; `count` tells what came so far."""
    looks, turns, seen = MAX_LOOKS, 0, -1

    def look() -> None:
        nonlocal looks, turns, seen
        now = count()
        looks, turns, seen = looks - 1, turns + 1 if now == seen else 0, now
        if looks and turns < _QUIET_TURNS:
            loop.call_soon(look)
        else:
            quiet()

    look()
