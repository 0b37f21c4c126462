"""A client in a forked child: its connection is the parent's, and neither of the two hangs.

Each case is a program of its own, because a fork copies whatever threads hold at that moment.
"""

import subprocess
import sys

import pytest

PATIENCE = 50.0

COMMON = """
import os, sys, threading
from duet_rpc import Service, UsageError, blocking, testing

def in_child(action):
    '''Fork, do something in the child, and wait for it; the child says what it found wrong.'''
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, f"the child ended with {status}"
        return
    try:
        action()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

def refused(action):
    try:
        action()
    except UsageError as error:
        assert "made by fork" in str(error), error
    else:
        raise AssertionError("it was not refused")

service = Service()

@service.query
def add(a: int, b: int) -> int:
    return a + b
"""

BLOCKING = """
with testing.connect_blocking(service, reconnect=True) as client:
    over = threading.Event()

    def call_all_the_time():
        while not over.is_set():
            assert client.call("add", [1, 2]) == 3

    threads = [threading.Thread(target=call_all_the_time) for _ in range(4)]
    for thread in threads:
        thread.start()

    def use():
        refused(lambda: client.call("add", [1, 2]))
        refused(lambda: client.start("add", [1, 2]))
        refused(lambda: client.notify("add", [1, 2]))
        refused(lambda: client.query("add", [1, 2]))
        refused(lambda: client.open())
        client.stats
        client.close()
        client.close()

    for _ in range(20):
        in_child(use)
    over.set()
    for thread in threads:
        thread.join()
    assert client.call("add", [3, 4]) == 7
    assert client.stats.connects == 1
print("done")
"""

ASYNCIO = """
import asyncio

async def main():
    async with testing.connect(service, reconnect=True) as client:
        assert await client.call("add", [1, 2]) == 3

        async def use():
            for send in (client.call, client.query, client.command, client.notify):
                try:
                    await send("add", {"a": 1, "b": 2})
                except UsageError as error:
                    assert "made by fork" in str(error), error
                else:
                    raise AssertionError("it was not refused")
            await client.close()
            await client.close()

        for _ in range(5):
            in_child(lambda: asyncio.run(use()))
            assert await client.call("add", [3, 4]) == 7
        assert client.stats.connects == 1

asyncio.run(main())
print("done")
"""

CHILD_OF_ITS_OWN = """
import subprocess
PROGRAM = '''
from duet_rpc import Service
service = Service()
@service.query
def add(a: int, b: int) -> int:
    return a + b
service.run()
'''
never_opened = blocking.Client.spawn(sys.executable, "-c", PROGRAM)

def use():
    client.close()
    with never_opened:
        assert never_opened.call("add", [1, 2]) == 3

with blocking.Client.spawn(sys.executable, "-c", PROGRAM) as client:
    assert client.call("add", [1, 2]) == 3
    in_child(use)
    assert client.call("add", [3, 4]) == 7
with never_opened:
    assert never_opened.call("add", [1, 2]) == 3
print("done")
"""


@pytest.mark.parametrize(
    "program",
    [BLOCKING, ASYNCIO, CHILD_OF_ITS_OWN],
    ids=["blocking", "asyncio", "a server that was spawned"],
)
def test_a_child_leaves_the_clients_of_its_parent_alone(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + program], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
