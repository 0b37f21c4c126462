"""Words: hover, completion and diagnostics, with pygls."""

import re

from lsprotocol import types
from pygls.lsp.server import LanguageServer

server = LanguageServer("words", "1.0")


@server.feature(types.TEXT_DOCUMENT_HOVER)
def hover(ls: LanguageServer, params: types.HoverParams) -> types.Hover | None:
    document = ls.workspace.get_text_document(params.text_document.uri)
    word = document.word_at_position(params.position)
    text = f"**{word}**: {len(word)} letters"
    content = types.MarkupContent(types.MarkupKind.Markdown, text)
    return types.Hover(content) if word else None


@server.feature(types.TEXT_DOCUMENT_COMPLETION)
def complete(ls: LanguageServer, params: types.CompletionParams) -> list[types.CompletionItem]:
    document = ls.workspace.get_text_document(params.text_document.uri)
    return [types.CompletionItem(word) for word in sorted(set(re.findall(r"\w+", document.source)))]


@server.feature(types.TEXT_DOCUMENT_DID_OPEN)
@server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
def check(ls: LanguageServer, params: types.DidOpenTextDocumentParams) -> None:
    document = ls.workspace.get_text_document(params.text_document.uri)
    found = []
    for number, line in enumerate(document.lines):
        for match in re.finditer("todo", line):
            start, end = (types.Position(number, at) for at in match.span())
            severity = types.DiagnosticSeverity.Warning
            found.append(types.Diagnostic(types.Range(start, end), "to be done", severity))
    ls.text_document_publish_diagnostics(
        types.PublishDiagnosticsParams(document.uri, found, document.version)
    )


server.start_io()
