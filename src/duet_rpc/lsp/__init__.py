"""Language servers: `LanguageServer`, the documents it keeps, and the values it speaks of.

server = LanguageServer("words", version="1.0")

@server.hover
def hover(document: TextDocument, position: Position) -> str:
    return document.word_at(position)

server.run()
"""

from duet_rpc.lsp.documents import Documents, TextDocument
from duet_rpc.lsp.lifecycle import Editor
from duet_rpc.lsp.server import LanguageServer
from duet_rpc.lsp.session import Session
from duet_rpc.lsp.types import (
    CodeAction,
    CompletionItem,
    Diagnostic,
    DocumentSymbol,
    Hover,
    Location,
    MarkupContent,
    Position,
    Range,
    Severity,
    TextDocumentIdentifier,
    TextEdit,
    WorkspaceEdit,
)
from duet_rpc.lsp.work_done import WorkDone

__all__ = [
    "CodeAction",
    "CompletionItem",
    "Diagnostic",
    "DocumentSymbol",
    "Documents",
    "Editor",
    "Hover",
    "LanguageServer",
    "Location",
    "MarkupContent",
    "Position",
    "Range",
    "Session",
    "Severity",
    "TextDocument",
    "TextDocumentIdentifier",
    "TextEdit",
    "WorkDone",
    "WorkspaceEdit",
]
