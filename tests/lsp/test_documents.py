"""Positions of the wire and indices of Python, there and back; edits as clients send them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_rpc.errors import InvalidParams
from duet_rpc.lsp import Documents, Position, Range, TextDocument
from duet_rpc.lsp.documents import ChangedDocument, ContentChange, OpenedDocument
from duet_rpc.lsp.positions import Encoding

ENCODINGS: tuple[Encoding, ...] = ("utf-8", "utf-16", "utf-32")
TEXTS = st.text(st.sampled_from("ab \n\r\u00fc\u4e2d\U0001f600\u2028"), max_size=30)


def document(text: str, encoding: Encoding = "utf-16") -> TextDocument:
    return TextDocument("file:///a", text, encoding=encoding)


def edit(start: tuple[int, int], end: tuple[int, int], text: str) -> ContentChange:
    return ContentChange(text, Range(Position(*start), Position(*end)))


def lines(text: str) -> list[str]:
    """Split as the protocol says: a second way, to compare with."""
    return re.split("\r\n|\n|\r", text)


def units(text: str, encoding: Encoding) -> int:
    sizes = {"utf-8": 1, "utf-16": 2, "utf-32": 4}
    name = encoding if encoding == "utf-8" else f"{encoding}-le"
    return len(text.encode(name, "surrogatepass")) // sizes[encoding]


@given(TEXTS, st.sampled_from(ENCODINGS))
def test_every_place_of_a_text_has_one_position(text: str, encoding: Encoding) -> None:
    opened = document(text, encoding)
    split = lines(text)
    assert [opened.line(number) for number in range(opened.line_count)] == split
    offset = 0
    for number, line in enumerate(split):
        for index in range(len(line) + 1):
            position = Position(number, units(line[:index], encoding))
            assert opened.position(offset + index) == position
            assert opened.offset(position) == offset + index
        offset += len(line) + (2 if text[offset + len(line) :].startswith("\r\n") else 1)


@pytest.mark.parametrize(
    ("encoding", "character", "index"),
    [
        ("utf-16", 3, 2),
        ("utf-16", 2, 1),
        ("utf-8", 5, 2),
        ("utf-8", 3, 1),
        ("utf-32", 2, 2),
        ("utf-16", 99, 3),
    ],
)
def test_inside_of_a_character_is_its_begin_and_behind_a_line_its_end(
    encoding: Encoding, character: int, index: int
) -> None:
    assert document("a😀b\r\nc", encoding).offset(Position(0, character)) == index


def test_a_line_that_is_not_there_is_the_end() -> None:
    assert document("a\nb").offset(Position(7, 0)) == 3
    assert document("").whole == Range(Position(0, 0), Position(0, 0))


@pytest.mark.clause("lsp-5")
@pytest.mark.parametrize("line", [-1, -9])
def test_a_line_below_zero_is_the_begin(line: int) -> None:
    opened = document("a\nb")
    assert opened.offset(Position(line, 1)) == 0
    assert opened.word_at(Position(line, 1)) == "a"
    assert opened.changed([edit((line, 0), (0, 0), "c")], 2).text == "ca\nb"


def test_a_range_whose_end_is_before_its_start_is_turned_round() -> None:
    assert document("a\nbc").changed([edit((1, 1), (0, 1), "-")], 2).text == "a-c"


@given(TEXTS, st.integers(0, 30), st.integers(0, 30), TEXTS, st.sampled_from(ENCODINGS))
def test_an_edit_is_what_slicing_makes_of_it(
    text: str, one: int, other: int, new: str, encoding: Encoding
) -> None:
    start, end = sorted(min(each, len(text)) for each in (one, other))
    opened = document(text, encoding)
    where = opened.range(start, end)
    start, end = opened.offset(where.start), opened.offset(where.end)  # not within CR LF
    opened = opened.changed([ContentChange(new, where)], 2)
    assert opened.text == text[:start] + new + text[end:]
    assert opened.version == 2


def test_changes_are_applied_one_after_the_other() -> None:
    opened = document("one\r\ntwo 😀 three")
    opened = opened.changed([edit((1, 7), (1, 12), "four"), edit((0, 3), (1, 0), "\n")], 5)
    assert opened.text == "one\ntwo 😀 four"
    opened = opened.changed([ContentChange("whole"), edit((0, 0), (0, 1), "W")], None)
    assert (opened.text, opened.version) == ("Whole", 5)


@pytest.mark.clause("lsp-6")
def test_a_change_of_nothing_has_its_version() -> None:
    opened = document("one")
    changed = opened.changed([], 5)
    assert (changed.text, changed.version, opened.version) == ("one", 5, 0)


def test_half_of_a_pair_may_be_replaced() -> None:
    opened = document("a😀b")  # d83d de00
    opened = opened.changed([edit((0, 2), (0, 3), "\ude01")], 2)
    assert opened.text == "a😁b"
    opened = opened.changed([edit((0, 2), (0, 3), "")], 3)
    assert opened.text == "a\ud83db"
    opened = opened.changed([edit((0, 2), (0, 2), "\ude00")], 4)
    assert opened.text == "a😀b"


def test_words_are_found_with_their_ranges() -> None:
    opened = document("😀 one two")
    assert opened.word_at(Position(0, 4)) == "one"
    assert opened.word_at(Position(0, 6)) == "one", "at its end"
    assert opened.word_at(Position(0, 0)) == ""
    assert list(opened.words())[0] == ("one", Range(Position(0, 3), Position(0, 6)))
    assert opened.slice(Range(Position(0, 3), Position(0, 6))) == "one"


@given(TEXTS, st.sampled_from(ENCODINGS))
def test_words_are_where_their_offsets_are(text: str, encoding: Encoding) -> None:
    opened = document(text, encoding)
    found = [(each[0], opened.range(*each.span())) for each in re.finditer(r"\w+", text)]
    assert list(opened.words()) == found


def test_the_path_of_a_file() -> None:
    assert TextDocument("file://[", "").path is None, "which is no URI"
    assert TextDocument("file:///a%20b/c.md", "").path == "/a b/c.md"
    assert TextDocument("untitled:1", "").path is None


def test_the_store_knows_what_is_open() -> None:
    documents = Documents()
    documents.open(OpenedDocument("file:///a", "one", "text", 1))
    documents.change(ChangedDocument("file:///a", 2), [ContentChange("two")])
    assert [each.text for each in documents] == ["two"]
    assert len(documents) == 1 and "file:///a" in documents
    documents.close("file:///a")
    documents.close("file:///a")
    with pytest.raises(InvalidParams):
        documents["file:///a"]
