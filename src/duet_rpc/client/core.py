"""Calls as people make them: queries, commands with their key, retries.

Written once, as coroutines over a `Sender`. The asyncio client awaits them; the blocking client
runs the same coroutines to their end in one step, because its sender never suspends. So neither
knows more than the other, and this module knows neither event loops nor threads.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import UNSET, UnsetType

from duet_rpc.client.attempts import NOT_BEGUN, Attempts, Doubts, in_ms, retry_after, settle_key
from duet_rpc.client.options import (
    RETRY,
    CallOptions,
    CheckedOptions,
    Expected,
    TimeOptions,
)
from duet_rpc.client.sender import Sender
from duet_rpc.engine.calls import encode_params
from duet_rpc.engine.results import decoder
from duet_rpc.errors import (
    DeadlineExceeded,
    DuetError,
    ErrorClasses,
    RpcError,
    TransportError,
    error_classes,
)
from duet_rpc.options import SECONDS, TIME_LEFT, check, is_seconds, is_time_left
from duet_rpc.retry import Retry
from duet_rpc.wire.dialect import Dialect, Progress
from duet_rpc.wire.surrogates import encode_value

if TYPE_CHECKING:
    from duet_rpc.client.outcomes import Outcome
    from duet_rpc.client.stream_call import StreamCall
    from duet_rpc.client.subscription_call import SubscriptionCall


class ClientCore:
    """The logic of both clients: what is sent, how often, and what its answers mean."""

    def __init__(
        self, sender: Sender, options: CheckedOptions, errors: ErrorClasses | None = None
    ) -> None:
        self._sender = sender
        self._errors = () if errors is None else (errors,)
        self._timeout = options.timeout
        self._retry = options.retry
        self.doubts: Doubts = Doubts()
        self.usual: Expected = self.expect(Any)
        """What a call waits for that asks for nothing in particular."""

    def expect(
        self,
        returns: Any,
        timeout: float | None | UnsetType = UNSET,
        on_progress: Callable[[Progress], object] | None = None,
        total_timeout: float | None = None,
        errors: Any = None,
    ) -> Expected:
        """Say what a call waits for; without a `timeout`, as long as the client's own says."""
        if timeout is UNSET:
            timeout = self._timeout
        elif timeout is not None:
            check("timeout", timeout, is_time_left(timeout), TIME_LEFT)
        if on_progress is not None:
            check("on_progress", on_progress, callable(on_progress), "a function, or None")
        if total_timeout is not None:
            check("total_timeout", total_timeout, is_seconds(total_timeout), SECONDS)
            if on_progress is None:
                on_progress = _ignore
        classes = self._errors if errors is None else (error_classes(errors), *self._errors)
        return Expected(decoder(returns), timeout, on_progress, total_timeout, classes)

    async def query(
        self,
        method: str,
        params: Any,
        returns: Any,
        retry: Retry | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Call a method that changes nothing; it is sent again when that can help."""
        expected = self.expect(returns, **options)
        encoded = encode_params(params)
        retry = self._choose(retry)
        if retry is None:
            return await self._sender.ask(method, encoded, expected)
        return await self._try(method, Attempts(encoded), expected, retry)

    def stream(
        self,
        dialect: Dialect,
        method: str,
        params: Any,
        returns: Any,
        window: int | None = None,
        errors: Any = None,
        **options: Unpack[TimeOptions],
    ) -> "StreamCall":
        """Call a method that yields; `returns` is the type of an item."""
        from duet_rpc.client.stream_call import WINDOW, StreamCall

        expected = self.expect(returns, errors=errors, **options)
        window = WINDOW if window is None else window
        return StreamCall(dialect, method, encode_params(params), expected, window)

    def subscribe(
        self,
        dialect: Dialect,
        method: str,
        params: Any,
        returns: Any,
        window: int | None = None,
        errors: Any = None,
        timeout: float | None = None,
    ) -> "SubscriptionCall":
        """Subscribe to a method; `returns` is the type of an item, `timeout` for each of them."""
        from duet_rpc.client.subscription_call import SUBSCRIPTION_WINDOW, SubscriptionCall

        expected = self.expect(returns, timeout, errors=errors)
        window = SUBSCRIPTION_WINDOW if window is None else window
        return SubscriptionCall(
            dialect, method, encode_params(params), expected, window, self._timeout
        )

    async def command(
        self,
        method: str,
        params: Any,
        returns: Any,
        key: str | None = None,
        age: float | None = None,
        retry: Retry | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Call a method with effects; its key is made once, so that a retry is the same command."""
        expected = self.expect(returns, **options)
        attempts = self.begin(params, key, age)
        attempts.include(self.doubts.since(method, attempts.key))
        try:
            found = await self._try(method, attempts, expected, self._choose(retry))
        except BaseException as error:
            self.doubts.note(method, attempts, error)
            if isinstance(error, DuetError):
                error.idempotency_key = attempts.key
            raise
        self.doubts.note(method, attempts, None)
        return found

    def begin(self, params: Any, key: str | None, age: float | None) -> Attempts:
        """Begin a command that another process first sent so many seconds ago; None if none did."""
        encoded, key = settle_key(params, key, age)
        return Attempts(encoded, key, None if age is None else self._sender.now() - age)

    async def outcome(
        self, method: str, key: str, returns: Any, **options: Unpack[TimeOptions]
    ) -> "Outcome[Any]":
        """Ask the server what became of a command; of one in doubt it says how old it is."""
        from duet_rpc.client.outcomes import OutcomeAnswer  # with the first that is asked for

        decode = decoder(returns)
        expected = self.expect(OutcomeAnswer, **options)
        params: dict[str, Any] = {"method": method, "idempotency_key": key}
        since = self.doubts.since(method, key)
        if since is not None:
            params["age_ms"] = in_ms(self._sender.now() - since)
        attempts = Attempts(encode_value(params))
        answer: OutcomeAnswer = await self._try("rpc.outcome", attempts, expected, self._retry)
        return answer.read(decode, expected)

    def _choose(self, retry: Retry | None) -> Retry | None:
        if retry is None:
            return self._retry
        check("retry", retry, isinstance(retry, Retry), RETRY)
        return retry

    async def _try(
        self, method: str, attempts: Attempts, expected: Expected, retry: Retry | None
    ) -> Any:
        sender = self._sender
        delays = iter(()) if retry is None else retry.delays()
        total = 0.0 if retry is None else retry.total
        begun = sender.now()
        doubt: RpcError | TransportError | None = None
        failure: RpcError | TransportError | None = None
        try:
            while True:
                delay = next(delays, None)
                try:
                    return await sender.ask(method, attempts.begin(sender.now()), expected)
                except RpcError as error:
                    # A query does no harm, and a command that has begun is found by its key.
                    attempts.end(error)
                    if not error.retryable and not isinstance(error, DeadlineExceeded):
                        raise
                    failure = error
                    if delay is not None:
                        delay = max(delay, retry_after(error))
                except TransportError as error:
                    attempts.end(error)
                    failure = error
                if not isinstance(failure, NOT_BEGUN):
                    doubt = failure
                if delay is None or sender.now() + delay - begun > total:
                    break
                await sender.pause(delay)
            if doubt is None or doubt is failure:
                raise failure
            # The last attempt did nothing, but one before it may have.
            raise doubt from failure
        finally:
            del doubt, failure  # they know this frame


def _ignore(progress: Progress) -> None:
    pass
