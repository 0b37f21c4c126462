"""The classes of lsprotocol go in and out as its own converter has them."""

from typing import Any

import msgspec
import pytest
from lsprotocol import types
from lsprotocol.converters import get_converter

from duet_rpc.lsp.attrs_types import structure, unstructure

PLACE = types.Range(types.Position(1, 2), types.Position(3, 4))
ITEM = types.CallHierarchyItem("f", types.SymbolKind.Function, "file:///a", PLACE, PLACE)
DIAGNOSTIC = types.Diagnostic(
    PLACE,
    "bad",
    severity=types.DiagnosticSeverity.Error,
    code="E1",
    tags=[types.DiagnosticTag.Unnecessary],
    related_information=[
        types.DiagnosticRelatedInformation(types.Location("file:///b", PLACE), "here")
    ],
    data={"any": [1, None, {"thing": True}]},
)
DOCUMENT = types.TextDocumentIdentifier("file:///a")
OBJECTS: list[Any] = [
    DIAGNOSTIC,
    types.HoverParams(DOCUMENT, PLACE.start, work_done_token="token"),
    types.HoverParams(DOCUMENT, PLACE.start, work_done_token=7),
    types.InitializeParams(
        types.ClientCapabilities(
            general=types.GeneralClientCapabilities(
                position_encodings=[types.PositionEncodingKind.Utf8]
            )
        ),
        process_id=None,
        root_uri=None,
        trace=types.TraceValue.Verbose,
        workspace_folders=[types.WorkspaceFolder("file:///a", "a")],
    ),
    types.DidChangeTextDocumentParams(
        types.VersionedTextDocumentIdentifier(3, "file:///a"),
        [
            types.TextDocumentContentChangePartial(PLACE, "new"),
            types.TextDocumentContentChangeWholeDocument("all"),
        ],
    ),
    types.CallHierarchyIncomingCall(ITEM, [PLACE]),
    types.CodeActionParams(
        DOCUMENT,
        PLACE,
        types.CodeActionContext([DIAGNOSTIC], only=[types.CodeActionKind.QuickFix]),
    ),
    types.CompletionItem(
        "word",
        kind=types.CompletionItemKind.Text,
        documentation=types.MarkupContent(types.MarkupKind.Markdown, "*word*"),
        text_edit=types.InsertReplaceEdit("word", PLACE, PLACE),
    ),
    types.Hover([types.MarkedStringWithLanguage("python", "x"), "text"]),
    types.Hover("text", PLACE),
    types.WorkspaceEdit(
        document_changes=[
            types.TextDocumentEdit(
                types.OptionalVersionedTextDocumentIdentifier("file:///a", None),
                [types.TextEdit(PLACE, "new")],
            ),
            types.CreateFile("file:///b", options=types.CreateFileOptions(overwrite=True)),
        ]
    ),
    types.DocumentSymbol("a", types.SymbolKind.Class, PLACE, PLACE, children=[]),
    types.ExecuteCommandParams("words.sort", [1, "two", {"three": 3}]),
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_there_and_back(value: Any) -> None:
    converter = get_converter()
    wire = unstructure(value)
    assert wire == converter.unstructure(value, type(value))
    assert structure(wire, type(value)) == value
    theirs = converter.structure(wire, type(value))  # the same, but for tuples in place of lists
    assert unstructure(theirs) == wire
    assert msgspec.json.encode(wire), "nothing is left that JSON cannot carry"


@pytest.mark.parametrize(
    ("wire", "hint"),
    [
        (5, types.Position),
        ({"line": 1}, types.Position),
        ({"line": 1, "character": "x"}, types.Position),
        ({"line": -1, "character": 0}, types.Position),
        ({"textDocument": {"uri": "a"}, "position": None}, types.HoverParams),
        ({"changes": [1]}, types.WorkspaceEdit),
        ({"contents": 5}, types.Hover),
    ],
)
def test_what_does_not_fit_is_refused(wire: Any, hint: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        structure(wire, hint)
