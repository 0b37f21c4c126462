"""Single flight: the commands that this process executes, for duplicates to join.

A duplicate that finds an execution waits for it with nothing in its hands: no store connection, no
lease. Threads and event loops wait for the same execution, each in its own way.
"""

import threading
from collections.abc import Callable

from duet_rpc.errors import RpcError
from duet_rpc.ledger.states import Command, Identity

Result = bytes | RpcError | None
"""How an execution ended: with an answer, with a refusal, or with nothing to tell (None)."""


class Execution:
    """One command that this process executes, and those who wait for it."""

    def __init__(self, table: "SingleFlight", command: Command, identity: Identity, owner: str):
        self._table = table
        self.command = command
        self.identity = identity
        self.owner = owner
        self.result: Result = None
        self.is_settled: bool = False
        self.has_begun = False
        """Whether the handler may have been called."""
        self.is_ending = False
        """Whether the handler is done and its outcome is being recorded."""
        self.is_abandoned = False
        """Whether the caller that started it is gone; before the handler begins, that ends it."""
        self.is_undone = False
        """Whether the handler has asked its caller for something: that is for no one else."""
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], object]] = []

    def settle(self, result: Result) -> None:
        """Say how it ended and wake all who wait. Only the first call counts.

        A duplicate that comes from now on starts anew, and the store decides.
        """
        self._table.remove(self)
        with self._lock:
            if self.is_settled:
                return
            self.result = result
            self.is_settled = True
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def call_when_settled(self, wake: Callable[[], object]) -> bool:
        """Have a function called, by any thread, when it is settled. False: it is already."""
        with self._lock:
            if not self.is_settled:
                self._waiting.append(wake)
            return not self.is_settled

    def forget(self, wake: Callable[[], object]) -> None:
        """Take back a function given to `call_when_settled`."""
        with self._lock:
            if wake in self._waiting:
                self._waiting.remove(wake)

    def wait(self, timeout: float) -> bool:
        """Block until it is settled; False if that takes longer than `timeout` seconds."""
        event = threading.Event()
        if not self.call_when_settled(event.set):
            return True
        try:
            return event.wait(timeout)
        finally:
            self.forget(event.set)


class SingleFlight:
    """The executions of one ledger by identity. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executions: dict[Identity, Execution] = {}

    def join(self, command: Command, owner: str) -> Execution:
        """Join the execution of a command, or start it: then its owner is the one given."""
        identity = command.identity
        with self._lock:
            execution = self._executions.get(identity)
            if execution is None:
                execution = Execution(self, command, identity, owner)
                self._executions[identity] = execution
            return execution

    def remove(self, execution: Execution) -> None:
        """Take an execution off the table."""
        with self._lock:
            if self._executions.get(execution.identity) is execution:
                del self._executions[execution.identity]

    def get(self, identity: Identity) -> Execution | None:
        """Find the execution of a command, if there is one."""
        with self._lock:
            return self._executions.get(identity)
