"""The second: batches, annotations of tools, audio, messages of progress."""

from msgspec.structs import replace

from duet_rpc.mcp.revisions import r2024_11_05

REVISION = replace(
    r2024_11_05.REVISION,
    name="2025-03-26",
    takes_batches=True,
    has_annotations=True,
    has_completions=True,
)
