"""A language server out of pygls: what it hovers over is the position itself."""

import asyncio
import random

from lsprotocol import types
from pygls.lsp.server import LanguageServer

server = LanguageServer("hoverer", "1")


@server.feature(types.TEXT_DOCUMENT_HOVER)
async def hover(params: types.HoverParams) -> types.Hover:
    await asyncio.sleep(random.random() / 20)
    at = params.position
    return types.Hover(
        contents=types.MarkupContent(types.MarkupKind.PlainText, f"{at.line}:{at.character}")
    )


if __name__ == "__main__":
    server.start_io()
