"""Arguments that come as texts, because people type them or they are part of an address."""

from typing import Any

import msgspec

from duet_rpc.service import Method
from duet_rpc.wire.surrogates import encode_value


def make_params(method: Method, texts: dict[str, str]) -> bytes:
    """Make params of texts: "3" is 3 where a number is wanted.

    What does not fit stays a text, and is refused as such.
    """
    hints = {parameter.name: parameter.hint for parameter in method.parameters.listed}
    values = {name: _convert(text, hints.get(name, str)) for name, text in texts.items()}
    return encode_value(values)


def _convert(text: str, hint: Any) -> Any:
    try:
        return msgspec.convert(text, hint, strict=False)
    except (msgspec.ValidationError, TypeError, ValueError):
        return text
