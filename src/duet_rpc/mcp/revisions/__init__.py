"""The revisions of MCP that are served, the newest first."""

from duet_rpc.mcp.revision import Revision
from duet_rpc.mcp.revisions.r2024_11_05 import REVISION as _FIRST
from duet_rpc.mcp.revisions.r2025_03_26 import REVISION as _SECOND
from duet_rpc.mcp.revisions.r2025_06_18 import REVISION as _THIRD
from duet_rpc.mcp.revisions.r2025_11_25 import REVISION as _FOURTH
from duet_rpc.mcp.revisions.r2026_07_28 import REVISION as _FIFTH

REVISIONS: dict[str, Revision] = {
    each.name: each for each in (_FIFTH, _FOURTH, _THIRD, _SECOND, _FIRST)
}
NEWEST_HANDSHAKE: Revision = _FOURTH
"""What `initialize` agrees on if the client asks for one that we do not have."""
EVERY_METHOD: frozenset[str] = frozenset().union(*(each.methods for each in REVISIONS.values()))
