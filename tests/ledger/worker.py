"""A process that runs one command, for tests that kill it, stop it or start several at once.

    python -m tests.ledger.worker '{"url": …, "promise": …, "key": …, …}'

It speaks by lines. Out: `ready`; `holding` when the handler waits at the place that `hold` names
(`before` or `after` its effect); then one line for each thread: `answer` or `refused`, a space,
and what. In: a line starts the command, and another lets a waiting handler go on.
"""

import json
import os
import resource
import sqlite3
import sys
import threading
import time
from typing import Any

from duet_rpc.errors import RpcError
from duet_rpc.ledger import Command, Ending, Ledger, Promise, Ran, Run, open_store


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def have_effect(run: Run, effects: str) -> None:
    """Do what must happen once: a row in the transaction, or else a line in a file."""
    if run.transaction is not None:
        run.transaction.execute("INSERT INTO effects VALUES ('effect')")
        return
    descriptor = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    os.close(descriptor)


def main(settings: dict[str, Any]) -> None:
    hold, seconds = settings.get("hold"), settings.get("seconds", 0.0)
    store = open_store(settings["url"])
    ledger = Ledger(store, lease=settings.get("lease", 30.0), wait=settings.get("wait", 40.0))
    promise = Promise(settings["promise"])
    command = Command("local", "bank.transfer", settings["key"], b"f" * 32, promise, "worker")

    def pause(place: str) -> None:
        if hold == place:
            say("holding")
            sys.stdin.readline()

    def work(run: Run) -> Ran:
        pause("before")
        try:
            have_effect(run, settings["effects"])
        except sqlite3.Error:
            return Ran(b'"error":"internal"', Ending.FAILED)
        time.sleep(seconds)
        pause("after")
        return Ran(b'"result":"%s"' % settings["name"].encode())

    def call() -> None:
        try:
            answer = f"answer {ledger.run(command, work).decode()}"
        except RpcError as error:
            answer = f"refused {error.reason}"
        say(answer)

    # Connections and tables first, so that the start line starts the command and nothing else.
    store.look(command.identity)
    say("ready")
    sys.stdin.readline()
    if "file_size" in settings:
        # A disk that takes no more: every write beyond the limit fails.
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (settings["file_size"], hard))
        call()
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    threads = [threading.Thread(target=call) for _ in range(settings.get("threads", 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
