"""An HTTP request and its answer as values, whoever has read the one and writes the other."""

from http import HTTPStatus
from typing import TypeAlias

from msgspec import Struct

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Names in lower case, values without the spaces around them, in the order in which they came."""

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


class HttpRequest(Struct, frozen=True):
    """The head of a request."""

    method: str
    path: str
    headers: Headers = ()
    version: str = "1.1"
    address: str | None = None
    """Where the client is; None if that has no address, such as a unix socket."""

    def get_all(self, name: bytes) -> list[bytes]:
        """List the values of a header."""
        return [value for each, value in self.headers if each == name]

    def get(self, name: bytes) -> bytes | None:
        """Find the value of a header; of several, the first."""
        for each, value in self.headers:
            if each == name:
                return value
        return None


class HttpAnswer(Struct, frozen=True):
    """An answer: its status, its headers but for those of the connection, its body."""

    status: int
    body: bytes = b""
    headers: Headers = ()
    closes: bool = False
    """The connection cannot go on: what follows in it is not understood, or is not wanted."""


JSON = ((b"content-type", b"application/json"),)
TEXT = ((b"content-type", b"text/plain; charset=utf-8"),)


def say(status: int, text: str, *headers: tuple[bytes, bytes], closes: bool = False) -> HttpAnswer:
    """Make an answer that says in words what is wrong."""
    return HttpAnswer(status, f"{text}\n".encode(), (*TEXT, *headers), closes)


def spell_head(answer: HttpAnswer, date: bytes, *, keeps_alive: bool, old: bool = False) -> bytes:
    """Write the head of an answer on a connection of ours; `old` is to a client of HTTP/1.0."""
    status = answer.status
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"Unknown")), date]
    lines += [b"%b: %b\r\n" % header for header in answer.headers]
    if status != 204:
        lines.append(b"content-length: %d\r\n" % len(answer.body))
    if not keeps_alive:
        lines.append(b"connection: close\r\n")
    elif old:
        lines.append(b"connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
