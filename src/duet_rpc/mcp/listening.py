"""`subscriptions/listen`: a request that stays open, and the changes that are sent under it."""

from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

if TYPE_CHECKING:
    from duet_rpc.mcp.session import McpSession

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
MAX_LISTENS = 64
"""Requests to listen that one client may have open."""
MAX_SUBSCRIBED = 1024
"""Resources that one client may have subscribed to."""


class Wanted(Struct):
    """Which changes a client wants to hear of."""

    toolsListChanged: bool = False
    promptsListChanged: bool = False
    resourcesListChanged: bool = False
    resourceSubscriptions: list[str] = []


class Listens:
    """The requests to listen that one client has open, by id."""

    def __init__(self, session: "McpSession") -> None:
        self._session = session
        self._open: dict[bytes, Wanted] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, id: bytes) -> bool:
        return id in self._open

    def begin(self, id: bytes, wanted: Wanted) -> None:
        """Acknowledge one: nothing but resources changes while a service is served."""
        self._open[id] = wanted
        honoured = {"resourceSubscriptions": wanted.resourceSubscriptions}
        self._send(
            id,
            "notifications/subscriptions/acknowledged",
            {"notifications": honoured if wanted.resourceSubscriptions else {}},
        )

    def end(self, id: bytes) -> None:
        """The client listens no more under this id."""
        self._open.pop(id, None)

    def tell_updated(self, uri: str) -> None:
        """Tell of a resource that has changed."""
        for id, wanted in list(self._open.items()):
            if uri in wanted.resourceSubscriptions:
                self._send(id, "notifications/resources/updated", {"uri": uri})

    def _send(self, id: bytes, method: str, params: dict[str, Any]) -> None:
        self._session.notify(method, {**params, "_meta": {SUBSCRIPTION: Raw(id)}})
