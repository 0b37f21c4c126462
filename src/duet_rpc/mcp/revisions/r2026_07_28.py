"""The fifth: no handshake, results with a type, hints for caches, one call to listen."""

from msgspec.structs import replace

from duet_rpc.mcp.revision import TaskForm
from duet_rpc.mcp.revisions import r2025_11_25

_GONE = {
    "initialize",
    "notifications/initialized",
    "ping",
    "resources/subscribe",
    "resources/unsubscribe",
    "logging/setLevel",
    "notifications/progress",
    "notifications/roots/list_changed",
    "tasks/result",
    "tasks/list",
}
_NEW = {"server/discover", "subscriptions/listen", "tasks/update"}

REVISION = replace(
    r2025_11_25.REVISION,
    name="2026-07-28",
    is_modern=True,
    methods=(r2025_11_25.REVISION.methods - _GONE) | _NEW,
    has_cache_hints=True,
    resource_not_found=-32602,
    tasks=TaskForm(
        extension="io.modelcontextprotocol/tasks",
        ttl="ttlMs",
        poll_interval="pollIntervalMs",
        of_failed_tool="completed",
        holds_result=True,
        cancel_shows_task=False,
        refusal=-32021,
    ),
)
