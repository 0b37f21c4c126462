"""The life of a stdio process: its descriptors, its signals, and its end within two seconds.

Stdout belongs to frames. `take_stdio` keeps private duplicates of descriptors 0 and 1 and points 1
at stderr and 0 at the null device, so that a `print`, a C library or a child process can neither
corrupt a frame nor eat a request.

A daemon ends when it is told to (`shutdown`), when its input ends, or by a signal. It then finishes
what it has read, but never takes longer than `GRACE`: `Life` ends the process even while a handler
keeps the main thread.
"""

import os
import signal
import sys
import threading
import time
from typing import Any, Literal

from duet_rpc.builtin import builtin_methods
from duet_rpc.commands import Commands
from duet_rpc.dispatch import Dispatcher
from duet_rpc.framing import framing as make_framing
from duet_rpc.logs import Logs
from duet_rpc.policy import Policy
from duet_rpc.service import Service
from duet_rpc.threads import StandIn, ThreadHost
from duet_rpc.transports.channel import Channel
from duet_rpc.version import __version__

FramingName = Literal["lsp", "ndjson", "auto"]

GRACE = 1.4
"""Seconds from the trigger to the forced end; two are promised, and logs need some of them."""
LINGER = 0.1
"""Seconds to stay after answering `shutdown`: Emacs reads the answer late, and takes a process that
has ended by then for a crash."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def take_stdio() -> Channel:
    """Keep stdin and stdout for frames alone; everybody else gets the null device and stderr."""
    try:
        os.fstat(2)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return Channel(read_fd, write_fd)


class Life:
    """When this process ends, and that it does."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self.reason: str | None = None
        self.lingers = False
        self.deadline = 0.0
        self.on_end: Any = lambda: None

    @property
    def ending(self) -> bool:
        """Whether something has asked for the end."""
        return self.reason is not None

    def end(self, reason: str) -> None:
        """Ask for the end, from any thread and as often as one likes; `exit` cuts the lingering."""
        if reason == "exit":
            self.lingers = False
        if self.reason is None:
            self.reason = reason
            self.lingers = reason == "shutdown"
            self.deadline = time.monotonic() + GRACE
            self._logs.note("info", "ending", why=reason)
            self.on_end()

    @property
    def left(self) -> float:
        """Seconds until the forced end."""
        return self.deadline - time.monotonic()

    def check(self) -> None:
        """End the process now if its time is over, whatever the main thread does."""
        if self.ending and self.left <= 0:
            self._logs.note("warn", "ended although a handler is still running", why=self.reason)
            os._exit(0)


def run_daemon(
    service: Service,
    policy: Policy,
    *,
    framing: FramingName = "lsp",
    logs: Logs | None = None,
    commands: Commands | None = None,
) -> None:
    """Serve on stdin and stdout until the end; returns when everything is answered."""
    channel = take_stdio()
    logs = logs if logs is not None else Logs()
    life = Life(logs)
    full = service.with_fallback(builtin_methods(service, logs, life.end, commands))
    dispatcher = Dispatcher(full, policy, ledger=commands, log=logs)
    frames = make_framing(
        framing,
        max_message_bytes=policy.max_message_bytes,
        max_header_bytes=policy.max_header_bytes,
    )
    logs.begin(__version__)
    sequential = policy.max_in_flight == 1 and not any(method.is_async for method in full)
    if sequential:
        _serve_on_threads(ThreadHost(channel, dispatcher, frames, logger=logs.logger), life)
    else:
        from duet_rpc.loop_daemon import serve_on_loop

        serve_on_loop(channel, dispatcher, frames, logs, life)
    logs.note("info", "ended", why=life.reason)


def listen_to_signals(wake_fd: int) -> None:
    """Have the end's signals written to a descriptor as they come, whatever Python is doing."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may; whoever serves from another has its own signals
    signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: None)


def signal_name(number: int) -> str:
    """Name a signal for the log."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _serve_on_threads(host: ThreadHost, life: Life) -> None:
    connection = host.connection

    def end_by_signal(number: int) -> None:
        if number in SIGNALS:
            life.end(signal_name(number))

    def check() -> None:
        if host.input_ended:
            life.end("end of input")
        if life.ending:
            host.reads = False
            if life.left <= 0 and connection.lent:
                connection.refuse_queued()
            life.check()

    host.on_signal = end_by_signal
    listen_to_signals(host.wake_fd)
    stand_in = StandIn(host, until=lambda: life.ending, deadline=check)
    while not life.ending:
        host.turn()
        if host.input_ended:
            life.end("end of input")
        elif host.outbox.lost:
            life.end("the peer stopped reading")
    stand_in.call()
    host.reads = False
    while not (connection.idle and not host.outbox.size) and life.left > 0:
        connection.go_on()
        host.turn(min(life.left, 0.05))
    if life.lingers:
        _linger(host, life)


def _linger(host: ThreadHost, life: Life) -> None:
    """Stay for a moment, refusing what comes, until the peer has closed or the time is over."""
    until = time.monotonic() + LINGER
    host.reads = True
    host.connection.closing = True
    while life.lingers and not host.input_ended and time.monotonic() < until:
        host.turn(until - time.monotonic())
