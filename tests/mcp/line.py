"""A server of MCP driven by hand: lines in, lines out, no loop, no threads, no clock.

The service has something of every kind. The tool `hold` does not end before the test says so.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from duet_rpc import Context, RpcError, Server, Service
from duet_rpc.context import Origin
from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import Job
from duet_rpc.hosts.debug import connection_class
from duet_rpc.mcp import (
    Annotations,
    Audio,
    Content,
    EmbeddedResource,
    Icon,
    Image,
    Mcp,
    Message,
    ResourceContents,
    ResourceLink,
    Text,
    ToolOptions,
)
from duet_rpc.policy import AGENT
from duet_rpc.server.server import assemble_dispatcher
from duet_rpc.wire.dialect import MCP
from duet_rpc.wire.framing.line import LineFraming
from tests.helpers import HandHost, Recorder

PREFIX = "io.modelcontextprotocol/"
MODERN = "2026-07-28"
REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN]
MODERN_META = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}


class Refused(RpcError):
    code, message = 4001, "Refused"


class Point(msgspec.Struct):
    """A place."""

    x: int
    y: float = 0.0
    tags: list[str] = []


class Foreseen(Exception):
    """What a handler raises that no one foresaw but the test."""


def make_service() -> Service:
    """Make a service that has something of every kind."""
    service = Service("zoo", version="1", description="Of every kind.")

    @service.query
    def nothing() -> None:
        pass

    @service.query(tool=ToolOptions(title="A number", open_world=True))
    def number(a: int, b: Annotated[int, Meta(description="The second")] = 2) -> int:
        """Add."""
        return a + b

    @service.query
    def text(value: str) -> str:
        return value

    @service.query
    def anything(value: Any = None) -> Any:
        return value

    @service.query
    def numbers(*values: int) -> list[int]:
        return sorted(values)

    @service.query
    def point(at: Point) -> Point:
        """Give a place back."""
        return at

    @service.query
    def either(value: int | Point | None) -> int | Point | None:
        return value

    @service.query
    def table() -> dict[str, Point]:
        return {"a": Point(1)}

    @service.query
    def picture() -> Image:
        return Image(b"png", annotations=Annotations(audience=["user"], priority=0.5))

    @service.query
    def contents() -> list[Content]:
        return [
            Text("a text"),
            Image(b"png"),
            Audio(b"wav"),
            ResourceLink(uri="zoo://all", name="all", title="All", size=3),
            EmbeddedResource(ResourceContents("zoo://all", "text/plain", text="all")),
            EmbeddedResource(ResourceContents("zoo://all", blob=b"all")),
        ]

    @service.query
    def steps(count: Annotated[int, Meta(ge=0, le=20)], ctx: Context) -> int:
        for step in range(count):
            ctx.progress(step, count, f"step {step}")
        return count

    @service.query
    def hold(name: str = "") -> str:
        return name

    @service.query(errors=Refused)
    def refuse(data: Any = None) -> int:
        raise Refused(data=data)

    @service.query
    def fail() -> int:
        raise Foreseen("not for the client")

    @service.query
    def unwritable() -> Any:
        return object()

    @service.command
    def act(amount: int, ctx: Context) -> Point:
        return Point(amount)

    @service.command(retry_safe=True, tool=ToolOptions(destructive=False))
    def act_again(amount: int) -> int:
        return amount

    @service.resource("zoo://all", title="All", mime_type="text/markdown")
    def everything() -> str:
        """All there is."""
        return "all"

    @service.resource("zoo://bytes")
    def some_bytes() -> bytes:
        return b"\x00\xff"

    @service.resource("zoo://points/{x}")
    def point_at(x: int) -> Point:
        if x < 0:
            raise Refused(data={"x": x})
        return Point(x)

    @service.resource("zoo://files/{path*}")
    def file_at(path: str) -> str:
        if path == "broken":
            raise Foreseen("not for the client")
        return path

    @service.prompt(title="A prompt")
    def ask(topic: Annotated[str, Meta(description="About what")], often: int = 1) -> str:
        """Ask for something."""
        return topic * often

    @service.prompt
    def discuss(topic: str = "tea") -> list[Message]:
        return [
            Message(topic),
            Message(Image(b"png"), role="assistant"),
            Message(EmbeddedResource(ResourceContents("zoo://all", text="all"))),
        ]

    @service.prompt
    def fail_to_ask() -> str:
        raise Foreseen("not for the client")

    return service


FACE = Mcp(
    instructions="Look, do not touch.",
    title="The zoo",
    website="https://zoo.example",
    icons=[Icon("https://zoo.example/icon.png", "image/png", ["48x48"], "light")],
    page_size=4,
)


class McpHost(HandHost):
    """Writes progress as a real host does; with a loop, it runs what tasks are asked there."""

    gone = None
    loop: asyncio.AbstractEventLoop | None = None

    def run(self, job: Job) -> None:
        if self.loop is None or not job.method.is_async:
            super().run(job)
            return
        assert self.connection is not None
        member = self.loop.run_until_complete(self.connection.dispatcher.run_async(job))
        self.connection.requests.finish(job, member)

    async def wait_without_slot(self, ctx: Context, waiting: Awaitable[object]) -> None:
        await waiting

    def notify(self, method: str, params: Any) -> None:
        assert self.connection is not None
        self.connection.calls.notify(method, encode_params(params))

    def notify_outside(self, method: str, params: Any) -> None:
        assert self.connection is not None
        self.notify(method, params)
        self.connection.outgoing.flush()

    def logger(self, ctx: Context) -> "logging.LoggerAdapter[Any]":
        return logging.LoggerAdapter(logging.getLogger("tests.mcp"), {})


class McpLine:
    """One connection of MCP. The store of its server has a thread: `close` ends it."""

    opened: ClassVar[list["McpLine"]] = []

    def __init__(self, *, held: bool = True) -> None:
        self.log = Recorder()
        self._server = server = Server(make_service(), face=FACE, policy=AGENT)
        McpLine.opened.append(self)
        dispatcher = assemble_dispatcher(server, self.log)
        self.host = McpHost({"zoo.hold"} if held else ())
        self.host.dialect = MCP
        self.host.loop = asyncio.new_event_loop()
        self.host.has_loop = True
        self._face = dispatcher.face
        origin = Origin(connection_id="c1", transport="memory")
        framing = LineFraming(max_message_bytes=AGENT.max_message_bytes)
        self.connection = connection_class(dispatcher)(
            dispatcher, framing, self.host, ConnectionOptions(origin=origin)
        )
        self.host.connection = self.connection

    def close(self) -> None:
        """End what belongs to the server."""
        assert self.host.loop is not None and self._face is not None
        self.host.loop.run_until_complete(self._face.end(time.monotonic() + 10))
        self.host.loop.close()
        self._server.close()
        McpLine.opened.remove(self)

    def send(self, line: bytes) -> list[Any]:
        """Let one line arrive; return the messages that leave."""
        self.connection.receive(line + b"\n")
        return self.take()

    def say(self, method: str, params: Any = None, *, id: Any = None) -> list[Any]:
        """Send a request, or a notification if there is no id."""
        message = {"jsonrpc": "2.0", "method": method}
        message |= {} if params is None else {"params": params}
        message |= {} if id is None else {"id": id}
        return self.send(json.dumps(message).encode())

    def take(self) -> list[Any]:
        """Take the messages that have left since the last time."""
        lines = b"".join(self.host.writes).split(b"\n")
        self.host.writes.clear()
        assert lines.pop() == b"", "each message has the end of its line"
        return [json.loads(line) for line in lines]

    def release(self, job: Job) -> list[Any]:
        """Let a tool that is held end."""
        self.host.open.remove(job)
        self.host.run(job)
        self.connection.go_on()
        return self.take()

    def open(self, revision: str) -> list[Any]:
        """Begin to talk in a revision: by a handshake, where it has one."""
        if revision == MODERN:
            return self.say("server/discover", {"_meta": MODERN_META}, id="opening")
        info = {"name": "tests", "version": "1"}
        params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": info}
        answers = self.say("initialize", params, id="opening")
        assert self.say("notifications/initialized") == []
        return answers
