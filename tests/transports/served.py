"""The service that every transport carries in these tests, and a program that serves it.

python served.py stdio | unix PATH | tcp      (policy from POLICY, the address on stdout)
"""

import asyncio
import os
import sys
import threading
import time
from typing import Any

from duet_rpc.context import Context
from duet_rpc.errors import RpcError
from duet_rpc.policy import preset
from duet_rpc.server.server import Server
from duet_rpc.service import Service

service = Service("test")
gate = threading.Event()
"""Opens the handler `wait`."""
waiting = threading.Event()
"""The handler `wait` has begun."""
ran: list[str] = []
"""What `effect` was asked to do."""


class NoSuchNote(RpcError):
    """An error of the service's own."""

    code, message = 404, "No such note"


@service.query(inline=True)
def add(a: int, b: int) -> int:
    """Answer at once, on the thread that reads."""
    return a + b


@service.query
def echo(value: Any) -> Any:
    """Answer from a worker thread."""
    return value


@service.query
async def nap(seconds: float) -> float:
    """Answer later, from a task."""
    await asyncio.sleep(seconds)
    return seconds


@service.query
def wait() -> str:
    """Answer when the test lets it."""
    waiting.set()
    return "open" if gate.wait(60) else "closed"


@service.query(inline=True)
def block(seconds: float) -> None:
    """Break the promise of an inline handler: keep the loop."""
    time.sleep(seconds)


@service.query
def fail(id: int) -> None:
    """Answer with an error of our own."""
    raise NoSuchNote(data={"id": id})


@service.query(notification_allowed=True)
def effect(what: str) -> None:
    """Leave a trace."""
    ran.append(what)


@service.query
def who(ctx: Context) -> list[str]:
    """Tell what the server knows of its caller."""
    return [ctx.principal, ctx.connection_id]


@service.query
async def ask(question: str, ctx: Context) -> Any:
    """Call the caller back, and give its answer."""
    return await ctx.call("answer", [question], timeout=60)


def main() -> None:
    """Serve as the command line says."""
    kind = sys.argv[1]
    server = Server(service, policy=preset(os.environ.get("POLICY", "spec")))
    if kind == "stdio":
        server.run_stdio()
    elif kind == "unix":
        server.run_unix(sys.argv[2], on_start=_say)
    else:
        server.run_tcp("127.0.0.1", 0, on_start=_say)
    if kind != "stdio":
        _say("returned")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
