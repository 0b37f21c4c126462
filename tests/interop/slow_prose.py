"""The language server of the examples, with a request that waits until it is cancelled."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))

from duet_rpc import Context
from duet_rpc.lsp import Session
from prose import server


@server.feature("prose/wait")
def wait(session: Session, ctx: Context) -> None:
    """Tell that it has begun, and wait."""
    session.log_message("waiting")
    while not ctx.cancelled:
        time.sleep(0.005)


server.run()
