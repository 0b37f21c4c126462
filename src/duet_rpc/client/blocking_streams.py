"""Streams of the blocking client: `for hit in client.stream("search", ...)`.

A thread that waits for the next item is one of those that share the connection: it leads, or
follows, as if it waited for an answer. Its reply is settled by the item instead.
"""

from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from duet_rpc.client.options import Expected
from duet_rpc.client.replies import ThreadReply
from duet_rpc.client.stream_call import StreamCall
from duet_rpc.errors import CallTimeout, TransportError

if TYPE_CHECKING:
    from duet_rpc.client.blocking import Client
    from duet_rpc.client.blocking_host import BlockingHost

T = TypeVar("T")


class BlockingStream(Generic[T]):
    """The items of a streaming call, for one thread.

    `with` cancels the call when the block is left; without it, the call is cancelled as soon as
    nothing refers to the stream.
    """

    def __init__(self, client: "Client", call: StreamCall) -> None:
        self._client = client
        self._shared = client._shared
        self._call = call
        self._host: BlockingHost | None = None

    def __enter__(self) -> "BlockingStream[T]":
        self._begin()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> "BlockingStream[T]":
        return self

    def __next__(self) -> T:
        if self._host is None:
            self._begin()
        while not self._call.inflow.items:
            if self._call.inflow.ended:
                self._ended()
            else:
                self._wait()
        inflow = self._call.inflow
        raw = inflow.take()
        if inflow.may_grant:
            self._shared.do(self._grant, None, None)
        try:
            item: T = self._call.decode(raw)
        except BaseException:
            self.close()
            raise
        return item

    def _ended(self) -> None:
        """See to the end: raise it."""
        self._end()

    def _end(self) -> NoReturn:
        error = self._call.failure()
        self.close()
        if error is not None:
            raise error
        raise StopIteration

    def _grant(self, _: None, __: None) -> None:
        host = self._host
        assert host is not None, "items come on a connection"
        if host is self._shared.host:
            self._call.grant(host.connection.calls)
            self._shared.flush(host)

    def _begin(self) -> None:
        reply = self._reply()
        while self._host is None and not self._call.inflow.ended:
            self._host = self._shared.open_stream(self._call)
            if self._host is None:
                self._client._reopen(reply)

    def _reply(self) -> ThreadReply:
        wanted = Expected(None, self._call.wait_timeout)  # an event, which has no value
        return ThreadReply(self._shared, self._call.method, wanted)

    def _wait(self) -> None:
        """Wait until something came or the stream has ended, up to its timeout."""
        reply, inflow = self._reply(), self._call.inflow
        self._shared.do(self._expect, reply, None)
        try:
            self._shared.wait(reply)
            reply.outcome()
        except CallTimeout:
            inflow.end(self._call.too_late())
        except TransportError as error:
            inflow.end(error.with_traceback(None))
        finally:
            inflow.on_change = None

    def _expect(self, reply: ThreadReply, _: None) -> None:
        inflow = self._call.inflow
        reply.host = self._host
        if inflow.has_news:
            reply.settle(None, None)
        else:
            inflow.on_change = lambda: reply.settle(None, None)

    def close(self) -> None:
        """Take no more items; a call that has not ended is cancelled. Idempotent."""
        if self._host is not None:
            self._shared.close_stream(self._host, self._call)
        else:
            self._call.inflow.end(None)

    def __del__(self) -> None:
        # On any thread, at any moment, and perhaps after a constructor that has failed.
        host: BlockingHost | None = getattr(self, "_host", None)
        if host is not None and self._call.is_open(host.connection.calls):
            self._shared.leave_stream(host, self._call)
