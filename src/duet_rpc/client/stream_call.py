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
        self.inflow: Inflow = Inflow(window)
        self._dialect = dialect
        self.decode: Decode = expected.decode or decode_any
        """Makes the value of a raw item."""
        asks = dialect.item is not None
        self._params = add_metadata(params, stream_window=window) if asks else params

    def send(self, calls: "Calls") -> None:
        """Send the call; its bytes go out with the next flush."""
        self.inflow.id = calls.send(self.method, self._params, self.inflow)

    def grant(self, calls: "Calls") -> None:
        """Grant the server more items if that is due."""
        granted = self.inflow.grant()
        if granted and self._dialect.more is not None:
            calls.notify(self._dialect.more, encode_more(self.inflow.id, granted))

    def too_late(self) -> CallTimeout:
        """Make the error of a stream that no item came of in time."""
        return CallTimeout(f"{self.method}: no item within {self.expected.timeout:g} s")

    def failure(self) -> Exception | None:
        """Make the error that the stream ended with; None if it ended with its last item."""
        error = self.inflow.error
        return None if error is None else in_class(copy.copy(error), self.expected.errors)
