"""What a result becomes on the caller's side: whatever value came, or one of the type asked for."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from duet_rpc.errors import InvalidAnswer, UsageError
from duet_rpc.wire import surrogates
from duet_rpc.wire.large import LARGE, decode_large
from duet_rpc.wire.models import make_model

Decode = Callable[[Any], Any]
"""Makes the value of a raw result; raises `InvalidAnswer` if it does not fit."""

_DECODERS: dict[Any, Decode] = {}


def decoder(returns: Any) -> Decode | None:
    """Make, once for each type, what decodes a raw result into it.

    None for `Any`: such a result is decoded in one pass with the answer that it stands in.
    """
    return None if returns is Any else _decoder(returns)


def _decoder(returns: Any) -> Decode:
    try:
        return _DECODERS[returns]
    except (KeyError, TypeError):
        pass
    if returns is Raw:
        return bytes
    try:
        decode = msgspec.json.Decoder(returns, dec_hook=make_model).decode
    except TypeError as error:
        raise UsageError(f"results cannot be decoded into {returns}: {error}") from None

    def decode_result(raw: Any) -> Any:
        try:
            try:
                return decode(raw) if len(raw) < LARGE else decode_large(decode, raw)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:  # perhaps a lone surrogate
                return surrogates.decode(raw, returns)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            from duet_rpc.methods.wording import explain_result  # with the first that does not fit

            why = explain_result(error)
        # Out here, so that it does not keep the error before it, and with that all our frames.
        raise InvalidAnswer(f"the result is not what was asked for: {why}")

    if len(_DECODERS) < 1000:
        try:
            _DECODERS[returns] = decode_result
        except TypeError:
            pass  # an unhashable hint is made anew each time
    return decode_result


decode_any: Decode = _decoder(Any)
"""Decodes a result that was taken out of its answer raw, although anything would do."""
