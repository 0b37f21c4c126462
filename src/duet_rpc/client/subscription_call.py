"""One subscription, of either client: what is asked for, what came of it, what follows a loss.

A subscription is a stream that outlives its call, so it is read in the same way. How to wait is
what the clients differ in: `subscriptions`, `blocking_subscriptions`.

Laws of this file:
- It is sent again only after the loss of the connection or the shutdown of the server, and always
  with the number of the last item that was taken.
- A server that does not take that number is not asked again without it: items could be missing.
- Whoever stops waiting while it is sent again may wait again later: that is no end of it.
"""

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Raw

from duet_rpc.client.options import Expected
from duet_rpc.client.stream_call import StreamCall
from duet_rpc.engine.inflow import SubscriptionInflow
from duet_rpc.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    InvalidParams,
    RpcError,
    ShuttingDown,
    TransportError,
)
from duet_rpc.retry import Retry
from duet_rpc.wire.dialect import MORE, Dialect
from duet_rpc.wire.params import add_metadata
from duet_rpc.wire.streams import MAX_WINDOW
from duet_rpc.wire.subscriptions import RESUME, encode_subscription_more
from duet_rpc.wire.surrogates import decode_value, encode_value

if TYPE_CHECKING:
    from duet_rpc.engine.calls import Calls

SUBSCRIPTION_WINDOW = MAX_WINDOW
"""Items that may be on their way: as many as a server keeps of a subscriber that is slow."""


class SubscriptionReader(Protocol):
    """The reader of a subscription, of either client; one that blocks never suspends."""

    @property
    def reconnects(self) -> bool:
        """Whether a new connection may be made."""
        ...

    async def begin_again(self) -> None:
        """Send the call on a connection that is there or can be made, and wait for its answer."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait between two attempts."""
        ...

    def now(self) -> float:
        """Tell the time."""
        ...


class SubscriptionCall(StreamCall):
    """One subscription of either client."""

    def __init__(
        self,
        dialect: Dialect,
        method: str,
        params: bytes | None,
        expected: Expected,
        window: int,
        answer_timeout: float | None,
    ) -> None:
        """`expected` tells of items; `answer_timeout` is for the answer that begins it."""
        super().__init__(dialect, method, params, expected, window)
        self._params = add_metadata(params, stream_window=window)
        self._window = window
        self._current = SubscriptionInflow(window)
        self._answer_timeout = answer_timeout
        self._delays: Iterator[float] = iter(())
        """The waits before further attempts to go on."""
        self._until = 0.0
        """When the last of them may begin."""
        self._broken_off_at = -inf
        """When whoever waited for it to go on has stopped waiting."""
        self._resumed_at = -inf
        self._resumed_after = -1
        """The number of the last item when it went on."""

    @property
    def inflow(self) -> SubscriptionInflow:
        """What came of it on the connection that it was sent on last."""
        return self._current

    def send(self, calls: "Calls") -> None:
        """Send the call; its bytes go out with the next flush."""
        self.inflow.calls = calls
        super().send(calls)

    def grant(self, calls: "Calls") -> None:
        """Grant the server more items if that is due."""
        granted, name = self.inflow.grant(), self.inflow.name
        if granted and name is not None:
            params = encode_subscription_more(name, granted)
            calls.notify(MORE, params)

    def leave(self, calls: "Calls") -> bool:
        """Take no more items, and unsubscribe; False if it has ended."""
        return self.inflow.leave()

    def is_open(self, calls: "Calls") -> bool:
        """Tell whether the server has still to be notified if no one wants it any more."""
        return self.inflow.is_open

    @property
    def wait_timeout(self) -> float | None:
        """How long to wait for the answer, and then for each item."""
        return self._answer_timeout if self.inflow.awaits_answer else self.expected.timeout

    def not_begun(self) -> CallTimeout:
        """Make the error of a call that was not answered in time."""
        return CallTimeout(f"{self.method}: no answer within {self._answer_timeout:g} s")

    def too_late(self) -> CallTimeout:
        """Make the error of a wait that was too long."""
        return self.not_begun() if self.inflow.awaits_answer else super().too_late()

    # After a loss.

    async def resume(self, reader: SubscriptionReader, retry: Retry | None) -> bool:
        """Subscribe again after the last item that was taken; False if that is not to be done.

        Raise what it fails with for good.
        """
        lost = self.inflow.error
        if not isinstance(lost, ConnectionLost | ShuttingDown) or not reader.reconnects:
            return False
        delay = self._begin_attempts(reader.now(), retry)
        try:
            while delay is not None:
                await reader.pause(delay)
                self._renew()
                try:
                    await reader.begin_again()
                    self._resumed_at = reader.now()
                    return True
                except InvalidParams as refusal:
                    raise self._cut(lost) from refusal
                except (TransportError, RpcError) as failure:
                    delay = self._next_delay(reader.now())
                    if delay is None or not _may_help(failure) or not reader.reconnects:
                        raise
            return False
        except Exception:
            raise
        except BaseException:  # cancelled, or interrupted
            self._renew()
            self._current.end(lost)
            self._broken_off_at = reader.now()
            raise
        finally:
            del lost  # it knows this frame

    def _begin_attempts(self, now: float, retry: Retry | None) -> float | None:
        """Say how long to wait before the first attempt; None if there is to be none.

        One that was lost again before anything came of it belongs to the attempts before, and so
        does one after somebody has stopped waiting and soon waits again.
        """
        soon = _QUICK if retry is None else retry.max_delay
        if now - self._resumed_at < soon and self.inflow.seq == self._resumed_after:
            return self._next_delay(now)
        if now - self._broken_off_at < soon and retry is not None:
            return 0.0 if now < self._until else None
        self._delays = iter(()) if retry is None else retry.delays()
        self._until = now + (0.0 if retry is None else retry.total)
        self._resumed_after = self.inflow.seq
        return 0.0

    def _next_delay(self, now: float) -> float | None:
        delay = next(self._delays, None)
        return None if delay is None or now + delay > self._until else delay

    def _renew(self) -> None:
        before = self.inflow
        self._current = SubscriptionInflow(self._window, before.seq, before.missed)
        members: dict[str, Any] = decode_value(_members_decoder, self._params or b"{}")
        self._params = encode_value({**members, RESUME: before.seq})

    def _cut(self, lost: Exception) -> ConnectionLost:
        """Make the error of a subscription that cannot go on where it was."""
        return ConnectionLost(
            f"{self.method}: the connection was lost after item {self.inflow.seq}, and the method"
            f" takes no {RESUME}; items may be missing: subscribe again ({lost})"
        )


_QUICK = 2.0
"""Seconds; a subscription that is lost sooner than that has not gone on."""
_members_decoder = msgspec.json.Decoder(dict[str, Raw])


def _may_help(failure: TransportError | RpcError) -> bool:
    """Tell whether another attempt can help."""
    if isinstance(failure, RpcError):
        return failure.retryable
    return isinstance(failure, ConnectionLost | ConnectFailed | CallTimeout)
