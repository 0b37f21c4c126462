"""The language server of the examples, with requests that wait, report, and answer in parts."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))

from duet_rpc import Context
from duet_rpc.lsp import Position, Range, Session, TextDocument
from prose import server


@server.feature("prose/wait")
def wait(session: Session, ctx: Context) -> None:
    """Tell that it has begun, and wait."""
    session.log_message("waiting")
    while not ctx.cancelled:
        time.sleep(0.005)


@server.feature("prose/index")
def index(ctx: Context) -> str:
    """Index everything."""
    ctx.progress(1, 2, "of the request")
    with server.work_done("Index", message="slowly") as work:
        work.report(1, 2, "of the server")
    return "indexed"


@server.feature("textDocument/declaration")
def find(document: TextDocument, position: Position) -> Iterator[Range]:
    """Find a word, one place after the other."""
    wanted = document.word_at(position)
    yield from (where for word, where in document.words() if word == wanted)


server.run()
