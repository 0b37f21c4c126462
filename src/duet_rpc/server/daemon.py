"""The life of a stdio process: its signals, and its end within two seconds.

A daemon ends when it is told to (`shutdown`), when its input ends, or by a signal. It then finishes
what it has read. What has not begun after `DRAIN` seconds is refused, and after `GRACE` seconds
`Life` ends the process, even while a handler keeps the main thread.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import make_dispatcher
from duet_rpc.errors import UsageError
from duet_rpc.hosts.threads import MAX_NESTED, StandIn, ThreadHost
from duet_rpc.ledger.commands import Commands, store_words
from duet_rpc.policy import Policy
from duet_rpc.server.builtin import builtin_methods
from duet_rpc.server.logs import Logs
from duet_rpc.service import Service
from duet_rpc.tracebacks import OwnFault
from duet_rpc.transports.channel import Channel
from duet_rpc.transports.stdio import take_stdio
from duet_rpc.version import __version__
from duet_rpc.wire.dialect import JSONRPC, Dialect
from duet_rpc.wire.framing import framing as make_framing

if TYPE_CHECKING:
    from duet_rpc.hooks import Hooks


FramingName = Literal["lsp", "ndjson", "auto"]

GRACE = 1.4
"""Seconds from the trigger to the forced end; two are promised, and logs need some of them."""
DRAIN = 1.1
"""Seconds after which requests that wait behind others are refused, so that their callers know."""
LINGER = 0.1
"""Seconds to stay after answering `shutdown`: Emacs reads the answer late, and takes a process that
has ended by then for a crash."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_WORDS = ("shutdown", "exit")


class DaemonHost(Protocol):
    """What drives the connection of a daemon, as seen from outside its thread."""

    channel: Channel

    def post(self, action: Callable[[], None]) -> None:
        """Have something done between two messages; any thread may call this."""
        ...

    @property
    def quiet(self) -> bool:
        """Nothing runs, waits or is on its way in either direction."""
        ...


loading: list[str] = []
"""What is being imported in order to be served; nobody else may serve meanwhile."""


class Life:
    """When this process ends, and that it does.

    When everything has been answered, Python still waits for threads and exit hooks that handlers
    have left behind. They have until the same deadline: `check` looks after that too. A program
    that has served a socket may have more to do (`may_go_on`); then only the end of the program is
    looked after, if it comes before the deadline. On stdio there is nothing to go on with.
    """

    def __init__(self, logs: Logs, *, may_go_on: bool = False) -> None:
        self._logs = logs
        self._may_go_on = may_go_on
        self._has_served = self._is_cut_off = False
        self.over = False
        """Nothing is left to look after."""
        _watch_exit()
        self._lock = threading.Lock()
        self.reason: str | None = None
        self.lingers = False
        self.deadline = 0.0
        self.on_end: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None
        """Told when nothing more is to be started."""

    @property
    def ending(self) -> bool:
        """Whether something has asked for the end."""
        return self.reason is not None

    def end(self, reason: str) -> None:
        """Ask for the end, from any thread and as often as one likes; `exit` cuts the lingering."""
        if reason == "exit":
            self.lingers = False
        with self._lock:
            if self.reason is not None:
                return
            self.deadline = time.monotonic() + GRACE
            self.lingers = reason == "shutdown"
            self.reason = reason
        self._logs.note("info", "ending", why=reason)
        self.on_end()

    def speak(self, reason: str) -> None:
        """Ask for the end by a message: what follows it in the stream is not started."""
        self.end(reason)
        self.on_stop()

    @property
    def left(self) -> float:
        """Seconds until the forced end."""
        return self.deadline - time.monotonic()

    @property
    def drained(self) -> bool:
        """Whether the time for what waits is over."""
        return self.ending and self.left <= GRACE - DRAIN

    def finish(self) -> None:
        """Everything has ended by itself; only what handlers have left behind can be in the way."""
        self._has_served = True
        self._logs.note("info", "ended", why=self.reason)
        self._logs.flush(min(0.5, max(0.0, self.left)))

    def check(self) -> None:
        """End the process now if its time is over, whatever the main thread does."""
        if not self.ending or self.left > 0 or self.over:
            return
        if self._has_served and self._may_go_on and not _is_exiting():
            self.over = True
            return
        self.cut_off()
        self._logs.flush(0.3)
        os._exit(0)

    def cut_off(self) -> None:
        """Log, once, that the end comes although something is not finished.

        Whoever comes second waits for the line: it is about to end the process.
        """
        with self._lock:
            if self._is_cut_off:
                return
            self._is_cut_off = True
            left = "the program has left a thread or an exit hook"
            what = left if self._has_served else "a handler is still running"
            self._logs.note("warn", f"ended although {what}", why=self.reason)


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


