"""Serves a Service: the one place where policy, ledger, log and transport meet."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from duet_rpc.commands import Commands
from duet_rpc.errors import UsageError
from duet_rpc.policy import EDITOR, Policy
from duet_rpc.service import Service

if TYPE_CHECKING:
    from duet_rpc.daemon import DaemonHost, FramingName
    from duet_rpc.ledger import Ledger, Store
    from duet_rpc.logs import Logs


class Server:
    """A service under a policy, ready to be served.

    `store` keeps what became of each command: a store, or its URL (`sqlite:///commands.db`).
    """

    def __init__(
        self,
        service: Service,
        *,
        policy: Policy | None = None,
        store: "Store | str | None" = None,
    ) -> None:
        self.service = service
        self.policy = policy if policy is not None else EDITOR
        self.commands = _commands(service, self.policy, store)

    def run_stdio(
        self,
        *,
        framing: "FramingName" = "lsp",
        logs: "Logs | None" = None,
        on_start: "Callable[[DaemonHost], None]" = lambda host: None,
    ) -> None:
        """Serve on stdin and stdout until the peer ends it; `on_start` is told what drives it."""
        from duet_rpc.daemon import run_daemon

        try:
            run_daemon(
                self.service,
                self.policy,
                framing=framing,
                logs=logs,
                commands=self.commands,
                on_start=on_start,
            )
        finally:
            self.commands.close()


def _commands(service: Service, policy: Policy, store: "Store | str | None") -> Commands:
    """Open the ledger on a store now, or on memory when the first key comes."""
    if store is None:
        if policy.key_required:
            raise UsageError(
                f"policy {policy.name} requires idempotency keys, which need a durable store:"
                " give one with store= (for example sqlite:///commands.db)"
            )
        return Commands(_ledger_in_memory)
    from duet_rpc.ledger import Ledger, open_store

    ledger = Ledger(open_store(store) if isinstance(store, str) else store)
    if policy.key_required and not ledger.store.capabilities.durable:
        raise UsageError(
            f"policy {policy.name} needs a durable store; {type(ledger.store).__name__} forgets"
            " everything when the process ends"
        )
    for method in service:
        if method.promise is not None:
            ledger.require(method.promise)
    return Commands(lambda: ledger)


def _ledger_in_memory() -> "Ledger":
    from duet_rpc.ledger import Ledger, MemoryStore

    return Ledger(MemoryStore())
