"""The service that the conformance cases are served by: one method of each sort."""

from dataclasses import dataclass
from typing import Any, Literal

from duet_rpc.context import Context
from duet_rpc.errors import RpcError
from duet_rpc.service import Service


class Gone(RpcError):
    code, message = 410, "Gone"


@dataclass
class Note:
    id: int
    text: str = ""


_seen: list[Any] = []


def specimen() -> Service:
    """Return the service, as if nobody had called it before."""
    _seen.clear()
    return _SERVICE


def _make(seen: list[Any]) -> Service:
    service = Service()

    @service.query
    def subtract(minuend: int, subtrahend: int) -> int:
        return minuend - subtrahend

    @service.query(name="sum")
    def total(*numbers: int) -> int:
        return sum(numbers)

    @service.query
    def get_data() -> list[Any]:
        return ["hello", 5]

    @service.query
    def notify_hello(number: int) -> None:
        seen.append(number)

    @service.query
    def update(*values: int) -> None:
        seen.extend(values)

    @service.query(name="seen")
    def what_was_seen() -> list[Any]:
        return seen

    @service.query
    def echo(value: Any = None) -> Any:
        return value

    @service.query
    def level(level: Literal["debug", "info"], note: Note | None = None) -> str:
        return level

    @service.query
    def hold(ctx: Context, value: Any = None) -> Any:
        return value

    @service.query
    def whoami(ctx: Context) -> list[str | None]:
        return [ctx.correlation_id, ctx.connection_id, ctx.trace_parent]

    @service.query
    def gone() -> None:
        raise Gone(data={"id": 7})

    @service.query
    def fail() -> None:
        raise RuntimeError("secret: /home/somebody/token")

    @service.query
    def unserializable() -> Any:
        return object()

    @service.query(notification_allowed=True)
    def touch(value: Any = None) -> None:
        seen.append(value)

    @service.command
    def pay(amount: int = 1) -> int:
        seen.append(amount)
        return amount

    @service.command(notification_allowed=True)
    def fire(amount: int = 1) -> None:
        seen.append(amount)

    return service


_SERVICE = _make(_seen)  # registered once: that takes longer than most cases
