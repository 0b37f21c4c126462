"""Who may touch a connection while a handler runs on the thread that reads it.

The thread that reads lends the connection: the hand-over token lies in a list while the handler
runs, and a watchdog that takes it may receive in its place. So reading goes on although a handler
blocks. When the handler ends, the reading thread finds the token, or asks its host for the
connection.
"""

from duet_rpc.wire.messages import Request, decode


class Handover:
    """The hand-over token of one connection."""

    __slots__ = ("token", "given_up", "inline_body", "lent")

    def __init__(self) -> None:
        self.token: list[bytes | bytearray | None] = []
        """Lies here while a handler runs inline: what is being answered, if that is decoded."""
        self.lent: bool = False
        """A handler keeps the thread that reads; another one reads, and starts nothing."""
        self.inline_body: bytes | bytearray | None = None
        """What the reading thread is answering while the connection is lent."""
        self.given_up: bool = False
        """It was cancelled, and answered, while its handler still runs."""

    def take_over(self) -> bool:
        """Take the token while a handler runs inline on another thread; False if none does."""
        try:
            self.inline_body = self.token.pop()
        except IndexError:
            return False
        self.lend()
        return True

    def lend(self) -> None:
        """The thread that reads is kept by a handler: until `take_back`, start nothing."""
        self.lent = True

    def take_back(self) -> None:
        """The thread that reads has the connection again."""
        self.lent = False

    def end_inline(self) -> bool:
        """The handler has ended; return whether its request was given up meanwhile."""
        given_up, self.given_up, self.inline_body = self.given_up, False, None
        return given_up

    def give_up(self, id: bytes, max_depth: int) -> str | None:
        """Give up the request that is just being answered if it has this id; return its method."""
        if self.inline_body is None or not self.lent or self.given_up:
            return None
        running = decode(self.inline_body, max_depth, 0)
        if type(running) is not Request or running.id != id:
            return None
        self.given_up = True
        return running.method
