"""Real processes on one store: duplicates, kill -9, and one that sleeps past its lease."""

import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duet_rpc.errors import OutcomeUnknown, StoreUnavailable
from duet_rpc.ledger import Ledger, Promise, Ran, Run, Store
from duet_rpc.ledger.states import Release
from tests.ledger.commands import AT_MOST_ONCE, RETRY_SAFE, TRANSACTIONAL, command, never
from tests.ledger.conftest import SHARED
from tests.ledger.conftest import TRANSACTIONAL as TRANSACTIONAL_STORES
from tests.ledger.worker import have_effect

ROOT = Path(__file__).parent.parent.parent
PLAIN = [(kind, promise) for kind in SHARED for promise in (AT_MOST_ONCE, RETRY_SAFE)]
EVERY_PROMISE = [*PLAIN, *((kind, TRANSACTIONAL) for kind in TRANSACTIONAL_STORES)]
every_promise = pytest.mark.parametrize("kind, promise", EVERY_PROMISE, indirect=["kind"])

pytestmark = pytest.mark.timeout(180)


class Worker:
    """A process of `worker`, from the outside."""

    def __init__(self, **settings: Any):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ledger.worker", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def expect(self, line: str) -> None:
        assert self.read() == line

    def read(self) -> str:
        """Read a line; the timeout of the test ends a wait that would not end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def send(self, how: signal.Signals) -> None:
        self.process.send_signal(how)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start(url: str, effects_file: Path) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def make(promise: Promise, **settings: Any) -> Worker:
        settings = {"key": "k", "name": "worker", "effects": str(effects_file), **settings}
        workers.append(Worker(url=url, promise=promise.value, **settings))
        return workers[-1]

    yield make
    for worker in workers:
        worker.end()


@pytest.fixture
def effects_file(tmp_path: Path) -> Path:
    return tmp_path / "effects"


@pytest.fixture
def effects(
    kind: str, url: str, promise: Promise, effects_file: Path
) -> Iterator[Callable[[], int]]:
    """Count the effects: rows of a table, or lines of a file."""
    connection: Any = None
    if promise is TRANSACTIONAL:
        if kind == "sqlite":
            path = url.removeprefix("sqlite:///")
            connection = sqlite3.connect(path, isolation_level=None, timeout=45.0)
        else:
            connection = psycopg.connect(url, autocommit=True)
        connection.execute("CREATE TABLE effects (name text)")

    def count() -> int:
        if connection is not None:
            return int(connection.execute("SELECT count(*) FROM effects").fetchone()[0])
        return len(effects_file.read_bytes().splitlines()) if effects_file.exists() else 0

    yield count
    if connection is not None:
        connection.close()


@pytest.fixture
def work(effects_file: Path) -> Callable[[Run], Ran]:
    """The handler of this process, with the same effect as the worker's."""

    def run_here(run: Run) -> Ran:
        have_effect(run, str(effects_file))
        return Ran(b'"result":"here"')

    return run_here


@every_promise
def test_duplicates_over_four_processes_are_one_run(
    start: Callable[..., Worker], effects: Callable[[], int], promise: Promise
) -> None:
    workers = [start(promise, threads=13, seconds=0.2) for _ in range(4)]
    for worker in workers:
        worker.expect("ready")
    for worker in workers:
        worker.go()
    answers = [worker.read() for worker in workers for _ in range(13)]
    assert set(answers) == {'answer "result":"worker"'}
    assert effects() == 1


@every_promise
@pytest.mark.parametrize("hold", ["before", "after"])
def test_a_killed_run_is_what_its_promise_says(
    start: Callable[..., Worker],
    effects: Callable[[], int],
    work: Callable[[Run], Ran],
    ledger: Ledger,
    promise: Promise,
    hold: str,
) -> None:
    worker = start(promise, hold=hold, lease=0.5)
    worker.expect("ready")
    worker.go()
    worker.expect("holding")
    worker.send(signal.SIGKILL)
    worker.process.wait()
    happened = int(hold == "after")
    asked = command(promise=promise)
    match promise:
        case Promise.TRANSACTIONAL:
            assert effects() == 0
            assert ledger.run(asked, work) == b'"result":"here"'
            assert effects() == 1
        case Promise.AT_MOST_ONCE:
            for _ in range(2):
                with pytest.raises(OutcomeUnknown):
                    ledger.run(asked, never)
            assert effects() == happened
            return
        case Promise.RETRY_SAFE:
            assert ledger.run(asked, work) == b'"result":"here"'
            assert effects() == happened + 1
    assert ledger.run(asked, never) == b'"result":"here"'


