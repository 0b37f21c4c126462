"""A client that drives tasks by raw messages, in both forms, on a socket or with a process."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from duet_rpc import Server, Service
from duet_rpc.mcp import Mcp
from duet_rpc.policy import AGENT
from duet_rpc.server.endpoints import Unix
from tests.mcp.conversation import DECLARED
from tests.mcp.line import MODERN, MODERN_META
from tests.mcp.published import published

HANDSHAKE = "2025-11-25"
FORMS = [HANDSHAKE, MODERN]
PATIENCE = 30.0


class Wire:
    """One connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, revision: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.revision = revision
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.notified: list[Any] = []
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @property
    def is_modern(self) -> bool:
        return self.revision == MODERN

    async def _read(self) -> None:
        while line := await self._reader.readline():
            message = json.loads(line)
            if "method" in message:
                self.notified.append(message)
            else:
                self._answers.pop(message["id"]).set_result(message)
        for waiting in self._answers.values():
            waiting.cancel()

    async def open(self) -> Any:
        """Begin to talk; return the capabilities of the server."""
        if self.is_modern:
            return (await self.ask("server/discover"))["result"]["capabilities"]
        info = {"name": "tests", "version": "1"}
        params = {"protocolVersion": self.revision, "capabilities": {}, "clientInfo": info}
        capabilities = (await self.ask("initialize", params))["result"]["capabilities"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return capabilities

    def send(self, message: Any) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    def start(
        self, method: str, params: Any = None, *, declared: bool = True
    ) -> "tuple[int, asyncio.Future[Any]]":
        """Send a request; return its id, and its answer to come."""
        params = dict(params or {})
        if self.is_modern and "_meta" not in params:
            params["_meta"] = DECLARED if declared else MODERN_META
        id = next(self._ids)
        answer = self._answers[id] = asyncio.get_running_loop().create_future()
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        return id, answer

    async def ask(self, method: str, params: Any = None, *, declared: bool = True) -> Any:
        """Send a request and return its whole answer, which fits the published schema."""
        _, answer = self.start(method, params, declared=declared)
        message = await asyncio.wait_for(answer, PATIENCE)
        published(self.revision).check(message, method)
        return message

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool as a task; return the whole answer."""
        params: dict[str, Any] = {"name": f"t_{tool}", "arguments": arguments}
        return await self.ask("tools/call", params if self.is_modern else params | {"task": {}})

    async def create(self, tool: str, **arguments: Any) -> Any:
        """Call a tool as a task; return the task."""
        result = (await self.call(tool, **arguments))["result"]
        if self.is_modern:
            assert result["resultType"] == "task", result
            return result
        return result["task"]

    async def get(self, id: str) -> Any:
        """Ask for a task."""
        return (await self.ask("tasks/get", {"taskId": id}))["result"]

    async def wait(self, id: str, until: Callable[[Any], bool] | None = None) -> Any:
        """Poll until a task has ended, or is as it should be."""
        until = until or (lambda task: task["status"] != "working")
        async with asyncio.timeout(PATIENCE):
            while not until(task := await self.get(id)):  # noqa: ASYNC110  clients poll
                await asyncio.sleep(0.02)
        return task

    async def result(self, id: str) -> Any:
        """Wait for the end of a task; return the result of its tool."""
        if self.is_modern:
            return (await self.wait(id))["result"]
        return (await self.ask("tasks/result", {"taskId": id}))["result"]

    async def cancel(self, id: str) -> Any:
        """Cancel a task, and ask for it."""
        answer = await self.ask("tasks/cancel", {"taskId": id})
        if self.is_modern:
            assert answer["result"] == {"resultType": "complete"}
            return await self.get(id)
        return answer["result"]

    async def close(self) -> None:
        self._writer.close()
        await self._reading


@asynccontextmanager
async def serving(
    service: Service, path: Path, store: str | None, **options: Any
) -> AsyncIterator["Callable[..., Any]"]:
    """Serve on a socket; give what opens connections to it."""
    face = options.pop("face", None) or Mcp()
    server = Server(service, face=face, policy=options.pop("policy", AGENT), store=store)
    started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    principal = options.pop("principal", None)
    endpoint = Unix(
        str(path / "s"), framing="ndjson", **({"principal": principal} if principal else {})
    )
    serve: asyncio.Future[Any] = asyncio.ensure_future(
        server.serve(endpoint, on_start=started.set_result, drain=options.pop("drain", 0.2))
    )

    @asynccontextmanager
    async def connect(revision: str) -> AsyncIterator[Wire]:
        wire = Wire(*await asyncio.open_unix_connection(str(path / "s")), revision)
        try:
            await wire.open()
            yield wire
        finally:
            await wire.close()

    await asyncio.wait({started, serve}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield connect
    finally:
        serve.cancel()
        await asyncio.wait([serve])
        server.close()


@asynccontextmanager
async def spawn(command: list[str], revision: str) -> AsyncIterator[tuple[Wire, Any]]:
    """Start a server on stdin and stdout; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    wire = Wire(process.stdout, process.stdin, revision)
    try:
        await wire.open()
        yield wire, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await wire.close()
