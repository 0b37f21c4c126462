"""Puts records into a store as servers do, at times that the test chooses."""

from duet_rpc.ledger import Command, Promise, Store
from duet_rpc.ledger.states import Claim, Claimed, Finish, Identity, Kept

WEEK = 7 * 86400.0


def claim(
    store: Store,
    key: str,
    *,
    method: str = "bank.transfer",
    principal: str = "local",
    promise: Promise = Promise.AT_MOST_ONCE,
    lease: float = 600.0,
    fingerprint: bytes = b"f",
) -> tuple[Identity, int]:
    """Begin a command; with a short lease it is unknown, or may run again, a moment later."""
    command = Command(principal, method, key, fingerprint, promise, "7")
    [claimed] = store.commit([Claim(command, f"owner {key}", lease, WEEK)])
    assert isinstance(claimed, Claimed), claimed
    return command.identity, claimed.token


def finish(
    store: Store, key: str, outcome: bytes, *, method: str = "bank.transfer", ttl: float = 86400.0
) -> None:
    """Begin and end a command."""
    identity, token = claim(store, key, method=method)
    assert store.commit([Finish(identity, token, f"owner {key}", outcome, ttl)]) == [Kept()]