def stop(worker: Worker, store: Store) -> None:
    """Stop a process, but not while it holds a lock of the store, which nobody could survive."""
    for _ in range(50):
        worker.send(signal.SIGSTOP)
        try:
            store.commit([Release(command("nobody's").identity, "nobody")])
            return
        except StoreUnavailable:
            worker.send(signal.SIGCONT)
            threading.Event().wait(0.1)
    raise AssertionError("the process always holds a lock")


def run_program(source: str, *arguments: str) -> None:
    """Run a program that forks; it ends itself if it hangs."""
    command = [sys.executable, "-c", source, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


FORKS = """
import os, sys
from duet_rpc.ledger import open_store
from duet_rpc.ledger.states import Claim, Claimed, Finish, Kept
from tests.ledger.commands import command
from tests.ledger.hangs import end_if_it_hangs

end_if_it_hangs()
store = open_store(sys.argv[1])

def use(owner):
    for number in range(int(sys.argv[2])):
        claim = Claim(command(f"{owner} {number}"), owner, 30.0, 60.0)
        [claimed] = store.commit([claim])
        assert type(claimed) is Claimed, claimed
        outcome = claim.identity.key.encode()
        finish = Finish(claim.identity, claimed.token, owner, outcome, 60.0)
        assert store.commit([finish]) == [Kept()]
        assert store.look(claim.identity).outcome == outcome

use("parent before")
children = []
for name in "abc":
    child = os.fork()
    if child == 0:
        end_if_it_hangs()
        use(name)
        os._exit(0)
    children.append(child)
use("parent after")
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


LEDGER_FORKS = """
import os, sys, threading
from duet_rpc.errors import StoreUnavailable
from duet_rpc.ledger import Ledger, open_store
from duet_rpc.ledger.execution import Ran
from tests.ledger.commands import command
from tests.ledger.hangs import end_if_it_hangs

end_if_it_hangs()
store = open_store(sys.argv[1])
ledger = Ledger(store, lease=1.5)
over = threading.Event()

def run(key):
    return ledger.run(command(key), lambda run: Ran(b'"result":1'))

def run_all_the_time(name):
    number = 0
    while not over.is_set():
        number += 1
        assert run(f"{name} {number}") == b'"result":1'

run("before")
threads = [threading.Thread(target=run_all_the_time, args=[name]) for name in "abcd"]
for thread in threads:
    thread.start()
served = 0
for number in range(20):
    child = os.fork()
    if child == 0:
        end_if_it_hangs()
        try:
            assert run("before") == b'"result":1'
            assert run(f"child {number}") == b'"result":1'
            status = 0
        except StoreUnavailable:
            status = 3
        except BaseException:
            import traceback
            traceback.print_exc()
            status = 1
        ledger.close()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0 or (status == 3 and sys.argv[1].startswith("sqlite")), status
over.set()
for thread in threads:
    thread.join()
child = os.fork()
if child == 0:
    end_if_it_hangs()
    status = run("quiet") != b'"result":1'
    ledger.close()
    os._exit(status)
assert os.waitpid(child, 0)[1] == 0, "nobody used it at that moment"
assert run("after") == b'"result":1'
ledger.close()
"""


CONNECTIONS_FORK = """
import os, sys, threading
from contextlib import suppress
from duet_rpc.errors import StoreUnavailable
from duet_rpc.ledger import open_store
from tests.ledger.commands import command
from tests.ledger.hangs import end_if_it_hangs

end_if_it_hangs()
store = open_store(sys.argv[1])
key = command("key").identity

def connect_all_the_time():
    while True:
        with suppress(Exception):  # one that another thread closes under it
            store.look(key)
        store.close()

for _ in range(4):
    threading.Thread(target=connect_all_the_time, daemon=True).start()
for number in range(20):
    child = os.fork()
    if child == 0:
        end_if_it_hangs()
        with suppress(StoreUnavailable):  # silent, for a thread whose connection was closed
            assert store.look(key) is None
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)  # a thread may still wait, up to its timeout, for what another has closed
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "valkey"], indirect=True)
def test_a_ledger_that_threads_use_during_a_fork_hangs_nowhere(url: str) -> None:
    run_program(LEDGER_FORKS, url)


