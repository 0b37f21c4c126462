"""The MCP Python SDK 1 drives tasks: `tasks.py COMMAND...`."""

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, McpError, StdioServerParameters, stdio_client, types
from pydantic import BaseModel


def dump(result: BaseModel) -> Any:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main() -> None:
    server = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    saw: dict[str, Any] = {}
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        opened = await session.initialize()
        saw["capabilities"] = dump(opened.capabilities)["tasks"]
        tasks = session.experimental
        arguments = {"account": "ada", "cents": 5, "seconds": 0.2, "idempotency_key": "task-1"}
        made = await tasks.call_tool_as_task("lab_slow_deposit", arguments)
        saw["made"] = dump(made)["task"]
        saw["polled"] = [status.status async for status in tasks.poll_task(made.task.taskId)]
        result = await tasks.get_task_result(made.task.taskId, types.CallToolResult)
        saw["result"] = dump(result)
        again = await tasks.call_tool_as_task("lab_slow_deposit", arguments)
        saw["again"] = dump(again)["task"]
        saw["listed"] = dump(await tasks.list_tasks())["tasks"]
        try:
            await tasks.cancel_task(made.task.taskId)
        except McpError as error:
            saw["cancelled"] = error.error.code
    print(f"SAW {json.dumps(saw)}")


asyncio.run(main())
