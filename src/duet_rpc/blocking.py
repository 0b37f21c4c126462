"""The client for programs without an event loop. Threads may share it."""

from typing import TYPE_CHECKING, Any

from duet_rpc.collector import pause_collector

with pause_collector():
    from duet_rpc.client.blocking import Client
    from duet_rpc.client.blocking_calls import BlockingBatch as Batch
    from duet_rpc.client.blocking_calls import Call

if TYPE_CHECKING:
    from duet_rpc.client.blocking_streams import BlockingStream as Stream
    from duet_rpc.client.blocking_subscriptions import BlockingSubscription as Subscription

__all__ = ["Batch", "Call", "Client", "Stream", "Subscription"]


def __getattr__(name: str) -> Any:
    """Load what few programs name."""
    if name == "Stream":
        from duet_rpc.client.blocking_streams import BlockingStream

        return BlockingStream
    if name == "Subscription":
        from duet_rpc.client.blocking_subscriptions import BlockingSubscription

        return BlockingSubscription
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List everything public, for completion in a shell."""
    return sorted(__all__)
