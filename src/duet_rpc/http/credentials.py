"""Who calls over HTTP: a principal made of a bearer token, never out of params.

`BearerTokens` holds digests, so that neither its memory nor its file has a token in it. Any
function of the token that returns a `Principal`, or None, does as well: each request asks it.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping

from duet_rpc.errors import UsageError
from duet_rpc.http.principal import Principal


class BearerTokens:
    """Tokens by their SHA-256 digests: `{"NAME": "HEX DIGEST"}`, or a file of such lines.

    A line of the file is `NAME DIGEST [SCOPE ...]`; what follows a `#` is a comment. The principal
    is `token:NAME`. `digest_token` makes a digest, as does `printf %s TOKEN | sha256sum`.
    """

    def __init__(
        self, digests: Mapping[str, str], scopes: Mapping[str, Iterable[str]] = {}
    ) -> None:
        self._by_digest: dict[bytes, Principal] = {}
        for name, digest in digests.items():
            principal = Principal(f"token:{name}", frozenset(scopes.get(name, ())))
            self._by_digest[_read_digest(name, digest)] = principal

    @classmethod
    def read(cls, path: "str | os.PathLike[str]") -> "BearerTokens":
        """Read a file of digests."""
        digests: dict[str, str] = {}
        scopes: dict[str, list[str]] = {}
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise UsageError(f"the tokens in {os.fspath(path)} cannot be read: {why}") from None
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) < 2 or words[0] in digests:
                raise UsageError(
                    f"{os.fspath(path)}, line {number}: expected NAME DIGEST [SCOPE ...], each"
                    " name once"
                )
            digests[words[0]], scopes[words[0]] = words[1], words[2:]
        return cls(digests, scopes)

    def __call__(self, token: str) -> Principal | None:
        """Say whose a token is."""
        return self._by_digest.get(hashlib.sha256(token.encode("utf-8", "replace")).digest())


def digest_token(token: str) -> str:
    """Make the digest of a token, as `BearerTokens` takes it."""
    return hashlib.sha256(token.encode()).hexdigest()


def _read_digest(name: str, digest: str) -> bytes:
    try:
        read = bytes.fromhex(digest)
    except (TypeError, ValueError):
        read = b""
    if len(read) != hashlib.sha256().digest_size:
        raise UsageError(
            f"the digest of {name} is no SHA-256 in hexadecimal: `printf %s TOKEN | sha256sum`"
            " makes one"
        )
    return read
