"""Fixtures for pytest, there wherever duet-rpc is installed.

async def test_add(rpc_connect):
    async with rpc_connect(service) as client:
        assert await client.call("add", {"a": 1, "b": 2}) == 3

def test_add_without_async(rpc_client):
    assert rpc_client(service).call("add", {"a": 1, "b": 2}) == 3

def test_patience(rpc_run):
    rpc_run(an_hour_of_waiting())
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Unpack

import pytest

from duet_rpc.blocking import Client
from duet_rpc.service import Service
from duet_rpc.testing.clock import run
from duet_rpc.testing.memory import connect, connect_blocking
from duet_rpc.testing.types import Connect, ConnectOptions, MakeClient, RunOnClock

__all__ = ["rpc_client", "rpc_connect", "rpc_no_leaks", "rpc_run"]

_PATIENCE = 10.0
"""Seconds that what is ending has to be gone."""


@pytest.fixture
def rpc_connect() -> Connect:
    """Give `duet_rpc.testing.connect`, to be used with `async with`."""
    return connect


@pytest.fixture
def rpc_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Make blocking clients that are connected in memory; they are closed when the test ends."""
    if "rpc_no_leaks" in request.fixturenames:
        request.getfixturevalue("rpc_no_leaks")  # it looks last, in whichever order they are named
    with contextlib.ExitStack() as stack:

        def make(service: Service, /, **options: Unpack[ConnectOptions]) -> Client:
            # The client's own `service` among the options is another than the one by position.
            made = connect_blocking(service, **options)  # pyright: ignore[reportArgumentType]
            return stack.enter_context(made)

        yield make


@pytest.fixture
def rpc_run() -> RunOnClock:
    """Give `duet_rpc.testing.run`: a coroutine on a clock that jumps."""
    return run


@pytest.fixture
def rpc_no_leaks() -> Iterator[None]:
    """Fail the test if threads, descriptors or child processes are left when it has ended."""
    before = _threads(), _descriptors(), _children()
    yield
    until = time.monotonic() + _PATIENCE
    while True:
        threads, descriptors = _threads() - before[0], _descriptors() - before[1]
        children = _children() - before[2]
        if not (threads or descriptors or children):
            return
        if time.monotonic() > until:
            pytest.fail(
                f"left behind: threads {sorted(threads)}, descriptors {sorted(descriptors)},"
                f" children {sorted(children)}"
            )
        time.sleep(0.01)


def _threads() -> set[str]:
    # Threads of a pool stay for the next piece of work; they belong to the program, not to us.
    return {
        f"{thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if not thread.name.startswith(("asyncio_", "ThreadPoolExecutor"))
    }


def _descriptors() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that was used to list them
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return found


def _children() -> set[str]:
    found = set[str]()
    for thread in os.listdir("/proc/self/task"):  # each has its own
        with contextlib.suppress(OSError):
            with open(f"/proc/self/task/{thread}/children") as children:
                found.update(children.read().split())
    return found
