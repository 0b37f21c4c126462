"""What each Python client does, one function for each case; a driver brings the client.

Plain standard library: it runs in the environments of the clients. Prints `SAW {case: what was
seen}`; what a client raises is seen too.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

PATIENCE = 30.0


class Adapter(Protocol):
    """A client, with results as they are on the wire."""

    def version(self) -> str: ...
    def server(self) -> Any: ...
    def describe_error(self, error: BaseException) -> Any: ...
    async def call(
        self,
        name: str,
        arguments: Any = None,
        *,
        seconds: float | None = None,
        progress: Any = None,
    ) -> Any: ...
    async def tools(self) -> Any: ...
    async def resources(self) -> Any: ...
    async def templates(self) -> Any: ...
    async def read(self, uri: str) -> Any: ...
    async def prompts(self) -> Any: ...
    async def prompt(self, name: str, arguments: dict[str, str]) -> Any: ...
    async def set_level(self, level: str) -> Any: ...
    async def ping(self) -> Any: ...
    async def cancelled(self) -> None:
        """Called after the task of a call was cancelled: some clients tell the server nothing."""


Open = Callable[[str, list[str]], AbstractAsyncContextManager[Any]]
Case = Callable[[Any], Awaitable[Any]]


async def opening(client: Adapter) -> Any:
    return {"version": client.version(), "server": client.server()}


async def call(client: Adapter) -> Any:
    return await client.call("lab_add", {"a": 2, "b": 3})


async def defaults(client: Adapter) -> Any:
    return await client.call("lab_add", {"a": 2})


async def structured(client: Adapter) -> Any:
    return await client.call("lab_count", {"text": "größer als 1 \U0001f600"})


async def bad_arguments(client: Adapter) -> Any:
    return await client.call("lab_add", {"a": "two"})


async def declared_error(client: Adapter) -> Any:
    return await client.call("lab_deposit", {"account": "nobody", "cents": 5})


async def unforeseen_error(client: Adapter) -> Any:
    return await client.call("lab_fail", {})


async def unknown_tool(client: Adapter) -> Any:
    return await client.call("lab_nothing", {})


async def picture(client: Adapter) -> Any:
    return await client.call("lab_picture", {})


async def mixed(client: Adapter) -> Any:
    return await client.call("lab_mixed", {})


async def many(client: Adapter) -> Any:
    calls = [client.call("lab_echo", {"value": f"v{n}", "seconds": 0.05}) for n in range(50)]
    return [found["content"][0]["text"] for found in await asyncio.gather(*calls)]


async def progress(client: Adapter) -> Any:
    reports: list[Any] = []
    on_top = asyncio.Event()

    async def note(done: float, total: float | None, message: str | None) -> None:
        reports.append([done, total, message])
        if done == total:
            on_top.set()

    climbing = asyncio.create_task(client.call("lab_climb", {"steps": 4}, progress=note))
    await on_top.wait()
    await client.call("lab_come_down", {"steps": 4})
    return {"reports": reports, "result": (await climbing)["structuredContent"]}


async def state_of(client: Adapter, name: str) -> str:
    found = await client.call("lab_state", {"name": name})
    return str(found["structuredContent"]["result"])


async def until(client: Adapter, name: str, wanted: str) -> str:
    """Wait until a tool that hangs is in a state."""
    end, found = time.monotonic() + PATIENCE, "unknown"
    while time.monotonic() < end:
        found = await state_of(client, name)  # asked again and again: a client cannot listen
        if found == wanted:
            return found
    return found


async def cancel(client: Adapter) -> Any:
    hanging = asyncio.create_task(client.call("lab_hang", {"name": "to cancel"}))
    began = await until(client, "to cancel", "running")
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    await client.cancelled()
    ended = await until(client, "to cancel", "ended")
    return {"began": began, "ended": ended, "after": await call(client)}


async def repeat(client: Adapter) -> Any:
    """Lose patience with a command, and send it again under the same key."""
    order = {"account": "hasty", "cents": 5, "seconds": 1.0, "idempotency_key": "once"}
    first: Any = "answered"
    try:
        await client.call("lab_slow_deposit", order, seconds=0.3)
    except Exception as error:
        first = type(error).__name__
    second = await client.call("lab_slow_deposit", order)
    third = await client.call("lab_slow_deposit", order)
    effects = await client.call("lab_count_effects", {"account": "hasty"})
    other = await client.call("lab_slow_deposit", {**order, "cents": 6})
    return {
        "first": first,
        "second": second["structuredContent"],
        "third": third["structuredContent"],
        "effects": effects["structuredContent"]["result"],
        "other": other,
    }


async def read(client: Adapter) -> Any:
    return [
        await client.read(uri)
        for uri in ("lab://readme", "lab://dot", "lab://accounts/ada", "lab://squares/12")
    ]


async def read_missing(client: Adapter) -> Any:
    return await client.read("lab://nothing")


async def prompt(client: Adapter) -> Any:
    return [
        await client.prompt("review", {"code": "x = 1", "strict": "true"}),
        await client.prompt("talk", {"topic": "tea"}),
    ]


async def prompt_without_argument(client: Adapter) -> Any:
    return await client.prompt("review", {})


CASES: dict[str, Case] = {
    "opening": opening,
    "tools": lambda client: client.tools(),
    "call": call,
    "defaults": defaults,
    "structured": structured,
    "bad_arguments": bad_arguments,
    "declared_error": declared_error,
    "unforeseen_error": unforeseen_error,
    "unknown_tool": unknown_tool,
    "picture": picture,
    "mixed": mixed,
    "many": many,
    "progress": progress,
    "cancel": cancel,
    "repeat": repeat,
    "resources": lambda client: client.resources(),
    "templates": lambda client: client.templates(),
    "read": read,
    "read_missing": read_missing,
    "prompts": lambda client: client.prompts(),
    "prompt": prompt,
    "prompt_without_argument": prompt_without_argument,
    "set_level": lambda client: client.set_level("warning"),
    "ping": lambda client: client.ping(),
}


async def tour(open_client: Open, mode: str, command: list[str]) -> Any:
    """Go through all cases on one connection, then close it."""
    saw: dict[str, Any] = {}
    async with open_client(mode, command) as client:
        for name, case in CASES.items():
            try:
                saw[name] = await asyncio.wait_for(case(client), PATIENCE)
            except Exception as error:
                saw[name] = {"raised": type(error).__name__} | client.describe_error(error)
    return saw


async def leave(open_client: Open, mode: str, command: list[str]) -> Any:
    """Close the connection while tools run."""
    async with open_client(mode, command) as client:
        running = [
            asyncio.create_task(client.call(name, {"name": name}))
            for name in ("lab_hang", "lab_hang_in_thread")
        ]
        saw = [await until(client, name, "running") for name in ("lab_hang", "lab_hang_in_thread")]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return saw


def main(open_client: Open) -> None:
    what, mode, *command = sys.argv[1:]
    saw = asyncio.run({"tour": tour, "leave": leave}[what](open_client, mode, command))
    print("SAW", json.dumps(saw))
