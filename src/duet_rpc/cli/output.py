"""What people and programs read: values and tables on stdout, everything else on stderr.

On a terminal a value is laid out and coloured; in a pipe it is one line of JSON. Numbers keep the
spelling that they came in. What others wrote (results, names, descriptions, messages) may hold
characters that a terminal obeys; they are shown as escapes instead.
"""

import functools
import io
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import click

from duet_rpc.cli.exit_codes import NOT_WRITTEN
from duet_rpc.wire import surrogates

MAX_COLOURED = 1 << 20
"""Longer values are shown in one colour: no one reads them, and they would take long."""

_OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of text."""
_TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*"(?=:))|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<word>true|false|null)"
)
_COLOURS = {"key": "36", "text": "32", "number": "33", "word": "35"}

_OPTIONS = (
    click.option(
        "--format",
        "format_",
        type=click.Choice(["json", "pretty"]),
        show_default="pretty on a terminal, json elsewhere",
        help="One line of JSON, or laid out for people.",
    ),
    click.option("--no-color", is_flag=True, help="Never colour.  [env var: NO_COLOR]"),
)


def output_options(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say how its results look; it is called with an `Output`."""

    @functools.wraps(run)
    def command(format_: str | None, no_color: bool, **own: Any) -> None:
        run(output=Output(format_, no_color), **own)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class Output:
    """Stdout, for a person or a program."""

    def __init__(self, format_: str | None, no_color: bool) -> None:
        on_terminal = is_terminal(sys.stdout)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal that has no letter for something still shows the rest.
            sys.stdout.reconfigure(errors="backslashreplace")
        self.pretty: bool = on_terminal if format_ is None else format_ == "pretty"
        self.no_color = no_color
        self.json_wanted: bool = format_ == "json"
        """JSON was asked for by name: failures are printed in it as well."""
        self.colour: bool = self.pretty and on_terminal and not no_color and _terminal_has_colour()
        self.width: int = 100
        if on_terminal:
            import shutil  # loads a good deal

            self.width = shutil.get_terminal_size().columns

    def value(self, raw: bytes) -> None:
        """Print one JSON value."""
        if not self.pretty:
            self.line(surrogates.layout(raw, -1))
            return
        self.line(self.colour_json(safe_json(surrogates.layout(raw, 2))))

    def line(self, text: str | bytes = "") -> None:
        """Print a line."""
        try:
            click.echo(text)
        except BrokenPipeError:
            raise  # the reader has had enough; click ends quietly
        except OSError as error:
            # What could not be written now would be tried again, and fail, when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise Failed(f"the result cannot be written: {error.strerror}", NOT_WRITTEN) from None

    def colour_json(self, json: str) -> str:
        """Colour JSON text, if colours are wanted."""
        if not self.colour or len(json) > MAX_COLOURED:
            return json
        return _TOKEN.sub(
            lambda found: f"\x1b[{_COLOURS[found.lastgroup or 'text']}m{found[0]}\x1b[0m", json
        )

    def strong(self, text: str) -> str:
        """Make a heading stand out."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def faint(self, text: str) -> str:
        """Let something step back."""
        return f"\x1b[2m{text}\x1b[0m" if self.colour else text

    def alarming(self, text: str) -> str:
        """Colour what needs somebody's attention."""
        return f"\x1b[31m{text}\x1b[0m" if self.colour else text

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows in columns; the last one is cut where the terminal ends."""
        for number, line in enumerate(lay_out_columns([header, *rows], self.width)):
            self.line(self.strong(line) if number == 0 else line)


def lay_out_columns(rows: Sequence[Sequence[str]], width: int = 10_000) -> list[str]:
    """Lay out rows in columns, two spaces apart; the last is cut where the width ends."""
    widths = [max(map(count_cells, column)) for column in zip(*rows, strict=True)]
    room = max(width - sum(widths[:-1]) - 2 * (len(widths) - 1), 20)
    lines = []
    for *row, last in rows:
        padded = [
            f"{cell}{' ' * (size - count_cells(cell))}"
            for cell, size in zip(row, widths, strict=False)
        ]
        lines.append("  ".join([*padded, cut(last, room)]).rstrip())
    return lines


def count_cells(text: str) -> int:
    """Count the places that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )


def cut(text: str, room: int) -> str:
    """Shorten a text to the room there is."""
    if count_cells(text) <= room:
        return text
    while count_cells(text) > room - 3:
        text = text[: max(room - 3, len(text) // 2) if count_cells(text) > 2 * room else -1]
    return f"{text.rstrip()}..."


def safe(text: str) -> str:
    """Show what a terminal would obey, on one line."""
    return _OBEYED.sub(lambda found: _escape(found[0]), text)


def safe_json(raw: bytes) -> str:
    """Make JSON safe to show; it stays the same JSON."""
    # The layout is made of newlines; within strings they are escaped already.
    text = raw.decode()
    return _OBEYED.sub(lambda f: f[0] if f[0] == "\n" else f"\\u{ord(f[0]):04x}", text)


def _escape(character: str) -> str:
    return {"\n": " ", "\t": " ", "\r": " "}.get(character) or f"\\u{ord(character):04x}"


def write_compact(value: Any) -> str:
    """Write a value as JSON on one line, safe to show."""
    return safe_json(surrogates.encode_value(value))


def tell(text: str) -> None:
    """Say something to the person, on stderr."""
    click.echo(text, err=True)


def tell_failure(text: str, advice: Sequence[str] = (), *, no_color: bool = False) -> None:
    """Say on stderr, under our name, what went wrong, with what to do below."""
    name = "duet-rpc:"
    if is_terminal(sys.stderr) and not no_color and _terminal_has_colour():
        name = f"\x1b[31m{name}\x1b[0m"
    tell(f"{name} {text}")
    for line in advice:
        tell(f"  {line}")


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether somebody looks at a stream; None is one that was closed before we began."""
    return stream is not None and stream.isatty()


def _terminal_has_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Failed(click.ClickException):
    """The command could not do what it was asked; the exit code says in which way."""

    def __init__(self, text: str, exit_code: int, advice: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # type: ignore[misc]  # click fixes it for each class
        self._advice = advice

    def show(self, file: object = None) -> None:
        """Say it on stderr under our name, with what to do below."""
        tell_failure(self.format_message(), self._advice)
