"""The methods of the protocol that are about tasks. Made when the first of them is asked for."""

from math import inf
from typing import TYPE_CHECKING, Any, cast

from msgspec import Raw

from duet_rpc.context import Context
from duet_rpc.mcp.errors import malformed
from duet_rpc.mcp.revision import TaskForm
from duet_rpc.mcp.task_forms import (
    add_result,
    check_declared,
    describe_result,
    describe_task,
    find_form,
)
from duet_rpc.mcp.task_records import Task, read_id
from duet_rpc.mcp.tools import Tool
from duet_rpc.service import Service
from duet_rpc.wire.messages import NULL

if TYPE_CHECKING:
    from duet_rpc.hosts.on_loop import OnLoop
    from duet_rpc.mcp.asked import Asked
    from duet_rpc.mcp.face import BoundMcp
    from duet_rpc.mcp.tasks import Tasks

CREATE = "tasks/create"
"""What a call becomes that is to be a task. No client can ask for it by this name."""
MAX_PAGE = 50
"""How many tasks a page has at most: each of them is looked up."""
_AFTER = "after-"


def write_cursor(task: Task) -> str:
    """Say where the page after a task begins."""
    return f"{_AFTER}{task.created_at.hex()}-{task.id}"


def read_cursor(cursor: str | None) -> tuple[float, str]:
    """Read the time and the id of the last task before a page."""
    if cursor is None:
        return 0.0, ""
    time, _, id = cursor.removeprefix(_AFTER).partition("-")
    try:
        since = float.fromhex(time)
    except (ValueError, OverflowError):
        since = -1.0
    if not cursor.startswith(_AFTER) or not 0 <= since < inf:
        raise malformed("this is no cursor of ours")
    return since, id


def _asked(ctx: Context) -> "Asked":
    return cast("Asked", ctx._asked)


def _form(ctx: Context) -> TaskForm:
    form = find_form(_asked(ctx))
    assert form is not None, "else the method is not offered"
    check_declared(form, _asked(ctx))
    return form


def make_task_methods(bound: "BoundMcp", tasks: "Tasks") -> Service:
    """Make them."""
    service = Service(ignore_unknown=True)
    by_method = {tool.method.name: tool for tool in bound.tools.values() if tool.has_task}
    methods = {name: tool.method for name, tool in by_method.items()}

    async def find(id: str, ctx: Context) -> tuple[Tool, Task]:
        handle = read_id(id)
        tool = None if handle is None else by_method.get(handle.method)
        if handle is not None and tool is not None:
            task = await tasks.records.find(ctx.principal, tool.method, handle.key)
            if task is not None:
                return tool, task
        raise malformed("there is no such task, or none any more")

    @service.query(name=CREATE)
    async def create(
        method: str, key: str, arguments: Raw, age: float, ctx: Context
    ) -> dict[str, Any]:
        tool, raw = by_method[method], bytes(arguments)
        task = Task(ctx.principal, tool.method, key, None if raw == NULL else raw)
        state = await tasks.create(task, ctx.origin, age)
        return describe_task(tool, _asked(ctx).revision, state)

    @service.query(name="tasks/get")
    async def get(taskId: str, ctx: Context) -> dict[str, Any]:
        form = _form(ctx)
        tool, task = await find(taskId, ctx)
        state = await tasks.look(task, ctx.origin)
        revision = _asked(ctx).revision
        said = describe_task(tool, revision, state)
        return add_result(said, tool, revision, state) if form.holds_result else said

    @service.query(name="tasks/result")
    async def result(taskId: str, ctx: Context) -> Raw:
        tool, task = await find(taskId, ctx)
        host = cast("OnLoop", ctx._peer)  # else there are no tasks
        while (state := await tasks.look(task, ctx.origin)).ending is None:
            await host.wait_without_slot(ctx, tasks.wait(task))
        return describe_result(tool, _asked(ctx).revision, state)

    @service.query(name="tasks/cancel")
    async def cancel(taskId: str, ctx: Context) -> dict[str, Any]:
        form = _form(ctx)
        tool, task = await find(taskId, ctx)
        state = await tasks.cancel(task)
        if not form.cancel_shows_task:
            return {}
        if state is None:
            raise malformed("this task has ended: it cannot be cancelled")
        return describe_task(tool, _asked(ctx).revision, state)

    @service.query(name="tasks/list")
    async def list_tasks(ctx: Context, cursor: str | None = None) -> dict[str, Any]:
        since, last = read_cursor(cursor)
        size = min(bound.face.page_size, MAX_PAGE)
        # Some of them may be as old as the last one of the page before.
        found = await tasks.records.list(ctx.principal, methods, since, 2 * size + 1)
        found = sorted(found, key=lambda task: (task.created_at, task.id))
        left = [task for task in found if (task.created_at, task.id) > (since, last)]
        said: dict[str, Any] = {
            "tasks": [
                describe_task(
                    by_method[task.method.name], _asked(ctx).revision, await tasks.peek(task)
                )
                for task in left[:size]
            ]
        }
        if len(left) > size:
            said["nextCursor"] = write_cursor(left[size - 1])
        return said

    @service.query(name="tasks/update")
    async def update(taskId: str, ctx: Context) -> dict[str, Any]:
        """Take answers; no task asks anything, so they are for nothing."""
        _form(ctx)
        await find(taskId, ctx)
        return {}

    return service
