"""Words: hover, completion and diagnostics, with duet-rpc."""

import re
from collections.abc import Iterator

from duet_rpc.lsp import Diagnostic, LanguageServer, Position, Severity, TextDocument

server = LanguageServer("words", version="1.0")


@server.hover
def hover(document: TextDocument, position: Position) -> str | None:
    word = document.word_at(position)
    return f"**{word}**: {len(word)} letters" if word else None


@server.completion
def complete(document: TextDocument) -> list[str]:
    return sorted({word for word, _ in document.words()})


@server.on_change
def check(document: TextDocument) -> Iterator[Diagnostic]:
    for found in re.finditer("todo", document.text):
        yield Diagnostic(document.range(*found.span()), "to be done", Severity.WARNING)


server.run()
