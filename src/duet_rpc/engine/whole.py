"""Params as one value, for a handler that takes them whole (`params: Whole[T]`).

T decides what is taken: an object, an array, or either. What travels beside params in an object,
the idempotency key of a command, `_meta` and the token of partial results, is taken out before T
sees it, unless T has a member of that name or is raw. No params at all are the default, or else an
empty object (an empty array where T takes nothing else).
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duet_rpc.engine.members import list_alternatives, list_members
from duet_rpc.engine.signature import Parameter, fresh_default
from duet_rpc.engine.wording import type_name
from duet_rpc.errors import UsageError
from duet_rpc.wire.models import make_model
from duet_rpc.wire.params import KEY, META
from duet_rpc.wire.surrogates import decode_value, encode_value

_members = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])


class WholeParams:
    """How the params of one method become one value."""

    def __init__(
        self, method: str, parameter: Parameter, *, takes_key: bool, beside: Sequence[str] = ()
    ) -> None:
        alternatives = list_alternatives(parameter.hint)
        self.shape: Any = alternatives[0] if len(alternatives) == 1 else parameter.hint
        """T, but for a null beside it."""
        self.members: Any = list_members(self.shape)
        """What T is made of, by wire names; empty if it is no class with members."""
        takes_object, self._takes_array = _list_forms(parameter.hint)
        if not takes_object and not self._takes_array:
            raise UsageError(
                f"{method}: all params are an object or an array, never {type_name(parameter.hint)}"
            )
        self.structure: str = "by-name"
        """How params are given: `by-name`, `by-position` or `either`."""
        if self._takes_array:
            self.structure = "either" if takes_object else "by-position"
        self._empty = b"{}" if takes_object or not self._takes_array else b"[]"
        self._parameter = parameter
        self._decoder = msgspec.json.Decoder(parameter.hint, dec_hook=make_model)
        self._beside = (META, KEY, *beside) if takes_key else (META, *beside)
        is_raw = parameter.hint is Raw
        self._kept = {name for name in self._beside if is_raw or name in self.members}
        field = (parameter.argument, Any)
        fields: list[Any] = [
            field if parameter.required else (*field, fresh_default(parameter.default))
        ]
        fields += [(name, Raw | UnsetType, UNSET) for name in self._beside]
        self.struct: type[msgspec.Struct] = msgspec.defstruct(
            "Params", fields, module=f"duet_rpc.wire.params.{method}", kw_only=True
        )

    def bind(
        self, params: bytes | None, decode: Callable[[msgspec.json.Decoder[Any], bytes], Any]
    ) -> Any:
        """Make the value of all params; raises what the decoder raises."""
        text, beside = self.part(params)
        if text[0] not in b"{[":
            raise ValueError("params are an object or an array")
        if not self._parameter.required and not text[1:-1].strip():
            return self.struct(**beside)
        value = decode(self._decoder, text)
        return self.struct(**{self._parameter.argument: value}, **beside)

    def part(self, params: bytes | None) -> tuple[bytes, dict[str, Raw]]:
        """Part what T is made of from what travels beside it."""
        if params is None or self._is_empty_array(params):
            return self._empty, {}
        return self._take_out(params) if params[0] == 0x7B else (params, {})

    def _is_empty_array(self, params: bytes) -> bool:
        is_array = params[0] == 0x5B and not self._takes_array
        return is_array and not decode_value(_items, params)

    def _take_out(self, params: bytes) -> tuple[bytes, dict[str, Raw]]:
        if b"\\" not in params and not any(name.encode() in params for name in self._beside):
            return params, {}
        members = decode_value(_members, params)
        beside = {name: members[name] for name in self._beside if name in members}
        taken = beside.keys() - self._kept
        if not taken:
            return params, beside
        return encode_value({n: raw for n, raw in members.items() if n not in taken}), beside


def _list_forms(hint: Any) -> tuple[bool, bool]:
    """Tell whether a type takes objects, and whether it takes arrays."""
    described = msgspec.inspect.type_info(hint)
    parts = described.types if isinstance(described, msgspec.inspect.UnionType) else (described,)
    anything = any(isinstance(part, _ANYTHING) for part in parts)
    arrays = any(isinstance(part, _ARRAYS) or getattr(part, "array_like", False) for part in parts)
    objects = any(
        isinstance(part, _OBJECTS) and not getattr(part, "array_like", False) for part in parts
    )
    return anything or objects, anything or arrays


_ANYTHING = (msgspec.inspect.AnyType, msgspec.inspect.RawType)
_ARRAYS = (
    msgspec.inspect.CollectionType,
    msgspec.inspect.TupleType,
    msgspec.inspect.NamedTupleType,
)
_OBJECTS = (
    msgspec.inspect.DictType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.StructType,
    msgspec.inspect.CustomType,
)
