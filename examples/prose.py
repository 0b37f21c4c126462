"""A language server for prose: doubled words, trailing spaces, headings, words to complete.

python examples/prose.py        what an editor runs; docs/language-server.md says how to set it up
"""

import re
from collections import Counter
from collections.abc import Iterator

from duet_rpc.lsp import (
    CodeAction,
    CompletionItem,
    Diagnostic,
    DocumentSymbol,
    LanguageServer,
    Position,
    Range,
    Severity,
    TextDocument,
    TextEdit,
    WorkspaceEdit,
)

server = LanguageServer("prose", version="1.0")

DOUBLED = re.compile(r"\b(\w+)[ \t]+\1\b", re.IGNORECASE)
TRAILING = re.compile(r"[ \t]+(?=\r?$)", re.MULTILINE)
HEADING = re.compile(r"^(#{1,6})[ \t]+(.+?)[ \t\r]*$", re.MULTILINE)
STRING = 15  # the protocol's symbol kind that Markdown headings usually have


@server.on_change
def check(document: TextDocument) -> Iterator[Diagnostic]:
    """Find words that are written twice, and spaces at the end of a line."""
    for found in DOUBLED.finditer(document.text):
        where = document.range(*found.span())
        yield Diagnostic(where, f"“{found[1]}” twice", Severity.WARNING, "prose", "doubled")
    for found in TRAILING.finditer(document.text):
        where = document.range(*found.span())
        yield Diagnostic(where, "spaces at the end of the line", Severity.HINT, "prose", "trailing")


@server.hover
def hover(document: TextDocument, position: Position) -> str | None:
    """Tell how often a word is used."""
    word = document.word_at(position)
    if not word:
        return None
    counts = Counter(each.lower() for each, _ in document.words())
    return f"**{word}**: {counts[word.lower()]} of {counts.total()} words"


@server.completion
def complete(document: TextDocument, position: Position) -> list[CompletionItem]:
    """Offer the longer words of the document, the most frequent first."""
    counts = Counter(word for word, _ in document.words() if len(word) > 3)
    return [
        CompletionItem(word, sort_text=f"{place:05}", detail=f"used {count} times")
        for place, (word, count) in enumerate(counts.most_common(100))
    ]


@server.references
def references(document: TextDocument, position: Position) -> list[Range]:
    """List where a word is used."""
    wanted = document.word_at(position)
    return [where for word, where in document.words() if word == wanted]


@server.definition
def definition(document: TextDocument, position: Position) -> Range | None:
    """Go to where a word is used first."""
    return next(iter(references(document, position)), None)


@server.rename
def rename(document: TextDocument, position: Position, new_name: str) -> list[TextEdit]:
    """Write another word wherever one is used."""
    return [TextEdit(where, new_name) for where in references(document, position)]


@server.formatting
def formatting(document: TextDocument) -> str:
    """Take away the spaces at the ends of lines."""
    return TRAILING.sub("", document.text)


@server.document_symbol
def headings(document: TextDocument) -> Iterator[DocumentSymbol]:
    """List the headings of Markdown."""
    for found in HEADING.finditer(document.text):
        where = document.range(*found.span())
        yield DocumentSymbol(found[2], STRING, where, where, detail=found[1])


@server.code_action
def fixes(document: TextDocument, range: Range) -> Iterator[CodeAction]:
    """Offer to keep one of two words."""
    start, end = document.offset(range.start), document.offset(range.end)
    for found in DOUBLED.finditer(document.text):
        if found.start() <= end and start <= found.end():
            edit = TextEdit(document.range(*found.span()), found[1])
            changes = WorkspaceEdit({document.uri: [edit]})
            yield CodeAction(f"Keep one “{found[1]}”", "quickfix", edit=changes)


if __name__ == "__main__":
    server.run()
