"""What handlers may return in place of what the protocol spells out.

A hover may be a text, a completion a list of words, a definition a range of the same document, the
formatted text of a document the text itself. What is returned in the protocol's own form is sent as
it is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from duet_rpc.lsp.documents import TextDocument
from duet_rpc.lsp.lifecycle import Lifecycle
from duet_rpc.lsp.types import (
    CompletionItem,
    Hover,
    Location,
    MarkupContent,
    Range,
    TextEdit,
    WorkspaceEdit,
)

Converter: TypeAlias = Callable[[Any, TextDocument | None, Lifecycle], Any]
"""Makes what is sent of what a handler returned, and of the document that it was given."""


def plain(value: Any) -> Any:
    """Make of a value what msgspec writes as the protocol wants it."""
    kind = type(value)
    if hasattr(kind, "__attrs_attrs__"):
        from duet_rpc.lsp.attrs_types import unstructure

        return unstructure(value)
    if kind is dict:
        return {name: plain(each) for name, each in value.items()}
    if kind in (list, tuple) or isinstance(value, Iterator):
        return [plain(each) for each in value]
    return value


def send_as_is(result: Any, document: TextDocument | None, lifecycle: Lifecycle) -> Any:
    """Leave a result as it is, but for iterators and the classes of lsprotocol."""
    return plain(result)


def _hover(result: Any, document: TextDocument | None, lifecycle: Lifecycle) -> Any:
    if type(result) is str:
        result = MarkupContent(lifecycle.editor.markup_kind("hover"), result)
    return Hover(result) if type(result) is MarkupContent else plain(result)


def _completion(result: Any, document: TextDocument | None, lifecycle: Lifecycle) -> Any:
    if not _is_several(result):
        return plain(result)
    return [CompletionItem(item) if type(item) is str else plain(item) for item in result]


def _locations(result: Any, document: TextDocument | None, lifecycle: Lifecycle) -> Any:
    if _is_several(result):
        return [_locations(each, document, lifecycle) for each in result]
    if type(result) is Range and document is not None:
        return Location(document.uri, result)
    return plain(result)


def _highlights(result: Any, document: TextDocument | None, lifecycle: Lifecycle) -> Any:
    if not _is_several(result):
        return plain(result)
    return [{"range": each} if type(each) is Range else plain(each) for each in result]


def _formatting(result: Any, document: TextDocument | None, lifecycle: Lifecycle) -> Any:
    if type(result) is not str or document is None:
        return plain(result)
    return [] if result == document.text else [TextEdit(document.whole, result)]


def _rename(result: Any, document: TextDocument | None, lifecycle: Lifecycle) -> Any:
    if not _is_several(result) or document is None:
        return plain(result)
    return WorkspaceEdit({document.uri: plain(list(result))})


def _is_several(result: Any) -> bool:
    """Tell a list, or what else is gone through, from one value of the protocol's."""
    return isinstance(result, Iterable) and not isinstance(result, (str, Mapping))


_CONVERTERS: dict[str, Converter] = {
    "textDocument/completion": _completion,
    "textDocument/declaration": _locations,
    "textDocument/definition": _locations,
    "textDocument/documentHighlight": _highlights,
    "textDocument/formatting": _formatting,
    "textDocument/hover": _hover,
    "textDocument/implementation": _locations,
    "textDocument/references": _locations,
    "textDocument/rename": _rename,
    "textDocument/typeDefinition": _locations,
}


def find_converter(method: str) -> Converter:
    """Find what converts the results of a method."""
    return _CONVERTERS.get(method, send_as_is)


_ONE_VALUE = frozenset({
    "textDocument/hover",
    "textDocument/prepareRename",
    "textDocument/rename",
    "textDocument/signatureHelp",
})  # fmt: skip


def is_list_of_items(method: str) -> bool:
    """Tell whether the result of a method is the list of what its generator yields."""
    return method not in _ONE_VALUE
