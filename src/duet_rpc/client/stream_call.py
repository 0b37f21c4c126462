"""One streaming call, of either client: what is asked for, and what came of it.

How to wait for items is what the clients differ in: `streams`, `blocking_streams`.
"""

import copy
from typing import TYPE_CHECKING

from duet_rpc.client.options import Expected
from duet_rpc.engine.inflow import Inflow
from duet_rpc.engine.results import Decode, decode_any
from duet_rpc.errors import CallTimeout, in_class
from duet_rpc.options import check
from duet_rpc.wire.dialect import Dialect
from duet_rpc.wire.params import add_metadata
from duet_rpc.wire.streams import MAX_WINDOW, encode_more

if TYPE_CHECKING:
    from duet_rpc.engine.calls import Calls

WINDOW = 64
"""Items that the server may be ahead of the reader."""


class StreamCall:
    """One stream of either client: what is asked for, and what came of it."""

    def __init__(
        self, dialect: Dialect, method: str, params: bytes | None, expected: Expected, window: int
    ) -> None:
        is_window = type(window) is int and 1 <= window <= MAX_WINDOW
        check("window", window, is_window, f"a number of items from 1 to {MAX_WINDOW}")
        self.method: str = method
        self.expected: Expected = expected
        self._inflow = Inflow(window, takes_parts=dialect.partial_token is not None)
        self._dialect = dialect
        self.decode: Decode = expected.decode or decode_any
        """Makes the value of a raw item."""
        asks = dialect.item is not None
        self._params = add_metadata(params, stream_window=window) if asks else params

    @property
    def inflow(self) -> Inflow:
        """What came of it."""
        return self._inflow

    def send(self, calls: "Calls") -> None:
        """Send the call; its bytes go out with the next flush."""
        name, params = self._dialect.partial_token, self._params
        if name is not None:  # a server that knows no other streams sends partial results
            params = add_metadata(params, tokens={name: calls.last_id + 1})
        self.inflow.id = calls.send(self.method, params, self.inflow)

    def leave(self, calls: "Calls") -> bool:
        """Take no more items, and cancel the call; False if it has ended."""
        self.inflow.items.clear()
        self.inflow.end(None)
        return calls.forget(self.inflow.id, tell_peer=True)

    def is_open(self, calls: "Calls") -> bool:
        """Tell whether the server has still to be notified if no one wants it any more."""
        return self.inflow.id in calls.open

    def grant(self, calls: "Calls") -> None:
        """Grant the server more items if that is due."""
        granted = self.inflow.grant()
        if granted and self._dialect.more is not None:
            calls.notify(self._dialect.more, encode_more(self.inflow.id, granted))

    @property
    def wait_timeout(self) -> float | None:
        """How long to wait for what comes next."""
        return self.expected.timeout

    def not_begun(self) -> CallTimeout:
        """Make the error of a stream that could not be sent in time."""
        return self.expected.too_late(self.method, in_all=False)

    def too_late(self) -> CallTimeout:
        """Make the error of a stream that no item came of in time."""
        return CallTimeout(f"{self.method}: no item within {self.expected.timeout:g} s")

    def failure(self) -> Exception | None:
        """Make the error that the stream ended with; None if it ended with its last item."""
        error = self.inflow.error
        return None if error is None else in_class(copy.copy(error), self.expected.errors)
