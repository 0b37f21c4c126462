"""Docstrings in three styles, and in none."""

import pytest

from duet_rpc.methods.docstrings import read_docstring

GOOGLE = """Move money.

    Both accounts
    have to exist.

    Args:
        source (str): whose money it is,
            by name
        *cents: how much: in cents

    Returns:
        What is left.
    """
NUMPY = """
    Move money.

    Both accounts
    have to exist.

    Parameters
    ----------
    source : str
        whose money it is,
        by name
    cents : int, optional
        how much: in cents

    Returns
    -------
    int
        What is left.
    """
SPHINX = """Move money.

    Both accounts
    have to exist.

    :param str source: whose money it is,
        by name
    :type source: str
    :param cents: how much: in cents
    :returns: What is left.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_the_words_about_parameters_are_taken_out(doc: str) -> None:
    read = read_docstring(doc)
    assert read.params == {
        "source": "whose money it is, by name",
        "cents": "how much: in cents",
    }
    assert read.text.startswith("Move money.\n\nBoth accounts\nhave to exist.\n\n")
    assert "What is left." in read.text
    assert "whose" not in read.text and "Args" not in read.text and "Param" not in read.text


@pytest.mark.parametrize("doc", [None, "", "   \n  "])
def test_nothing_is_nothing(doc: str | None) -> None:
    assert read_docstring(doc).text == "" and read_docstring(doc).params == {}


@pytest.mark.parametrize(
    "doc",
    [
        "Say what Args: means.",
        "Params are fine.\n\nParameters\nare named here, without a rule.",
        "A list:\n\n- one\n    - two\n",
        "type : nothing",
    ],
)
def test_text_of_no_style_stays_as_it_is(doc: str) -> None:
    assert read_docstring(doc).text == doc.strip() and read_docstring(doc).params == {}


def test_entries_go_on_over_blank_lines_and_two_may_share_words() -> None:
    google = "X.\n\nArgs:\n    a: one\n\n        two\n    b:\n        three\n\nMore."
    assert read_docstring(google).params == {"a": "one two", "b": "three"}
    assert read_docstring(google).text == "X.\n\nMore."
    numpy = "X.\n\nParameters\n----------\na, b\n    both\n"
    assert read_docstring(numpy).params == {"a": "both", "b": "both"}


def test_the_members_of_a_class_are_described_too() -> None:
    assert read_docstring("A note.\n\nAttributes:\n    text: what it says\n").params == {
        "text": "what it says"
    }
