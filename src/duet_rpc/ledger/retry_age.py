"""The age of a retry: whether a missing record means that the command has never run. Pure.

A command that was tried before left a record, unless that was swept since or the store is younger
than the first try. In the latter cases the outcome is unknown, and it may not be run again.
"""

from typing import TYPE_CHECKING

from duet_rpc.kinds import Promise

if TYPE_CHECKING:
    from duet_rpc.ledger.states import Claim


def must_have_record(claim: "Claim") -> bool:
    """Tell whether a command was tried before and may not be run twice."""
    return claim.command.age > 0 and claim.command.promise is not Promise.RETRY_SAFE


def remembers(claim: "Claim", now: float, since: float) -> bool:
    """Tell whether a store that began at `since` would hold a record of the first try."""
    age = claim.command.age
    return age < min(claim.ttl, claim.unknown_ttl) and now - age >= since
