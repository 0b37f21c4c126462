"""The service that every MCP client of these tests talks to: `duet-rpc mcp service.py`.

It prints wherever a program may print by mistake: none of it may reach the client.
"""

import asyncio
import os
import subprocess
import sys
from typing import Annotated

import msgspec
from msgspec import Meta

from duet_rpc import Context, RpcError, Service
from duet_rpc.mcp import Content, Image, Mcp, Message, ResourceLink, Text, ToolOptions

print("stray: at import")
sys.stdout.write("stray: without a newline")
sys.__stdout__.write("stray: to the first stdout\n")  # type: ignore[union-attr]
os.write(1, b"stray: to the descriptor\n")
subprocess.run(["echo", "stray: from a child"], check=True)

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)

lab = Service("lab", version="1.2.3", description="For tests of clients.")
mcp = Mcp(instructions="Amounts are in cents.", title="Laboratory")


class NoSuchAccount(RpcError):
    code, message = 4004, "No such account"


class Account(msgspec.Struct):
    """An account and what is on it."""

    name: str
    cents: int


class Report(msgspec.Struct):
    """What was counted in a text."""

    words: int
    longest: str | None
    letters: dict[str, int]


accounts: dict[str, int] = {"ada": 100}
effects: dict[str, int] = {}
states: dict[str, str] = {}
climbing: dict[int, asyncio.Event] = {}


@lab.query(tool=ToolOptions(title="Add two numbers"))
def add(a: int, b: Annotated[int, Meta(description="What is added")] = 1) -> int:
    """Add two numbers."""
    print(f"stray: {a} + {b}")
    return a + b


@lab.query
def count(text: str) -> Report:
    """Count words and letters."""
    words = text.split()
    letters = {letter: text.count(letter) for letter in sorted(set(text)) if letter.isalpha()}
    return Report(len(words), max(words, key=len) if words else None, letters)


@lab.query
async def echo(value: str, seconds: float = 0) -> str:
    """Give a text back, after a while."""
    await asyncio.sleep(seconds)
    return value


@lab.query
def picture() -> Image:
    """Show one dot."""
    return Image(PNG)


@lab.query
def mixed() -> list[Content]:
    """Show a text, a dot and a link."""
    link = ResourceLink(uri="lab://readme", name="readme", mimeType="text/plain")
    return [Text("one dot:"), Image(PNG), link]


@lab.query
async def climb(steps: int, ctx: Context) -> str:
    """Report each step, and wait on top until it is told to come down.

    A client that finds a report and the answer in one read may drop the report.
    """
    down = climbing[steps] = asyncio.Event()
    for step in range(1, steps + 1):
        ctx.progress(step, steps, f"step {step}")
        os.write(1, b"stray: in a handler\n")
        await asyncio.sleep(0)
    await down.wait()
    return "down again"


@lab.query
async def come_down(steps: int) -> bool:
    """Let the one who climbs come down."""
    climbing[steps].set()
    return True


@lab.query
async def hang(name: str) -> str:
    """Go on until it is cancelled."""
    states[name] = "running"
    try:
        await asyncio.Event().wait()
    finally:
        states[name] = "ended"
    return "never"


@lab.query
def hang_in_thread(name: str) -> str:
    """Keep a thread for longer than any client waits."""
    import time

    states[name] = "running"
    time.sleep(30)
    return "never"


@lab.query
def state(name: str) -> str:
    """Say what became of a tool that hangs."""
    return states.get(name, "unknown")


@lab.command
def deposit(account: str, cents: Annotated[int, Meta(ge=1)]) -> Account:
    """Put money on an account."""
    if account not in accounts:
        raise NoSuchAccount(data={"account": account, "known": sorted(accounts)})
    accounts[account] += cents
    effects[account] = effects.get(account, 0) + 1
    return Account(account, accounts[account])


@lab.command(tool=ToolOptions(destructive=False))
async def slow_deposit(account: str, cents: int, seconds: float) -> Account:
    """Put money on an account, slowly."""
    effects[account] = effects.get(account, 0) + 1
    await asyncio.sleep(seconds)
    accounts[account] = accounts.get(account, 0) + cents
    return Account(account, accounts[account])


@lab.query
def count_effects(account: str) -> int:
    """Say how often an account was changed."""
    return effects.get(account, 0)


@lab.query
def fail() -> None:
    """Fail in a way that no one foresaw."""
    raise RuntimeError("the password is hunter2")


@lab.resource("lab://readme", title="Read me")
def readme() -> str:
    """What this is."""
    print("stray: in a resource")
    return "A laboratory.\n"


@lab.resource("lab://dot", mime_type="image/png")
def dot() -> bytes:
    """One dot."""
    return PNG


@lab.resource("lab://accounts/{name}")
def account_of(name: str) -> Account:
    """An account."""
    if name not in accounts:
        raise NoSuchAccount(data={"account": name})
    return Account(name, accounts[name])


@lab.resource("lab://squares/{number}")
def square(number: int) -> int:
    """The square of a number."""
    return number * number


@lab.prompt(title="Review")
def review(code: Annotated[str, Meta(description="What to review")], strict: bool = False) -> str:
    """Ask for a review."""
    print("stray: in a prompt")
    return f"Review this{' strictly' if strict else ''}: {code}"


@lab.prompt
def talk(topic: str) -> list[Message]:
    """Begin to talk."""
    return [Message(f"Let us talk about {topic}."), Message(Image(PNG), role="assistant")]
