"""The fourth, the last with a handshake: icons, questions by a web page, tasks."""

from msgspec.structs import replace

from duet_rpc.mcp.revision import TaskForm
from duet_rpc.mcp.revisions import r2025_06_18

REVISION = replace(
    r2025_06_18.REVISION,
    name="2025-11-25",
    methods=r2025_06_18.REVISION.methods
    | {"tasks/get", "tasks/result", "tasks/cancel", "tasks/list"},
    has_icons=True,
    names_missing_id=False,
    elicits=frozenset({"form", "url"}),
    tasks=TaskForm(),
)
