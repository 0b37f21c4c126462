"""Slots: how many handlers may run at a time, of one connection or of all exchanges of a server.

A handler holds a slot from its start to its end, except while it is paused: it waits for an answer
of its peer, and the peer may have to call back before it can answer. The handler of a subscription
gives its slot up for good once its request is answered.
"""

from duet_rpc.context import Context


class Slots:
    """The concurrency limit of one connection or endpoint, and who counts against it."""

    __slots__ = ("_detached", "_max_paused", "limit", "max_running", "paused", "running")

    def __init__(self, limit: int, max_paused: int) -> None:
        """`max_paused` handlers give up their slots; with a silent peer, any number might wait."""
        self.max_running: int = limit
        self.limit: int = limit
        """How many may run now: all that may, or none beside an ordered notification."""
        self.running: int = 0
        self.paused: dict[Context, int] = {}
        """The handlers that are paused: how many answers of the peer each of them waits for."""
        self._detached: set[Context] = set()
        """Those of them that have given up their slots for good, however many they are."""
        self._max_paused = max_paused

    def hold_back(self) -> None:
        """An ordered notification begins: until it has ended, nothing else is started."""
        self.limit = 0

    def let_go(self) -> None:
        """It has ended."""
        self.limit = self.max_running

    @property
    def without_slot(self) -> int:
        """How many of the paused handlers have given up their slot."""
        detached = len(self._detached)
        return detached + min(len(self.paused) - detached, self._max_paused)

    def pause(self, ctx: Context) -> None:
        """A handler waits for its peer: give up its slot, one for however many answers."""
        if ctx.is_over:
            return
        answers = self.paused.get(ctx, 0)
        self.paused[ctx] = answers + 1
        if not answers and len(self.paused) - len(self._detached) <= self._max_paused:
            self.running -= 1

    def detach(self, ctx: Context) -> None:
        """The request of a handler is answered and the handler goes on: it needs no slot."""
        self.paused[ctx] = self.paused.get(ctx, 0) + 1
        self._detached.add(ctx)
        self.running -= 1

    def resume(self, ctx: Context) -> None:
        """One of the answers is there, or is not awaited any more; after the last one it runs."""
        answers = self.paused.get(ctx, 0)
        if answers > 1:
            self.paused[ctx] = answers - 1
        elif answers:
            self._take_again(ctx)

    def end(self, ctx: Context) -> None:
        """A handler has ended; a task or thread of its own may still wait for its peer."""
        if ctx in self.paused:
            self._take_again(ctx)

    def _take_again(self, ctx: Context) -> None:
        # What goes on after a pause needs no room: only so more than the limit may run.
        if ctx in self._detached:
            self._detached.remove(ctx)
            self.running += 1
        elif len(self.paused) - len(self._detached) <= self._max_paused:
            self.running += 1
        del self.paused[ctx]
