"""Templates of resource addresses: `notes://{day}`, and `files://{path*}` for what has slashes.

A template is matched as a whole. What stood for a name is given without its percent signs.
"""

import re
from typing import Any

from msgspec import Struct

from duet_rpc.errors import UsageError
from duet_rpc.startup import pattern

_EXPRESSION = r"\{([^{}]*)\}"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*\*?"


class UriTemplate(Struct, frozen=True):
    """An address with places for values; without any, it is one address."""

    text: str
    names: tuple[str, ...]
    source: str
    """The pattern that an address of it fits."""

    @property
    def is_fixed(self) -> bool:
        """Whether it is the address of one thing."""
        return not self.names

    def match(self, uri: str) -> dict[str, str] | None:
        """Read the values out of an address; None if it is none of this template's."""
        found = pattern(self.source).fullmatch(uri)
        if found is None:
            return None
        from urllib.parse import unquote  # here: it costs a cold start a millisecond

        return {name: unquote(value) for name, value in found.groupdict().items()}


def read_template(text: Any) -> UriTemplate:
    """Read a template; a `UsageError` says what is wrong with it."""
    if callable(text):
        raise UsageError('a resource has an address: @service.resource("notes://{day}")')
    if not isinstance(text, str) or not pattern(r"[A-Za-z][A-Za-z0-9+.-]*:.*").fullmatch(text):
        raise UsageError(
            f"{text!r} is no address of a resource; it begins with a scheme: notes://{{day}}"
        )
    names: list[str] = []
    source = ""
    for index, part in enumerate(pattern(_EXPRESSION).split(text)):
        if index % 2 == 0:
            if "{" in part or "}" in part:
                raise UsageError(f"{text}: a brace is not closed")
            source += re.escape(part)
            continue
        name = part.removesuffix("*")
        if not pattern(_NAME).fullmatch(part):
            raise UsageError(f"{text}: {{{part}}} is no name; write {{name}} or {{name*}}")
        if name in names:
            raise UsageError(f"{text} has {{{name}}} twice")
        names.append(name)
        source += f"(?P<{name}>{'.+' if part.endswith('*') else '[^/?#]+'})"
    return UriTemplate(text, tuple(names), source)
