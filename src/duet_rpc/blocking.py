"""The client for programs without an event loop. Threads may share it."""

from typing import TYPE_CHECKING, Any

from duet_rpc.collector import pause_collector

with pause_collector():
    from duet_rpc.client.blocking import Client
    from duet_rpc.client.blocking_calls import BlockingBatch as Batch
    from duet_rpc.client.blocking_calls import Call

if TYPE_CHECKING:
    from duet_rpc.client.blocking_subscriptions import BlockingSubscription as Subscription

__all__ = ["Batch", "Call", "Client", "Subscription"]


def __getattr__(name: str) -> Any:
    """Load what few programs name."""
    if name != "Subscription":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from duet_rpc.client.blocking_subscriptions import BlockingSubscription

    return BlockingSubscription


def __dir__() -> list[str]:
    """List everything public, for completion in a shell."""
    return sorted(__all__)
