"""Makes of an author's function one that a `Service` serves: params by the protocol's names.

A parameter is filled by its hint: a `TextDocument` is the open document that the request is about,
a `Session` or `Context` talks back. One that is called `params` takes all of them, as a class of
lsprotocol, a struct, a dataclass or a dict. Any other is the member of its name, `new_name` for
newName, decoded by its hint.

The hint of `params` may be a text that names what is only imported for type checkers. It is looked
up in lsprotocol when the first request comes: loading that package takes many times as long as
starting a server.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, Struct

from duet_rpc.context import Context
from duet_rpc.errors import InvalidParams, UsageError
from duet_rpc.lsp.documents import Documents, TextDocument
from duet_rpc.lsp.features import camel_case
from duet_rpc.lsp.lifecycle import Lifecycle
from duet_rpc.lsp.results import Converter
from duet_rpc.lsp.session import Session
from duet_rpc.lsp.types import TextDocumentIdentifier

_CO_VARIADIC, _CO_COROUTINE, _CO_ASYNC_GENERATOR = 0x0C, 0x80, 0x200
_NO_DEFAULT: Any = object()

# Every member that the params of a client's message have in version 3.18 of the protocol.
_ALL_MEMBERS = """
additionalTextEdits arguments capabilities cellTextDocuments ch change changes clientInfo color
command commitCharacters containerName contentChanges context data deprecated detail diagnostics
disabled documentation edit event files filterText id identifier initializationOptions insertText
insertTextFormat insertTextMode isPreferred item kind label labelDetails locale location name
newName notebookDocument options paddingLeft paddingRight partialResultToken position positions
preselect previousResultId previousResultIds processId query range ranges reason rootPath rootUri
settings sortText tags target text textDocument textEdit textEditText textEdits title token tooltip
trace uri value workDoneToken workspaceFolders
""".split()


class Arguments(Struct, frozen=True):
    """How a function is called: what its arguments are made of, and what has to come for them."""

    expressions: list[str]
    members: dict[str, tuple[Any, Any]]
    """The params by their names on the wire: the hint of each, and its default."""
    whole: Any = None
    """The hint of `params`, if everything is asked for."""
    wants_document: bool = False
    wants_context: bool = False


def is_async(handler: Any, method: str) -> bool:
    """Tell whether a function is an `async def`; refuse what is no function that can be served."""
    code = getattr(handler, "__code__", None)
    if code is None:
        raise UsageError(f"{method} is served by a function, not {handler!r}")
    if code.co_flags & _CO_ASYNC_GENERATOR:
        raise UsageError(f"{method}: an async def that yields cannot be served; return a list")
    return bool(code.co_flags & _CO_COROUTINE)


def read_arguments(handler: Any, method: str, scope: Mapping[str, Any]) -> Arguments:
    """Read how a function is to be called, from its names and hints."""
    expressions: list[str] = []
    members: dict[str, tuple[Any, Any]] = {}
    whole: Any = None
    wants_document = wants_context = False
    for name, default, is_keyword in _signature(handler, method):
        hint = _hint(handler, name, method, scope)
        if hint is Context:
            expression, wants_context = "_ctx", True
        elif hint is Session:
            expression, wants_context = "_Session(_ctx, _lifecycle.editor)", True
        elif hint is TextDocument:
            expression, wants_document = "_document", True
        elif name == "params":
            expression, whole = "_whole(locals())", hint
        else:
            expression = camel_case(name)
            members[expression] = hint, default
        expressions.append(f"{name}={expression}" if is_keyword else expression)
    if whole is not None and members:
        raise UsageError(
            f"{method}: params are all there is; beside it may stand a TextDocument, a Session and"
            " a Context"
        )
    if whole is not None:
        members = {name: (Any, UNSET) for name in _members_of(whole)}
    if wants_document:
        members["textDocument"] = TextDocumentIdentifier if whole is None else Any, _NO_DEFAULT
    return Arguments(expressions, members, whole, wants_document, wants_context)


def adapt(
    handler: Callable[..., Any],
    method: str,
    scope: Mapping[str, Any],
    *,
    lifecycle: Lifecycle,
    documents: Documents,
    convert: Converter,
    answers: bool = True,
) -> Callable[..., Any]:
    """Make the function that is served in place of an author's; `answers` if it is a request."""
    arguments = read_arguments(handler, method, scope)
    required = [name for name, (_, default) in arguments.members.items() if default is _NO_DEFAULT]
    optional = [name for name in arguments.members if name not in required]
    given = [*required, *(["_ctx"] if arguments.wants_context else [])]
    given += [f"{name}=_defaults[{name!r}]" for name in optional]
    waits = is_async(handler, method)
    called = f"{'await ' if waits else ''}_handler({', '.join(arguments.expressions)})"
    uri = "textDocument.uri" if arguments.whole is None else "_uri_of(textDocument)"
    source = f"""
{"async " if waits else ""}def served({", ".join(given)}):
    if not _lifecycle.running:
        return _lifecycle.refuse() if _answers else None
    _document = {f"_documents[{uri}]" if arguments.wants_document else None}
    return _convert({called}, _document, _lifecycle)
"""
    known: dict[str, Any] = {
        "_Session": Session,
        "_answers": answers,
        "_convert": convert,
        "_defaults": {name: arguments.members[name][1] for name in optional},
        "_documents": documents,
        "_handler": handler,
        "_lifecycle": lifecycle,
        "_uri_of": _uri_of,
        "_whole": GatheredParams(arguments.whole, list(arguments.members), handler),
    }
    exec(source, known)  # compiled, as the engine's own adapters are: a fixed call is a quick one
    served: Callable[..., Any] = known["served"]
    served.__annotations__ = {name: hint for name, (hint, _) in arguments.members.items()}
    if arguments.wants_context:
        served.__annotations__["_ctx"] = Context
    served.__doc__ = handler.__doc__
    return served


