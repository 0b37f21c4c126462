"""Connections do not survive a fork: parent and child would read each other's answers.

A child begins without any. Those of its parent are kept as they are and never closed: to close one
properly is to tell the server, which would end it for the parent too.
"""

import os
from typing import Any, Protocol
from weakref import WeakSet


class Holder(Protocol):
    """Something with connections that nobody uses just now."""

    idle: list[Any]


_HOLDERS: WeakSet[Holder] = WeakSet()
_LEFT_TO_PARENT: list[list[Any]] = []


def forget_in_children(holder: Holder) -> None:
    """Have every child of this process begin without the holder's connections."""
    _HOLDERS.add(holder)


def _forget() -> None:
    for holder in _HOLDERS:
        _LEFT_TO_PARENT.append(holder.idle)
        holder.idle = []


os.register_at_fork(after_in_child=_forget)
