"""The fingerprint of a command's params: tells a retry from another request under a used key.

Two spellings of the same values (order of members, escapes, white space) are the same request; 1
and 1.0 are not, for a handler can tell them apart. What changes between retries by nature is left
out.
"""

from collections.abc import Collection
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from hashlib import sha256
from math import isfinite
from typing import Any

import msgspec

from duet_rpc.wire import surrogates

ALWAYS_LEFT_OUT = frozenset({"idempotency_key", "_meta"})
"""The key itself, and the envelope data (trace context, progress tokens) that each try has anew."""


def _number(text: str) -> float | dict[str, str]:
    """Keep all digits of a number that is not a float's: a handler may take it as a `Decimal`."""
    value = float(text)
    if len(text) <= _SURE and "e" not in text and "E" not in text:
        return value
    exact = Decimal(text)
    if isfinite(value) and Decimal(repr(value)) == exact:
        return value
    return {"\0exactly": str(exact.normalize(_EXACTLY))}


_SURE = 16
"""Characters of a number whose digits, at most 15, a float surely has room for."""
_EXACTLY = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_decode = msgspec.json.Decoder(float_hook=_number).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


def fingerprint(method: str, params: bytes | None, without: Collection[str] = ()) -> bytes:
    """Hash a method and its params as they came, without the members named in `without`.

    Absent, null and empty params are the same: none given. `params` must be valid JSON.
    """
    values = None if params is None else _values(params)
    if isinstance(values, dict):
        for name in ALWAYS_LEFT_OUT.union(without):
            values.pop(name, None)
    canonical = _canonical(values) if values else b""
    return sha256(b"%b\0%b" % (method.encode("utf-8", "surrogatepass"), canonical)).digest()


def _values(params: bytes) -> Any:
    try:
        return _decode(params)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return surrogates.decode(params, float_hook=_number)


def _canonical(values: Any) -> bytes:
    try:
        return _encode(values)
    except UnicodeEncodeError:
        # With lone surrogates as escapes, which no other params have.
        return surrogates.encode(values, in_order=True)
