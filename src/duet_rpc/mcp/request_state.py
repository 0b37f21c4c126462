"""What a client carries from one round of questions to the next: sealed, so that it is ours.

The state comes back from the client that it was given to, or from another that has seen it. It is
signed, bound to the caller, the method and the arguments, and ends after some minutes. That the
last round has one effect is the ledger's part: the idempotency key of the command travels in it.

What signs is loaded with the first state: few servers ask anything, and it would be a twentieth of
their start.
"""

import time
from functools import cached_property

import msgspec
from msgspec import Raw, Struct

from duet_rpc.mcp.errors import malformed
from duet_rpc.wire.surrogates import decode_value, encode_value

LIFETIME = 600.0
"""Seconds in which a question has to be answered."""
_VERSION = "v1"


class Sealed(Struct, frozen=True):
    """What is remembered between two rounds."""

    principal: str
    target: str
    """The method, and the tool, the prompt or the resource."""
    arguments: bytes
    """A digest of the arguments."""
    expires: float
    """In seconds since 1970."""
    key: str | None = None
    """The idempotency key under which the command will run."""
    responses: dict[str, Raw] = {}
    """What was answered in the rounds before."""


_decoder = msgspec.json.Decoder(Sealed)


class Seal:
    """Signs states, and checks those that come back."""

    def __init__(self, secret: bytes) -> None:
        self._given = secret

    @cached_property
    def _secret(self) -> bytes:
        import hashlib

        return hashlib.sha256(b"duet-rpc request state\0" + self._given).digest()

    def close(self, state: Sealed) -> str:
        """Sign a state, as text."""
        payload = _write(encode_value(state))
        return f"{_VERSION}.{payload}.{self._sign(payload)}"

    def open(self, text: str, *, principal: str, target: str, arguments: bytes) -> Sealed:
        """Read a state that a request brings; raise `ProtocolError` if it is not for this one."""
        import hmac

        version, _, rest = text.partition(".")
        payload, _, signature = rest.partition(".")
        if version != _VERSION or not hmac.compare_digest(
            signature.encode("utf-8", "replace"), self._sign(payload).encode()
        ):
            raise malformed("requestState is not one that this server has given")
        try:
            state = decode_value(_decoder, _read(payload))
        except (msgspec.DecodeError, ValueError):  # no base64 is a ValueError as well
            raise malformed("requestState is not one that this server has given") from None
        if (state.principal, state.target, state.arguments) != (principal, target, arguments):
            raise malformed("requestState belongs to another request")
        if state.expires < time.time():
            raise malformed("requestState has expired; begin again without it")
        return state

    def _sign(self, payload: str) -> str:
        import hashlib
        import hmac

        signed = payload.encode("utf-8", "replace")
        return _write(hmac.new(self._secret, signed, hashlib.sha256).digest())


def _write(data: bytes) -> str:
    import base64

    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _read(text: str) -> bytes:
    import base64

    return base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