class GatheredParams:
    """Makes one value of all the params of a request."""

    def __init__(self, hint: Any, members: list[str], handler: Any) -> None:
        self._hint = hint
        self._members = members
        self._handler = handler

    def __call__(self, given: Mapping[str, Any]) -> Any:
        """Take the members that came."""
        members = {name: given[name] for name in self._members if given[name] is not UNSET}
        if isinstance(self._hint, str):
            self._hint = _find_in_lsprotocol(self._hint, self._handler)
        if self._hint in (Any, dict, dict[str, Any]):
            return members
        try:
            if hasattr(self._hint, "__attrs_attrs__"):
                from duet_rpc.lsp.attrs_types import structure

                return structure(members, self._hint)
            return msgspec.convert(members, self._hint)
        except msgspec.ValidationError as error:
            raise InvalidParams(data={"detail": str(error)}) from None


def _signature(handler: Any, method: str) -> list[tuple[str, Any, bool]]:
    """List (name, default, by name only) of each parameter, without inspect."""
    is_async(handler, method)
    code = handler.__code__
    if code.co_flags & _CO_VARIADIC:
        raise UsageError(f"{method}: name the parameters one by one, or take params as a whole")
    count, named = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames[: count + named]
    defaults = handler.__defaults__ or ()
    missing = [_NO_DEFAULT] * (count - len(defaults))
    found = [
        (name, default, False)
        for name, default in zip(names[:count], [*missing, *defaults], strict=True)
    ]
    for name in names[count:]:
        found.append((name, (handler.__kwdefaults__ or {}).get(name, _NO_DEFAULT), True))
    return found[1:] if isinstance(handler, types.MethodType) else found


def _hint(handler: Any, name: str, method: str, scope: Mapping[str, Any]) -> Any:
    """Look up the hint of one parameter; a text of `params` that names nothing here stays one."""
    hint = handler.__annotations__.get(name, Any)
    alone = types.SimpleNamespace(__annotations__={name: hint})
    try:
        return get_type_hints(alone, handler.__globals__, dict(scope), include_extras=True)[name]
    except NameError as error:
        if name == "params" and isinstance(hint, str):
            return hint
        raise UsageError(
            f"{method}: the hint {error.name!r} is not known where the function stands;"
            " import or define it above"
        ) from None


def _members_of(hint: Any) -> list[str]:
    """Name the params that a class takes; of a text or a dict, all that the protocol has."""
    if hasattr(hint, "__attrs_attrs__"):
        from duet_rpc.lsp.attrs_types import wire_names

        return list(wire_names(hint).values())
    try:
        described = msgspec.inspect.type_info(hint) if isinstance(hint, type) else None
    except (TypeError, ValueError, NameError):
        described = None
    fields = getattr(described, "fields", None)
    return [field.encode_name for field in fields] if fields else _ALL_MEMBERS


def _uri_of(identifier: Any) -> str:
    """Read which document is meant, where params are taken as they are."""
    try:
        return msgspec.convert(identifier, TextDocumentIdentifier).uri
    except msgspec.ValidationError as error:
        raise InvalidParams(data={"param": "textDocument", "detail": str(error)}) from None


def _find_in_lsprotocol(hint: str, handler: Any) -> Any:
    try:
        from lsprotocol import types as all_types
    except ModuleNotFoundError:
        raise UsageError(f"{hint} is not known here: pip install 'duet-rpc[lsp]'") from None
    known = {**vars(all_types), "types": all_types, "lsprotocol": all_types, **handler.__globals__}
    try:
        return eval(hint, known)
    except (NameError, AttributeError):
        raise UsageError(f"{hint} is no type that lsprotocol.types has") from None
