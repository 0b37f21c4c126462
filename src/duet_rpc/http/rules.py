"""What a request over HTTP means, decided from its head, and how an answer of ours is spelled.

Pure (sans-I/O): a head in, and either the answer that refuses it or what its body is to be given
to. Both hosts ask here, so that the same bytes get the same status on each of them.

The checks come in the order in which a stranger may be told anything: where the request was meant
to go (Host), from which page it comes (Origin), the path, the method, who calls, what the body is.
"""

from collections.abc import Callable, Iterable
from math import inf

from msgspec import Struct

from duet_rpc.context import Origin
from duet_rpc.errors import InvalidRequest, RpcError, Unauthenticated
from duet_rpc.http.messages import JSON, Headers, HttpAnswer, HttpRequest, say
from duet_rpc.http.options import HttpOptions
from duet_rpc.http.principal import Authenticate, Principal
from duet_rpc.wire.framing.frames import oversize
from duet_rpc.wire.messages import NULL, encode_error

MEDIA_TYPES = frozenset({b"application/json", b"application/json-rpc", b"application/jsonrequest"})
"""A form or a plain text is sent by any web page without asking first: neither is taken."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ALLOW = (b"allow", b"POST, OPTIONS")
_ALLOW_GET = (b"allow", b"GET, HEAD")
_CHARSETS = (b"utf-8", b"utf8")
_PREFLIGHT_AGE = b"600"
_MAX_DIGITS = 15


class Accepted(Struct):
    """A request whose body is taken."""

    origin: Origin
    length: int | None
    """Of the body, in bytes; None if it comes in chunks."""
    headers: Headers
    """What the answer has beside its own headers."""
    expires: float = inf
    """Until when whoever calls may call, in seconds since 1970."""
    expects_continue: bool = False
    """The client waits for a word before it sends the body."""
    key: str | None = None
    """The idempotency key of the one command in the body."""


class Upgrade(Struct):
    """A request that is to become a WebSocket."""

    origin: Origin
    authenticate: Authenticate | None = None
    """Its first message has to say who calls; see `introduction`."""


class HttpRules:
    """The rules of one place where a service is served over HTTP."""

    def __init__(
        self,
        options: HttpOptions,
        *,
        max_body: int,
        bound_to: Iterable[str] = (),
        pages: "dict[str, Callable[[], HttpAnswer]] | None" = None,
    ) -> None:
        """`bound_to` are the names of the address itself; `pages` is what else is at which path."""
        self.options = options
        self.max_body: int = max_body
        self._pages = {} if pages is None else pages
        self._hosts = {name.lower() for name in (*LOOPBACK, *bound_to, *options.allowed_hosts)}
        self._origins = {origin.lower() for origin in options.allowed_origins}

    def judge(
        self, request: HttpRequest, connection_id: str, now: float
    ) -> HttpAnswer | Accepted | Upgrade:
        """Decide what becomes of a request before its body is read; `now` counts from 1970."""
        refusal = self._check_caller(request)
        if refusal is not None:
            return refusal
        page = self._pages.get(request.path)
        if page is not None:
            return _show(page, request)
        if request.path != self.options.path:
            return self._not_here()
        if request.method == "OPTIONS":
            return HttpAnswer(204, headers=(_ALLOW, *self._allow_origin(request, preflight=True)))
        if request.method == "GET" and _asks_for_websocket(request):
            return self._upgrade(request, connection_id, now)
        if request.method != "POST":
            return say(405, "send JSON-RPC by POST", _ALLOW, closes=_has_body(request))
        return self._take(request, connection_id, now)

    def _take(self, request: HttpRequest, connection_id: str, now: float) -> HttpAnswer | Accepted:
        headers = self._allow_origin(request)
        principal, refusal = self._authenticate(request, now)
        length, bad_length = _read_length(request)
        refusal = (
            refusal
            or _check_media_type(request)
            or bad_length
            or (refuse_oversize(self.max_body) if (length or 0) > self.max_body else None)
        )
        key, bad_key = _read_key(request)
        refusal = refusal or bad_key
        if refusal is not None:
            return HttpAnswer(
                refusal.status, refusal.body, (*refusal.headers, *headers), refusal.closes
            )
        origin = _make_origin(request, connection_id, principal)
        expires = inf if principal is None or principal.expires is None else principal.expires
        expects = (request.get(b"expect") or b"").lower() == b"100-continue"
        return Accepted(origin, length, headers, expires, expects, key)

    def judge_websocket(
        self, request: HttpRequest, connection_id: str, now: float
    ) -> HttpAnswer | Upgrade:
        """Decide whether a request may become a WebSocket, where the host knows that it asks."""
        refusal = self._check_caller(request)
        if refusal is not None:
            return refusal
        if request.path != self.options.path:
            return self._not_here()
        return self._upgrade(request, connection_id, now)

    def _not_here(self) -> HttpAnswer:
        return say(404, f"nothing is here; JSON-RPC is served at {self.options.path}")

    def _upgrade(
        self, request: HttpRequest, connection_id: str, now: float
    ) -> HttpAnswer | Upgrade:
        authenticate = self.options.authenticate
        is_page = request.get(b"origin") is not None
        if authenticate is not None and is_page and request.get(b"authorization") is None:
            origin = _make_origin(request, connection_id, None, stays_open=True)
            return Upgrade(origin, authenticate)
        principal, refusal = self._authenticate(request, now)
        if refusal is not None:
            return refusal
        return Upgrade(_make_origin(request, connection_id, principal, stays_open=True))

    # In order.

    def _check_caller(self, request: HttpRequest) -> HttpAnswer | None:
        return self._check_host(request) or self._check_origin(request)

    def _check_host(self, request: HttpRequest) -> HttpAnswer | None:
        named = request.get_all(b"host")
        if len(named) > 1 or (not named and request.version != "1.0"):
            return say(400, "a request has one Host header", closes=True)
        if "*" in self._hosts or not named:
            return None
        host = _without_port(named[0].decode("latin-1").lower())
        if host in self._hosts:
            return None
        return say(421, f"this server is not {host[:80]}; allowed_hosts= names what it is called")

    def _check_origin(self, request: HttpRequest) -> HttpAnswer | None:
        named = request.get_all(b"origin")
        if not named or (len(named) == 1 and self._is_allowed(request, named[0])):
            return None
        return say(403, "pages of that origin may not call; allowed_origins= names those that may")

    def _is_allowed(self, request: HttpRequest, origin: bytes) -> bool:
        text = origin.decode("latin-1").lower()
        if text in self._origins or "*" in self._origins:
            return True
        # A page of this very server: its name was looked at just before.
        host = (request.get(b"host") or b"").decode("latin-1").lower()
        return bool(host) and text in (f"http://{host}", f"https://{host}")

    def _allow_origin(self, request: HttpRequest, *, preflight: bool = False) -> Headers:
        origin = request.get(b"origin")
        if origin is None:
            return ()
        allowed = ((b"access-control-allow-origin", origin), (b"vary", b"Origin"))
        if not preflight:
            return (*allowed, (b"access-control-expose-headers", b"Duet-Error-Code, Retry-After"))
        return (
            *allowed,
            (b"access-control-allow-methods", b"POST"),
            (b"access-control-allow-headers", b"Authorization, Content-Type, Idempotency-Key"),
            (b"access-control-max-age", _PREFLIGHT_AGE),
        )

    def _authenticate(
        self, request: HttpRequest, now: float
    ) -> tuple[Principal | None, HttpAnswer | None]:
        authenticate = self.options.authenticate
        if authenticate is None:
            return None, None
        token = _read_token(request)
        principal = None if token is None else authenticate(token)
        if principal is None or (principal.expires is not None and principal.expires <= now):
            return None, refuse_unauthenticated()
        return principal, None


def refuse_oversize(limit: int) -> HttpAnswer:
    """Refuse a body that is too large; it is not read, so the connection ends."""
    return refuse(413, oversize(limit).error, closes=True)


def refuse_unauthenticated() -> HttpAnswer:
    """Refuse a request without credentials, or with bad ones; which of the two is not said."""
    return refuse(401, Unauthenticated(), (b"www-authenticate", b"Bearer"))


def refuse(
    status: int, error: RpcError, *headers: tuple[bytes, bytes], closes: bool = False
) -> HttpAnswer:
    """Refuse a request with an error of JSON-RPC, whose id no one has read."""
    return HttpAnswer(status, encode_error(NULL, error), (*JSON, *headers), closes)


def _make_origin(
    request: HttpRequest,
    connection_id: str,
    principal: Principal | None,
    *,
    stays_open: bool = False,
) -> Origin:
    return Origin(
        connection_id=connection_id,
        transport="websocket" if stays_open else "http",
        principal="local" if principal is None else principal.name,
        scopes=frozenset() if principal is None else principal.scopes,
        address=request.address,
        headers=_show_headers(request.headers),
        can_be_called=stays_open,
    )


def _asks_for_websocket(request: HttpRequest) -> bool:
    return any(value.lower() == b"websocket" for value in request.get_all(b"upgrade"))


def _show(page: Callable[[], HttpAnswer], request: HttpRequest) -> HttpAnswer:
    if request.method not in ("GET", "HEAD"):
        return say(405, "this page is read by GET", _ALLOW_GET, closes=_has_body(request))
    return page()


def _has_body(request: HttpRequest) -> bool:
    length = request.get(b"content-length")
    return request.get(b"transfer-encoding") is not None or length not in (None, b"0")


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (":" not in name or name.endswith("]")) else host


def _check_media_type(request: HttpRequest) -> HttpAnswer | None:
    encodings = [each.lower() for each in request.get_all(b"content-encoding")]
    if any(each not in (b"", b"identity") for each in encodings):
        accepted = (b"accept-encoding", b"identity")
        return say(415, "the body has to come as it is", accepted, closes=True)
    types = request.get_all(b"content-type")
    if len(types) == 1:
        kind, *parameters = types[0].lower().split(b";")
        charsets = [
            value.strip(b' "')
            for name, _, value in (each.partition(b"=") for each in parameters)
            if name.strip() == b"charset"
        ]
        if kind.strip() in MEDIA_TYPES and all(each in _CHARSETS for each in charsets):
            return None
    return say(415, "Content-Type has to be application/json, in UTF-8", closes=True)


def _read_length(request: HttpRequest) -> tuple[int | None, HttpAnswer | None]:
    """Read how long the body is; None if it comes in chunks."""
    lengths = request.get_all(b"content-length")
    codings = request.get_all(b"transfer-encoding")
    if codings:
        if (
            lengths
            or request.version == "1.0"
            or [each.lower() for each in codings] != [b"chunked"]
        ):
            return None, say(400, "a body has one length, or comes in chunks", closes=True)
        return None, None
    if not lengths:
        return 0, None
    digits = lengths[0]
    if len(lengths) > 1 or not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None, say(400, "Content-Length is one number", closes=True)
    return int(digits), None


def _read_token(request: HttpRequest) -> str | None:
    sent = request.get_all(b"authorization")
    if len(sent) != 1:
        return None
    scheme, _, token = sent[0].partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        return None
    return token.strip().decode("latin-1")


def _read_key(request: HttpRequest) -> tuple[str | None, HttpAnswer | None]:
    """Read the idempotency key: quoted, as the draft of the header has it, or bare."""
    sent = request.get_all(b"idempotency-key")
    if not sent:
        return None, None
    key = sent[0].decode("latin-1")
    if key[:1] == '"' and key[-1:] == '"' and len(key) > 1:
        key = key[1:-1]
    if len(sent) > 1 or not key:
        error = InvalidRequest(data={"detail": "one request has one Idempotency-Key"})
        return None, refuse(400, error)
    return key, None


_SECRET = frozenset({b"authorization", b"cookie", b"proxy-authorization"})


def _show_headers(headers: Headers) -> dict[str, str]:
    """Give handlers the headers, but for those that are credentials."""
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers
        if name not in _SECRET
    }
