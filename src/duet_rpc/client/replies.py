"""A call of the blocking client on its way: whose it is, when its time is over, what came of it.

Its caller is a thread, which waits at a gate while another one reads.
"""

import copy
from collections.abc import Generator
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from duet_rpc.client.interrupts import Turnstile
from duet_rpc.client.options import Expected
from duet_rpc.engine.results import Decode
from duet_rpc.errors import in_class
from duet_rpc.wire.dialect import Progress

if TYPE_CHECKING:
    from duet_rpc.client.blocking_host import BlockingHost
    from duet_rpc.client.shared import SharedConnection


class ThreadReply(Struct, eq=False):
    """A call on its way. Waiting for it blocks, also by `await`."""

    _shared: "SharedConnection"
    method: str
    """Empty if it is no call: its thread waits for something else, and reads meanwhile."""
    expected: Expected
    deadline: float = inf
    """When its time is over."""
    ends: float = inf
    """When its time in all is over, which no progress extends."""
    host: "BlockingHost | None" = None
    """What it was sent on."""
    id: int = 0
    params: bytes | None = None
    """What to send, while another thread is to do it."""
    gate: Turnstile | None = None
    """Where its thread waits while another reads."""
    decode: Decode | None = None
    """What makes a value of a raw result; None if its value comes."""
    done: bool = False
    progressed: list[Progress] | None = None
    """Progress that its thread has still to report, oldest first."""
    _result: Any = None
    _error: Exception | None = None

    def __post_init__(self) -> None:
        expected = self.expected
        self.decode = expected.decode
        if expected.timeout is not None:
            self.deadline = monotonic() + expected.timeout
        if expected.total_timeout is not None:
            self.ends = monotonic() + expected.total_timeout
            self.deadline = min(self.deadline, self.ends)

    def settle(self, result: Any, error: Exception | None) -> None:
        """Take the answer; the lock is held."""
        if not self.done:
            if error is not None:
                error = in_class(error, self.expected.errors)
            self._result, self._error, self.done = result, error, True
            if self.gate is not None:
                self._shared.lead.wake(self)

    def progress(self, value: Progress) -> None:
        """Take progress of the call. The lock is held, so its own thread reports it, later."""
        if self.expected.on_progress is None:
            return  # it asked for none; a number of the server's own is like its id
        if self.expected.timeout is not None:
            timeout = self.expected.timeout + self.expected.spent
            self.deadline = min(monotonic() + timeout, self.ends)
        if self.progressed is None:
            self.progressed = []
        self.progressed.append(value)
        if self in self._shared.lead.waiting:
            self._shared.lead.wake(self)

    def cancel(self) -> bool:
        """Stop waiting, and tell the server; False if the answer is there."""
        return self._shared.forget(self)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result()
        yield

    def result(self) -> Any:
        """Wait for the answer."""
        self._shared.wait(self)
        return self.outcome()

    def outcome(self) -> Any:
        """Return the result, or raise the error; only once it is settled."""
        if self._error is not None:
            # A copy: what we keep must not keep the frames it is raised through.
            raise copy.copy(self._error)
        return self._result if self.decode is None else self.decode(self._result)
