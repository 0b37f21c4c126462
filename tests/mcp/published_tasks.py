"""What messages about tasks have to look like.

The first form is in the schema of 2025-11-25. The second is an extension, whose schema is in none
of the published ones: what is here is that of its package, `@modelcontextprotocol/ext-tasks`.
"""

from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

if TYPE_CHECKING:
    from tests.mcp.published import Published

_TASK: dict[str, Any] = {
    "taskId": {"type": "string"},
    "status": {"enum": ["working", "input_required", "completed", "failed", "cancelled"]},
    "statusMessage": {"type": "string"},
    "createdAt": {"type": "string"},
    "lastUpdatedAt": {"type": "string"},
    "ttlMs": {"type": ["integer", "null"]},
    "pollIntervalMs": {"type": "integer"},
}
_REQUIRED = ["resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs"]
_ERROR = {
    "type": "object",
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": {}},
    "required": ["code", "message"],
    "additionalProperties": False,
}


def _of(status: str, more: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            **_TASK,
            "status": {"const": status},
            "resultType": {"const": "complete"},
            **more,
        },
        "required": [*_REQUIRED, *more],
        "additionalProperties": False,
    }


_SHOWN = Draft202012Validator(
    {
        "oneOf": [
            _of("working", {}),
            _of("cancelled", {}),
            _of("completed", {"result": {"type": "object"}}),
            _of("failed", {"error": _ERROR}),
        ]
    }
)
_CREATED = Draft202012Validator(
    {
        "type": "object",
        "properties": {**_TASK, "resultType": {"const": "task"}},
        "required": _REQUIRED,
        "additionalProperties": False,
    }
)


def check_task_result(schema: "Published", method: str, result: Any) -> bool:
    """Check a result that is about a task; False if it is about something else."""
    if method == "tools/call":
        return _check_created(schema, result)
    if not method.startswith("tasks/"):
        return False
    if not schema.is_modern:
        names = {"tasks/result": "CallToolResult", "tasks/list": "ListTasksResult"}
        schema.check_part(names.get(method, "Task"), result)
    elif method == "tasks/get":
        _SHOWN.validate(result)
        if "result" in result:
            schema.check_part("CallToolResult", result["result"])
            assert result["result"]["resultType"] == "complete"
    else:
        assert result == {"resultType": "complete"}
    return True


def _check_created(schema: "Published", result: Any) -> bool:
    if schema.is_modern and result["resultType"] == "task":
        _CREATED.validate(result)
        return True
    if schema.revision == "2025-11-25" and "task" in result:
        schema.check_part("CreateTaskResult", result)
        schema.check_part("Task", result["task"])
        return True
    return False
