"""Small words for the tests: a command, and handlers that end in a given way."""

from collections.abc import Awaitable, Callable

from duet_rpc.ledger import Command, Ending, Ledger, Promise, Ran, Run
from duet_rpc.ledger.states import Identity

AT_MOST_ONCE, RETRY_SAFE = Promise.AT_MOST_ONCE, Promise.RETRY_SAFE
TRANSACTIONAL = Promise.TRANSACTIONAL


def command(
    key: str = "k",
    promise: Promise = AT_MOST_ONCE,
    *,
    principal: str = "local",
    method: str = "bank.transfer",
    fingerprint: bytes = b"f" * 32,
    age: float = 0.0,
    window: float | None = None,
) -> Command:
    correlation_id = f"correlation of {key}"
    return Command(principal, method, key, fingerprint, promise, correlation_id, age, window)


class Handler:
    """A handler that counts its runs and ends as it is told; a result says how many there were."""

    def __init__(self, body: bytes | None = None, ending: Ending = Ending.SUCCEEDED):
        self.body = body
        self.ending = ending
        self.runs: list[Run] = []

    def __call__(self, run: Run) -> Ran:
        self.runs.append(run)
        body = b'"result":%d' % len(self.runs) if self.body is None else self.body
        return Ran(body, self.ending)

    def on_loop(self) -> Callable[[Run], Awaitable[Ran]]:
        async def work(run: Run) -> Ran:
            return self(run)

        return work


def executing(ledger: Ledger) -> list[Identity]:
    """List the commands that this process is busy with."""
    return list(ledger._executions._executions)


def never(run: Run) -> Ran:
    """The handler of a call that must not reach it."""
    raise AssertionError("the handler ran")
