"""The connection of a blocking client, and the handlers of the service that it serves.

A thread that uses a host holds the lock of the connection, except while it waits. The thread that
reads does so for all, so it runs no handlers: each has a thread of its own.
"""

import copy
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duet_rpc.client.ends import ConnectionEnd, end_link
from duet_rpc.client.options import Expected
from duet_rpc.client.replies import ThreadReply
from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Dispatcher, Job
from duet_rpc.engine.results import decoder
from duet_rpc.errors import ConnectionLost, UsageError
from duet_rpc.forks import FORKED
from duet_rpc.hosts.host import BaseHost
from duet_rpc.hosts.replies import PeerReply
from duet_rpc.hosts.runner import WorkerRunner
from duet_rpc.hosts.threads import ThreadHost
from duet_rpc.transports.link import Link
from duet_rpc.wire.framing import Framing

if TYPE_CHECKING:
    from duet_rpc.client.shared import SharedConnection


class BlockingHost(ThreadHost):
    """One connection that threads share."""

    lost_by: Exception | None

    def __init__(
        self,
        shared: "SharedConnection",
        link: Link,
        dispatcher: Dispatcher,
        framing: Framing,
        options: ConnectionOptions,
        *,
        patience: float | None,
    ) -> None:
        super().__init__(link.channel, dispatcher, framing, options)
        self._ending = threading.Lock()
        self._released = False
        self.ended_by_client: bool = False
        self._shared = shared
        self._link = link
        self._patience = patience
        """Seconds that the server has to read a handler's notification."""
        runner = WorkerRunner(self.connection, self.clocks, shared.workers.lane(), self._finish)
        self.start: Callable[[Job], None] = runner.start

    def forked(self) -> None:
        """Leave the connection to the parent."""
        super().forked()
        self.closed: bool = True
        self.lost_by = UsageError(FORKED)

    @property
    def pid(self) -> int | None:
        """The process of a server that was started for it."""
        return self._link.pid

    @property
    def gone(self) -> Exception | None:
        """Why nothing can be sent to the server any more; None while it is there."""
        return super().gone if self.lost_by is None else copy.copy(self.lost_by)

    @property
    def unsent(self) -> bool:
        """Something of ours waits for the server to read."""
        return self.outbox.size > 0 or self.connection.calls.holds

    def stir(self) -> None:
        """Have the waiting thread look again at what there is to wait for."""
        if self._shared.lead.polled is self:
            self.wake()

    def retire(self) -> None:
        """No more waiting on these descriptors: they are about to be closed."""
        self.closed = True
        self.outbox.lose()
        self.stir()

    def end(self) -> ConnectionEnd:
        """Give everything back, once the last one who waits has noticed. Blocks; idempotent."""
        with self._ending:
            while self._shared.lead.polled is self:  # not for long: it has been woken
                time.sleep(0.001)
            with self._shared.lock:  # a handler that ends now must find it retired, or not at all
                if not self._released:
                    self._released = True
                    self.release()
            id = self.connection.requests.origin.connection_id
            return end_link(self._link, id, self.lost_by, by_client=self.ended_by_client)

    def loss(self) -> Exception:
        """Say what happened: to the framing, or to the link."""
        if self.lost_by is None:
            if self.connection.broken:
                self.lost_by = ConnectionLost("the server sent something that is no frame")
            else:
                self.lost_by = self._link.loss()
        return self.lost_by

    # The handlers of our own service: each has a thread, for this one reads for all.

    def _finish(self, job: Job, member: bytes) -> None:
        with self._shared.lock:
            self.clocks.stop(job)
            self.connection.requests.finish(job, member)
            self.go_on()

    def go_on(self) -> None:
        """Go on with what has become possible. The lock is held."""
        super().go_on()
        if not self.closed:
            self.stir()

    # The peer, for handlers: their threads are not the one that reads.

    def notify(self, method: str, params: Any) -> None:
        """Send a notification from a handler."""
        reply = ThreadReply(self._shared, method, Expected(decoder(Any), self._patience))
        if not self._shared.notify(reply, encode_params(params), self):
            raise copy.copy(self.loss())
        reply.result()

    def notify_outside(self, method: str, params: Any) -> None:
        """Send a notification from any thread; waits until the server has read what came before."""
        self._refuse_in_child()
        self.notify(method, params)

    def act(self, action: Callable[..., object], *args: Any) -> None:
        """Do something to the connection, from any thread."""
        self._shared.do(self._act, action, args)

    def _act(self, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        action(*args)
        if not self.closed:
            self._shared.flush(self)

    def wait(self, reply: PeerReply) -> None:
        """Wait for the answer to a call of a handler: a thread reads as long as we serve."""
        BaseHost.wait(self, reply)

    async def wait_async(self, reply: PeerReply) -> None:
        """Wait in an `async def`, which has a thread and a loop of its own."""
        self.wait(reply)
