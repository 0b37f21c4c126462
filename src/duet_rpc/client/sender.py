"""What the logic of calls needs of a client: a connection that a loop or a thread waits on.

The asyncio client and the blocking client each are a `Sender`; the second one's awaitables never
suspend.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol, TypeAlias

from duet_rpc.client.options import Expected
from duet_rpc.engine.calls import Waiter
from duet_rpc.errors import RpcError


class Answer(Protocol):
    """The answer to a call, still to come."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for it."""
        ...

    def cancel(self) -> object:
        """Stop waiting for it, and tell the server; does nothing once it is there."""
        ...


class ArrayReply(Answer, Waiter, Protocol):
    """The answer to one call of an array, which is sent together with others."""


ArrayCall: TypeAlias = tuple[str, bytes | None, Any]
"""Method, params, and its `ArrayReply`, or None for a notification."""


class Sender(Protocol):
    """Sends calls on a connection, and makes a new one if need be."""

    def ask(self, method: str, params: bytes | None, expected: Expected) -> Awaitable[Any]:
        """Send one call, once, and wait for its result, an `RpcError` or a `TransportError`."""
        ...

    def request(self, method: str, params: bytes | None, expected: Expected) -> Answer:
        """Send one call as `ask` does, now; its answer can be waited for later."""
        ...

    def make_reply(self, method: str, expected: Expected) -> ArrayReply:
        """Make what will wait for the answer to one call of an array."""
        ...

    def send_array(
        self, calls: Sequence[ArrayCall], refuse: Callable[[RpcError], None]
    ) -> Awaitable[None]:
        """Send calls in one array; call `refuse` if the server refuses the array as a whole."""
        ...

    def send(self, method: str, params: bytes | None, patience: float | None) -> Answer:
        """Send a notification; settle when it is on its way, which takes a server that reads."""
        ...

    def pause(self, seconds: float) -> Awaitable[None]:
        """Wait between two attempts."""
        ...

    def now(self) -> float:
        """Tell the time by a clock that never goes back."""
        ...
