"""Connections do not survive a fork: parent and child would read each other's answers.

A child begins without any. Those of its parent are kept as they are and never closed: to close one
properly is to tell the server, which would end it for the parent too.
"""

from typing import Any, Protocol

from duet_rpc.forks import renew_in_child


class Holder(Protocol):
    """Something with connections that nobody uses just now."""

    idle: list[Any]


def forget_in_children(holder: Holder) -> None:
    """Have every child of this process begin without the holder's connections."""
    renew_in_child(holder, idle=list)
