"""A handler that yields: its items are sent as their caller takes them, or collected into a list.

Such a handler is served by an adapter that runs its generator to the end, so that a stream is one
request like any other: slots, deadlines, cancellation and hooks know nothing of it. What is special
is here: who asked for a stream, and the order of advancing and sending.

Laws of this file:
- The generator is not advanced before its caller takes another item.
- It is closed when its request ends, in whatever way.
- Nothing is sent after the answer.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, cast, get_args

from msgspec import UNSET, Raw

from duet_rpc.context import Context
from duet_rpc.methods.parameters import Parameters
from duet_rpc.methods.signature import CallSource
from duet_rpc.wire.dialect import Dialect
from duet_rpc.wire.params import Meta, find_token
from duet_rpc.wire.streams import MAX_WINDOW, StreamRequest, read_window


def serve_as_stream(parameters: Parameters) -> None:
    """Have the adapter of a generator run it; to callers it returns the list of its items.

    Its source says so, from which other adapters are compiled: those that open dependencies around
    it. A stream has a context, also where its handler takes none.
    """
    source = parameters.source
    parameters.source = CallSource(
        f"run_stream({source.call}, ctx)", {**source.known, "run_stream": run_stream}
    )
    parameters.call = parameters.source.compile("p, ctx, tx")
    parameters.context = parameters.context or "ctx"
    items = get_args(parameters.returns)
    parameters.returns = list[items[0]] if items else list  # type: ignore[valid-type]


def read_request(id: bytes, values: Any, meta: Meta, dialect: Dialect) -> StreamRequest | None:
    """Read how the caller of a request wants its stream; None if it wants the list."""
    if dialect.item is not None and meta.stream is not UNSET:
        window = read_window(meta.stream)
        return None if window is None else StreamRequest(id, window)
    token = find_token(values, dialect.partial_token)
    return None if token is None else StreamRequest(id, MAX_WINDOW, token)


async def run_stream(items: AsyncGenerator[Any, None], ctx: Context) -> Any:
    """Run a generator to its end; return the result that its caller is answered with."""
    sink = ctx._peer.open_stream(ctx) if ctx._stream is not None else None
    try:
        if sink is None:
            return [item async for item in items]
        await sink.ready()
        async for item in items:
            if ctx.cancelled:
                break  # its caller has been answered
            sink.send(item)
            await sink.ready()
        return sink.close()
    finally:
        if sink is not None:
            sink.close()
        await items.aclose()


def send_parts(
    items: Generator[Any, Any, Any], ctx: Context, encode: Callable[[Any], bytes]
) -> list[Raw]:
    """Run a generator that is a `def`: send its items as partial results, or return them all.

    While the caller does not read, items are kept and then sent together, so no more is kept than
    of the list.
    """
    asked = cast("StreamRequest | None", ctx._stream)  # no subscription is a `def`
    token = UNSET if asked is None or not ctx.origin.can_be_called else asked.token
    kept: list[bytes] = []
    try:
        for item in items:
            if ctx.cancelled:
                break
            kept.append(encode(item))
            if token is not UNSET and not ctx._peer.behind:
                _send_part(ctx, token, kept)
                kept = []
        if token is UNSET:
            return [Raw(item) for item in kept]
        if kept:
            _send_part(ctx, token, kept)
        return []
    finally:
        items.close()


def _send_part(ctx: Context, token: Raw, items: list[bytes]) -> None:
    params = b'{"token":%b,"value":[%b]}' % (token, b",".join(items))
    ctx._peer.send_ahead(ctx, lambda: params)
