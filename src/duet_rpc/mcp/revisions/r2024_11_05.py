"""The first revision: tools, resources and prompts, after a handshake."""

from duet_rpc.mcp.revision import HANDSHAKE_METHODS, Revision

REVISION = Revision(
    name="2024-11-05",
    methods=HANDSHAKE_METHODS,
    has_annotations=False,
    has_structure=False,
    has_icons=False,
    has_completions=False,
    names_missing_id=True,
    resource_not_found=-32002,
)
