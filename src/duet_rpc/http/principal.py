"""Who calls over HTTP, as a value. Pure."""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from duet_rpc.options import check, is_text

MAX_NAME = 255


class Principal(Struct, frozen=True):
    """Who calls: the name is part of the identity of each command, and stands in the ledger."""

    name: str
    scopes: frozenset[str] = frozenset()
    """What it may do; see `scopes=` of a method."""
    expires: float | None = None
    """In seconds since 1970; None does not end."""

    def __post_init__(self) -> None:
        name = self.name
        sound = is_text(name) and 1 <= len(name) <= MAX_NAME and name.isprintable()
        check("name", name, sound, f"1 to {MAX_NAME} printable characters")


Authenticate: TypeAlias = Callable[[str], "Principal | None"]
"""Says whose a bearer token is; None for a token that is none."""
