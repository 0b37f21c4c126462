"""The client as a handler sees it: what a server tells it and asks of it by the protocol's names.

A parameter annotated `Session` is given one, for the request that is being answered.
"""

from collections.abc import Iterable
from typing import Any, Literal

from duet_rpc.context import Context, Reply, Sent
from duet_rpc.lsp.documents import TextDocument
from duet_rpc.lsp.lifecycle import Editor
from duet_rpc.lsp.results import plain
from duet_rpc.lsp.types import WorkspaceEdit

MessageType = Literal["error", "warning", "info", "log"]
_MESSAGE_TYPES = {"error": 1, "warning": 2, "info": 3, "log": 4}


class Session:
    """What a handler may say to the client, and ask of it, while it runs.

    What is sent is on its way at once and may be awaited, as with `Context`. An answer is awaited
    in an `async def`, and in a `def` taken by `result()`.
    """

    __slots__ = ("context", "editor")

    def __init__(self, context: Context, editor: Editor) -> None:
        self.context: Context = context
        self.editor: Editor = editor
        """What the client said of itself."""

    def notify(self, method: str, params: Any = None) -> Sent:
        """Send any notification."""
        return self.context.notify(method, plain(params))

    def call(self, method: str, params: Any = None, *, returns: Any = Any) -> Reply[Any]:
        """Ask anything; `returns` is the type to decode the answer into."""
        return self.context.call(method, plain(params), returns=returns)

    def publish_diagnostics(self, document: TextDocument, diagnostics: Iterable[Any]) -> Sent:
        """Say everything that is wrong with a document, in place of what was said before."""
        return publish_diagnostics(self.context, document.uri, document.version, diagnostics)

    def show_message(self, message: str, type: MessageType = "info") -> Sent:
        """Show a message to the user."""
        params = {"type": _MESSAGE_TYPES[type], "message": message}
        return self.context.notify("window/showMessage", params)

    def log_message(self, message: str, type: MessageType = "log") -> Sent:
        """Write a message to the client's log of this server."""
        params = {"type": _MESSAGE_TYPES[type], "message": message}
        return self.context.notify("window/logMessage", params)

    def configuration(self, section: str, scope_uri: str | None = None) -> Reply[Any]:
        """Ask for a section of the user's settings; the answer is a list with its one value."""
        item = {"section": section} | ({} if scope_uri is None else {"scopeUri": scope_uri})
        return self.context.call("workspace/configuration", {"items": [item]})

    def apply_edit(self, edit: WorkspaceEdit | Any, label: str | None = None) -> Reply[Any]:
        """Have the client change documents; the answer says whether it did (`applied`)."""
        params = {"edit": plain(edit)} | ({} if label is None else {"label": label})
        return self.context.call("workspace/applyEdit", params)


def publish_diagnostics(
    context: Context, uri: str, version: int | None, diagnostics: Iterable[Any]
) -> Sent:
    """Send what is wrong with a document; of one that was closed there is no version."""
    params: dict[str, Any] = {"uri": uri, "diagnostics": [plain(each) for each in diagnostics]}
    if version is not None:
        params["version"] = version
    return context.notify("textDocument/publishDiagnostics", params)