@pytest.mark.parametrize("kind", ["postgres", "valkey"], indirect=True)
def test_a_store_that_threads_connect_to_during_a_fork_hangs_nowhere(url: str) -> None:
    run_program(CONNECTIONS_FORK, url)


FIRST_USE = """
import sys
from duet_rpc.ledger import open_store
from tests.ledger.commands import command

store = open_store(sys.argv[1])
before = set(sys.modules)
store.look(command("key").identity)
store.close()
late = sys.modules.keys() - before
assert not late, late
"""


@pytest.mark.parametrize("kind", SHARED, indirect=True)
def test_the_first_use_of_a_store_imports_nothing_that_a_fork_could_cut_off(url: str) -> None:
    run_program(FIRST_USE, url)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey"], indirect=True)
def test_a_store_that_was_used_before_a_fork_serves_parent_and_children(
    kind: str, url: str
) -> None:
    # Processes that wait for the lock of one file do not take turns; so not too many of them.
    count = "12" if kind == "sqlite" else "100"
    run_program(FORKS, url, count)


@pytest.mark.parametrize("kind", SHARED, indirect=True)
@pytest.mark.parametrize("promise", [RETRY_SAFE])
def test_a_run_that_slept_past_its_lease_is_fenced(
    start: Callable[..., Worker],
    effects: Callable[[], int],
    work: Callable[[Run], Ran],
    ledger: Ledger,
    store: Store,
    promise: Promise,
) -> None:
    worker = start(promise, hold="after", lease=1.5)
    worker.expect("ready")
    worker.go()
    worker.expect("holding")
    stop(worker, store)
    assert ledger.run(command(promise=promise), work) == b'"result":"here"'
    worker.send(signal.SIGCONT)
    worker.go()
    worker.expect('answer "result":"here"')
    assert ledger.run(command(promise=promise), never) == b'"result":"here"'
    assert effects() == 2, "declared: it runs again"


@pytest.mark.parametrize("kind", SHARED, indirect=True)
@pytest.mark.parametrize("promise", [AT_MOST_ONCE])
def test_a_run_that_slept_past_its_lease_heals_what_was_unknown(
    start: Callable[..., Worker],
    effects: Callable[[], int],
    ledger: Ledger,
    store: Store,
    promise: Promise,
) -> None:
    worker = start(promise, hold="after", lease=1.5)
    worker.expect("ready")
    worker.go()
    worker.expect("holding")
    stop(worker, store)
    with pytest.raises(OutcomeUnknown):
        ledger.run(command(promise=promise), never)
    worker.send(signal.SIGCONT)
    worker.go()
    worker.expect('answer "result":"worker"')
    assert ledger.run(command(promise=promise), never) == b'"result":"worker"'
    assert effects() == 1


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("promise", [TRANSACTIONAL])
def test_a_stopped_transaction_keeps_duplicates_waiting_and_wins(
    start: Callable[..., Worker], effects: Callable[[], int], ledger: Ledger, promise: Promise
) -> None:
    worker = start(promise, hold="after")
    worker.expect("ready")
    worker.go()
    worker.expect("holding")
    worker.send(signal.SIGSTOP)
    answers: list[bytes] = []
    waiter = threading.Thread(
        target=lambda: answers.append(ledger.run(command(promise=promise), never))
    )
    waiter.start()
    worker.send(signal.SIGCONT)
    worker.go()
    worker.expect('answer "result":"worker"')
    waiter.join()
    assert answers == [b'"result":"worker"'] and effects() == 1


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("promise", [AT_MOST_ONCE, TRANSACTIONAL])
def test_a_disk_that_takes_no_more_refuses_without_effect_and_recovers(
    start: Callable[..., Worker], effects: Callable[[], int], promise: Promise
) -> None:
    worker = start(promise, file_size=0)
    worker.expect("ready")
    worker.go()
    worker.expect("refused store-unavailable")
    worker.expect('answer "result":"worker"')
    assert effects() == 1
