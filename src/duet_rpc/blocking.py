"""The client for programs without an event loop. Threads may share it."""

from duet_rpc.client.blocking import Client
from duet_rpc.client.blocking_calls import BlockingBatch as Batch
from duet_rpc.client.blocking_calls import Call

__all__ = ["Batch", "Call", "Client"]
