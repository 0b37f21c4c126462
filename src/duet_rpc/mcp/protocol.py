"""The methods of the protocol itself, as a service: the opening, the lists, the log level."""

from typing import TYPE_CHECKING, Any, cast

from duet_rpc.context import Context
from duet_rpc.mcp.completion import Argument, Reference, list_choices, spell_choices
from duet_rpc.mcp.errors import malformed
from duet_rpc.mcp.listening import MAX_LISTENS, MAX_SUBSCRIBED, Wanted
from duet_rpc.mcp.paging import make_page
from duet_rpc.mcp.revisions import NEWEST_HANDSHAKE, REVISIONS
from duet_rpc.service import Service
from duet_rpc.wire.dialect import MCP

if TYPE_CHECKING:
    from duet_rpc.mcp.asked import Asked
    from duet_rpc.mcp.face import BoundMcp

_SERVER_INFO = "io.modelcontextprotocol/serverInfo"


def _asked(ctx: Context) -> "Asked":
    return cast("Asked", ctx._asked)


def make_protocol(bound: "BoundMcp") -> Service:
    """Make the protocol's own methods."""
    service = Service(ignore_unknown=True)
    face = bound.face

    def page(ctx: Context, name: str, items: list[Any], cursor: str | None) -> dict[str, Any]:
        result = make_page(name, items, cursor, face.page_size)
        if _asked(ctx).revision.has_cache_hints:
            result |= {"ttlMs": face.cache_ms, "cacheScope": "private"}
        return result

    @service.query(inline=True, name="initialize")
    def initialize(
        protocolVersion: str,
        ctx: Context,
        capabilities: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        wanted = REVISIONS.get(protocolVersion)
        agreed = NEWEST_HANDSHAKE if wanted is None or wanted.is_modern else wanted
        session = _asked(ctx).session
        session.agree(agreed)
        session.capabilities = capabilities or {}
        result = {
            "protocolVersion": agreed.name,
            "capabilities": bound.capabilities(agreed, offers_tasks=session.offers_tasks),
            "serverInfo": bound.server_info(agreed),
        }
        return result | ({"instructions": face.instructions} if face.instructions else {})

    @service.query(inline=True, name="server/discover")
    def discover(ctx: Context) -> dict[str, Any]:
        revision, session = _asked(ctx).revision, _asked(ctx).session
        result: dict[str, Any] = {
            "supportedVersions": list(REVISIONS),
            "capabilities": bound.capabilities(revision, offers_tasks=session.offers_tasks),
            "ttlMs": face.cache_ms,
            "cacheScope": "private",
            "_meta": {_SERVER_INFO: bound.server_info(revision)},
        }
        return result | ({"instructions": face.instructions} if face.instructions else {})

    @service.query(inline=True, name="ping")
    def ping() -> dict[str, Any]:
        return {}

    @service.query(inline=True, name="tools/list")
    def list_tools(ctx: Context, cursor: str | None = None) -> dict[str, Any]:
        revision, session = _asked(ctx).revision, _asked(ctx).session
        tools = bound.listed_tools.describe(revision, offers_tasks=session.offers_tasks)
        return page(ctx, "tools", tools, cursor)

    @service.query(inline=True, name="resources/list")
    def list_resources(ctx: Context, cursor: str | None = None) -> dict[str, Any]:
        return page(ctx, "resources", bound.resources.describe(_asked(ctx).revision), cursor)

    @service.query(inline=True, name="resources/templates/list")
    def list_templates(ctx: Context, cursor: str | None = None) -> dict[str, Any]:
        templates = bound.resources.describe_templates(_asked(ctx).revision)
        return page(ctx, "resourceTemplates", templates, cursor)

    @service.query(inline=True, name="prompts/list")
    def list_prompts(ctx: Context, cursor: str | None = None) -> dict[str, Any]:
        return page(ctx, "prompts", bound.prompts.describe(_asked(ctx).revision), cursor)

    @service.query(inline=True, name="resources/subscribe")
    def subscribe(uri: str, ctx: Context) -> dict[str, Any]:
        subscribed = _asked(ctx).session.subscribed
        if len(subscribed) >= MAX_SUBSCRIBED and uri not in subscribed:
            raise malformed(f"a client subscribes to {MAX_SUBSCRIBED} resources at most")
        subscribed.add(uri)
        return {}

    @service.query(inline=True, name="resources/unsubscribe")
    def unsubscribe(uri: str, ctx: Context) -> dict[str, Any]:
        _asked(ctx).session.subscribed.discard(uri)
        return {}

    @service.query(inline=True, name="logging/setLevel")
    def set_level(level: str, ctx: Context) -> dict[str, Any]:
        if level not in MCP.levels:
            known = ", ".join(MCP.levels)
            raise malformed(f"there is no level {level[:40]!r}; the levels are {known}")
        _asked(ctx).session.level = level
        return {}

    @service.query(inline=True, name="subscriptions/listen")
    def listen(notifications: Wanted, ctx: Context) -> dict[str, Any]:
        asked = _asked(ctx)
        if len(asked.session.listens) >= MAX_LISTENS:
            raise malformed(f"a client listens under {MAX_LISTENS} requests at most")
        assert asked.id is not None, "it is a query"
        asked.session.listens.begin(asked.id, notifications)
        return {}

    @service.query(inline=True, name="completion/complete")
    def complete(ref: Reference, argument: Argument) -> dict[str, Any]:
        """Complete from what is known of the argument; a function of its own goes before."""
        method = bound.find_target(ref)
        if method is None:
            raise malformed(f"there is no {ref.type} {ref.target[:80]}")
        return spell_choices(list_choices(method, argument.name, argument.value))

    @service.notification(inline=True, name="notifications/initialized")
    def initialized() -> None:
        pass

    @service.notification(inline=True, name="notifications/progress")
    def progressed() -> None:
        pass

    @service.notification(inline=True, name="notifications/roots/list_changed")
    def roots_changed() -> None:
        pass

    return service
