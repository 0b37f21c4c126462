"""The commands that this process is busy with, so that duplicates join instead of asking the store.

A duplicate that finds a flight waits for it with nothing in its hands: no store connection, no
lease. Threads and event loops wait for the same flight, each in its own way.
"""

import threading
from collections.abc import Callable

from duet_rpc.errors import RpcError
from duet_rpc.ledger.states import Command, Identity

Ended = bytes | RpcError | None
"""How a flight ended: with an answer, with a refusal, or with nothing to tell (None)."""


class Flight:
    """One command on its way, and those who wait for it."""

    def __init__(self, flights: "Flights", command: Command, identity: Identity, owner: str):
        self._flights = flights
        self.command = command
        self.identity = identity
        self.owner = owner
        self.ended: Ended = None
        self.has_landed = False
        self.has_begun = False
        """Whether the handler may have been called."""
        self.is_ending = False
        """Whether the handler is done and its outcome is being recorded."""
        self.is_abandoned = False
        """Whether the caller that started it is gone; before the handler begins, that ends it."""
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], object]] = []

    def land(self, ended: Ended) -> None:
        """Say how it ended and wake everybody who waits. The first to say it is right.

        Whoever comes from now on starts anew, and the store decides.
        """
        self._flights.remove(self)
        with self._lock:
            if self.has_landed:
                return
            self.ended = ended
            self.has_landed = True
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def call_when_landed(self, wake: Callable[[], object]) -> bool:
        """Have a function called, by any thread, at the landing. False: it has landed already."""
        with self._lock:
            if not self.has_landed:
                self._waiting.append(wake)
            return not self.has_landed

    def forget(self, wake: Callable[[], object]) -> None:
        """Take back a function given to `call_when_landed`."""
        with self._lock:
            if wake in self._waiting:
                self._waiting.remove(wake)

    def wait(self, timeout: float) -> bool:
        """Block until it has landed; False if that takes longer than `timeout` seconds."""
        event = threading.Event()
        if not self.call_when_landed(event.set):
            return True
        try:
            return event.wait(timeout)
        finally:
            self.forget(event.set)


class Flights:
    """The flights of one ledger by identity. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Identity, Flight] = {}

    def board(self, command: Command, owner: str) -> Flight:
        """Join the flight of a command, or start it: then its owner is the one given."""
        identity = command.identity
        with self._lock:
            flight = self._flights.get(identity)
            if flight is None:
                flight = self._flights[identity] = Flight(self, command, identity, owner)
            return flight

    def remove(self, flight: Flight) -> None:
        """Take a flight off the list."""
        with self._lock:
            if self._flights.get(flight.identity) is flight:
                del self._flights[flight.identity]

    def get(self, identity: Identity) -> Flight | None:
        """Find the flight of a command, if there is one."""
        with self._lock:
            return self._flights.get(identity)

    def __len__(self) -> int:
        return len(self._flights)
