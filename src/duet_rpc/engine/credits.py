"""Flow control of streams by credit: how many items their callers have granted and not been sent.

A stream is named by the raw id of its request. Its caller offers a window when it asks, and grants
more as it consumes items. Without credit the generator is not advanced, so neither end keeps more
of a stream than its window.
"""

from collections.abc import Callable


class Credit:
    """What the caller of one stream takes now."""

    __slots__ = ("left", "on_grant", "over")

    def __init__(self, window: int) -> None:
        self.left: int = window
        self.on_grant: Callable[[], object] | None = None
        """Called when more is granted, or never will be, while the stream waits for that."""
        self.over: bool = False
        """Nothing more will be granted: the caller has said its last word."""

    def grant(self, items: int) -> None:
        """Let so many more items be sent."""
        self.left += items
        if self.on_grant is not None:
            self.on_grant()

    def end(self) -> None:
        """No grant can come any more."""
        self.over = True
        if self.on_grant is not None:
            self.on_grant()

    def spend(self) -> None:
        """One item is sent."""
        assert self.left > 0, "an item is sent only where its caller takes it"
        self.left -= 1


class Credits:
    """The credit of each stream of one connection, by the raw id of its request."""

    __slots__ = ("_open", "_over")

    def __init__(self) -> None:
        self._over = False
        self._open: dict[bytes, Credit] = {}

    def open(self, id: bytes, window: int) -> Credit | None:
        """Begin a stream; None if another one under this id has not ended."""
        if id in self._open:
            return None
        self._open[id] = credit = Credit(window)
        credit.over = self._over
        return credit

    def end(self) -> None:
        """The input has ended, and with it all grants."""
        self._over = True
        for credit in list(self._open.values()):
            credit.end()

    def close(self, id: bytes) -> None:
        """Forget a stream that has ended."""
        del self._open[id]

    def grant(self, params: bytes | None) -> bool:
        """Take a grant of the peer; False if it names no stream that is open."""
        from duet_rpc.wire.streams import read_more  # with the first grant that there is

        granted = read_more(params)
        credit = None if granted is None else self._open.get(granted[0])
        if granted is None or credit is None:
            return False
        credit.grant(granted[1])
        return True
