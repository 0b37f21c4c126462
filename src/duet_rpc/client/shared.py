"""One connection at a time that threads share: who sends, who waits, and its end.

Threads that call at the same time do not queue for the lock (flat combining): the one that holds it
sends their calls together with its own, so a call costs two system calls and a poll. Who reads the
answers is in `lead`; what an interrupt may break off, in `interrupts`. All else that needs the lock
is in one class here, which is why it is a long one.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duet_rpc.client.blocking_host import BlockingHost
from duet_rpc.client.ends import ConnectionEnd
from duet_rpc.client.interrupts import Turnstile, insist
from duet_rpc.client.lead import NOTHING, SEND, Lead
from duet_rpc.client.replies import ThreadReply
from duet_rpc.client.sender import ArrayCall
from duet_rpc.client.stats import ClientStats
from duet_rpc.engine.log import Log
from duet_rpc.errors import CallTimeout, Cancelled, ConnectionLost, RpcError, UsageError
from duet_rpc.forks import FORKED
from duet_rpc.hosts.workers import Workers
from duet_rpc.wire.params import add_metadata

if TYPE_CHECKING:
    from duet_rpc.client.stream_call import StreamCall

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class SharedConnection:
    """What the threads of one client have in common."""

    def __init__(self, log: Log) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.host: BlockingHost | None = None
        self.lost: Exception | None = None
        """Why there is no connection any more; None until one was lost."""
        self.latest: BlockingHost | None = None
        """The connection, or the last one until everything of it is given back."""
        self._last_end: ConnectionEnd | None = None
        self.closed: bool = False
        self.counted: ClientStats = ClientStats()
        self.lead: Lead = Lead(self)
        self._advance = self.lead.advance
        self.workers: Workers = Workers()
        self.unsent: list[ThreadReply] = []
        """Notifications that the server has not read yet."""
        self.is_copy: bool = False
        """We are in a forked child, and the connection is the parent's."""
        self._log = log
        self._combines = False
        """The thread that holds the lock will send what is handed in before it lets go."""
        self._handed_in: deque[ThreadReply | tuple[BlockingHost, StreamCall]]
        """Calls to be sent, and streams to be cancelled."""
        self._handed_in = deque()
        self._always: ThreadReply | None = None
        self._endings: dict[BlockingHost, threading.Thread | None] = {}
        """Connections that are still to be given back, and the threads that do it."""

    def forked(self) -> None:
        """Leave the connection to the parent; none of its threads is here."""
        self.lock = threading.Lock()
        self.is_copy = self.closed = True
        self.host = self.latest = None
        self.lost = UsageError(FORKED)
        self.lead = Lead(self)
        self._advance = self.lead.advance
        self.unsent = []
        self._combines = False
        self._handed_in.clear()
        self._endings = {}

    def do(self, action: Callable[[A, B], R], subject: A, detail: B) -> R:
        """Do something to the connection with the lock held, and what was handed in meanwhile.

        Whatever breaks it off, but for a mistake of the caller's, ends the connection.
        """
        with self.lock:
            try:
                self._combines = True
                found = action(subject, detail)
                self._combines = False  # who hands in after this sees it; who has before, we see
                if self._handed_in:
                    self._send_handed_in()
                return found
            except BaseException as error:
                insist(self._recover, error)
                raise

    def _recover(self, error: BaseException) -> None:
        if self.host is not None and not isinstance(error, UsageError):
            cause = type(error).__name__
            self.host.lost_by = ConnectionLost(f"sending or reading was interrupted by {cause}")
            self.host.ended_by_client = True
            self.end(self.host)
        self._combines = False
        self._send_handed_in()

    # The end.

    def close(self) -> None:
        """End the connection; open calls fail. Blocks until everything is given back."""
        if self.is_copy:
            return
        self.do(self._close, None, None)
        self.workers.close()
        for host, thread in list(self._endings.items()):
            self._see_to_end(host)
            if thread is not None:
                thread.join()

    def _close(self, _: None, __: None) -> None:
        self.closed = True
        host = self.host
        if host is not None:
            host.connection.calls.keep_held()
            host.read_last_words()  # a refused notification is logged although no call follows
            host.lost_by = ConnectionLost("the client was closed")
            host.ended_by_client = True
            self._detach(host)

    def end(self, host: BlockingHost) -> None:
        """Give up a connection that is gone. The lock is held."""
        if host is not self.host:
            return
        if host.outbox.lost:
            host.read_last_words()
        self._detach(host)
        thread = threading.Thread(
            target=self._see_to_end, args=[host], name="duet-rpc end", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            return  # a process may have no thread left; then it is done by `close`
        self._endings[host] = thread

    def _see_to_end(self, host: BlockingHost) -> ConnectionEnd:
        end = host.end()
        with self.lock:
            self._endings.pop(host, None)
            if self.latest is host:
                self._last_end = end
                self.latest = None
        return end

    def wait_closed(self, reply: ThreadReply) -> ConnectionEnd:
        """Wait until the connection is over and everything given back; say how it ended.

        The reply stands for the thread that waits: as one that waits for an answer, it reads.
        """
        with self.lock:
            if self.is_copy:
                raise UsageError(FORKED)
            host = reply.host = self.latest
            if host is None:
                if self._last_end is None:
                    raise UsageError("this client has not been connected; use `with`")
                return self._last_end
        self.wait(reply)
        thread = self._endings.get(host)
        if thread is not None:
            left = reply.deadline - monotonic()
            thread.join(None if left == inf else max(0.0, left))
        if self.host is host or (thread is not None and thread.is_alive()):
            raise CallTimeout(f"the connection is not over after {reply.expected.timeout:g} s")
        return self._see_to_end(host)

    def _detach(self, host: BlockingHost) -> None:
        """Let go of a connection; every open call ends. The lock is held.

        The host stays in its place until all are settled: after an interrupt this is done again.
        """
        self._endings[host] = None
        self.lost = error = host.loss()
        lost = host.lost_calls + host.connection.calls.lose(error)
        host.connection.close()
        while self.unsent:
            self.unsent[-1].settle(None, copy.copy(error))
            self.unsent.pop()
        if self._always is not None:
            self._always.settle(None, None)
        while self.lead.waiting:  # nearly never: an interrupt came when one was to be woken
            self.lead.wake(next(iter(self.lead.waiting)))
        host.retire()
        self.host = None
        self.counted.lost += lost
        self.counted.add(host.connection)

    @property
    def stats(self) -> ClientStats:
        """What happened so far."""
        with self.lock:
            stats = msgspec.structs.replace(self.counted)
            if self.host is not None:
                stats.add(self.host.connection)
                stats.pending = len(self.host.connection.calls.open)
            return stats

    def too_late(self) -> CallTimeout:
        """Count a call that there was no connection for in time."""
        with self.lock:
            self.counted.timeouts += 1
        return CallTimeout("no connection could be made in time")

    # Sending, on the connection that is there, or on no other than `only`; False if it is not.

    def request(self, reply: ThreadReply, params: bytes | None) -> bool:
        """Send one call."""
        return self.do(self._send, lambda host: self._put(host, reply, params), None)

    def send_array(self, calls: Sequence[ArrayCall], refuse: Callable[[RpcError], None]) -> bool:
        """Send calls in one array; each that wants an answer has its reply."""

        def put(host: BlockingHost) -> None:
            ids = iter(host.connection.calls.send_batch(calls, refuse))
            for _, _, reply in calls:
                if reply is not None:
                    reply.host = host
                    reply.id = next(ids)

        return self.do(self._send, put, None)

    def notify(
        self, reply: ThreadReply, params: bytes | None, only: BlockingHost | None = None
    ) -> bool:
        """Send a notification; the reply is settled when it is on its way."""

        def put(host: BlockingHost) -> None:
            reply.host = host
            self.unsent.append(reply)
            host.connection.calls.notify(reply.method, params)

        return self.do(self._send, put, only)

    def _send(self, put: Callable[[BlockingHost], None], only: BlockingHost | None) -> bool:
        host = self.host
        if host is None or (only is not None and host is not only):
            return False
        put(host)
        self.flush(host)
        return True

    def _put(self, host: BlockingHost, reply: ThreadReply, params: bytes | None) -> None:
        calls = host.connection.calls
        if reply.expected.on_progress is not None:
            token = calls.last_id + 1
            params = add_metadata(
                params, progress_token=token, tokens=host.dialect.work_done(token)
            )
        reply.id = calls.send(reply.method, params, reply)
        reply.host = host

    def flush(self, host: BlockingHost) -> None:
        """See to what was just put on its way. The lock is held."""
        host.connection.outgoing.flush()
        if host.outbox.lost:
            self.end(host)
        elif self.lead.polled is not None and host.unsent:
            host.stir()  # the thread that reads has to watch for room to write as well
        elif self.unsent:
            self.settle_sent(host)

    def settle_sent(self, host: BlockingHost) -> None:
        """Settle the notifications that the server has read. The lock is held."""
        if not host.unsent:
            sent, self.unsent = self.unsent, []
            for reply in sent:
                reply.settle(None, None)

    # Streams.

    def open_stream(self, call: "StreamCall") -> BlockingHost | None:
        """Send the call of a stream; return on which connection, None if there is none."""
        return self.do(self._open_stream, call, None)

    def _open_stream(self, call: "StreamCall", _: None) -> BlockingHost | None:
        host = self.host
        if host is not None:
            call.send(host.connection.calls)
            self.flush(host)
        return host

    def close_stream(self, host: BlockingHost, call: "StreamCall") -> None:
        """Cancel the call of a stream unless it has ended."""
        self.do(self._close_stream, host, call)

    def _close_stream(self, host: BlockingHost, call: "StreamCall") -> None:
        if host is not self.host:
            call.inflow.items.clear()
            call.inflow.end(None)
        elif call.leave(host.connection.calls):
            self.counted.cancelled += 1
            self.flush(host)

    def leave_stream(self, host: BlockingHost, call: "StreamCall") -> None:
        """Do the same from the garbage collector, which may run while this thread has the lock.

        The thread that has the lock then does it before it lets go, or the next one to have it.
        """
        self._handed_in.append((host, call))
        if not self._combines and self.lock.acquire(blocking=False):
            try:
                self._send_handed_in()
            finally:
                self.lock.release()

    # Calls of threads that wait at once, which another thread may send.

    def ask(self, reply: ThreadReply, params: bytes | None) -> bool:
        """Send one call and wait until it is settled."""
        try:
            reply.params = params
            if self._combines and self._hand_in(reply):
                return True
            reads_on = self.do(self._advance, reply, SEND)
            if reply.host is None:
                return False
            self._wait(reply, reads_on)
        except BaseException:
            insist(self._give_up, reply)
            raise
        return True

    def send_first(self, reply: ThreadReply) -> bool:
        """Send a call whose thread then waits. The lock is held."""
        host = self.host
        if host is None:
            return False
        self._put(host, reply, reply.params)
        self.flush(host)
        return True

    def _hand_in(self, reply: ThreadReply) -> bool:
        """Leave a call to the thread that holds the lock to send, and wait until it is settled.

        Threads that queue for the lock would cost several times as much as what they do with it.
        False if it could not be sent.
        """
        reply.gate = Turnstile()
        self._handed_in.append(reply)
        if not self._combines:  # it may have looked just before
            self.do(self._take_back, None, None)
        self.lead.follow(reply)
        if reply.host is None and not reply.done:
            self.do(self._take_back, reply, None)
            if reply.host is None:
                return False
        self._wait(reply, None, passed_gate=True)
        return True

    def _take_back(self, reply: ThreadReply | None, _: None) -> None:
        """Have a call not sent that was handed in, if it is not too late."""
        if reply is not None and reply in self._handed_in:
            self._handed_in.remove(reply)

    def _send_handed_in(self) -> None:
        """Send the calls of those who would have waited for the lock, which is held."""
        while self._handed_in:
            self._combines = True
            host = self.host
            while self._handed_in:
                reply = self._handed_in[0]
                if isinstance(reply, tuple):
                    self._close_stream(*reply)
                elif host is None:
                    assert reply.gate is not None, "made before it was handed in"
                    reply.gate.open()
                elif reply.host is None and not reply.done:
                    try:
                        self._put(host, reply, reply.params)
                        self.lead.waiting[reply] = None
                    except Exception as error:
                        reply.settle(None, error.with_traceback(None))
                self._handed_in.popleft()  # not before: an interrupt may come
            if host is not None:
                self.flush(host)
            self.lead.pass_on()
            self._combines = False  # who hands in after this sees it; who has before, we see

    # Waiting.

    @property
    def serves_always(self) -> bool:
        """A thread reads although no call waits."""
        return self._always is not None and not self._always.done

    def serve_always(self, always: ThreadReply) -> None:
        """Serve the server's requests although no call waits: as if one always did."""
        self._always = always
        threading.Thread(
            target=self.wait, args=[always], name="duet-rpc reader", daemon=True
        ).start()

    def wait(self, reply: ThreadReply) -> None:
        """Wait until a reply is settled; read for all as long as no other thread does."""
        try:
            self._wait(reply, None)
        except BaseException:
            insist(self._give_up, reply)
            raise

    def _wait(
        self, reply: ThreadReply, reads_on: BlockingHost | None, passed_gate: bool = False
    ) -> None:
        """Lead on this host, or follow if it is None, until the reply is settled.

        A thread that has passed the gate already does not wait there again: it may have been opened
        to pass on the lead, which is done once, and before the reply leaves those who wait.
        """
        lead = self.lead
        while True:
            if reads_on is not None:
                reads_on = self.do(self._advance, reply, reads_on.poll(lead.patience))
                continue
            if reply.progressed is not None:
                self._report_progress(reply)
            if not passed_gate and reply in lead.waiting and not reply.done:
                lead.follow(reply)
            passed_gate = False
            # The lead comes to no one who is settled; so this needs no lock.
            if reply.done and lead.leader is not reply:
                if reply.progressed is not None:  # it came with the answer
                    self._report_progress(reply)
                return
            reads_on = self.do(self._advance, reply, NOTHING)

    def _report_progress(self, reply: ThreadReply) -> None:
        """Report the progress of a call to its caller, on the caller's own thread and in order."""
        on_progress = reply.expected.on_progress
        assert on_progress is not None, "only then is progress kept"
        with self.lock:
            values, reply.progressed = reply.progressed or (), None
        for value in values:
            try:
                on_progress(value)
            except Exception as error:
                self._log.failure("on_progress failed", error, method=reply.method)

    # Waiting no more.

    def forget(self, reply: ThreadReply) -> bool:
        """Wait no more for an answer, and tell the server; False if it is there."""
        return self.do(self._forget, reply, None)

    def _forget(self, reply: ThreadReply, _: None) -> bool:
        if reply.done:
            return False
        self.counted.cancelled += bool(reply.method)
        reply.settle(None, Cancelled())
        self._drop(reply)
        if self.lead.leader is reply and self.host is not None:
            self.host.stir()  # its thread reads for all, and need not wait any longer
        return True

    def _give_up(self, reply: ThreadReply) -> None:
        self.do(self._abandon, reply, None)

    def _abandon(self, reply: ThreadReply, _: None) -> None:
        """Take out a reply whose thread was interrupted, wherever it is."""
        self._take_back(reply, None)
        if reply.host is not None:
            self._forget(reply, None)
        self.lead.leave(reply)

    def time_out(self, reply: ThreadReply) -> None:
        """End a call whose time is over. The lock is held."""
        if reply.done:
            return
        self.counted.timeouts += bool(reply.method)
        in_all = reply.deadline == reply.ends
        reply.settle(None, reply.expected.too_late(reply.method, in_all=in_all))
        self._drop(reply)

    def _drop(self, reply: ThreadReply) -> None:
        if reply in self.unsent:
            self.unsent.remove(reply)
        if self.host is not None:
            self.host.connection.calls.forget(reply.id, tell_peer=True)
            self.flush(self.host)