def run_daemon(
    service: Service,
    policy: Policy,
    *,
    framing: FramingName = "lsp",
    logs: Logs,
    commands: Commands | None = None,
    dialect: Dialect = JSONRPC,
    hooks: "Sequence[Hooks]" = (),
    on_start: Callable[[DaemonHost], None] = lambda host: None,
) -> None:
    """Serve on stdin and stdout until the end; returns when everything is answered.

    `on_start` is told the host before anything is read.
    """
    if loading:
        raise UsageError(
            "this file is being served by `duet-rpc serve`, so put its own run() under"
            ' `if __name__ == "__main__":`'
        )
    channel = take_stdio()
    life = Life(logs)
    if commands is not None:
        commands.on_open = logs.adopt
    own = builtin_methods(service, logs, life.speak, commands, dialect)
    full = service.with_fallback(own)
    dispatcher = make_dispatcher(
        full, policy, ledger=commands, log=logs, dialect=dialect, hooks=hooks
    )
    frames = make_framing(
        framing,
        max_message_bytes=policy.max_message_bytes,
        max_header_bytes=policy.max_header_bytes,
        keeps_ends=True,
    )
    logs.begin(__version__, **store_words(service, commands))
    if commands is not None:
        commands.begin()
    if os.isatty(channel.read_fd):
        logs.note("info", "waiting for messages from this terminal; Ctrl-D ends")

    # The messages that ask for the end start its clock also when they have to wait.
    options = ConnectionOptions(
        origin=Origin(connection_id="stdio", transport="stdio"),
        last_words=frozenset(name for name in LAST_WORDS if name not in service),
        on_last_words=life.end,
    )
    # A deadline has to be told while its handler runs, for which a loop has the timers.
    needs_loop = any(method.is_async or method.timeout is not None for method in full)
    sequential = policy.max_in_flight == 1 and not needs_loop
    try:
        if sequential:
            channel.keeps_memory = True
            host = ThreadHost(channel, dispatcher, frames, options)
            _serve_on_threads(host, life, on_start)
            host.connection.close()
        else:
            from duet_rpc.server.loop_daemon import serve_on_loop

            serve_on_loop(channel, dispatcher, frames, options, logs, life, on_start)
    except Exception as error:  # a fault of our own, not of a handler's
        logs.failure("the daemon cannot go on", OwnFault(error))
        logs.flush(0.5)
        sys.exit(1)
    life.finish()


def listen_to_signals(wake_fd: int) -> None:
    """Have the end's signals written to a descriptor as they come, whatever Python is doing."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may; whoever serves from another has its own signals

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


def signal_name(number: int) -> str:
    """Name a signal for the log."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _serve_on_threads(host: ThreadHost, life: Life, on_start: Callable[[DaemonHost], None]) -> None:
    connection = host.connection
    life.on_stop = connection.close_down

    def end_by_signal(number: int) -> None:
        if number in SIGNALS:
            life.end(signal_name(number))

    def check() -> None:
        if host.input_ended:
            life.end("end of input")
        if life.drained:
            connection.close_down()
            if connection.lent:
                connection.refuse_queued()
        life.check()

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + 30 * MAX_NESTED))
    host.on_signal = end_by_signal
    life.on_end = host.wake
    listen_to_signals(host.wake_fd)
    stand_in = StandIn(host, until=lambda: life.ending, deadline=check)
    on_start(host)
    while life.reason is None:
        host.turn()
        if host.input_ended:
            life.end("end of input")
        elif host.outbox.lost:
            life.end("the peer is gone")
    stand_in.call()
    while not (connection.idle and not host.outbox.size) and life.left > 0:
        # A handler that waits for its peer goes on only if we do.
        host.reads = connection.closing or bool(connection.calls.open)
        connection.go_on()
        host.turn(min(life.left, 0.05))
    if life.lingers:
        _linger(host, life)


def _linger(host: ThreadHost, life: Life) -> None:
    """Stay for a moment, refusing what comes, until the peer has closed or the time is over."""
    until = time.monotonic() + LINGER
    host.reads = True
    host.connection.close_down()
    while life.lingers and not host.input_ended and time.monotonic() < until:
        host.turn(until - time.monotonic())
