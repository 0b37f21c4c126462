"""A server whose handlers are threads: they wait for the test, for their peer, or for nothing.

python -m tests.runtime.crowded unix PATH | tcp | stdio      (the address on stdout)
"""

import os
import resource
import sys
import threading
from typing import Any

from duet_rpc import Context, Service
from duet_rpc.policy import SPEC
from duet_rpc.server.server import Server

service = Service()
gate = threading.Event()
began = threading.Semaphore(0)
open_files: list[int] = []


@service.query
def echo(value: Any = None) -> Any:
    """Answer from a worker thread."""
    return value


@service.command
def note(value: Any = None) -> Any:
    """Do the same for a command."""
    return value


@service.query
def hold() -> str:
    """Compute until the test says enough."""
    began.release()
    return "open" if gate.wait(300) else "closed"


@service.query(inline=True)
def release() -> None:
    """Let all of them go."""
    gate.set()


@service.query(inline=True)
def held() -> int:
    """Say how many have begun."""
    return began._value


@service.query
def ask(ctx: Context) -> Any:
    """Wait for the peer, and keep the thread."""
    return ctx.call("peer.ask").result()


@service.query(inline=True)
def threads() -> int:
    """Say how many threads there are."""
    return threading.active_count()


@service.query(inline=True)
def take_descriptors() -> int:
    """Leave the process none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        while True:
            open_files.append(os.dup(2))
    except OSError:
        return len(open_files)


@service.query(inline=True)
def give_descriptors() -> None:
    """Have some again."""
    while open_files:
        os.close(open_files.pop())


@service.query(inline=True)
def take_memory() -> None:
    """Leave the process less than the stack of a thread needs."""
    with open("/proc/self/statm") as sizes:
        used = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, resource.RLIM_INFINITY))


@service.query(inline=True)
def give_memory() -> None:
    """Have as much as there is."""
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def main() -> None:
    server = Server(service, policy=SPEC)
    if sys.argv[1] == "unix":
        server.run_unix(sys.argv[2], max_connections=400)
    elif sys.argv[1] == "tcp":
        server.run_tcp(
            "127.0.0.1", 0, on_start=lambda address: print(address, flush=True), max_connections=400
        )
    else:
        server.run_stdio()


if __name__ == "__main__":
    main()
