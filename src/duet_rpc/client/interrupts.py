"""Interrupts of a blocking client: what a Ctrl-C can break off, and the rule by which no one hangs.

Python raises `KeyboardInterrupt`, or what else a signal handler raises, between any two steps of
the main thread: also between taking a lock and the `try` that would let go of it, and in the first
step of a clean-up. Other threads wait for what that thread has begun. So:

1. A lock is taken by `with` on the lock itself, in which nothing comes between; where there is a
   time limit, by `hold`. No function of ours takes one and returns.
2. What is done to the connection is done by `SharedConnection.do`. If that is broken off, no one
   knows what was sent or read, or which of our notes about it were made: the connection is given up
   and all its calls end.
3. A thread that waits for its call is in `SharedConnection.ask` or `wait`. If that is broken off,
   it `insist`s on leaving: its call is cancelled, and another thread reads for all.
4. A thread that is to be woken stays where it is listed until it has been. Whatever is done after
   an interrupt can be done twice.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _thread import RLock

T = TypeVar("T")
_MOST = 1000
"""How often something is begun again; by then it is no interrupt that keeps it from ending."""


class Turnstile:
    """What one thread waits at. Unlike an `Event`, Ctrl-C while it waits leaves nothing locked."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def shut(self) -> None:
        """Have the next wait wait. The lock of the connection is held."""
        self._lock.acquire(blocking=False)

    def open(self) -> None:
        """Let the one who waits pass, or who comes next. The lock of the connection is held."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait; False if the time is over."""
        return self._lock.acquire(timeout=seconds)


def insist(action: Callable[[T], object], argument: T) -> None:
    """Do something to its end however often it is interrupted, and raise the interrupt then."""
    interruption: BaseException | None = None
    try:
        for _ in range(_MOST):
            try:
                action(argument)
                break
            except BaseException as error:
                interruption = error
        if interruption is not None:
            raise interruption
    finally:
        del interruption  # it knows this frame


def hold(lock: "RLock", seconds: float | None, action: Callable[[], object]) -> bool:
    """Do something with a lock held; False if it was not to be had within so many seconds."""
    interruption: BaseException | None = None
    try:
        if not lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds)):
            return False
        action()
        return True
    finally:
        while True:  # not `insist`: an interrupt could come in the first step of that
            try:
                if lock._is_owned():  # type: ignore[attr-defined]
                    lock.release()
                break
            except BaseException as error:
                interruption = error
        if interruption is not None:
            raise interruption
