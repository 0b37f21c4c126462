"""`ctx.call`: a call of a handler to its peer. How to wait for the answer is the host's part."""

import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

from duet_rpc.context import Context
from duet_rpc.engine.connection import Connection
from duet_rpc.engine.deadlines import LONG, CallClock
from duet_rpc.engine.results import Decode, decoder
from duet_rpc.errors import CallTimeout, ConnectionLost, in_class


class CallingHost(Protocol):
    """What sends the call of a handler, and waits for its answer."""

    connection: Connection
    closed: bool
    lost_by: Exception | None

    def now(self) -> float:
        """Tell the time."""
        ...

    def act(self, action: Callable[..., object], *args: Any) -> None:
        """Do something to the connection, from any thread, now or soon."""
        ...

    def wait(self, reply: "PeerReply") -> None:
        """Wait in a `def` until the call is settled or its time is over."""
        ...

    def wait_async(self, reply: "PeerReply") -> Coroutine[Any, Any, None]:
        """Do the same in an `async def`."""
        ...


class PeerReply:
    """The answer that a handler waits for."""

    def __init__(
        self,
        host: CallingHost,
        ctx: Context | None,
        method: str,
        params: bytes | None,
        timeout: float | None,
        returns: Any,
    ) -> None:
        self.ctx = ctx
        self.clock: CallClock = CallClock(timeout, host.now())
        self.decode: Decode | None = decoder(returns)
        self.on_settled: Callable[[], object] | None = None
        """Called when the answer has come, on whatever thread."""
        self._host = host
        self._method = method
        self._settled = threading.Event()
        self._result: Any = None
        self._error: Exception | None = None
        self._id = 0
        host.act(self._send, method, params)

    def _send(self, method: str, params: bytes | None) -> None:
        if self._host.closed:
            lost_by = self._host.lost_by
            self.settle(None, lost_by or ConnectionLost("the connection is closed"))
        else:
            connection = self._host.connection
            self._id = connection.calls.send(method, params, self, in_turn=False)
            connection.outgoing.flush()

    def progress(self, value: Any) -> None:
        """Drop progress of the call; no one asked for it."""

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer."""
        if error is not None:
            error = in_class(error, (self._host.connection.dispatcher.errors,))
        self._result, self._error = result, error
        self._settled.set()
        if self.on_settled is not None:
            self.on_settled()

    # Waiting.

    def __await__(self) -> Generator[Any, None, Any]:
        yield from self._host.wait_async(self).__await__()
        return self.take()

    def result(self) -> Any:
        """Wait for the answer."""
        self._host.wait(self)
        return self.take()

    @property
    def settled(self) -> bool:
        """The answer has come."""
        return self._settled.is_set()

    def wait_here(self) -> None:
        """Wait on this thread while another one reads."""
        while not self.settled and (left := self.clock.left(self._host.now())) > 0:
            self._settled.wait(min(left, LONG))

    def give_up(self) -> None:
        """Tell the peer that its answer is no longer awaited, unless it has come."""
        if not self.settled:
            self._host.connection.calls.forget(self._id, tell_peer=True)

    def take(self) -> Any:
        """Give the answer, or raise what it failed with; `CallTimeout` if it has not come."""
        if not self.settled:
            raise CallTimeout(f"{self._method}: no answer within {self.clock.timeout:g} s")
        if self._error is not None:
            import copy  # here: a cold start should not pay for it

            raise copy.copy(self._error)  # what we keep must not keep our callers' frames
        return self._result if self.decode is None else self.decode(self._result)
