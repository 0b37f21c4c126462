"""Which method of the protocol is announced by which capability; nothing else knows the names.

`initialize` answers with what `describe_capabilities` makes of the methods that are served, so what
is announced and what is there cannot differ.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

SyncKind: TypeAlias = Literal["incremental", "full"]

_PROVIDERS = {
    "textDocument/codeAction": "codeActionProvider",
    "textDocument/codeLens": "codeLensProvider",
    "textDocument/completion": "completionProvider",
    "textDocument/declaration": "declarationProvider",
    "textDocument/definition": "definitionProvider",
    "textDocument/diagnostic": "diagnosticProvider",
    "textDocument/documentColor": "colorProvider",
    "textDocument/documentHighlight": "documentHighlightProvider",
    "textDocument/documentLink": "documentLinkProvider",
    "textDocument/documentSymbol": "documentSymbolProvider",
    "textDocument/foldingRange": "foldingRangeProvider",
    "textDocument/formatting": "documentFormattingProvider",
    "textDocument/hover": "hoverProvider",
    "textDocument/implementation": "implementationProvider",
    "textDocument/inlayHint": "inlayHintProvider",
    "textDocument/inlineCompletion": "inlineCompletionProvider",
    "textDocument/inlineValue": "inlineValueProvider",
    "textDocument/linkedEditingRange": "linkedEditingRangeProvider",
    "textDocument/moniker": "monikerProvider",
    "textDocument/onTypeFormatting": "documentOnTypeFormattingProvider",
    "textDocument/prepareCallHierarchy": "callHierarchyProvider",
    "textDocument/prepareTypeHierarchy": "typeHierarchyProvider",
    "textDocument/rangeFormatting": "documentRangeFormattingProvider",
    "textDocument/references": "referencesProvider",
    "textDocument/rename": "renameProvider",
    "textDocument/selectionRange": "selectionRangeProvider",
    "textDocument/signatureHelp": "signatureHelpProvider",
    "textDocument/typeDefinition": "typeDefinitionProvider",
    "workspace/executeCommand": "executeCommandProvider",
    "workspace/symbol": "workspaceSymbolProvider",
}

# Those whose value has to be an object, with what it cannot be without.
_OBJECTS: dict[str, dict[str, Any]] = {
    "codeLensProvider": {},
    "completionProvider": {},
    "diagnosticProvider": {"interFileDependencies": False, "workspaceDiagnostics": False},
    "documentLinkProvider": {},
    "documentOnTypeFormattingProvider": {"firstTriggerCharacter": "\n"},
    "executeCommandProvider": {"commands": []},
    "semanticTokensProvider": {"legend": {"tokenTypes": [], "tokenModifiers": []}},
    "signatureHelpProvider": {},
}

# A second method of a provider, and the member that announces it.
_MEMBERS = {
    "codeAction/resolve": ("codeActionProvider", "resolveProvider", True),
    "codeLens/resolve": ("codeLensProvider", "resolveProvider", True),
    "completionItem/resolve": ("completionProvider", "resolveProvider", True),
    "documentLink/resolve": ("documentLinkProvider", "resolveProvider", True),
    "inlayHint/resolve": ("inlayHintProvider", "resolveProvider", True),
    "textDocument/prepareRename": ("renameProvider", "prepareProvider", True),
    "textDocument/semanticTokens/full": ("semanticTokensProvider", "full", True),
    "textDocument/semanticTokens/full/delta": ("semanticTokensProvider", "full", {"delta": True}),
    "textDocument/semanticTokens/range": ("semanticTokensProvider", "range", True),
    "workspace/diagnostic": ("diagnosticProvider", "workspaceDiagnostics", True),
    "workspaceSymbol/resolve": ("workspaceSymbolProvider", "resolveProvider", True),
}

_SYNC_KINDS = {"full": 1, "incremental": 2}

IGNORED = (
    "$/setTrace",
    "initialized",
    "textDocument/didSave",
    "textDocument/willSave",
    "window/workDoneProgress/cancel",
    "workspace/didChangeConfiguration",
    "workspace/didChangeWatchedFiles",
    "workspace/didChangeWorkspaceFolders",
)
"""Notifications that clients send unasked: taken and dropped, unless the author wants them."""


def camel_case(name: str) -> str:
    """Spell a name of Python's as the protocol does: `new_name` is newName."""
    first, *others = name.strip("_").split("_")
    return first + "".join(word.capitalize() for word in others)


def is_notification(method: str) -> bool:
    """Tell whether the protocol has a message of this name that wants no answer."""
    return method in IGNORED or method.rpartition("/")[2].startswith("did")


def describe_capabilities(
    served: Mapping[str, Mapping[str, Any]], sync: SyncKind, position_encoding: str
) -> dict[str, Any]:
    """Say what a server can: `served` are its methods, each with the options it was given."""
    found: dict[str, Any] = {
        "positionEncoding": position_encoding,
        "textDocumentSync": _describe_sync(served, sync),
    }
    options: dict[str, dict[str, Any]] = {}
    for method, given in served.items():
        if method in _PROVIDERS:
            options.setdefault(_PROVIDERS[method], {}).update(given)
        elif method in _MEMBERS:
            provider, member, value = _MEMBERS[method]
            options.setdefault(provider, {}).update({**given, member: value})
    for provider, given in options.items():
        value = {**_OBJECTS.get(provider, {}), **given}
        found[provider] = value if value or provider in _OBJECTS else True
    return found


def _describe_sync(served: Mapping[str, Mapping[str, Any]], sync: SyncKind) -> dict[str, Any]:
    described: dict[str, Any] = {"openClose": True, "change": _SYNC_KINDS[sync]}
    if "textDocument/didSave" in served:
        described["save"] = dict(served["textDocument/didSave"])
    for method in ("willSave", "willSaveWaitUntil"):
        if f"textDocument/{method}" in served:
            described[method] = True
    return described
