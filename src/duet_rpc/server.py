"""Serves a Service: the one place where policy, ledger, log and transport meet."""

from typing import TYPE_CHECKING, Any

from duet_rpc.errors import UsageError
from duet_rpc.policy import EDITOR, Policy
from duet_rpc.service import Service

if TYPE_CHECKING:
    from duet_rpc.daemon import FramingName
    from duet_rpc.logs import Logs


class Server:
    """A service under a policy, ready to be served.

    `store` keeps what became of each command: a store, or its URL (`sqlite:///commands.db`).
    """

    def __init__(
        self, service: Service, *, policy: Policy | None = None, store: Any = None
    ) -> None:
        self.service = service
        self.policy = policy if policy is not None else EDITOR
        if self.policy.key_required and store is None:
            raise UsageError(
                f"policy {self.policy.name} requires idempotency keys, which need a durable store:"
                " give one with store= (for example sqlite:///commands.db)"
            )
        self.store = store

    def run_stdio(self, *, framing: "FramingName" = "lsp", logs: "Logs | None" = None) -> None:
        """Serve on stdin and stdout until the peer ends it."""
        from duet_rpc.daemon import run_daemon

        run_daemon(self.service, self.policy, framing=framing, logs=logs)
