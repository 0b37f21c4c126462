"""Several server processes on one store, and what can be done to them.

Every process is ours: started here, ended here, in `close` at the latest.
"""

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.history import Effect, Fault, Run
from tests.ledger.servers import PATIENCE, Postgres, Valkey

ROOT = Path(__file__).parent.parent.parent
TABLE = "CREATE TABLE effects (run text, call text, method text, key text, value text)"


class ServerProcess:
    """One server under one name, through all its lives."""

    def __init__(self, name: str, directory: Path, settings: dict[str, Any]):
        self.name = name
        self.socket = str(directory / f"{name}.sock")
        self.events = directory / f"{name}.events"
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        paths = {"socket": self.socket, "events": str(self.events)}
        self._settings = json.dumps({"name": name, **paths, **settings})

    def spawn(self) -> None:
        """Start a process; it takes a moment until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.server", self._settings],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def start(self) -> None:
        """Start it and wait until it answers; one that dies because the store is down, again."""
        give_up = time.monotonic() + PATIENCE
        self.spawn()
        # A socket answers before the server has noted that it is ready, and some case may deny it
        # the disk as soon as we return.
        while not (self._answers() and self._is_ready()):
            assert time.monotonic() < give_up, self.tail()
            assert self.process is not None
            if self.process.poll() is not None:
                self.spawn()
            await asyncio.sleep(0.05)

    def send(self, how: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(how)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def end(self) -> int:
        """End it in good order; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def tail(self) -> str:
        """Give the end of its log."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def notes(self) -> list[dict[str, Any]]:
        """Read what its handlers noted."""
        if not self.events.exists():
            return []
        return [json.loads(line) for line in self.events.read_bytes().splitlines()]

    def _is_ready(self) -> bool:
        assert self.process is not None
        ready = [note["pid"] for note in self.notes() if note["what"] == "ready"]
        return self.process.pid in ready

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self.socket)
            except OSError:
                return False
        return True


class Cluster:
    """Servers that share a store."""

    def __init__(
        self,
        kind: str,
        directory: Path,
        *,
        lease: float,
        servers: int,
        without: str = "",
        store: Postgres | Valkey | None = None,
    ):
        """Prepare them; a `store` that is given runs already, and is not ended with them."""
        self.kind = kind
        self.lease = lease
        self.is_transactional = kind != "valkey"
        self.store = store
        self._owns_store = store is None
        self._file = directory / "commands.db"
        match kind:
            case "postgres" if store is None:
                self.store = Postgres()
            case "valkey" if store is None:
                self.store = Valkey(appendfsync="always")
        self.url = f"sqlite:///{self._file}" if self.store is None else self.store.url
        settings = {"url": self.url, "lease": lease, "without": without}
        self.servers = [
            ServerProcess(f"s{number}", directory, settings) for number in range(servers)
        ]
        self.faults: list[Fault] = []

    async def start(self) -> None:
        """Start the store, then the servers."""
        if self.store is not None and self._owns_store:
            await asyncio.to_thread(self.store.start)
        if self.is_transactional:
            with self._connect() as connection:
                connection.execute(TABLE)
            connection.close()
        await asyncio.gather(*(server.start() for server in self.servers))

    def close(self) -> None:
        """End everything, whatever state it is in."""
        for server in self.servers:
            server.kill()
        if self.store is not None and self._owns_store:
            self.store.remove()

    # Faults. Each is noted with the time in which it may have hurt.

    async def kill(self, server: ServerProcess, pause: float) -> None:
        """Kill a server in the middle of everything; it comes back after a while."""
        began = time.monotonic()
        server.kill()
        self.faults.append(Fault("kill", server.name, began, time.monotonic()))
        await asyncio.sleep(pause)
        await server.start()

    async def stop(self, server: ServerProcess, seconds: float) -> None:
        """Freeze a server for longer than its leases last, then let it go on."""
        began = time.monotonic()
        server.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            server.send(signal.SIGCONT)
            # What it does next it does late: a lease that was lost shows when it looks.
            ended = time.monotonic() + self.lease
            self.faults.append(Fault("stop", server.name, began, ended))

    async def restart_store(self, *, crash: bool, pause: float) -> None:
        """Take the database away from all of them for a while."""
        assert self.store is not None
        began = time.monotonic()
        await asyncio.to_thread(self.store.crash if crash else self.store.shut_down)
        await asyncio.sleep(pause)
        await asyncio.to_thread(self.store.start)
        self.faults.append(Fault("store", None, began, time.monotonic()))

    # What happened.

    def runs(self) -> list[Run]:
        """Collect the runs that the handlers noted."""
        found: dict[str, Run] = {}
        for server in self.servers:
            for note in server.notes():
                if note["what"] == "start":
                    who = (note["run"], note["call"], server.name, note["method"], note["key"])
                    found[note["run"]] = Run(*who, began=note["at"], ended=None)
                elif note["what"] == "end":
                    run = found[note["run"]]
                    found[run.id] = run._replace(ended=note["at"], failed=note["failed"])
        return list(found.values())

    def late_heartbeats(self) -> list[Fault]:
        """Collect the leases that were lost because something was slow."""
        return [
            Fault("late", server.name, note["began"], note["at"])
            for server in self.servers
            for note in server.notes()
            if note["what"] == "late"
        ]

    def effects(self) -> list[Effect]:
        """Collect what happened in the world: lines of the handlers, rows of the table."""
        found = [
            Effect(*(note[name] for name in Effect._fields))
            for server in self.servers
            for note in server.notes()
            if note["what"] == "effect"
        ]
        if self.is_transactional:
            connection = self._connect()
            rows = connection.execute("SELECT run, call, method, key, value FROM effects")
            found.extend(Effect(*row) for row in rows.fetchall())
            if self.kind == "sqlite":
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            connection.close()
        return found

    def is_free(self) -> bool:
        """Tell whether somebody else could write to the store now."""
        if self.kind != "sqlite":
            return True
        connection = sqlite3.connect(self._file, timeout=1.0, isolation_level=None)
        try:
            # Alone in the file: a reader keeps no one from beginning to write, but from committing.
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
            return True
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()

    def _connect(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self._file, timeout=PATIENCE)
        return psycopg.connect(self.url)
