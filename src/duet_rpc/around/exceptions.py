"""Exceptions of libraries, answered as errors of the service: `@service.exception_handler`.

The handler of a method and the exception handlers around it are one adapter, inside the ledger: the
outcome of a command is recorded as its caller gets it.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from duet_rpc.context import Context
from duet_rpc.errors import RpcError
from duet_rpc.methods.parameters import Parameters
from duet_rpc.service import Method, Service

Handlers = dict[type[Exception], Callable[[Any], RpcError | None]]


def find_handlers(method: Method, service: Service) -> Handlers:
    """Collect the exception handlers of a method; of two for one class, the inner one's counts."""
    return dict(each.thing for each in service.exception_handlers if each.holds_for(method.name))


def map_exceptions(method: Method, parameters: Parameters, handlers: Handlers) -> None:
    """Raise the `RpcError` that is made of an exception, in its place.

    Inside the ledger, so that the outcome of a command is recorded as its caller gets it.
    """
    kinds = tuple(handlers)
    call, call_message = parameters.call, parameters.call_message

    def translate(error: Exception) -> BaseException:
        if isinstance(error, RpcError):
            return error
        nearest = next(cls for cls in type(error).__mro__ if cls in handlers)
        return handlers[nearest](error) or error

    def call_here(params: Any, ctx: Context | None, tx: Any) -> Any:
        try:
            return call(params, ctx, tx)
        except kinds as error:
            _raise_instead(translate(error), error)

    def call_message_here(message: Any) -> Any:
        try:
            return call_message(message)
        except kinds as error:
            _raise_instead(translate(error), error)

    async def call_async(params: Any, ctx: Context | None, tx: Any) -> Any:
        try:
            return await call(params, ctx, tx)
        except kinds as error:
            _raise_instead(translate(error), error)

    parameters.call = call_async if method.is_async else call_here
    parameters.call_message = call_message_here


def _raise_instead(translated: BaseException, error: BaseException) -> NoReturn:
    if translated is error:
        raise error
    raise translated from error
