"""What a store's fault means to a caller, and what is done about a store that stops answering.

Whatever a store raises that is no answer is a `StoreUnavailable` with one of the sentences below
in `data.detail`. They are ours, so that nothing of a driver's text (hosts, users, statements)
reaches a caller; the driver's error is the `__cause__`, and is logged.

A store that is down refuses at once. One that stays silent (a frozen process, a network that drops
packets, a file that another process keeps locked) costs every operation its whole timeout. So the
first that meets the silence opens a `CircuitBreaker`: the others are refused at once, while a
thread asks the store again and again, one question at a time, until it answers.
"""

import enum
import threading
import time
from collections.abc import Callable

from duet_rpc.errors import StoreUnavailable
from duet_rpc.forks import renew_in_child
from duet_rpc.tracebacks import describe_type


class StoreFault(enum.Enum):
    """Why a store is of no use just now."""

    SILENT = "the store does not answer"
    UNREACHABLE = "the store cannot be reached"
    LOCKED = "the store is locked by others"
    EXHAUSTED = "every connection to the store is in use"
    FULL = "the store has no space left"
    READ_ONLY = "the store is read-only"
    FORBIDDEN = "the store refuses access"
    NO_TABLES = "the store's tables are missing, or are others'"
    NEWER = "the store was made by a newer version"
    DAMAGED = "the store is damaged"
    FAILED = "the store failed"


def make_unavailable(fault: StoreFault, cause: BaseException | None = None) -> StoreUnavailable:
    """Make the refusal that tells a fault; `cause` is for the log."""
    error = StoreUnavailable(data={"detail": fault.value})
    error.__cause__ = cause
    return error


def is_silence(error: BaseException) -> bool:
    """Tell whether a refusal is about a store that did not answer in time."""
    return (
        isinstance(error, StoreUnavailable)
        and isinstance(error.data, dict)
        and error.data.get("detail") == StoreFault.SILENT.value
    )


def explain(error: BaseException) -> str:
    """Say in one line of the log why a store could not be used."""
    if not isinstance(error, StoreUnavailable):
        return f"{StoreFault.FAILED.value} ({describe_type(error)})"
    detail: str = error.message
    if isinstance(error.data, dict):
        detail = error.data.get("detail", detail)
    cause = error.__cause__
    while isinstance(cause, StoreUnavailable):  # a group's failure is raised by each of its callers
        cause = cause.__cause__
    if cause is None:
        return detail
    lines = str(cause).strip().splitlines()
    if detail == StoreFault.FAILED.value or not lines:
        # What is not classified may be about a value, and values are not logged.
        return f"{detail} ({describe_type(cause)})"
    return f"{detail} ({type(cause).__name__}: {lines[0]})"


class CircuitBreaker:
    """Spares callers a store that has stopped answering. Safe to use from any thread.

    `probe` asks the store something that every healthy one answers; it raises what `is_silence`
    knows if there was no answer in time. Any other error is an answer too.
    """

    PAUSE = 0.05
    """Between two probes, in seconds."""

    def __init__(self, probe: Callable[[], None], fresh: float):
        self._probe = probe
        self._fresh = fresh
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        renew_in_child(self, _lock=threading.Lock, _stop=threading.Event)
        self._losses = 0
        self._answered = 0.0
        self.is_silent: bool = False
        """The circuit is open: the store did not answer, and has not answered since."""

    def admit(self) -> None:
        """Raise at once while the store is known to be silent."""
        if self.is_silent:
            self._start()  # in a forked child no one else is asking
            raise make_unavailable(StoreFault.SILENT)

    def lost(self) -> None:
        """Open the circuit: an operation got no answer in time."""
        with self._lock:
            self._losses += 1
            self.is_silent = True
        self._start()

    def ask(self) -> bool:
        """Have the store asked whether it is there; True if it is known to be silent. Never waits.

        For a caller that has waited long and cannot know whether the work or the silence is long.
        """
        if time.monotonic() - self._answered >= self._fresh:
            self._start()
        return self.is_silent

    def close(self) -> None:
        """Stop asking; the circuit stays as it is. Idempotent."""
        self._stop.set()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="duet-probe", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            seen = self._losses
            is_silent = self._is_silent_now()
            with self._lock:
                if is_silent:
                    self.is_silent = True
                elif seen == self._losses:
                    self.is_silent = False
                    self._answered = time.monotonic()
                    self._thread = None
                    return
            self._stop.wait(self.PAUSE)

    def _is_silent_now(self) -> bool:
        try:
            self._probe()
        except Exception as error:
            return is_silence(error)
        return False
