"""An MCP server out of the official Python SDK: one tool, which takes its time as it likes."""

import random
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="add", input_schema={"type": "object"})])


async def call_tool(ctx: Any, params: Any) -> types.CallToolResult:
    await anyio.sleep(random.random() / 20)
    total = params.arguments["a"] + params.arguments["b"]
    return types.CallToolResult(content=[types.TextContent(type="text", text=str(total))])


async def serve() -> None:
    server = Server("adder", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(serve)
