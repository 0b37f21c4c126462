"""The parameters of one handler: read from its type hints, decoded in one typed pass.

At registration the hints become a msgspec struct (names) and a second one (positions), and a small
adapter is compiled that calls the handler with the struct's fields, which is three times as fast as
`handler(**dict)`. What a caller got wrong is reported as `InvalidParams` with the parameter's name,
what was expected and what came.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duet_rpc.errors import InvalidParams
from duet_rpc.methods.hints import UNKNOWN, bound_nesting
from duet_rpc.methods.signature import (
    Adapter,
    CallSource,
    Parameter,
    Signature,
    fresh_default,
    read_signature,
)
from duet_rpc.wire import surrogates
from duet_rpc.wire.large import LARGE, decode_large
from duet_rpc.wire.models import make_model
from duet_rpc.wire.params import KEY, META

if TYPE_CHECKING:
    from duet_rpc.methods.whole import WholeParams


class Bound(msgspec.Struct):
    """The params of one request, decoded: ready for the adapter."""

    values: Any
    key: Raw | UnsetType = UNSET
    """What came as the idempotency key, unchecked; UNSET if none did."""
    meta: Raw | UnsetType = UNSET


class Parameters:
    """How the params of one method are decoded and handed to its handler."""

    def __init__(
        self,
        method: str,
        signature: Signature,
        *,
        takes_key: bool,
        ignore_unknown: bool,
    ) -> None:
        listed, rest, rest_name = signature.listed, signature.rest, signature.rest_name
        nestings = signature.nestings
        self.listed = listed
        self.rest = rest
        """The hint of `*args`, or UNSET."""
        self.context: str | None = signature.context
        self.transaction: str | None = signature.transaction
        self.connection: str = signature.connection
        """The type of connection that the transaction is asked for by, or empty for any."""
        self.injected: Mapping[str, Any] = signature.injected
        """The parameters that are given what the service provides, and by which type."""
        self.returns: Any = signature.returns
        self.source: CallSource = signature.source
        self.call: Adapter = signature.source.compile("p, ctx, tx")
        self.call_message: Callable[[Any], Any] = signature.source.compile("m", params="m.params")
        """The same for a message with such `params` and nothing else, as a method of its class."""
        self.holds_meta: bool = rest is UNSET and all(p.name != META for p in listed)
        """Whether `typed` params may have brought a `_meta` beside them."""
        self.takes_key = takes_key
        """Whether an idempotency key may travel with the params."""
        self.ignores_unknown = ignore_unknown
        """Whether a name that no parameter has is dropped, and not refused."""
        self.whole: WholeParams | None = None
        """How the one parameter takes all params, if it does."""
        self._nestings = nestings
        self._beside: Sequence[str] = ()
        """Members that callers may send beside the params, as they send `_meta`."""
        self.nesting: float | int = UNKNOWN if ignore_unknown else max(nestings.values(), default=0)
        """How deep a param can nest, if its type reads every byte of it; `_meta` does not count."""
        self._key = next((p for p in listed if takes_key and p.name == KEY), None)
        self._hints = {parameter.name: parameter.hint for parameter in listed}
        self._positions = [parameter.name for parameter in listed if parameter.positional]
        self._rest_name = rest_name
        # A required keyword-only parameter leaves no way to call by position.
        self._only_named = any(p.required and not p.positional for p in listed)
        self._method = method
        self._positional: msgspec.json.Decoder[Any] | None = None
        values: Any = list[rest]  # type: ignore[valid-type]
        self.typed: Any = values
        """What the params of a plain request are decoded into: an array where the handler takes
        `*args`, else an object."""
        self.struct: type[msgspec.Struct]
        self._prepare(is_whole=signature.is_whole)
        if rest_name is not None:
            self._hints[rest_name] = values
            self._rest = msgspec.json.Decoder(values, dec_hook=make_model)

    @staticmethod
    def of(
        handler: Callable[..., Any],
        method: str,
        *,
        takes_key: bool,
        ignore_unknown: bool,
        scope: Mapping[str, Any],
        rule: Callable[[str], str] = str,
    ) -> "Parameters":
        """Read a handler's parameters. Raises `UsageError` for what cannot be served."""
        signature = read_signature(handler, method, scope, takes_key=takes_key, rule=rule)
        return Parameters(method, signature, takes_key=takes_key, ignore_unknown=ignore_unknown)

    def accepting(self, beside: Sequence[str]) -> "Parameters":
        """Make a copy that also takes these members beside the params, as it takes `_meta`."""
        from copy import copy  # here: few services need it

        other = copy(self)
        other._beside = beside
        other.nesting = UNKNOWN  # what comes in them is looked at by no type
        other._prepare(is_whole=self.whole is not None)
        return other

    def _prepare(self, *, is_whole: bool) -> None:
        """Define what params are decoded into."""
        if is_whole:
            self.whole = _make_whole(self._method, self.listed[0], self.takes_key, self._beside)
            self.nesting = UNKNOWN
            self.struct = self.whole.struct
        else:
            self.struct = self._define(self._method, array_like=False)
        if self.rest is UNSET:
            self.typed = self.struct
        self._by_name = msgspec.json.Decoder(self.struct, dec_hook=make_model)

    def bind(self, params: bytes | None) -> Bound:
        """Decode the params of one request, which are known to be JSON; raise `InvalidParams`.

        Whatever else the types' own checks raise comes out as it is.
        """
        try:
            if self.whole is not None:
                return self._bind(self.whole.bind(params, _decode))
            if params is None:
                return (
                    Bound([]) if self.rest is not UNSET else self._bind(self._by_name.decode(b"{}"))
                )
            if params[0] == 0x5B:  # an array
                if self.rest is not UNSET:
                    return Bound(_decode(self._rest, params))
                if self._only_named:
                    raise _refuse("params", "object", "array")
                return self._bind(self._by_position(params))
            if self.rest is not UNSET:
                return self._none_but_what_travels_beside(params)
            return self._bind(_decode(self._by_name, params))
        except msgspec.ValidationError as error:
            raise self._explain(error, params) from None

    def _explain(self, error: msgspec.ValidationError, params: bytes | None) -> InvalidParams:
        hints, rest, text = self._hints, self._rest_name, params or b"{}"
        if self.whole is not None:
            text, _ = self.whole.part(params)
            by_name = text[0] == 0x7B and len(self.whole.members) > 0
            hints, rest = (self.whole.members, None) if by_name else (hints, self.listed[0].name)
        from duet_rpc.methods.wording import explain  # with the first params that do not fit

        refused = explain(error, text, hints, self._positions, rest)
        if refused.data["param"] == KEY and KEY not in hints:
            return _refuse(KEY, f"no key ({self._method} is a query)", "a key")
        return refused

    @property
    def names(self) -> list[str]:
        """The wire names that callers may give."""
        members = [] if self.whole is None else self.whole.members
        return [*members, *(parameter.name for parameter in self.listed)]

    def give_key(self, values: Any, key: str | None) -> None:
        """Hand the idempotency key, or None if there is none, to a handler that asks for it."""
        wanted = self._key
        if wanted is None:
            return
        if key is None and wanted.required:
            from duet_rpc.methods.wording import type_name

            raise _refuse(KEY, type_name(wanted.hint), "nothing")
        setattr(values, KEY, wanted.default if key is None else key)

    def shallow(self) -> tuple[type[msgspec.Struct], float]:
        """Define the struct again, for large params, and say how deep they nest then.

        Where anything may come, nothing may that nests deeper than nearly everything does; so what
        fits needs no second look.
        """
        nestings = dict(self._nestings)
        hints = {}
        for parameter in self.listed:
            found = bound_nesting(parameter.hint)
            if found is not None:
                hints[parameter.name], nestings[parameter.name] = found
        if not hints or self.whole is not None:
            return self.struct, self.nesting
        is_open = self.ignores_unknown or bool(self._beside)
        nesting = UNKNOWN if is_open else max(nestings.values())
        return self._define(self._method, array_like=False, instead=hints), nesting

    def _by_position(self, params: bytes) -> Any:
        """Decode an array. Most methods are never sent one, so its struct waits for the first."""
        if self._positional is None:
            struct = self._define(self._method, array_like=True)
            self._positional = msgspec.json.Decoder(struct, dec_hook=make_model)
        return _decode(self._positional, params)

    def _none_but_what_travels_beside(self, params: bytes) -> Bound:
        """Take an object without params, which may hold `_meta`, for no values."""
        try:
            bound = self._bind(_decode(self._by_name, params))
        except msgspec.ValidationError:
            raise _refuse("params", "array", "object") from None
        return Bound([], meta=bound.meta)

    def _bind(self, values: Any) -> Bound:
        key = getattr(values, KEY, UNSET) if self.takes_key else UNSET
        meta = UNSET if META in self._hints else getattr(values, META, UNSET)
        return Bound(values, key, meta)

    def _define(
        self, method: str, *, array_like: bool, instead: Mapping[str, Any] | None = None
    ) -> type[msgspec.Struct]:
        fields: dict[str, Any] = {}
        unreachable: dict[str, Any] = {}
        for parameter in self.listed:
            name, argument = parameter.name, parameter.argument
            hint = parameter.hint if instead is None else instead.get(name, parameter.hint)
            if parameter is self._key:
                # Its own rule checks it, wherever it came from.
                fields[name] = (argument, Raw | UnsetType, UNSET)
            elif array_like and not parameter.positional:
                unreachable[argument] = parameter.default
            elif parameter.required:
                fields[name] = (argument, hint)
            else:
                fields[name] = (argument, hint, fresh_default(parameter.default))
        if not array_like:
            # What travels beside the params is part of the struct, so that it costs no second pass.
            if self.takes_key:
                fields.setdefault(KEY, (KEY, Raw | UnsetType, UNSET))
            for name in (META, *self._beside):
                fields.setdefault(name, (name, Raw | UnsetType, UNSET))
        return msgspec.defstruct(
            "Params",
            fields.values(),
            module=f"duet_rpc.wire.params.{method}",
            namespace=unreachable,
            kw_only=True,
            # A handler can put an error, which knows the frames that hold this struct, into a param
            # that is no scalar; only the collector can take such a circle apart.
            gc=any(self._nestings.values()),
            array_like=array_like,
            forbid_unknown_fields=not self.ignores_unknown,
            rename={p.argument: p.name for p in self.listed if p.argument != p.name},
        )


def _make_whole(
    method: str, parameter: Parameter, takes_key: bool, beside: Sequence[str]
) -> "WholeParams":
    from duet_rpc.methods.whole import WholeParams  # here: few services need it

    return WholeParams(method, parameter, takes_key=takes_key, beside=beside)


def _refuse(param: str, expected: str, received: str) -> InvalidParams:
    from duet_rpc.methods.wording import invalid

    return invalid(param, expected, received)


def _decode(decoder: msgspec.json.Decoder[Any], params: bytes) -> Any:
    try:
        return (
            decoder.decode(params) if len(params) < LARGE else decode_large(decoder.decode, params)
        )
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # params are JSON, so they hold a lone surrogate
        return surrogates.decode(params, decoder.type)
