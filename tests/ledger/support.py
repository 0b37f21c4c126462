"""What the tests of a ledger share: every store with every promise, and a store that fails."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from duet_rpc.errors import (
    StoreUnavailable,
)
from duet_rpc.ledger import Ledger, MemoryStore
from duet_rpc.ledger.states import (
    Answer,
    Operation,
)
from tests.ledger.commands import (
    AT_MOST_ONCE,
    RETRY_SAFE,
    TRANSACTIONAL,
)
from tests.ledger.conftest import STORES
from tests.ledger.conftest import TRANSACTIONAL as TRANSACTIONAL_STORES

every_store = pytest.mark.parametrize("kind", STORES, indirect=True)
EVERY_PROMISE = [
    *((kind, promise) for kind in STORES for promise in (AT_MOST_ONCE, RETRY_SAFE)),
    *((kind, TRANSACTIONAL) for kind in TRANSACTIONAL_STORES),
]
every_promise = pytest.mark.parametrize("kind, promise", EVERY_PROMISE, indirect=["kind"])

MakeLedger = Callable[..., Ledger]
PATIENCE = 45.0


class Failing(MemoryStore):
    """A memory store whose line to itself can be cut, before or after it has done its work."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.loses_answers = False
        self.loses_next = False
        """Lose an answer, and go down with it."""

    def commit(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        if self.is_down:
            raise StoreUnavailable()
        answers = super().commit(operations)
        self.is_down = self.loses_next
        if self.loses_answers or self.loses_next:
            raise StoreUnavailable()
        return answers

    def sweep(self, limit: int = 500, **more: Any) -> int:
        if self.is_down:
            raise StoreUnavailable()
        return super().sweep(limit, **more)


def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never came true")


class Stop(BaseException):
    """What ends a thread from outside: no error of the handler's."""
