"""Reads the head of a request, and a body in chunks: strictly, for what two programs read
differently is how requests are smuggled past one of them. Pure.

llhttp (httptools) reads the head. It refuses bare line feeds, folded lines, spaces before a colon,
repeated and odd lengths; what it lets pass and we do not is refused by `rules`.
"""

from urllib.parse import unquote

import httptools
from msgspec import Struct

from duet_rpc.http.messages import HttpRequest

MAX_CHUNK_LINE = 256
"""Bytes of the line that says how long a chunk is; extensions stand there, which mean nothing."""
_HEX = frozenset(b"0123456789abcdefABCDEF")
_MAX_HEX = 12


class BadRequest(Exception):
    """What came is no request; nothing that follows it can be understood."""


class ReadHead(Struct, frozen=True):
    """A head that was read."""

    request: HttpRequest
    keeps_alive: bool
    """The client may send another request on this connection."""


class _Collector:
    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip(b" \t")))


def read_head(head: bytes, address: str | None) -> ReadHead:
    """Read a head, to the empty line that ends it; raise `BadRequest`."""
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # which is refused like any other GET
    except httptools.HttpParserError as error:
        raise BadRequest(str(error)) from None
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise BadRequest("HTTP/1.1 is spoken here")
    request = HttpRequest(
        method=parser.get_method().decode("latin-1"),
        path=_read_path(collector.url),
        headers=tuple(collector.headers),
        version=version,
        address=address,
    )
    return ReadHead(request, parser.should_keep_alive())


def _read_path(url: bytes) -> str:
    try:
        path = httptools.parse_url(url).path
    except httptools.HttpParserInvalidURLError:
        if url == b"*":  # of OPTIONS: the server as a whole
            return "*"
        raise BadRequest("the target is no path") from None
    return unquote((path or b"/").decode("latin-1"))


class ChunkedBody:
    """A body that comes in chunks."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._left = 0
        """Bytes of the chunk that are still to come, with the line end behind it."""
        self._is_last = False
        self.is_oversize = False

    @property
    def body(self) -> bytes:
        """What has come."""
        return b"".join(self._parts)

    def feed(self, data: bytes, position: int) -> tuple[int, bool]:
        """Read on; return up to where, and whether that was the end. Raises `BadRequest`."""
        while position < len(data):
            if self._left:
                position = self._take(data, position)
                continue
            end = data.find(b"\r\n", position)
            if end < 0:
                if len(data) - position > MAX_CHUNK_LINE:
                    raise BadRequest("the line of a chunk is too long")
                return position, False
            line, position = data[position:end], end + 2
            if self._is_last:
                if line:
                    raise BadRequest("headers behind a body are not taken")
                return position, True
            size = _read_size(line)
            if not size:
                self._is_last = True
                continue
            self._size += size
            if self._size > self._max_bytes:
                self.is_oversize = True
                return position, True
            self._left = size + 2
        return position, False

    def _take(self, data: bytes, position: int) -> int:
        """Take what is there of a chunk; the last two bytes end its line."""
        part = data[position : position + self._left]
        content = part[: max(self._left - 2, 0)]
        ending = part[len(content) :]
        if ending != b"\r\n"[2 - self._left + len(content) :][: len(ending)]:
            raise BadRequest("a chunk is longer than it says")
        self._parts.append(content)
        self._left -= len(part)
        return position + len(part)


def _read_size(line: bytes) -> int:
    digits = line.partition(b";")[0].rstrip(b" \t")
    if (
        len(line) > MAX_CHUNK_LINE
        or not 1 <= len(digits) <= _MAX_HEX
        or not _HEX.issuperset(digits)
    ):
        raise BadRequest("a chunk begins with its length, in hexadecimal")
    return int(digits, 16)
