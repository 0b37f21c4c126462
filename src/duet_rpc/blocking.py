"""The client for programs without an event loop. Threads may share it."""

from duet_rpc.client.blocking import BlockingBatch as Batch
from duet_rpc.client.blocking import Call, Client

__all__ = ["Batch", "Call", "Client"]
