"""The fifth: no handshake, results with a type, hints for caches, one call to listen."""

from msgspec.structs import replace

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
}

REVISION = replace(
    r2025_11_25.REVISION,
    name="2026-07-28",
    is_modern=True,
    methods=(r2025_11_25.REVISION.methods - _GONE) | {"server/discover", "subscriptions/listen"},
    has_cache_hints=True,
    resource_not_found=-32602,
)
