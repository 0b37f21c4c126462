"""The fingerprint of a command's params: tells a retry from another request under a used key.

Two spellings of the same values (order of members, escapes, white space) are the same request; 1
and 1.0 are not, for a handler can tell them apart. What changes between retries by nature is left
out.
"""

from collections.abc import Collection
from hashlib import sha256

import msgspec

ALWAYS_LEFT_OUT = frozenset({"idempotency_key", "_meta"})
"""The key itself, and the envelope data (trace context, progress tokens) that each try has anew."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="deterministic").encode


def fingerprint(method: str, params: bytes | None, without: Collection[str] = ()) -> bytes:
    """Hash a method and its params as they came, without the members named in `without`.

    Absent, null and empty params are the same: none given. `params` must be valid JSON.
    """
    values = None if params is None else _decode(params)
    if isinstance(values, dict):
        for name in ALWAYS_LEFT_OUT.union(without):
            values.pop(name, None)
    canonical = _encode(values) if values else b""
    return sha256(b"%b\0%b" % (method.encode(), canonical)).digest()
