"""The MCP Python SDK 1 as a client: `driver.py tour|leave handshake COMMAND...`."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from mcp import ClientSession, McpError, StdioServerParameters, stdio_client, types
from pydantic import AnyUrl, BaseModel

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from scenarios import main


def dump(result: BaseModel) -> Any:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


class Adapter:
    def __init__(self, session: ClientSession, opened: types.InitializeResult) -> None:
        self._session = session
        self._opened = opened
        self._hanging: Any = None

    def version(self) -> str:
        return str(self._opened.protocolVersion)

    def server(self) -> Any:
        said = dump(self._opened)
        return {
            "info": said["serverInfo"],
            "instructions": said.get("instructions"),
            "capabilities": said["capabilities"],
        }

    def describe_error(self, error: BaseException) -> Any:
        return dump(error.error) if isinstance(error, McpError) else {"text": str(error)}

    async def call(
        self,
        name: str,
        arguments: Any = None,
        *,
        seconds: float | None = None,
        progress: Any = None,
    ) -> Any:
        if name == "lab_hang":
            self._hanging = self._session._request_id  # the id that comes next
        limit = None if seconds is None else timedelta(seconds=seconds)
        found = await self._session.call_tool(
            name, arguments, read_timeout_seconds=limit, progress_callback=progress
        )
        return dump(found)

    async def tools(self) -> Any:
        return dump(await self._session.list_tools())

    async def resources(self) -> Any:
        return dump(await self._session.list_resources())

    async def templates(self) -> Any:
        return dump(await self._session.list_resource_templates())

    async def read(self, uri: str) -> Any:
        return dump(await self._session.read_resource(AnyUrl(uri)))

    async def prompts(self) -> Any:
        return dump(await self._session.list_prompts())

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return dump(await self._session.get_prompt(name, arguments))

    async def set_level(self, level: Any) -> Any:
        return dump(await self._session.set_logging_level(level))

    async def ping(self) -> Any:
        return dump(await self._session.send_ping())

    async def cancelled(self) -> None:
        """Tell the server: this client does not do so by itself."""
        params = types.CancelledNotificationParams(requestId=self._hanging, reason="no more")
        said = types.CancelledNotification(params=params)
        await self._session.send_notification(types.ClientNotification(said))


@asynccontextmanager
async def open_client(mode: str, command: list[str]) -> AsyncIterator[Adapter]:
    server = StdioServerParameters(command=command[0], args=command[1:])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        yield Adapter(session, await session.initialize())


if __name__ == "__main__":
    main(open_client)
