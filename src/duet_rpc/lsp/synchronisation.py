"""Text document synchronisation: the notifications that keep the open documents, and the checks.

A check is an author's function that is called after a document was opened or changed. What it
returns is published as the diagnostics of that document; of one that is closed there are none.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from duet_rpc.context import Context
from duet_rpc.errors import UsageError
from duet_rpc.lsp.documents import (
    ChangedDocument,
    ContentChange,
    Documents,
    OpenedDocument,
    TextDocument,
)
from duet_rpc.lsp.handlers import is_async, read_arguments, yields
from duet_rpc.lsp.lifecycle import Lifecycle
from duet_rpc.lsp.session import Session, publish_diagnostics
from duet_rpc.lsp.types import TextDocumentIdentifier
from duet_rpc.service import Service


class Check(Struct, frozen=True):
    """A function that is called when a document has changed."""

    call: Callable[[TextDocument, Context], Any]
    is_async: bool


def make_check(
    handler: Callable[..., Any], lifecycle: Lifecycle, scope: Mapping[str, Any]
) -> Check:
    """Prepare a function that takes a `TextDocument`, and may take a `Session` and a `Context`."""
    arguments = read_arguments(handler, "on_change", scope)
    if arguments.members.keys() - {"textDocument"}:
        raise UsageError("on_change: the function takes a TextDocument, a Session and a Context")
    known = {"_handler": handler, "_Session": Session, "_lifecycle": lifecycle}
    if is_async(handler, "on_change") and yields(handler, "on_change"):
        raise UsageError("on_change: an async def that yields cannot be served; return a list")
    called = f"_handler({', '.join(arguments.expressions)})"
    return Check(eval(f"lambda _document, _ctx: {called}", known), is_async(handler, "on_change"))


class Synchronisation:
    """Keeps the documents, and runs the checks one after the other."""

    def __init__(self, lifecycle: Lifecycle, documents: Documents) -> None:
        self.checks: list[Check] = []
        self._lifecycle = lifecycle
        self._documents = documents

    def add_to(self, service: Service) -> None:
        """Serve `didOpen`, `didChange` and `didClose`."""
        documents, lifecycle = self._documents, self._lifecycle

        def did_open(textDocument: OpenedDocument, ctx: Context) -> Any:
            if lifecycle.running:
                return self._check(documents.open(textDocument), ctx)

        def did_change(
            textDocument: ChangedDocument, contentChanges: list[ContentChange], ctx: Context
        ) -> Any:
            if lifecycle.running:
                return self._check(documents.change(textDocument, contentChanges), ctx)

        def did_close(textDocument: TextDocumentIdentifier, ctx: Context) -> None:
            documents.close(textDocument.uri)
            if self.checks and lifecycle.running:
                publish_diagnostics(ctx, textDocument.uri, None, ())

        async def did_open_async(textDocument: OpenedDocument, ctx: Context) -> None:
            await (did_open(textDocument, ctx) or _nothing())

        async def did_change_async(
            textDocument: ChangedDocument, contentChanges: list[ContentChange], ctx: Context
        ) -> None:
            await (did_change(textDocument, contentChanges, ctx) or _nothing())

        waits = any(check.is_async for check in self.checks)
        for name, handler in (
            ("didOpen", did_open_async if waits else did_open),
            ("didChange", did_change_async if waits else did_change),
            ("didClose", did_close),
        ):
            service.notification(name=f"textDocument/{name}", ignore_unknown=True)(handler)

    def _check(self, document: TextDocument, ctx: Context) -> Awaitable[None] | None:
        """Check a document now; if one of the checks is an `async def`, return what is awaited."""
        if any(check.is_async for check in self.checks):
            return self._check_async(document, ctx)
        _publish([check.call(document, ctx) for check in self.checks], document, ctx)
        return None

    async def _check_async(self, document: TextDocument, ctx: Context) -> None:
        found = []
        for check in self.checks:
            result = check.call(document, ctx)
            found.append(await result if check.is_async else result)
        _publish(found, document, ctx)


def _publish(found: list[Any], document: TextDocument, ctx: Context) -> None:
    """Send what all checks have found, unless none of them has said anything."""
    sent = [each for each in found if each is not None]
    if sent:
        diagnostics = [diagnostic for each in sent for diagnostic in each]
        publish_diagnostics(ctx, document.uri, document.version, diagnostics)


async def _nothing() -> None:
    pass
