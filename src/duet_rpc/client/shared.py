"""One connection at a time that threads share: who sends, who reads, who waits, and its end.

The thread that waits for an answer reads for all; when its own answer has come it passes the
reading on to another that waits. So a script pays for neither a loop nor a thread, and a call costs
two system calls and a poll. Threads that call at the same time do not queue for the lock: whoever
holds it sends their calls together with its own.

Ctrl-C may come between any two steps. So the lock is only ever taken by `with` on the lock itself,
which nothing can come in between, and never by a method of ours that takes it and returns.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from duet_rpc.client.blocking_host import BlockingHost
from duet_rpc.client.replies import Gate, ThreadReply
from duet_rpc.client.sender import ArrayCall
from duet_rpc.client.stats import ClientStats
from duet_rpc.engine.clocks import LONG
from duet_rpc.engine.dispatch import Log
from duet_rpc.errors import CallTimeout, Cancelled, ConnectionLost, RpcError, UsageError
from duet_rpc.forks import FORKED
from duet_rpc.hosts.workers import Workers
from duet_rpc.wire.params import add_metadata

NOTHING: list[tuple[int, int]] = []


class Line:
    """What the threads of one client have in common."""

    def __init__(self, log: Log) -> None:
        self.lock = threading.Lock()
        self.host: BlockingHost | None = None
        self.lost: Exception | None = None
        """Why there is no connection any more; None until one was lost."""
        self.closed = False
        self.counted = ClientStats()
        self.leader: ThreadReply | None = None
        """Whose thread reads for all, or is being woken to."""
        self.polled: BlockingHost | None = None
        """What the leader waits on, or is about to; its descriptors must stay open."""
        self.waiting: dict[ThreadReply, None] = {}
        """Those whose thread is at its gate, oldest first."""
        self.workers = Workers()
        self._log = log
        self._sends = False
        """Whoever holds the lock will send what is handed in before it lets go."""
        self._handed_in: deque[ThreadReply] = deque()
        self._patience: float | None = None
        """Milliseconds that the leader may wait this time."""
        self._unsent: list[ThreadReply] = []
        self._always: ThreadReply | None = None
        self._endings: set[threading.Thread] = set()
        self.is_copy = False
        """We are in a forked child, and the connection is the parent's."""

    def forked(self) -> None:
        """Leave the connection to the parent; none of its threads is here."""
        self.lock = threading.Lock()
        self.is_copy = self.closed = True
        self.host = self.leader = self.polled = None
        self.lost = UsageError(FORKED)
        self.waiting = {}
        self._handed_in.clear()
        self._unsent = []
        self._endings = set()
        self._sends = False

    def serve_always(self, always: ThreadReply) -> None:
        """Serve the server's requests although no call waits: as if one always did."""
        self._always = always
        threading.Thread(
            target=self.wait, args=[always], name="duet-rpc reader", daemon=True
        ).start()

    def close(self) -> None:
        """End the connection; open calls fail. Blocks until everything is given back."""
        if self.is_copy:
            return
        with self.lock:
            self.closed = True
            host = self.host
            if host is not None:
                host.connection.calls.keep_held()
                host.read_last_words()  # a refused notification is told although nobody calls again
                host.lost_by = ConnectionLost("the client was closed")
                self._detach(host)
            endings = list(self._endings)
        self.workers.close()
        if host is not None:
            host.end()
        for ending in endings:
            ending.join()

    def _end(self, host: BlockingHost) -> None:
        """The connection is gone. The lock is held."""
        if host is not self.host:
            return
        if host.outbox.lost:
            host.read_last_words()
        self._detach(host)
        ending = threading.Thread(
            target=self._see_to_end, args=[host], name="duet-rpc end", daemon=True
        )
        self._endings.add(ending)
        ending.start()

    def _see_to_end(self, host: BlockingHost) -> None:
        host.end()
        with self.lock:
            self._endings.discard(threading.current_thread())

    def _detach(self, host: BlockingHost) -> None:
        """Let go of a connection; every open call ends. The lock is held.

        The host stays in its place until all are told: after an interrupt this is done again.
        """
        self.lost = error = host.loss()
        lost = host.lost_calls + host.connection.calls.lose(error)
        host.connection.drop_queued()
        unsent, self._unsent = self._unsent, []
        for reply in unsent:
            reply.settle(None, copy.copy(error))
        if self._always is not None:
            self._always.settle(None, None)
        while self.waiting:  # nearly never: an interrupt came when one of them was to be told
            self._wake(next(iter(self.waiting)))
        self.host = None
        self.counted.lost += lost
        self.counted.add(host.connection)
        host.retire()

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

    def ask(self, reply: ThreadReply, params: bytes | None) -> bool:
        """Send one call and wait until it is settled."""
        try:
            if self._sends and self._hand_in(reply, params):
                return True
            with self.lock:
                host = self.host
                if host is None:
                    return False
                self._sends = True
                try:
                    self._request(host, reply, params, in_turn=True)
                    self._sent(host)
                except Exception:
                    raise
                except BaseException:
                    self._interrupted("the sending of a call was interrupted")
                    raise
                reads_on = self._go_on(reply)
                self._sends = False
                if self._handed_in:
                    self._send_handed_in()
            self._wait(reply, reads_on)
        except BaseException:
            self._give_up(reply)
            raise
        return True

    def _hand_in(self, reply: ThreadReply, params: bytes | None) -> bool:
        """Leave a call to whoever holds the lock to send, and wait until it is settled.

        Threads that queue for the lock would cost several times as much as what they do with it.
        False if nobody could send it.
        """
        reply.gate = Gate()
        reply.params = params
        self._handed_in.append(reply)
        if not self._sends:  # it may have looked just before
            with self.lock:
                self._send_handed_in()
        self._follow(reply)
        if reply.host is None and not reply.done:
            with self.lock:
                self._take_back(reply)
            if reply.host is None:
                return False
        self._wait(reply, None, passed_gate=True)
        return True

    def _take_back(self, reply: ThreadReply) -> None:
        """Have a call not sent that was handed in, if it is not too late. The lock is held."""
        if reply in self._handed_in:
            self._handed_in.remove(reply)

    def _send_handed_in(self) -> None:
        """Send the calls of those who would have waited for the lock, which is held."""
        try:
            while self._handed_in:
                self._sends = True
                host = self.host
                while self._handed_in:
                    reply = self._handed_in[0]
                    if host is None:
                        assert reply.gate is not None, "made before it was handed in"
                        reply.gate.open()
                    elif reply.host is None and not reply.done:
                        try:
                            self._request(host, reply, reply.params, in_turn=True)
                            self.waiting[reply] = None
                        except Exception as error:
                            reply.settle(None, error.with_traceback(None))
                    self._handed_in.popleft()  # not before: Ctrl-C may come
                if host is not None:
                    self._sent(host)
                if self.leader is None:
                    self._pass_lead()
                self._sends = False  # who hands in after this sees it; who has before, we see
        except BaseException:
            self._interrupted("the sending of a call was interrupted")
            raise

    def request(
        self, reply: ThreadReply, params: bytes | None, only: BlockingHost | None = None
    ) -> bool:
        """Send one call."""
        return self._send(lambda host: self._request(host, reply, params, only is None), only)

    def _request(
        self, host: BlockingHost, reply: ThreadReply, params: bytes | None, in_turn: bool
    ) -> None:
        calls = host.connection.calls
        if reply.expected.on_progress is not None:
            params = add_metadata(params, progress_token=calls.last_id + 1)
        reply.id = calls.send(reply.method, params, reply, in_turn=in_turn)
        reply.host = host

    def send_array(self, calls: Sequence[ArrayCall], refuse: Callable[[RpcError], None]) -> bool:
        """Send calls in one array; each that wants an answer has its reply."""

        def send(host: BlockingHost) -> None:
            ids = iter(host.connection.calls.send_batch(calls, refuse))
            for _, _, reply in calls:
                if reply is not None:
                    reply.host = host
                    reply.id = next(ids)

        return self._send(send, None)

    def notify(
        self, reply: ThreadReply, params: bytes | None, only: BlockingHost | None = None
    ) -> bool:
        """Send a notification; the reply is settled when it is on its way."""

        def send(host: BlockingHost) -> None:
            reply.host = host
            self._unsent.append(reply)
            host.connection.calls.notify(reply.method, params)

        return self._send(send, only)

    def _send(self, send: Callable[[BlockingHost], None], only: BlockingHost | None) -> bool:
        with self.lock:
            host = self.host
            if host is None or (only is not None and host is not only):
                return False
            try:
                send(host)
                self._sent(host)
            except Exception:
                raise
            except BaseException:
                self._interrupted("the sending of a call was interrupted")
                raise
            return True

    def _sent(self, host: BlockingHost) -> None:
        """See to what was just put on its way. The lock is held."""
        host.connection.flush()
        if host.outbox.lost:
            self._end(host)
        elif self.polled is not None and host.unsent:
            host.stir()  # whoever reads has to watch for room to write as well
        elif self._unsent and not host.unsent:
            self._settle_sent()

    def _settle_sent(self) -> None:
        sent, self._unsent = self._unsent, []
        for reply in sent:
            reply.settle(None, None)

    # Waiting. A thread leads, that is it reads for all, or it waits at its gate until its answer is
    # there or the lead is passed to it.

    def wait(self, reply: ThreadReply) -> None:
        """Wait until a reply is settled; read for all as long as nobody else does."""
        try:
            with self.lock:
                reads_on = self._go_on(reply)
            self._wait(reply, reads_on)
        except BaseException:
            self._give_up(reply)
            raise

    def _wait(
        self, reply: ThreadReply, reads_on: BlockingHost | None, passed_gate: bool = False
    ) -> None:
        """Lead on this host, or follow if it is None, until the reply is settled.

        Whoever has passed the gate already does not wait there again: it may have been opened to
        pass on the lead, which is done once, and before the reply leaves those who wait.
        """
        while True:
            if reads_on is not None:
                ready = reads_on.poll(self._patience)
                with self.lock:
                    self._sends = True
                    reads_on = self._go_on(reply, ready)
                    self._sends = False
                    if self._handed_in:
                        self._send_handed_in()
                continue
            if reply.progressed is not None:
                self._report_progress(reply)
            if not passed_gate and reply in self.waiting and not reply.done:
                self._follow(reply)
            passed_gate = False
            # The lead comes to nobody who is settled; so this needs no lock.
            if reply.done and self.leader is not reply:
                if reply.progressed is not None:  # it came with the answer
                    self._report_progress(reply)
                return
            with self.lock:
                reads_on = self._go_on(reply)

    def _go_on(
        self, reply: ThreadReply, ready: list[tuple[int, int]] = NOTHING
    ) -> BlockingHost | None:
        """Deal with what the leader has waited for; return what to read on for all from here.

        That is None if another thread reads, or if there is nothing more to wait for, or progress
        to report. The lock is held.
        """
        try:
            host = self.host
            if self.leader is reply:
                if self.polled is host is not None:
                    host.deal(ready)
                    if host.input_ended or host.outbox.lost or host.connection.broken:
                        self._end(host)
                        host = None
                    elif self._unsent and not host.unsent:
                        self._settle_sent()
                self.polled = None
            if reply.host is not host and reply.host is not None:
                # Nearly always it has been told. But Ctrl-C may have come just when it was to be.
                reply.settle(None, copy.copy(reply.host.loss()))
            if reply.done or reply.progressed is not None:
                self._leave(reply)
                return None
            left = reply.deadline - monotonic()
            if left <= 0:
                self._time_out(reply)
                self._leave(reply)
                return None
            if self.leader is None:
                self.leader = reply
            elif self.leader is not reply:
                if reply.gate is None:
                    reply.gate = Gate()
                reply.gate.shut()
                self.waiting[reply] = None
                return None
            assert host is not None, "a lost connection settles all its calls"
            self._patience = host.prepare(left if left < LONG else LONG)
            self.polled = host
            return host
        except BaseException:
            self._interrupted("the reading of an answer was interrupted")
            raise

    def _follow(self, reply: ThreadReply) -> None:
        """Wait until the answer is there, we are to read, or the time is over."""
        assert reply.gate is not None, "made where the lead was refused"
        left = reply.deadline - monotonic()
        while left > 0 and not reply.gate.wait(min(left, LONG)):
            left = reply.deadline - monotonic()

    def _leave(self, reply: ThreadReply) -> None:
        """Wait and lead no more. If nobody leads now, one of those who wait does. Lock is held."""
        self.waiting.pop(reply, None)
        if self.leader is reply:
            self.leader = self.polled = None
            self._pass_lead()

    def _pass_lead(self) -> None:
        while self.waiting and self.leader is None:
            successor = next(iter(self.waiting))
            self._wake(successor)
            if not successor.done:
                self.leader = successor

    def _wake(self, reply: ThreadReply) -> None:
        assert reply.gate is not None, "whoever waits has a gate"
        reply.gate.open()
        self.waiting.pop(reply, None)  # not before: Ctrl-C may come

    def _give_up(self, reply: ThreadReply) -> None:
        """Wait no more after Ctrl-C, and also if it comes again: nobody else would read."""
        interruption: BaseException | None = None
        while True:
            try:
                with self.lock:
                    self._take_back(reply)
                if reply.host is not None:
                    self.forget(reply)
                with self.lock:
                    self._leave(reply)
                    self._sends = False
                    self._send_handed_in()
                break
            except BaseException as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def _time_out(self, reply: ThreadReply) -> None:
        """End a call whose time is over. The lock is held."""
        if reply.done:
            return
        self.counted.timeouts += 1
        in_all = reply.deadline == reply.ends
        reply.settle(None, reply.expected.too_late(reply.method, in_all=in_all))
        self._drop(reply)

    def forget(self, reply: ThreadReply) -> bool:
        """Wait no more for an answer, and tell the server; False if it is there."""
        with self.lock:
            if reply.done:
                return False
            self.counted.cancelled += 1
            reply.settle(None, Cancelled())
            try:
                self._drop(reply)
                if self.leader is reply and self.host is not None:
                    self.host.stir()  # its thread reads for all, and need not wait any longer
            except BaseException:
                self._interrupted("the cancelling of a call was interrupted")
                raise
            return True

    def _interrupted(self, text: str) -> None:
        """Give the connection up after a Ctrl-C between two bytes. The lock is held.

        Nobody knows what was read or sent, or which of our own notes about it were made.
        """
        if self.host is not None:
            self.host.lost_by = ConnectionLost(text)
            self._end(self.host)

    def _drop(self, reply: ThreadReply) -> None:
        if reply in self._unsent:
            self._unsent.remove(reply)
        if self.host is not None:
            self.host.connection.calls.forget(reply.id, tell_peer=True)
            self._sent(self.host)

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
