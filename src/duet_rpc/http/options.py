"""What holds for HTTP whichever host serves it: the listener of ours, or an ASGI server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from duet_rpc.options import check, is_text

if TYPE_CHECKING:
    from duet_rpc.http.principal import Authenticate

IDLE = 75.0
"""Seconds that a connection may stay open without a request. Proxies keep theirs for 60: who closes
first while the other sends makes a request fail."""


class HttpOptions(Struct, frozen=True, kw_only=True):
    """Which requests are taken, and from whom."""

    path: str = "/"
    """Where JSON-RPC is served."""
    allowed_hosts: Sequence[str] = ()
    """Names that clients may call the server by, beside those of this machine and the address it
    listens on: the names behind a proxy. "*" is any name."""
    allowed_origins: Sequence[str] = ()
    """Web pages of other sites that may call: "https://app.example.com"."""
    authenticate: "Authenticate | None" = None
    """Says whose a bearer token is: `BearerTokens.read(path)`, or a function of the token. Without
    it, callers are `local`."""
    idle_timeout: float = IDLE
    """Seconds after which a connection without a request is closed."""

    def __post_init__(self) -> None:
        sound = is_text(self.path) and self.path.startswith("/") and "?" not in self.path
        check("path", self.path, sound, 'a path such as "/rpc"')
        for name in ("allowed_hosts", "allowed_origins"):
            value = getattr(self, name)
            sound = not isinstance(value, str) and all(is_text(each) for each in value)
            check(name, value, sound, 'a list of names: ["example.com"]')
        for origin in self.allowed_origins:
            sound = "://" in origin and not origin.endswith("/")
            check("allowed_origins", origin, sound, 'origins such as "https://app.example.com"')
        sound = self.authenticate is None or callable(self.authenticate)
        check("authenticate", self.authenticate, sound, "a function of the token, or None")
        sound = isinstance(self.idle_timeout, (int, float)) and self.idle_timeout > 0
        check("idle_timeout", self.idle_timeout, sound, "a number above 0 seconds")
