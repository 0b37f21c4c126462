"""The server of the endurance test: every kind of handler, and a method that counts what it holds.

python -m tests.endurance.server SOCKET STORE
"""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from duet_rpc import Context, RpcError, Server, Service
from duet_rpc.errors import CallTimeout, ConnectionLost
from duet_rpc.policy import AGENT
from duet_rpc.server.listener import Listener
from tests.endurance.counts import held

service = Service()
meetings: dict[str, list[asyncio.Future[None]]] = {}


class Declined(RpcError):
    code, message = 402, "Declined"


@service.query(inline=True)
def echo(text: str) -> str:
    return text


@service.query
def work(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@service.query
async def nap(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@service.query
def fail(text: str) -> None:
    raise ValueError(text)


@service.query
async def decline(text: str) -> None:
    raise Declined(data={"text": text})


@service.query
async def count_up(to: int, ctx: Context) -> int:
    for number in range(to):
        ctx.progress({"at": number})
        await asyncio.sleep(0)
    return to


@service.subscription(when_slow="wait")
async def ticks(to: int, text: str, resume_after: int = 0) -> AsyncIterator[str]:
    for number in range(resume_after, to):
        yield text
        if number % 3 == 0:
            await asyncio.sleep(0.001)
    if to % 2:
        raise Declined(data={"text": text})
    if to % 4:
        await asyncio.sleep(3600)


@service.query
async def ask(method: str, params: Any, within: float, ctx: Context) -> Any:
    """Call the caller back, from the loop."""
    try:
        return await ctx.call(method, params, timeout=within)
    except (CallTimeout, ConnectionLost, RpcError) as error:
        return type(error).__name__


@service.query
def ask_in_thread(method: str, params: Any, within: float, ctx: Context) -> Any:
    """Call the caller back, from a thread."""
    try:
        return ctx.call(method, params, timeout=within).result()
    except (CallTimeout, ConnectionLost, RpcError) as error:
        return type(error).__name__


@service.command
def deposit(text: str) -> str:
    return text


@service.command
async def deposit_slowly(text: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return text


@service.query
async def meet(number: int, where: str) -> int:
    """Answer when so many are here at once."""
    here = meetings.setdefault(where, [])
    mine = asyncio.get_running_loop().create_future()
    here.append(mine)
    if len(here) == number:
        for each in meetings.pop(where):
            each.set_result(None)
    await mine
    return number


@service.query
async def count() -> dict[str, int]:
    """Count what the server holds, without this request's own share."""
    counted = held()
    (listener,) = (each for each in gc.get_objects() if type(each) is Listener)
    connections = [host.connection.requests for host in listener.hosts.values()]
    limit = sum(each.slots.max_running for each in connections)
    running = sum(each.slots.running for each in connections) - 1
    return counted | {
        "tasks": len(asyncio.all_tasks()) - 1,
        "connections": len(connections) - 1,
        "running": running,
        "paused": sum(len(each.slots.paused) for each in connections),
        "queued": sum(len(each.queue.waiting) for each in connections),
        "free": limit - running,
        "limit": limit,
    }


if __name__ == "__main__":
    path, store = sys.argv[1:]
    from duet_rpc.server.logs import Logs

    Server(service, policy=AGENT, store=store).run_unix(path, logs=Logs(level="error"))
