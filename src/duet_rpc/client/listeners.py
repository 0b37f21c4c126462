"""What a client does with the notifications of its server: functions by method, run in order.

Notifications are taken by the thread or the loop that reads, which must not wait: answers come the
same way, and a function may call the server. So they are kept here until it is their turn, up to a
limit of bytes, and one at a time is run.
"""

import threading
from collections import deque
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal

from duet_rpc.engine.log import Log
from duet_rpc.errors import RpcError, UsageError

if TYPE_CHECKING:
    from duet_rpc.methods.parameters import Parameters

_ENTRY = 160
"""Bytes that a notification takes while it waits, beside its own: there may be very many."""
DROPPED = "a notification was dropped: too much waits for the functions given to client.on"


class Listeners:
    """The functions of one client, and the notifications that wait for them. Any thread."""

    def __init__(self, log: Log, max_bytes: int, start: Callable[[], object]) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._start = start
        """Has `run_next` called until there is nothing more to run."""
        self._lock = threading.Lock()
        self._by_method: dict[str, Parameters] = {}
        self._waiting: deque[tuple[str, bytes | None]] = deque()
        self._bytes = 0
        self._runs = False

    def __bool__(self) -> bool:
        return bool(self._by_method)

    def add(self, method: str, function: Callable[..., Any], scope: dict[str, Any]) -> None:
        """Have a function called with each notification of a method."""
        if method in self._by_method:
            raise UsageError(f"client.on({method!r}) is given twice; one function for each method")
        from duet_rpc.methods.parameters import Parameters  # here: few clients listen

        parameters = Parameters.of(
            function, method, takes_key=False, ignore_unknown=True, scope=scope
        )
        if parameters.context is not None or parameters.transaction is not None:
            raise UsageError(
                f"client.on({method!r}): a server's notification has no Context; use the client"
            )
        self._by_method[method] = parameters

    def take(self, method: str, params: bytes | None) -> bool:
        """Keep a notification until it is its turn; False if no function wants it."""
        if method not in self._by_method:
            return False
        size = _cost(method, params)
        with self._lock:
            if self._bytes + size > self._max_bytes:
                self._log.note("error", DROPPED, method=method)
                return True
            self._waiting.append((method, params))
            self._bytes += size
            starts, self._runs = not self._runs, True
        if starts:
            try:
                self._start()
            except RuntimeError as error:  # no thread is left; the next notification tries again
                self.stop()
                self._log.failure("a notification waits: nothing can run it", error, method=method)
        return True

    def run_next(self) -> Coroutine[Any, Any, object] | None | Literal[False]:
        """Call the function of the oldest notification; False if there is none.

        The coroutine of an `async def` is returned, to be awaited before the next is run.
        """
        with self._lock:
            if not self._waiting:
                self._runs = False
                return False
            method, params = self._waiting.popleft()
            self._bytes -= _cost(method, params)
        parameters = self._by_method[method]
        try:
            found = parameters.call(parameters.bind(params).values, None, None)
        except KeyboardInterrupt:  # the program's own, not the function's
            raise
        except BaseException as error:  # also SystemExit: those that wait have still their turn
            self.note_failure(method, error)
            return None
        return self._watch(method, found) if isinstance(found, CoroutineType) else None

    async def _watch(self, method: str, running: Coroutine[Any, Any, object]) -> None:
        import asyncio  # which is what awaits this

        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        try:
            await running
        except (GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if task.cancelling():
                raise  # it is we who are to end, not only what the function has awaited
            self.note_failure(method, error)

    def note_failure(self, method: str, error: BaseException) -> None:
        """Log what a function raised, or why the params do not fit it."""
        if isinstance(error, RpcError):
            self._log.note("error", "a notification was refused", method=method, error=error)
        else:
            self._log.failure("a function given to client.on failed", error, method=method)

    def stop(self) -> None:
        """Nothing runs what waits any more; the next notification has it started again."""
        with self._lock:
            self._runs = False

    def clear(self) -> None:
        """Run no more of what waits."""
        with self._lock:
            self._waiting.clear()
            self._bytes = 0


def _cost(method: str, params: bytes | None) -> int:
    return _ENTRY + len(method) + len(params or b"")
