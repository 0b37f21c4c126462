"""The client for programs without an event loop. Threads may share it."""

from duet_rpc.client.blocking import Batch, Call, Client

__all__ = ["Batch", "Call", "Client"]
