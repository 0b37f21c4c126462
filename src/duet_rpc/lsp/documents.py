"""The open documents, as the client's notifications have left them.

`textDocument/didOpen`, `didChange` and `didClose` are ordered: each has ended before a later
message is looked at. So a request that was sent after a change finds the change here. A change
makes a new `TextDocument`: a handler that is still running keeps the one that it was given.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from duet_rpc.errors import InvalidParams
from duet_rpc.lsp.positions import (
    Encoding,
    PositionLike,
    RangeLike,
    find_offset,
    find_position,
    join_halves,
    line_starts,
    line_text,
    units_of,
)
from duet_rpc.lsp.types import Position, Range
from duet_rpc.startup import pattern

_WORD = r"\w+"


class OpenedDocument(Struct, frozen=True, rename="camel"):
    """A document as `didOpen` brings it."""

    uri: str
    text: str
    language_id: str = ""
    version: int = 0


class ChangedDocument(Struct, frozen=True):
    """Which document `didChange` is about, and its version from then on."""

    uri: str
    version: int | None = None


class ContentChange(Struct, frozen=True):
    """A text in place of a range, or of everything."""

    text: str
    range: Range | None = None


class TextDocument:
    """A document that is open in the editor, as it was when a request came; it does not change."""

    __slots__ = ("_starts", "encoding", "language_id", "text", "uri", "version")

    def __init__(
        self,
        uri: str,
        text: str,
        *,
        language_id: str = "",
        version: int = 0,
        encoding: Encoding = "utf-16",
    ) -> None:
        self.uri: str = uri
        self.text: str = text
        self.language_id: str = language_id
        self.version: int = version
        self.encoding = encoding
        """What the characters of positions are counted in."""
        self._starts: list[int] | None = None

    def __repr__(self) -> str:
        return f"<TextDocument {self.uri}, version {self.version}>"

    @property
    def path(self) -> str | None:
        """The path of a `file:` document; None of any other."""
        from urllib.parse import unquote, urlsplit

        try:
            parts = urlsplit(self.uri)
        except ValueError:  # it is no URI at all
            return None
        return unquote(parts.path) if parts.scheme == "file" else None

    @property
    def line_count(self) -> int:
        """How many lines there are; an empty text has one."""
        return len(self._line_starts)

    def line(self, number: int) -> str:
        """Return a line without its end; the first is number 0."""
        return line_text(self.text, self._line_starts, number)

    def offset(self, position: PositionLike) -> int:
        """Return the index into `text` of a position; behind the end of a line is its end."""
        return find_offset(self.text, self._line_starts, position, self.encoding)[0]

    def position(self, offset: int) -> Position:
        """Return the position of an index into `text`."""
        return find_position(self.text, self._line_starts, offset, self.encoding)

    def range(self, start: int, end: int) -> Range:
        """Return the range between two indices into `text`."""
        return Range(self.position(start), self.position(end))

    @property
    def whole(self) -> Range:
        """The range of everything."""
        return self.range(0, len(self.text))

    def slice(self, range: RangeLike) -> str:
        """Return the text of a range."""
        return self.text[self.offset(range.start) : self.offset(range.end)]

    def words(self) -> "Iterator[tuple[str, Range]]":
        """List the words (letters, digits, underscores), each with its range."""
        text, starts, encoding = self.text, self._line_starts, self.encoding
        # Counted on from word to word: each from the begin of its line, a long line takes minutes.
        line = counted = units = 0
        for found in pattern(_WORD).finditer(text):
            start, end = found.span()
            if line + 1 < len(starts) and start >= starts[line + 1]:
                line = bisect_right(starts, start) - 1
                counted, units = starts[line], 0
            first = Position(line, units + units_of(text[counted:start], encoding))
            last = Position(line, first.character + units_of(found[0], encoding))
            counted, units = end, last.character
            yield found[0], Range(first, last)

    def word_at(self, position: PositionLike) -> str:
        """Return the word that a position is in or at the end of; empty if there is none."""
        offset = self.offset(position)
        line_start = self._line_starts[min(max(position.line, 0), self.line_count - 1)]
        for found in pattern(_WORD).finditer(self.text, line_start):
            if found.start() > offset:
                break
            if offset <= found.end():
                return found[0]
        return ""

    def changed(self, changes: Sequence[ContentChange], version: int | None) -> "TextDocument":
        """Make the document after one `didChange`: each change to what the one before has left."""
        version = self.version if version is None else version
        document = self._with_text(self.text, version)
        for change in changes:
            text = change.text
            if change.range is not None:
                text = document._replace(change.range, text)
            document = self._with_text(text, version)
        return document

    def _with_text(self, text: str, version: int) -> "TextDocument":
        return TextDocument(
            self.uri, text, language_id=self.language_id, version=version, encoding=self.encoding
        )

    def _replace(self, range: Range, new: str) -> str:
        before = self._cut(min(range.start, range.end))[0]
        after = self._cut(max(range.start, range.end))[1]
        text = before + new + after
        # Half of a pair is left, or has come: it may have found its other half.
        if _has_half(before[-1:]) or _has_half(after[:1]) or _has_half(new):
            return join_halves(text)
        return text

    def _cut(self, position: PositionLike) -> tuple[str, str]:
        """Cut the text at a position, which may be between the halves of a surrogate pair."""
        at, is_inside = find_offset(self.text, self._line_starts, position, self.encoding)
        if not is_inside:
            return self.text[:at], self.text[at:]
        halves = self.text[at].encode("utf-16-le")
        first, second = (
            half.decode("utf-16-le", "surrogatepass") for half in (halves[:2], halves[2:])
        )
        return self.text[:at] + first, second + self.text[at + 1 :]

    @property
    def _line_starts(self) -> list[int]:
        if self._starts is None:
            self._starts = line_starts(self.text)
        return self._starts


def _has_half(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


class Documents:
    """The documents that are open, by their URIs."""

    def __init__(self) -> None:
        self.encoding: Encoding = "utf-16"
        """What was agreed on with the client; of documents that are opened from now on."""
        self._open: dict[str, TextDocument] = {}

    def __iter__(self) -> Iterator[TextDocument]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, uri: object) -> bool:
        return uri in self._open

    def __getitem__(self, uri: str) -> TextDocument:
        """Find an open document; one that is not is the caller's mistake."""
        try:
            return self._open[uri]
        except KeyError:
            found: Any = {
                "param": "textDocument.uri",
                "expected": "the URI of an open document",
                "received": "another string",
            }
            raise InvalidParams(data=found) from None

    def open(self, opened: OpenedDocument) -> TextDocument:
        """Keep a document; one that is open already is replaced."""
        document = self._open[opened.uri] = TextDocument(
            opened.uri,
            opened.text,
            language_id=opened.language_id,
            version=opened.version,
            encoding=self.encoding,
        )
        return document

    def change(self, changed: ChangedDocument, changes: Sequence[ContentChange]) -> TextDocument:
        """Change an open document."""
        document = self[changed.uri].changed(changes, changed.version)
        self._open[changed.uri] = document
        return document

    def clear(self) -> None:
        """Forget all documents."""
        self._open.clear()

    def close(self, uri: str) -> None:
        """Forget a document."""
        self._open.pop(uri, None)
