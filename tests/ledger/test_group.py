"""Group commit by itself: who commits what together with whom."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from duet_rpc.errors import StoreUnavailable
from duet_rpc.ledger.group import MAX_GROUP, Group
from duet_rpc.ledger.states import Answer, Kept, Operation, Release
from tests.ledger.commands import command

PATIENCE = 45.0


def operation(name: str) -> Release:
    return Release(command(name).identity, "owner")


class Gated:
    """A commit that waits for a permit each time, and notes who came together on which thread."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.threads: list[str] = []
        self.entered = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self.fails: Exception | None = None

    def __call__(self, operations: Sequence[Operation]) -> list[Answer | Exception]:
        self.groups.append([each.identity.key for each in operations])
        self.threads.append(threading.current_thread().name)
        self.entered.release()
        assert self.permits.acquire(timeout=PATIENCE)
        if self.fails is not None:
            raise self.fails
        bad = ValueError("bad")
        return [bad if each.identity.key == "bad" else Kept() for each in operations]


def queued(group: Group, number: int) -> None:
    while len(group._queue) < number:
        threading.Event().wait(0.005)


def test_alone_an_operation_is_committed_by_its_own_thread() -> None:
    commit = Gated()
    commit.permits.release()
    assert Group(commit).submit(operation("a")) == Kept()
    assert commit.threads == [threading.current_thread().name]


def test_what_comes_during_a_commit_is_committed_together_in_the_next() -> None:
    commit = Gated()
    group = Group(commit)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(group.submit, operation("first"))
        assert commit.entered.acquire(timeout=PATIENCE)
        rest = [pool.submit(group.submit, operation(f"rest {n}")) for n in range(5)]
        queued(group, 5)
        commit.permits.release()
        assert first.result(PATIENCE) == Kept()
        commit.permits.release()
        assert [call.result(PATIENCE) for call in rest] == [Kept()] * 5
        assert [sorted(names) for names in commit.groups] == [
            ["first"],
            [f"rest {n}" for n in range(5)],
        ]
        # Nobody leads any more: the next one is alone again.
        commit.permits.release()
        assert group.submit(operation("last")) == Kept()


def test_one_failure_in_a_group_is_its_own() -> None:
    commit = Gated()
    group = Group(commit)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(group.submit, operation("first"))
        assert commit.entered.acquire(timeout=PATIENCE)
        bad, good = (pool.submit(group.submit, operation(name)) for name in ("bad", "good"))
        queued(group, 2)
        commit.permits.release(2)
        assert first.result(PATIENCE) == good.result(PATIENCE) == Kept()
        assert isinstance(bad.exception(PATIENCE), ValueError)


def test_a_commit_that_fails_fails_its_group_and_not_the_next() -> None:
    commit = Gated()
    group = Group(commit)
    commit.fails = StoreUnavailable()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(group.submit, operation("first"))
        assert commit.entered.acquire(timeout=PATIENCE)
        second = pool.submit(group.submit, operation("second"))
        queued(group, 1)
        commit.permits.release()
        assert isinstance(first.exception(PATIENCE), StoreUnavailable)
        assert commit.entered.acquire(timeout=PATIENCE)
        commit.fails = None
        commit.permits.release()
        assert second.result(PATIENCE) == Kept()


def test_an_interrupt_of_the_leader_does_not_strand_the_others() -> None:
    class Interrupt(BaseException):
        pass

    def interrupted(operations: Sequence[Operation]) -> list[Answer | Exception]:
        raise Interrupt

    group = Group(interrupted)
    with pytest.raises(Interrupt):
        group.submit(operation("first"))
    group._commit = lambda operations: [Kept() for _ in operations]
    assert group.submit(operation("second")) == Kept()


def test_a_group_has_a_limit() -> None:
    commit = Gated()
    group = Group(commit)
    many = MAX_GROUP + 10
    with ThreadPoolExecutor(many + 1) as pool:
        first = pool.submit(group.submit, operation("first"))
        assert commit.entered.acquire(timeout=PATIENCE)
        rest = [pool.submit(group.submit, operation(f"{n}")) for n in range(many)]
        queued(group, many)
        commit.permits.release(3)
        assert first.result(PATIENCE) == Kept()
        assert all(call.result(PATIENCE) == Kept() for call in rest)
    assert [len(names) for names in commit.groups] == [1, MAX_GROUP, 10]
