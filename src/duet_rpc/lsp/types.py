"""The values that nearly every language server speaks of, as small msgspec structs.

They are written to the wire in camelCase, and without what was left at its default. The protocol
has several hundred types; for all others there is the `lsprotocol` package (`duet-rpc[lsp]`), whose
classes handlers may take and return just as well, or a struct, dataclass or dict of the author's.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct


class Severity(enum.IntEnum):
    """How bad a diagnostic is."""

    ERROR = 1
    WARNING = 2
    INFORMATION = 3
    HINT = 4


class Position(Struct, frozen=True, order=True):
    """A place between two characters, in the units that were agreed on with the client.

    `TextDocument.offset` makes an index into the text of it, and `TextDocument.position` the other
    way round.
    """

    line: int
    character: int


class Range(Struct, frozen=True, order=True):
    """What lies between two positions; the end is not part of it."""

    start: Position
    end: Position


class Location(Struct, frozen=True):
    """A range in a document."""

    uri: str
    range: Range


class TextEdit(Struct, frozen=True, rename="camel"):
    """A text in place of a range."""

    range: Range
    new_text: str


class WorkspaceEdit(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Edits of several documents, by their URIs."""

    changes: Mapping[str, Sequence[TextEdit]] | None = None
    document_changes: Sequence[Any] | None = None


class Diagnostic(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something that is wrong with a range of a document."""

    range: Range
    message: str
    severity: Severity | None = None
    source: str | None = None
    code: int | str | None = None
    tags: Sequence[int] | None = None
    related_information: Sequence[Any] | None = None
    data: Any = None


class MarkupContent(Struct, frozen=True):
    """A text for a person: kind is "markdown" or "plaintext"."""

    kind: str
    value: str


class Hover(Struct, frozen=True, omit_defaults=True):
    """What is shown about a position."""

    contents: MarkupContent | str
    range: Range | None = None


class CompletionItem(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One of the texts that could stand at a position."""

    label: str
    kind: int | None = None
    detail: str | None = None
    documentation: MarkupContent | str | None = None
    sort_text: str | None = None
    filter_text: str | None = None
    insert_text: str | None = None
    text_edit: TextEdit | None = None
    additional_text_edits: Sequence[TextEdit] | None = None
    data: Any = None


class DocumentSymbol(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something in a document that has a name; `kind` is one of the protocol's numbers."""

    name: str
    kind: int
    range: Range
    selection_range: Range
    detail: str | None = None
    children: Sequence["DocumentSymbol"] | None = None


class CodeAction(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something that the editor offers to do: an edit, or a command to call."""

    title: str
    kind: str | None = None
    diagnostics: Sequence[Diagnostic] | None = None
    is_preferred: bool | None = None
    edit: WorkspaceEdit | None = None
    command: Any = None
    data: Any = None


class TextDocumentIdentifier(Struct, frozen=True):
    """Which document a request is about."""

    uri: str
