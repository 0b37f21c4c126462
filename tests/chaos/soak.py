"""Commands at a steady rate for a long time: what is kept must not grow with them.

    python -m tests.chaos.soak --store postgres --seconds 600 --rate 2000 --retention 60

Commands run through a ledger, with keys of their own; another connection counts the rows of the
store. Whatever the rate is, the rows are at most those of one retention and a fifth more. The rate
is what the store takes unless `--rate` bounds it.
"""

import argparse
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import psycopg
from msgspec import Struct

from duet_rpc.ledger import Ledger, Ran, Run, open_store
from tests.ledger.commands import command
from tests.ledger.servers import Postgres

COUNT = "SELECT count(*) FROM duet_commands"


class Soaked(Struct):
    """What a run came to."""

    seconds: float
    commands: int
    peak_rows: int
    peak_window: int
    """The most commands that ended within one retention."""

    @property
    def ratio(self) -> float:
        """The rows at their most, as a share of what has to be kept."""
        return self.peak_rows / max(self.peak_window, 1)

    @property
    def rate(self) -> float:
        """Commands a second."""
        return self.commands / self.seconds


class Soak:
    """One run: threads that send commands, and a count of the rows now and then."""

    def __init__(self, url: str, rows: Callable[[], int], rate: float, retention: float) -> None:
        self._ledger = Ledger(open_store(url), ttl=retention)
        self._rows = rows
        self._rate = rate
        self._retention = retention
        self._numbers = count(1)
        self._done = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[Exception] = []

    def run(self, seconds: float, threads: int) -> Soaked:
        """Send commands for so many seconds."""
        self._ledger.store.counts()  # so that there is a table to count
        self._began = time.monotonic()
        workers = [threading.Thread(target=self._work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        try:
            soaked = self._watch(seconds)
        finally:
            self._stop.set()
            for worker in workers:
                worker.join()
            self._ledger.close()
        if self._failures:
            raise self._failures[0]
        soaked.commands = self._done
        return soaked

    def _watch(self, seconds: float) -> Soaked:
        soaked = Soaked(seconds, 0, 0, 0)
        history: list[tuple[float, int]] = []
        while (now := time.monotonic()) - self._began < seconds:
            history.append((now, self._done))
            rows = self._rows()
            before = max((n for at, n in history if at <= now - self._retention), default=0)
            soaked.peak_window = max(soaked.peak_window, self._done - before)
            # Until one retention has passed there is nothing to drop.
            if now - self._began > self._retention:
                soaked.peak_rows = max(soaked.peak_rows, rows)
            if self._stop.wait(self._retention / 20):
                break
        return soaked

    def _work(self) -> None:
        try:
            self._send()
        except Exception as error:
            self._failures.append(error)
            self._stop.set()

    def _send(self) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            if self._rate:
                due = self._began + number / self._rate
                if self._stop.wait(max(due - time.monotonic(), 0.0)):
                    return
            self._ledger.run(command(f"soak {number}"), _work)
            with self._lock:
                self._done += 1


def _work(run: Run) -> Ran:
    return Ran(b'"result":%d' % run.token)


def soak_sqlite(
    path: Path, *, seconds: float, rate: float, retention: float, threads: int = 16
) -> Soaked:
    """Soak an SQLite file."""

    def rows() -> int:
        connection = sqlite3.connect(path, timeout=60.0)
        try:
            return int(connection.execute(COUNT).fetchone()[0])
        finally:
            connection.close()

    return Soak(f"sqlite:///{path}", rows, rate, retention).run(seconds, threads)


def soak_postgres(
    server: Postgres, *, seconds: float, rate: float, retention: float, threads: int = 16
) -> Soaked:
    """Soak a PostgreSQL server."""

    def rows() -> int:
        with psycopg.connect(server.url) as line:
            [(number,)] = line.execute(COUNT).fetchall()
            return int(number)

    return Soak(server.url, rows, rate, retention).run(seconds, threads)


def main() -> int:
    """Run it from the command line; the exit status says whether the bound held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"], required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=0.0, help="commands a second; 0: no bound")
    parser.add_argument("--retention", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--allowed", type=float, default=1.2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        times = {"seconds": args.seconds, "rate": args.rate, "retention": args.retention}
        if args.store == "sqlite":
            path = Path(directory) / "soak.db"
            soaked = soak_sqlite(path, threads=args.threads, **times)
        else:
            server = Postgres()
            try:
                server.start()
                soaked = soak_postgres(server, threads=args.threads, **times)
            finally:
                server.remove()
    print(
        f"{soaked.commands} commands, {soaked.rate:.0f}/s; at most {soaked.peak_rows} rows,"
        f" {soaked.ratio:.3f} of the {soaked.peak_window} that had to be kept"
    )
    return 0 if soaked.ratio <= args.allowed else 1


if __name__ == "__main__":
    sys.exit(main())
