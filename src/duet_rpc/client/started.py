"""Calls of the asyncio client on their way, and the futures that the reader settles.

There are two kinds, for speed. A task awaits a plain future faster than one of a class of ours, so
a call that is awaited at once (`AwaitedCall`) has a plain one beside it. A call that is started to
be awaited later (`StartedCall`) is a future itself: one object less, and it has its id.
"""

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from duet_rpc.client.options import Expected
from duet_rpc.engine.results import Decode
from duet_rpc.errors import ConnectionLost, InvalidAnswer, in_class
from duet_rpc.wire.dialect import Progress

if TYPE_CHECKING:
    from duet_rpc.client.client import Client

T = TypeVar("T")


class OpenCall:
    """What both kinds have in common: whose call it is, and when its time is over."""

    client: "Client"
    method: str
    expected: Expected
    decode: Decode | None
    id: int | None
    """The id of its request; None while there is no connection to send it on."""
    timer: asyncio.TimerHandle | None
    ends: float | None
    """When its time in all is over, which no progress extends."""

    @property
    def is_usual(self) -> bool:
        """It has the client's usual timeout, and so no timer of its own."""
        return self.timer is None and self.expected.timeout is not None

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer."""
        raise NotImplementedError

    def progress(self, value: Progress) -> None:
        """Take progress of the call: it may take longer, up to its total."""
        self.client.take_progress(self, value)

    def set(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        """Settle its future."""
        if self.timer is not None:
            self.timer.cancel()
        if error is not None:
            future.set_exception(in_class(error, self.expected.errors))
            if isinstance(error, ConnectionLost):
                future.exception()  # a thousand lost calls that no one awaits are no thousand news
        elif self.decode is None:
            future.set_result(result)
        else:
            try:
                value = self.decode(result)
            except InvalidAnswer as failure:
                future.set_exception(failure.with_traceback(None))  # which knows the future
            except Exception as failure:  # of the type itself, where a traceback is of use
                future.set_exception(failure)
            else:
                future.set_result(value)


class AwaitedCall(OpenCall):
    """A call, and the plain future that a task awaits.

    The future tells by a callback that its task was cancelled; the callback is gone before the
    reader settles it.
    """

    __slots__ = ("client", "decode", "ends", "expected", "future", "id", "method", "timer")
    future: asyncio.Future[Any]

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer."""
        future = self.future
        if not future.remove_done_callback(self):
            self.client.take_late(self, error)
        elif error is None and self.decode is None and self.timer is None:
            future.set_result(result)
        else:
            self.set(future, result, error)

    def __call__(self, future: object) -> None:
        """Cancel the call: its future was cancelled."""
        if self.timer is not None:
            self.timer.cancel()
        if self.id is not None:
            self.client.cancel_call(self.id)


class StartedCall(asyncio.Future[T], OpenCall):
    """A call on its way: a future of its result. Cancelling it ends the call, and tells the server.

    Any number of them can be awaited together, by `asyncio.gather` or `asyncio.wait`, without a
    task for each.
    """

    __slots__ = ("client", "decode", "ends", "expected", "id", "method", "timer")

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer."""
        if error is None and self.decode is None and self.timer is None:
            self.set_result(result)
        else:
            self.set(self, result, error)

    def cancel(self, msg: Any | None = None) -> bool:
        """End the call now, and tell the server; False if it has ended already."""
        if not super().cancel(msg):
            look_at(self)
            return False
        if self.timer is not None:
            self.timer.cancel()
        if self.id is not None:
            self.client.cancel_call(self.id)
        return True


def look_at(future: asyncio.Future[Any]) -> None:
    """Let asyncio know that an exception has been seen, or need not be."""
    if future.done() and not future.cancelled():
        future.exception()
