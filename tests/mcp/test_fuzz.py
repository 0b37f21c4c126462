"""Random and mutated messages in each revision; see `fuzzer` for what has to hold.

`DUET_RPC_MCP_FUZZ=1000000 make check ARGS="-s tests/mcp/test_fuzz.py"` sends a million in each.
"""

import os

import pytest

from tests.mcp.fuzzer import fuzz
from tests.mcp.line import REVISIONS

COUNT = int(os.environ.get("DUET_RPC_MCP_FUZZ", "4000"))
SEED = int(os.environ.get("DUET_RPC_MCP_FUZZ_SEED", "1"))

pytestmark = pytest.mark.timeout(max(120, COUNT // 50))


@pytest.mark.parametrize("revision", REVISIONS)
def test_whatever_is_sent(revision: str) -> None:
    tally = fuzz(revision, COUNT, SEED)
    print(f"{revision}: {tally}")
    assert tally.messages >= COUNT
    assert tally.results > COUNT // 20
    assert tally.codes.keys() <= {
        -32700,
        -32600,
        -32601,
        -32602,
        -32603,
        -32002,
        -32021,
        -32022,
        4001,
    }
