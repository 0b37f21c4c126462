"""The first message of a WebSocket whose client could send no credentials: pages cannot.

    {"jsonrpc": "2.0", "id": 1, "method": "rpc.authenticate", "params": {"token": "..."}}

Until it has come and is sound, nothing else is served. A token in the address instead would stand
in the logs of every proxy. Pure.
"""

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from duet_rpc.context import Origin
from duet_rpc.errors import Unauthenticated
from duet_rpc.http.principal import Authenticate
from duet_rpc.wire.messages import NULL, encode_error

PATIENCE = 5.0
"""Seconds in which it has to come."""
METHOD = "rpc.authenticate"


class _Token(Struct):
    token: str


class _Authentication(Struct):
    method: str
    params: _Token
    id: Raw = Raw(b"null")


_decoder = msgspec.json.Decoder(_Authentication)


def introduce(
    message: bytes, origin: Origin, authenticate: Authenticate, now: float
) -> tuple[bytes, Origin | None]:
    """Read who calls; return the answer, and the origin with its name or None."""
    try:
        said = _decoder.decode(message)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return encode_error(NULL, _refusal()), None
    principal = authenticate(said.params.token) if said.method == METHOD else None
    if principal is None or (principal.expires is not None and principal.expires <= now):
        return encode_error(bytes(said.id), _refusal()), None
    name = msgspec.json.encode({"principal": principal.name})
    answer = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(said.id), name)
    return answer, replace(origin, principal=principal.name, scopes=principal.scopes)


def _refusal() -> Unauthenticated:
    detail = f"call {METHOD} with a token that is known here, before anything else"
    return Unauthenticated(data={"detail": detail})
