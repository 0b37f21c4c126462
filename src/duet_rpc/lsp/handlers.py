"""Makes of an author's function one that a `Service` serves: params by the protocol's names.

A parameter is filled by its hint: a `TextDocument` is the open document that the request is about,
a `Session` or `Context` talks back. One that is called `params` takes all of them, as a class of
lsprotocol, a struct, a dataclass or a dict. Any other is the member of its name, `new_name` for
newName, decoded by its hint. What a generator yields is sent item by item where the client wants
partial results.

The hint of `params` may be a text that names what is only imported for type checkers. It is looked
up in lsprotocol when the first request comes: loading that package takes many times as long as
starting a server.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec import Raw, Struct

from duet_rpc.context import Context
from duet_rpc.engine.dispatch import encode_result
from duet_rpc.engine.streams import send_parts
from duet_rpc.errors import InvalidParams, UsageError
from duet_rpc.lsp.documents import Documents, TextDocument
from duet_rpc.lsp.features import camel_case
from duet_rpc.lsp.lifecycle import Lifecycle
from duet_rpc.lsp.results import Converter
from duet_rpc.lsp.session import Session
from duet_rpc.lsp.types import TextDocumentIdentifier
from duet_rpc.methods.names import Whole
from duet_rpc.wire.models import make_model
from duet_rpc.wire.surrogates import decode_value

_CO_VARIADIC, _CO_GENERATOR, _CO_COROUTINE, _CO_ASYNC_GENERATOR = 0x0C, 0x20, 0x80, 0x200
_NO_DEFAULT: Any = object()
_PARAMS: Any = Whole[Raw]


class _AboutDocument(Struct):
    textDocument: TextDocumentIdentifier


_about_document = msgspec.json.Decoder(_AboutDocument)


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
    return bool(_flags(handler, method) & (_CO_COROUTINE | _CO_ASYNC_GENERATOR))


def yields(handler: Any, method: str) -> bool:
    """Tell whether a function is a generator, of either kind."""
    return bool(_flags(handler, method) & (_CO_GENERATOR | _CO_ASYNC_GENERATOR))


def _flags(handler: Any, method: str) -> int:
    code = getattr(handler, "__code__", None)
    if code is None:
        raise UsageError(f"{method} is served by a function, not {handler!r}")
    flags: int = code.co_flags
    return flags


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
            expression, whole = "_whole(_params)", hint
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
        members = {"_params": (_PARAMS, _NO_DEFAULT)}
    elif wants_document:
        members["textDocument"] = TextDocumentIdentifier, _NO_DEFAULT
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
    in_parts: bool = False,
) -> Callable[..., Any]:
    """Make the function that is served in place of an author's; `answers` if it is a request.

    `in_parts` says that the items of a generator are sent one by one where the client wants that.
    """
    arguments = read_arguments(handler, method, scope)
    waits, is_generator = is_async(handler, method), yields(handler, method)
    if waits and is_generator and not in_parts:
        raise UsageError(f"{method}: an async def that yields cannot be served; return a list")
    wants_context = arguments.wants_context or (in_parts and is_generator and not waits)
    required = [name for name, (_, default) in arguments.members.items() if default is _NO_DEFAULT]
    optional = [name for name in arguments.members if name not in required]
    given = [*required, *(["_ctx"] if wants_context else [])]
    given += [f"{name}=_defaults[{name!r}]" for name in optional]
    uri = "textDocument.uri" if arguments.whole is None else "_uri_of(_params)"
    called = f"_handler({', '.join(arguments.expressions)})"
    form = _form(waits, is_generator, in_parts)
    source = f"""
{"async " if waits else ""}def served({", ".join(given)}):
    if not _lifecycle.running:
        {"_lifecycle.refuse()" if answers else "return None"}
    _document = {f"_documents[{uri}]" if arguments.wants_document else None}
{form.format(called=called)}
"""
    known: dict[str, Any] = {
        "_Session": Session,
        "_convert": convert,
        "_defaults": {name: arguments.members[name][1] for name in optional},
        "_documents": documents,
        "_encode": encode_result,
        "_handler": handler,
        "_lifecycle": lifecycle,
        "_send_parts": send_parts,
        "_uri_of": _uri_of,
        "_whole": ParamsDecoder(arguments.whole, handler),
    }
    exec(source, known)  # compiled, as the engine's own adapters are: a fixed call is a quick one
    served: Callable[..., Any] = known["served"]
    served.__annotations__ = {name: hint for name, (hint, _) in arguments.members.items()}
    if wants_context:
        served.__annotations__["_ctx"] = Context
    served.__doc__ = handler.__doc__
    return served


def _form(waits: bool, is_generator: bool, in_parts: bool) -> str:
    """Choose how the result of a function is answered."""
    if not is_generator:
        return _ANSWER_AWAITED if waits else _ANSWER
    if waits:
        return _STREAM
    return _SEND_PARTS if in_parts else _ANSWER


_ANSWER = "    return _convert({called}, _document, _lifecycle)"
_ANSWER_AWAITED = "    return _convert(await {called}, _document, _lifecycle)"
_SEND_PARTS = """
    return _send_parts(
        {called}, _ctx, lambda item: _encode(_convert((item,), _document, _lifecycle)[0]))
"""
_STREAM = """
    items = {called}
    try:
        async for item in items:
            yield _convert((item,), _document, _lifecycle)[0]
    finally:
        await items.aclose()
"""


class ParamsDecoder:
    """Makes one value of all the params of a request."""

    def __init__(self, hint: Any, handler: Any) -> None:
        self._hint = hint
        self._handler = handler
        self._decode: Callable[[Raw], Any] | None = None

    def __call__(self, params: Raw) -> Any:
        """Decode params by the hint, which is looked up now if it is a text."""
        if self._decode is None:
            self._decode = self._prepare()
        try:
            return self._decode(params)
        except msgspec.ValidationError as error:
            raise InvalidParams(data={"detail": str(error)}) from None

    def _prepare(self) -> Callable[[Raw], Any]:
        hint = self._hint
        if isinstance(hint, str):
            hint = _find_in_lsprotocol(hint, self._handler)
        if hasattr(hint, "__attrs_attrs__"):
            from duet_rpc.lsp.attrs_types import structure

            members = msgspec.json.Decoder(dict[str, Any])
            return lambda params: structure(decode_value(members, params), hint)
        kind = dict[str, Any] if hint is Any else hint
        decoder = msgspec.json.Decoder(kind, dec_hook=make_model)
        return lambda params: decode_value(decoder, params)


def _signature(handler: Any, method: str) -> list[tuple[str, Any, bool]]:
    """List (name, default, by name only) of each parameter, without inspect."""
    if _flags(handler, method) & _CO_VARIADIC:
        raise UsageError(f"{method}: name the parameters one by one, or take params as a whole")
    code = handler.__code__
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


def _uri_of(params: Raw) -> str:
    """Read which document is meant, where params are taken as a whole."""
    try:
        return decode_value(_about_document, params).textDocument.uri
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
