"""A JSON-RPC 2.0 runtime: write typed functions once, serve them to editors and agents."""

from duet_rpc.context import Context, Transaction
from duet_rpc.errors import RpcError
from duet_rpc.server import Server
from duet_rpc.service import Service
from duet_rpc.version import __version__

__all__ = ["Context", "RpcError", "Server", "Service", "Transaction", "__version__"]
