"""Services that the tests serve: what blocks, what waits, what calls back, on both kinds of host.

`SYNC` has no `async def`, so that under the editor's policy it is served without an event loop.
`ASYNC` blocks the loop on purpose. `hold` keeps its thread until a file is there, so that a test
decides when.
"""

SYNC = """
import os, sys, time

service = Service()

@service.query
def hold(until: str) -> str:
    print("holding", flush=True)
    while not os.path.exists(until):
        time.sleep(0.01)
    return "let go"

@service.query
def nap(seconds: float = 60) -> str:
    print("napping", flush=True)
    time.sleep(seconds)
    return "rested"

@service.query
def spin() -> str:
    print("spinning", flush=True)
    while True:
        pass

@service.query
def echo(text: str) -> str:
    return text

@service.query
def ask(method: str, value: int, ctx: Context) -> int:
    return ctx.call(method, [value]).result()

@service.query
def fail(text: str) -> None:
    raise ValueError(text)
"""

ASYNC = """
import asyncio, os, sys, time

service = Service()

@service.query
async def hold(until: str) -> str:
    print("holding", flush=True)
    while not os.path.exists(until):
        time.sleep(0.01)
    return "let go"

@service.query
async def nap(seconds: float = 60) -> str:
    print("napping", flush=True)
    time.sleep(seconds)
    return "rested"

@service.query
async def spin() -> str:
    print("spinning", flush=True)
    while True:
        pass

@service.query
async def wait(seconds: float = 60) -> str:
    print("waiting", flush=True)
    await asyncio.sleep(seconds)
    return "rested"

@service.query
def work(seconds: float = 60) -> str:
    print("working", flush=True)
    time.sleep(seconds)
    return "rested"

@service.query
async def echo(text: str) -> str:
    return text

@service.query
async def ask(method: str, value: int, ctx: Context) -> int:
    return await ctx.call(method, [value])

@service.query
def ask_from_a_thread(method: str, value: int, ctx: Context) -> int:
    return ctx.call(method, [value]).result()

@service.query
async def fail(text: str) -> None:
    raise ValueError(text)
"""
