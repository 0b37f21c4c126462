"""The life of a process that serves: its signals, its drain, and its end within two seconds.

A process ends when it is asked to (`shutdown`, on stdio), when its input ends (stdio), or by a
signal. It then finishes what it has read. What has not begun `LAST_CHANCE` seconds before the
deadline is refused, and at the deadline `Life` ends the process by a watchdog thread, even while a
handler keeps the main thread. Stdio and sockets, threads and loops differ only in how they wait.
"""

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from duet_rpc.errors import ShuttingDown
from duet_rpc.server.logs import Logs
from duet_rpc.tracebacks import OwnFault

if TYPE_CHECKING:
    from duet_rpc.engine.dispatch import Dispatcher
    from duet_rpc.hosts.loop import LoopHost
    from duet_rpc.hosts.threads import ThreadHost
    from duet_rpc.server.server import Server

GRACE = 1.4
"""Seconds from the trigger to the forced end; two are promised, and logs need some of them."""
FACE_GRACE = 0.8
"""The same for a protocol of its own, such as MCP: the hosts of agents close our input and lose
patience after two seconds or less, and no one reads an answer any more."""
LAST_CHANCE = 0.3
"""Seconds before the end at which requests that wait behind others are refused, so that their
callers know."""
LINGER = 0.1
"""Seconds to stay after answering `shutdown`: Emacs reads the answer late, and takes a process that
has ended by then for a crash."""
TICK = 0.05

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def shutdown_methods(server: "Server") -> frozenset[str]:
    """Name the methods of ours by which a client asks for the end; another protocol has its own."""
    names = ("shutdown", "exit") if server.face is None else ()
    return frozenset(name for name in names if name not in server.service)


class Life:
    """When this process ends, and that it does.

    When everything has been answered, Python still waits for threads and exit hooks that handlers
    have left behind. They have until the same deadline. A program that has served a socket may have
    more to do (`may_go_on`): signals are then left as they were found, and only the end of the
    program is looked after, if it comes before the deadline. On stdio there is nothing to go on
    with.
    """

    def __init__(self, logs: Logs, *, may_go_on: bool = False, grace: float = GRACE) -> None:
        self._logs = logs
        self._grace = grace
        self._may_go_on = may_go_on
        self._has_served = self._is_cut_off = self._is_over = False
        self._lock = threading.Lock()
        self.reason: str | None = None
        self.unfinished: str = "a handler is still running"
        """What is in the way of the end, should it not come by itself."""
        self.lingers: bool = False
        self.deadline: float = 0.0
        self.on_end: Callable[[], object] = _nothing
        """Called once, by the thread that asks for the end."""
        self.on_stop: Callable[[], object] = _nothing
        """Called when nothing more is to be started."""
        self.on_last_chance: Callable[[], object] = _nothing
        """Called by the watchdog, again and again, when what has not begun is to be refused."""

    def begin(self) -> None:
        """Take the signals, and start the watchdog."""
        _watch_exit()
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self._wake_read, True)
        _listen_to_signals(self._wake_write)
        threading.Thread(target=self._watch, name="duet-rpc watchdog", daemon=True).start()

    @property
    def ending(self) -> bool:
        """Whether something has asked for the end."""
        return self.reason is not None

    @property
    def left(self) -> float:
        """Seconds until the forced end."""
        return self.deadline - time.monotonic()

    def end(self, reason: str) -> None:
        """Ask for the end, from any thread and as often as one likes; `exit` cuts the lingering."""
        if reason == "exit":
            self.lingers = False
        with self._lock:
            if self.reason is not None:
                return
            self.deadline = time.monotonic() + self._grace
            self.lingers = reason == "shutdown"
            self.reason = reason
        self._logs.note("info", "ending", why=reason)
        with suppress(OSError):  # full of reasons to wake
            os.write(self._wake_write, b"\0")
        self.on_end()

    def speak(self, reason: str) -> None:
        """Ask for the end by a message: what follows it in the stream is not started."""
        self.end(reason)
        self.on_stop()

    def finish(self) -> None:
        """Everything has ended by itself; only what handlers have left behind can be in the way."""
        self._has_served = True
        if self._may_go_on:
            self._return_signals()
        self._logs.note("info", "ended", why=self.reason)
        self._logs.flush(min(0.5, max(0.0, self.left)))

    def cut_off(self) -> None:
        """Log, once, that the end comes although something is not finished.

        A second caller waits for the line: it is about to end the process.
        """
        with self._lock:
            if self._is_cut_off:
                return
            self._is_cut_off = True
            left = "the program has left a thread or an exit hook"
            what = left if self._has_served else self.unfinished
            self._logs.note("warn", f"ended although {what}", why=self.reason)

    # The watchdog.

    def _watch(self) -> None:
        try:
            while not self.ending:
                for number in os.read(self._wake_read, 4096):
                    if number in SIGNALS:
                        self.end(signal.Signals(number).name)
        except OSError:
            return  # a handler has closed the pipe: the main thread cannot go on, and logs that
        while not self._is_over:
            time.sleep(TICK)
            if self.left <= LAST_CHANCE and not self._has_served:
                self._give_last_chance()
            if self.left <= 0:
                self._force_end()

    def _give_last_chance(self) -> None:
        try:
            self.on_last_chance()
        except Exception as error:  # ours, and the end has to come all the same
            self._logs.failure("what waits could not be refused", OwnFault(error))

    def _force_end(self) -> None:
        """End the process now, whatever the main thread does, unless it has served and goes on."""
        if self._has_served and self._may_go_on and not _is_exiting():
            self._is_over = True
            return
        self.cut_off()
        self._logs.flush(0.3)
        os._exit(0)

    def _return_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            for number, before in self._before.items():
                signal.signal(number, before)
        os.close(self._wake_read)
        os.close(self._wake_write)


