"""Params as people type them: `name=text` and `name:=json`, or from a file or stdin.

What is given as JSON goes to the server as it was spelled: `1.0` and a number of thirty digits stay
what they are.
"""

import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec
from msgspec import Raw

from duet_rpc.options import is_text
from duet_rpc.wire import surrogates

_FORMS = "write name=text, name:=json, name=@file or name:=@file.json"


class Sources:
    """Files and stdin. Stdin can be read once."""

    def __init__(self) -> None:
        self._stdin_is_read = False

    def read(self, name: str) -> bytes:
        """Read a file, or stdin for `-`."""
        if name == "-":
            return self._read_stdin()
        try:
            with open(name, "rb") as file:
                return file.read()
        except OSError as error:
            raise click.UsageError(f"cannot read {name}: {error.strerror}") from None

    def read_text(self, name: str) -> str:
        """Read a file as UTF-8."""
        try:
            return self.read(name).decode()
        except UnicodeDecodeError:
            raise click.UsageError(f"{_name(name)} is not text in UTF-8") from None

    def read_json(self, name: str) -> Raw:
        """Read a file that holds one JSON value."""
        return check_json(self.read(name), _name(name))

    def _read_stdin(self) -> bytes:
        if self._stdin_is_read:
            raise click.UsageError("stdin can be read only once")
        self._stdin_is_read = True
        if sys.stdin is None:
            raise click.UsageError("stdin is closed")
        if sys.stdin.isatty():
            click.echo("reading from the terminal; Ctrl-D ends it", err=True)
        return sys.stdin.buffer.read()


def _name(name: str) -> str:
    return "stdin" if name == "-" else name


def check_json(text: bytes, where: str) -> Raw:
    """Take a JSON value as it is spelled, or say what is wrong with it."""
    try:
        surrogates.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = text.strip()[:60].decode("utf-8", "replace")
        empty = "it is empty" if not text.strip() else f"{error} in {shown!r}"
        raise click.UsageError(f"{where} is not JSON: {empty}") from None
    return Raw(text.strip())


def read_params(items: Sequence[str], json: str | None, sources: Sources) -> Any:
    """Make params of the items and of `--json`; None if there is neither.

    Named params come as a dict of raw values, those by position as raw JSON.
    """
    given: Any = None
    if json is not None:
        is_inline = json.lstrip()[:1] in ("{", "[")
        raw = (
            check_json(json.encode("utf-8", "surrogateescape"), "--json")
            if is_inline
            else sources.read_json(json)
        )
        if bytes(raw)[:1] == b"{":
            given = surrogates.decode(raw, dict[str, Raw])
        elif bytes(raw)[:1] == b"[":
            given = raw
        else:
            raise click.UsageError("params are a JSON object or array")
    if not items:
        return given
    named = read_items(items, sources)
    if isinstance(given, Raw):
        raise click.UsageError("an array of params takes no names beside it")
    return {**(given or {}), **named}


def read_items(items: Sequence[str], sources: Sources) -> dict[str, Any]:
    """Read `name=text` and `name:=json`; a value may be @file, or @- for stdin."""
    named: dict[str, Any] = {}
    for item in items:
        name, sign, value = _split(item)
        if name in named:
            raise click.UsageError(f"{name} is given twice")
        named[name] = _read_value(name, sign, value, sources)
    return named


def list_text_items(items: Sequence[str]) -> set[str]:
    """Name the params that were given as text."""
    return {name for name, sign, _ in map(_split, items) if sign == "="}


def _split(item: str) -> tuple[str, str, str]:
    name, equals, value = item.partition("=")
    if not equals:
        raise click.UsageError(f"{item!r} is no parameter: {_FORMS}")
    sign = "="
    if name.endswith(":"):
        name, sign = name[:-1], ":="
    if not name:
        raise click.UsageError(f"{item!r} has no name: {_FORMS}")
    return name, sign, value


def _read_value(name: str, sign: str, value: str, sources: Sources) -> Any:
    if value.startswith("@"):
        source = value[1:]
        return sources.read_text(source) if sign == "=" else sources.read_json(source)
    if sign == "=":
        if not is_text(value):  # bytes of the command line, which Python keeps as surrogates
            raise click.UsageError(f"{name} is not text in UTF-8")
        return value[1:] if value.startswith("\\@") else value
    try:
        return check_json(value.encode("utf-8", "surrogateescape"), name)
    except click.UsageError as error:
        if any(each in value for each in '"{['):
            raise
        raise click.UsageError(f"{error.message}; for text write {name}={value}") from None
