"""The third: structured results, titles, links to resources, questions to the user. No batches."""

from msgspec.structs import replace

from duet_rpc.mcp.revisions import r2025_03_26

REVISION = replace(
    r2025_03_26.REVISION,
    name="2025-06-18",
    takes_batches=False,
    has_structure=True,
    elicits=frozenset({"form"}),
)
