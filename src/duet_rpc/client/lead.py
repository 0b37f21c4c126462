"""Who reads, of the threads that share a connection: leader and followers.

The thread that waits for an answer reads for all. When its own answer has come it passes the lead
on to another that waits; the others wait at their gates until their answer is there or the lead
comes to them. So a script pays for neither a loop nor a thread.
"""

import copy
from time import monotonic
from typing import TYPE_CHECKING

from duet_rpc.client.interrupts import Turnstile
from duet_rpc.client.replies import ThreadReply
from duet_rpc.engine.deadlines import LONG

if TYPE_CHECKING:
    from duet_rpc.client.blocking_host import BlockingHost
    from duet_rpc.client.shared import SharedConnection

Ready = list[tuple[int, int]]
NOTHING: Ready = []
SEND: Ready = []
"""Stands for: the call is still to be sent."""


class Lead:
    """The lead of one connection, and who waits for it. All but `follow` needs the lock."""

    def __init__(self, shared: "SharedConnection") -> None:
        self.leader: ThreadReply | None = None
        """Whose thread reads for all, or is being woken to."""
        self.polled: BlockingHost | None = None
        """What the leader waits on, or is about to; its descriptors must stay open."""
        self.patience: float | None = None
        """Milliseconds that the leader may wait this time."""
        self.waiting: dict[ThreadReply, None] = {}
        """Those whose thread is at its gate, oldest first."""
        self._shared = shared

    def advance(self, reply: ThreadReply, ready: Ready) -> "BlockingHost | None":
        """Deal with what the leader has waited for; return what to read on for all from here.

        That is None if another thread reads, or if there is nothing more to wait for, or progress
        to report.
        """
        shared = self._shared
        if ready is SEND and not shared.send_first(reply):
            return None
        host = shared.host
        if self.leader is reply:
            if host is not None and self.polled is host:
                host.deal(ready)
                if host.input_ended or host.outbox.lost or host.connection.broken:
                    shared.end(host)
                    host = None
                elif shared.unsent:
                    shared.settle_sent(host)
            self.polled = None
        if reply.host is not host and reply.host is not None:
            # Nearly always it is settled. But an interrupt may have come just when it was to be.
            reply.settle(None, copy.copy(reply.host.loss()))
        if reply.done or reply.progressed is not None:
            self.leave(reply)
            return None
        left = reply.deadline - monotonic()
        if left <= 0:
            shared.time_out(reply)
            self.leave(reply)
            return None
        if self.leader is None:
            self.leader = reply
        elif self.leader is not reply:
            if reply.gate is None:
                reply.gate = Turnstile()
            reply.gate.shut()
            self.waiting[reply] = None
            return None
        assert host is not None, "a lost connection settles all its calls"
        self.patience = host.prepare(left if left < LONG else LONG)
        self.polled = host
        return host

    def follow(self, reply: ThreadReply) -> None:
        """Wait until the answer is there, we are to read, or the time is over."""
        assert reply.gate is not None, "made where the lead was refused"
        left = reply.deadline - monotonic()
        while left > 0 and not reply.gate.wait(min(left, LONG)):
            left = reply.deadline - monotonic()

    def leave(self, reply: ThreadReply) -> None:
        """Wait and lead no more. If no thread leads now, one of those that wait does."""
        if self.waiting:
            self.waiting.pop(reply, None)
        if self.leader is reply:
            self.leader = self.polled = None
            if self.waiting:
                self.pass_on()

    def pass_on(self) -> None:
        """Have one of those that wait lead, if no thread does."""
        while self.waiting and self.leader is None:
            successor = next(iter(self.waiting))
            self.wake(successor)
            if not successor.done:
                self.leader = successor

    def wake(self, reply: ThreadReply) -> None:
        """Have the thread of a reply look what there is for it, if it waits."""
        if reply.gate is not None:
            reply.gate.open()
            self.waiting.pop(reply, None)  # not before: an interrupt may come
