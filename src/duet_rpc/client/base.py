"""What both clients are made of: options, the service that they serve, the logic of calls.

How one waits is what they differ in, so each says for itself what its calls return.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from duet_rpc.client.batch import BatchSender
from duet_rpc.client.core import ClientCore
from duet_rpc.client.listeners import Listeners
from duet_rpc.client.options import CheckedOptions, ClientOptions
from duet_rpc.client.sender import Sender
from duet_rpc.context import Origin
from duet_rpc.engine.connection import ConnectionOptions
from duet_rpc.engine.dispatch import make_dispatcher
from duet_rpc.errors import UsageError, error_classes
from duet_rpc.methods.names import Rename
from duet_rpc.options import check
from duet_rpc.service import Service
from duet_rpc.transports.link import FirstOpener, Link, Opener, SocketOpener
from duet_rpc.wire.dialect import find_dialect
from duet_rpc.wire.framing import Framing
from duet_rpc.wire.framing import framing as make_framing

if TYPE_CHECKING:
    from duet_rpc.transports.restarts import StderrOption

P = TypeVar("P")
F = TypeVar("F", bound=Callable[..., Any])


class BaseClient(Sender):
    """One client, however it waits."""

    def __init__(self, opener: Opener, **options: Unpack[ClientOptions]) -> None:
        reaches = "an address to Client.connect(), or a command to Client.spawn()"
        check("opener", opener, callable(getattr(opener, "open", None)), reaches)
        self._opener = opener
        self._options = checked = CheckedOptions(**options)
        self._dispatcher = make_dispatcher(
            Service() if checked.service is None else checked.service,
            checked.policy,
            log=checked.log,
            errors=error_classes(checked.errors),
            shares_thread=True,
            dialect=find_dialect(checked.dialect),
            hooks=checked.hooks,
        )
        self._core = ClientCore(self, checked, self._dispatcher.errors)
        self._batches = BatchSender(self, self._core.doubts, checked.timeout)
        self._usual = self._core.usual
        self._timeout = checked.timeout
        self._listeners = Listeners(
            self._dispatcher.log, checked.policy.max_queued_bytes, self._start_listeners
        )

    @classmethod
    def connect(cls, *targets: str, **options: Unpack[ClientOptions]) -> Self:
        """Call the server at `unix:PATH` or `tcp://HOST:PORT`. Options are those of `Client`.

        Of several, the first that can be reached is called, also after a loss with `reconnect`.
        """
        if not targets:
            raise UsageError("give the address of a server: unix:PATH or tcp://HOST:PORT")
        openers = [SocketOpener(target) for target in targets]
        return cls(openers[0] if len(openers) == 1 else FirstOpener(openers), **options)

    @classmethod
    def spawn(
        cls,
        *command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        restarts: int = 3,
        stderr: "StderrOption" = "keep",
        **options: Unpack[ClientOptions],
    ) -> Self:
        """Start a server as a child process and call it over its pipes.

        `env` is its whole environment, ours if none is given. With `reconnect` it is started again
        after a crash, at most `restarts` times a minute. Of what it says on stderr the last lines
        are kept, for the error that tells of its end; with `stderr="show"` all of it is also copied
        to ours as it comes.
        """
        from duet_rpc.transports.restarts import ChildOpener, stderr_reader

        opener = ChildOpener(
            command, cwd=cwd, env=env, restarts=restarts, on_stderr=stderr_reader(stderr)
        )
        return cls(opener, **options)

    def on(self, method: str) -> Callable[[F], F]:
        """Have a function called with each notification of a method that the server sends.

        Its params are decoded as those of a handler are; others than it names are ignored. It may
        be `def` or `async def`. Notifications are run one at a time, in the order of arrival. Give
        the functions before connecting, or what comes until then is lost.
        """
        check("method", method, isinstance(method, str) and method != "", "the name of a method")
        if self._options.service is not None and method in self._options.service:
            raise UsageError(f"{method} is served by service=; it cannot be listened to as well")

        def register(function: F) -> F:
            scope = dict(sys._getframe(1).f_locals)  # for hints that are written as strings
            self._listeners.add(method, function, scope)
            self._read_always()
            return function

        return register

    def _start_listeners(self) -> None:
        """Run the notifications that wait until there are none; called by the reading thread."""
        raise NotImplementedError

    def _read_always(self) -> None:
        """See that what the server sends is read, also while no call waits."""

    @overload
    def proxy(
        self,
        interface: Service,
        name: str = "",
        *,
        errors: Any = None,
        rename: Rename | None = None,
    ) -> Any: ...
    @overload
    def proxy(
        self,
        interface: Callable[..., P],
        name: str = "",
        *,
        errors: Any = None,
        rename: Rename | None = None,
    ) -> P: ...
    def proxy(
        self,
        interface: Any,
        name: str = "",
        *,
        errors: Any = None,
        rename: Rename | None = None,
    ) -> Any:
        """Make an object whose methods call the server's.

        They are those of a `Protocol` class, which the server has under `name.`, or of a `Service`.
        They raise the errors of that service, or the classes given as `errors`. A `Service` knows
        what its parameters are called on the wire; for a `Protocol`, `rename` is the rule.
        """
        from duet_rpc.client.proxies import make_proxy  # with the first one

        return make_proxy(self, interface, name, errors, rename)

    def _describe(self, link: Link, number: int) -> ConnectionOptions:
        return ConnectionOptions(
            origin=Origin(
                connection_id=f"client-{number}", transport=link.transport, address=link.address
            ),
            closes_on_lost_boundary=link.is_network,
            answers_faults=False,
            one_at_a_time=not self._options.allow_concurrent_requests,
            listen=self._listeners.take,
        )

    def _make_framing(self) -> Framing:
        limit = self._options.policy.max_message_bytes
        return make_framing(self._options.framing, max_message_bytes=limit, keeps_ends=True)