def _nothing() -> None:
    pass


class Drain:
    """What a connection has left to do when its server ends; it acts, and others wait.

    What was read is answered. Where the peer has asked for the end we stay for a moment more, until
    it has closed, and refuse what comes.
    """

    def __init__(
        self,
        host: "ThreadHost | LoopHost",
        until: float,
        lock: AbstractContextManager[Any],
        lingers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host = host
        self._until = until
        self._lock = lock
        self._lingers = lingers
        self._lingers_until = 0.0

    def step(self) -> float | None:
        """Do what can be done now; return for how long to wait then, None if nothing is left."""
        with self._lock:
            left = self._until - time.monotonic()
            if self._host.closed or left <= 0:
                return None
            self._host.connection.requests.end_subscriptions(ShuttingDown())
            return self._linger() if self._has_answered else self._answer(left)

    @property
    def _has_answered(self) -> bool:
        return self._host.connection.idle and not self._host.outbox.size

    def _answer(self, left: float) -> float:
        connection = self._host.connection
        if left <= LAST_CHANCE:
            connection.refuse_queued()
        # A handler that waits for its peer goes on only if we read on.
        self._host.set_reading(connection.requests.closing or bool(connection.calls.open))
        connection.go_on()
        return max(0.0, min(self._until - time.monotonic(), TICK))

    def _linger(self) -> float | None:
        if not self._lingers() or self._host.input_ended:
            return None
        now = time.monotonic()
        if not self._lingers_until:
            self._lingers_until = now + LINGER
            self._host.connection.requests.close_down()
            self._host.set_reading(True)
        return self._lingers_until - now if now < self._lingers_until else None


async def drain_on_loop(
    host: "LoopHost", until: float, lingers: Callable[[], bool] = lambda: False
) -> bool:
    """Let a connection on a loop end in time; return whether all of its handlers have ended."""
    drain = Drain(host, until, host.lock, lingers)
    while (seconds := drain.step()) is not None:
        await host.moved(seconds)
    finished = host.connection.idle
    host.close()
    return finished


async def end_face(dispatcher: "Dispatcher", until: float) -> bool:
    """Let what a face does without a request end in time; return whether it has."""
    return dispatcher.face is None or await dispatcher.face.end(until)


def refuse_for_loop(hosts: "Iterable[LoopHost]") -> None:
    """Refuse what has not begun, although a handler may block the loop; on any thread."""
    for host in hosts:
        # Without the lock: the loop keeps it while it goes from one short handler to the next.
        host.connection.requests.close_down()
    for host in hosts:
        if not host.lock.acquire(timeout=TICK):
            return  # a `def` that runs on the loop holds it
        try:
            if not host.closed:
                host.connection.refuse_queued()
        finally:
            host.lock.release()


# Signals.

_exiting: list[bool] = []
"""Holds False once we are to learn of the end of the program, and True from then on."""


def _watch_exit() -> None:
    """Have the end of the program noted before Python waits for any thread of it."""
    register = getattr(threading, "_register_atexit", None)
    if _exiting or register is None:
        return
    try:
        register(lambda: _exiting.append(True))
    except RuntimeError:
        _exiting.append(True)  # it ends already
    else:
        _exiting.append(False)


def _is_exiting() -> bool:
    return True in _exiting or not threading.main_thread().is_alive()


def _listen_to_signals(wake_fd: int) -> None:
    """Have the end's signals written to a descriptor as they come, whatever Python is doing."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may; a program that serves from another has its own

    def tell(number: int, frame: object) -> None:
        # Once more, by ourselves: a handler that runs an event loop of its own leaves the process
        # without a wakeup descriptor.
        try:
            os.write(wake_fd, bytes([number]))
        except OSError:
            pass  # full of reasons to wake, or over already

    signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, tell)
    atexit.register(_ignore_signals)
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_release_signals, after_in_child=_leave_to_parent
    )


def _ignore_signals() -> None:
    """Let a signal that comes twice (an editor's, and its terminal's) not spoil the exit code.

    Python takes its handlers away before a process ends, but leaves ignored signals ignored.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


# A child that a handler forks shares our descriptors. A signal that is meant for the child must not
# reach the daemon through them, not even one that is sent before the child has run a line.


def _hold_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _leave_to_parent() -> None:
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _release_signals()
