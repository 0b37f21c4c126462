"""What happened to the calls of a client, counted."""

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from duet_rpc.engine.connection import Connection


class ClientStats(Struct):
    """Counted over all connections of one client; `pending` is what waits right now."""

    calls: int = 0
    timeouts: int = 0
    cancelled: int = 0
    lost: int = 0
    """Calls that ended with the connection."""
    connects: int = 0
    late_answers: int = 0
    """Answers to calls that were cancelled, or whose time was over; no fault of the server."""
    unmatched_answers: int = 0
    """Answers that no call waited for: repeated, or never asked for. They are logged."""
    faults: int = 0
    """Frames and messages of the server that could not be read."""
    pending: int = 0

    def add(self, connection: "Connection") -> None:
        """Count what happened on one connection."""
        self.calls += connection.calls.last_id
        self.late_answers += connection.calls.late_answers
        self.unmatched_answers += connection.requests.stats.unmatched_answers
        self.faults += connection.requests.stats.faults
