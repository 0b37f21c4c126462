"""Subscriptions on an event loop: the generator goes on, waits for room, or ends as too slow.

What waits to be sent is in `engine.subscriptions`. The connection sends it when it has taken what
was sent before, and when the subscriber grants more.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duet_rpc.context import Context
from duet_rpc.engine.dispatch import encode_result
from duet_rpc.engine.subscriptions import Outflow

if TYPE_CHECKING:
    from duet_rpc.hosts.loop import LoopHost

_TURN = 64
"""Items after which a generator that never waits lets others run."""


def subscribe(host: "LoopHost", ctx: Context) -> "SubscriptionSink":
    """Answer the request of a subscription; raise the refusal. The lock is held."""
    flow = host.connection.requests.subscribe(ctx, host, host.connection.outgoing.flush)
    host.flush_soon()
    host.go_on()  # its slot is free for what waits
    return SubscriptionSink(host, flow)


class SubscriptionSink:
    """Where the items of one subscription go."""

    def __init__(self, host: "LoopHost", flow: Outflow) -> None:
        self._host = host
        self._flow = flow

    def send(self, value: Any) -> None:
        """Send one item, or keep it until it can be sent; raise `Lagged` if that is too much."""
        encoded = encode_result(value)
        with self._host.lock:
            if not self._flow.is_over:
                self._flow.put(encoded)

    async def ready(self) -> None:
        """Wait until there is room for another item, if the method wants to wait."""
        flow = self._flow
        if flow.is_full and flow.when_slow == "wait":
            await self._wait_until(lambda: not flow.is_full)
        elif flow.unsent or flow.seq % _TURN == 0:
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Wait until everything is sent, or nothing more can be."""
        if self._flow.unsent:
            await self._wait_until(lambda: not self._flow.unsent)

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        flow, host = self._flow, self._host
        try:
            while not (is_so() or flow.is_over or host.closed):
                changed: asyncio.Future[None] = host.loop.create_future()
                # Another thread may read or write in place of a loop that a handler blocks.
                flow.on_change = lambda changed=changed: host.act(_wake, changed)
                if not is_so():
                    await changed
        finally:
            flow.on_change = None


def _wake(changed: "asyncio.Future[None]") -> None:
    if not changed.done():
        changed.set_result(None)
