"""The life of a process that serves a socket: its signals, and its end within two seconds.

The same promises as on stdio, and the same `Life`. A sentinel thread takes the signals and ends the
process in time although a handler blocks the loop, or has left a thread or an exit hook behind.
When everything has ended by itself, signals are left as they were found, and a program that has
more to do goes on.
"""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from duet_rpc.ledger.commands import Commands, store_words
from duet_rpc.policy import Policy
from duet_rpc.server.daemon import SIGNALS, Life, listen_to_signals, signal_name
from duet_rpc.server.listener import Listener, Options
from duet_rpc.server.logs import Logs
from duet_rpc.service import Service
from duet_rpc.version import __version__
from duet_rpc.wire.dialect import JSONRPC, Dialect

if TYPE_CHECKING:
    from duet_rpc.hooks import Hooks


_TICK = 0.05


def run_on_socket(
    listening: socket.socket,
    service: Service,
    policy: Policy,
    *,
    logs: Logs,
    commands: Commands | None = None,
    dialect: Dialect = JSONRPC,
    hooks: "Sequence[Hooks]" = (),
    on_start: Callable[[str], None] = lambda address: None,
    **options: Unpack[Options],
) -> None:
    """Serve until a signal ends it; returns when everything is answered."""
    logs.begin(__version__, **store_words(service, commands))
    life = Life(logs, may_go_on=True)
    sentinel = _Sentinel(life)

    async def serve() -> bool:
        listener = Listener(
            listening,
            service,
            policy,
            logs=logs,
            commands=commands,
            dialect=dialect,
            hooks=hooks,
            **options,
        )
        loop = asyncio.get_running_loop()
        ending = asyncio.Event()

        def on_end() -> None:
            listener.remove_file()  # now, for a blocked loop would never come to it
            loop.call_soon_threadsafe(ending.set)

        life.on_end = on_end
        if life.ending:  # a signal was faster
            ending.set()
        listener.begin()
        on_start(str(listener.address))
        await ending.wait()
        return await listener.end(life.left - _TICK)

    if asyncio.run(serve()):
        sentinel.return_signals()
        life.finish()
    else:
        life.cut_off()


class _Sentinel:
    """Takes the signals, and ends the process in time whatever the main thread does."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self._wake_read, True)
        listen_to_signals(self._wake_write)
        threading.Thread(target=self._watch, name="duet-rpc sentinel", daemon=True).start()

    def _watch(self) -> None:
        while not self._life.ending:
            for number in os.read(self._wake_read, 4096):
                if number in SIGNALS:
                    self._life.end(signal_name(number))
        while not self._life.over:
            time.sleep(_TICK)
            self._life.check()

    def return_signals(self) -> None:
        """Everything has ended: leave the signals as they were."""
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            for number, before in self._before.items():
                signal.signal(number, before)
        os.close(self._wake_read)
        os.close(self._wake_write)
