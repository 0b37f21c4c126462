"""What a docstring says: the text, and the words about each parameter.

Three styles are known, those of Google, NumPy and Sphinx. The section about parameters is taken out
of the text, because its words have a place of their own in descriptions.
"""

from collections.abc import Iterator

from msgspec import Struct

from duet_rpc.startup import pattern

_WORDS = ("Arg", "arg", "Param", "param", "Keyword", ":key", "Attributes", "type ")
"""One of them is in each docstring that has words about parameters."""
_GOOGLE = r"(?:Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments|Attributes):\s*$"
_NUMPY = r"(?:Parameters|Other Parameters|Attributes)\s*$"
_RULE = r"(-{3,}|={3,})\s*$"
_SPHINX = r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\**(\w+)\s*:\s*(.*)$"
_SPHINX_TYPE = r":(?:type|vartype)\s[^:]*:"
_GOOGLE_ENTRY = r"\**(\w+)\s*(?:\(.*?\))?\s*:(?:\s+|$)(.*)$"
_NUMPY_ENTRY = r"([\w*, ]+?)\s*(?::.*)?$"


class Docstring(Struct, frozen=True):
    """A docstring in its parts."""

    text: str
    """All but the sections about parameters."""
    params: dict[str, str]
    """The words about each parameter, by its name in Python."""


def read_docstring(doc: str | None) -> Docstring:
    """Take a docstring apart. What has no known style is text."""
    lines = _dedent(doc or "")
    if not any(word in (doc or "") for word in _WORDS):
        return Docstring("\n".join(lines).strip(), {})  # most of them: no pattern is compiled
    params: dict[str, list[str]] = {}
    text: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        below = lines[at + 1] if at + 1 < len(lines) else ""
        entries: list[tuple[str, str]] | None = None
        end = at + 1
        if pattern(_GOOGLE).match(line):
            end = _find_end_of_indented(lines, at + 1)
            entries = list(_read_google(lines[at + 1 : end]))
        elif pattern(_NUMPY).match(line) and pattern(_RULE).match(below):
            end = _find_numpy_section(lines, at + 2)
            entries = list(_read_numpy(lines[at + 2 : end]))
        elif found := pattern(_SPHINX).match(line):
            end = _find_end_of_indented(lines, at + 1, over_blanks=False)
            entries = [(found[1], said) for said in (found[2], *lines[at + 1 : end])]
        elif pattern(_SPHINX_TYPE).match(line):
            entries = []
        if entries is None:
            text.append(line)
        else:
            for name, said in entries:
                params.setdefault(name, []).append(said.strip())
        at = end
    joined = {name: " ".join(filter(None, said)) for name, said in params.items()}
    said = pattern(r"\n{3,}").sub("\n\n", "\n".join(text)).strip()
    return Docstring(said, {name: words for name, words in joined.items() if words})


def _dedent(doc: str) -> list[str]:
    """Give the lines without what they are all indented by; the first stands by itself."""
    first, *rest = doc.expandtabs().splitlines() or [""]
    indents = [_count_indent(line) for line in rest if line.strip()]
    cut = min(indents, default=0)
    return [first.strip(), *(line[cut:].rstrip() for line in rest)]


def _count_indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _find_end_of_indented(lines: list[str], start: int, *, over_blanks: bool = True) -> int:
    """Find where a block ends that is indented deeper than what is around it."""
    end = at = start
    while at < len(lines) and (lines[at].startswith(" ") or (over_blanks and not lines[at])):
        at += 1
        if lines[at - 1]:
            end = at
    return end


def _read_google(lines: list[str]) -> Iterator[tuple[str, str]]:
    indent = min((_count_indent(line) for line in lines if line), default=0)
    name = ""
    for line in lines:
        found = pattern(_GOOGLE_ENTRY).match(line[indent:])
        if found is not None and _count_indent(line) == indent:
            name = found[1]
            yield name, found[2]
        elif name:
            yield name, line


def _find_numpy_section(lines: list[str], start: int) -> int:
    """Find where a section ends: at the next title, which has a rule below it."""
    for at in range(start, len(lines) - 1):
        if lines[at] and pattern(_RULE).match(lines[at + 1]):
            return at
    return len(lines)


def _read_numpy(lines: list[str]) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    for line in lines:
        if line and not line.startswith(" "):
            found = pattern(_NUMPY_ENTRY).match(line)
            names = [] if found is None else [each.strip(" *") for each in found[1].split(",")]
        else:
            for name in names:
                yield name, line
