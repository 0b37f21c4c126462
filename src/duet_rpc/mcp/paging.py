"""Pages of long lists. A cursor says where the next page begins; to a client it means nothing."""

from typing import Any, TypeVar

from duet_rpc.mcp.errors import malformed

T = TypeVar("T")
_PREFIX = "from-"


def cut_page(items: list[T], cursor: str | None, size: int) -> tuple[list[T], str | None]:
    """Cut the page that a cursor names, and say the cursor of the next one, if there is one."""
    start = 0
    if cursor is not None:
        number = cursor.removeprefix(_PREFIX)
        if not cursor.startswith(_PREFIX) or not (number.isascii() and number.isdigit()):
            raise malformed("this is no cursor of ours", cursor=_shorten(cursor))
        start = int(number[:9])
        if not 0 < start < len(items) or start % size:
            raise malformed("this is no cursor of this list", cursor=_shorten(cursor))
    end = start + size
    return items[start:end], f"{_PREFIX}{end}" if end < len(items) else None


def make_page(name: str, items: list[Any], cursor: str | None, size: int) -> dict[str, Any]:
    """Make the result that lists one page."""
    page, following = cut_page(items, cursor, size)
    return {name: page} if following is None else {name: page, "nextCursor": following}


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."
