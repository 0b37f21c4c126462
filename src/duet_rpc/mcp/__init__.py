"""MCP: a `Service` as the tools, resources and prompts of an agent.

    from duet_rpc import Server, Service
    from duet_rpc.mcp import Mcp

    Server(service, face=Mcp()).run_stdio()

`duet-rpc mcp FILE` does the same from a terminal, and in the configuration of a host.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duet_rpc.mcp.content import Annotations as Annotations
    from duet_rpc.mcp.content import Audio as Audio
    from duet_rpc.mcp.content import Content as Content
    from duet_rpc.mcp.content import EmbeddedResource as EmbeddedResource
    from duet_rpc.mcp.content import Icon as Icon
    from duet_rpc.mcp.content import Image as Image
    from duet_rpc.mcp.content import Message as Message
    from duet_rpc.mcp.content import ResourceContents as ResourceContents
    from duet_rpc.mcp.content import ResourceLink as ResourceLink
    from duet_rpc.mcp.content import Text as Text
    from duet_rpc.mcp.errors import ResourceNotFound as ResourceNotFound
    from duet_rpc.mcp.face import Mcp as Mcp
    from duet_rpc.methods.tool_options import ToolOptions as ToolOptions

_CONTENT = (
    *("Annotations", "Audio", "Content", "EmbeddedResource", "Icon", "Image", "Message"),
    *("ResourceContents", "ResourceLink", "Text"),
)
_PLACES = {
    **dict.fromkeys(_CONTENT, "duet_rpc.mcp.content"),
    "Mcp": "duet_rpc.mcp.face",
    "ResourceNotFound": "duet_rpc.mcp.errors",
    "ToolOptions": "duet_rpc.methods.tool_options",
}

__all__ = [
    "Annotations",
    "Audio",
    "Content",
    "EmbeddedResource",
    "Icon",
    "Image",
    "Mcp",
    "Message",
    "ResourceContents",
    "ResourceLink",
    "ResourceNotFound",
    "Text",
    "ToolOptions",
]


def __getattr__(name: str) -> Any:
    """Load what is asked for: a file that declares one picture needs no server."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
