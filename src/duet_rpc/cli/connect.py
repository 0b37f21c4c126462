"""How a command reaches its server: at an address, or as a process that it starts after `--`.

    duet-rpc call tcp://127.0.0.1:8765 add a:=1 b:=2
    duet-rpc call add a:=1 b:=2 -- python sums.py

What a started server writes to its stderr is its own affair: it is shown when it dies, when it
fails unforeseen, and with `--verbose`. There is no event loop here: a person waits for the start.
"""

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from duet_rpc.cli.exit_codes import Interrupted, choose_exit_code
from duet_rpc.cli.failures import Attempt, encode_failure, say_error
from duet_rpc.cli.output import Failed, Output, output_options, safe, tell
from duet_rpc.errors import DuetError, RpcError, TransportError, UsageError

if TYPE_CHECKING:
    from duet_rpc.blocking import Client
    from duet_rpc.hooks import Hooks
    from duet_rpc.transports.link import Opener

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

USUAL_TIMEOUT = 30.0
CONNECT_TIMEOUT = 10.0
MAX_TAIL = 20
_STARTED = "duet_rpc.cli.started"
_ADDRESSES = ("tcp:", "unix:")

_OPTIONS = (
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        show_default="30, and again after each progress",
        help="How long to wait for the answer; inf for as long as the connection lives.",
    ),
    click.option(
        "--framing",
        type=click.Choice(["lsp", "ndjson"]),
        default="lsp",
        show_default=True,
        help="How messages are separated: by Content-Length headers, or one a line.",
    ),
    click.option(
        "-v", "--verbose", is_flag=True, help="Show what a server after -- writes to its stderr."
    ),
)


def reaching_options(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of everything that talks to a server and prints what it says.

    It is called with the `Target`, the words that are left, the `Output`, and its own options.
    """

    @functools.wraps(run)
    def command(
        words: tuple[str, ...],
        timeout: float | None,
        framing: str,
        verbose: bool,
        output: Output,
        **own: Any,
    ) -> None:
        target, rest = Target.of(words, timeout=timeout, framing=framing, verbose=verbose)
        run(target, rest, output, **own)

    made = output_options(command)
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


class ReachingCommand(click.Command):
    """A command whose words after `--` start a server. Its `words` are read by `Target.of`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what stands after the first `--` apart: none of it is ours to read."""
        if "--" in args:
            at = args.index("--")
            args, server = args[:at], args[at + 1 :]
            if not server and not ctx.resilient_parsing:
                raise click.UsageError("after -- comes the command of a server", ctx)
            ctx.meta[_STARTED] = server
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both forms."""
        [words] = [param for param in self.params if param.name == "words"]
        assert isinstance(words, click.Argument) and words.metavar is not None
        formatter.write_usage(ctx.command_path, f"[OPTIONS] TARGET {words.metavar}")
        own = f"{words.metavar} " if words.metavar else ""
        formatter.write_usage(ctx.command_path, f"[OPTIONS] {own}-- COMMAND...", prefix="       ")


class Target:
    """The server that a command line names, and how to talk to it."""

    def __init__(self, opener: "Opener", timeout: float | None, framing: str) -> None:
        self._opener = opener
        self._framing = framing
        finite = None if timeout == float("inf") else timeout
        self._timeout = USUAL_TIMEOUT if timeout is None else finite
        self.total_timeout = finite
        """What progress cannot prolong: the time that was asked for."""
        self.unseen: deque[str] = deque(maxlen=MAX_TAIL)
        """The last lines that a started server wrote to its stderr, if they are not shown."""
        self.refusal: RpcError | None = None
        """What the server answered under no id: it refuses something that wants no answer."""
        self._wrote_no_frames = self._wrote_too_much = False

    @classmethod
    def of(
        cls, words: Sequence[str], *, timeout: float | None, framing: str, verbose: bool
    ) -> "tuple[Target, list[str]]":
        """Find the server that is meant, and the words that are left."""
        from duet_rpc.transports.link import SocketOpener
        from duet_rpc.transports.restarts import ChildOpener

        command = click.get_current_context().meta.get(_STARTED)
        if command is None:
            address, *rest = words or [""]
            return cls(_open_address(address, timeout, SocketOpener), timeout, framing), rest
        if words and words[0].startswith(_ADDRESSES):
            raise click.UsageError("give the server's address or its command after --, not both")

        def on_stderr(line: str) -> None:
            if verbose:
                tell(safe(line))
            else:
                target.unseen.append(line)

        target = cls(ChildOpener(command, on_stderr=on_stderr), timeout, framing)
        return target, list(words)

    def talk(self, work: "Callable[[Client], T]") -> T:
        """Do something with a client. What goes wrong is a `DuetError`; so is an interruption."""
        from duet_rpc.blocking import Client

        framing: Any = self._framing
        try:
            with Client(
                self._opener, timeout=self._timeout, framing=framing, hooks=[self._listen()]
            ) as client:
                return work(client)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None

    def ask(self, work: "Callable[[Client], T]", output: Output) -> T:
        """Ask what changes nothing. What goes wrong ends the command."""
        try:
            return self.talk(work)
        except DuetError as error:
            if output.json_wanted:
                output.value(encode_failure(error, Attempt(method="", sent=False)))
            raise Failed(
                say_error(error), choose_exit_code(error), self.explain_framing(error)
            ) from None

    def _listen(self) -> "Hooks":
        """Learn of what cannot be read, and of answers that no call waits for."""
        from duet_rpc.hooks import AnswerDropped, Event, FrameFault, Hooks

        target = self

        class FaultListener(Hooks):
            def on(self, event: Event) -> None:
                if isinstance(event, FrameFault) and event.what in ("frame", "message"):
                    target._wrote_too_much |= event.reason == "oversize"
                    target._wrote_no_frames |= event.reason != "oversize"
                elif isinstance(event, AnswerDropped) and event.error is not None:
                    target.refusal = event.error

        return FaultListener()

    def explain_framing(self, error: DuetError) -> list[str]:
        """Say why there was no answer, where something came that could not be taken for one."""
        if not isinstance(error, TransportError):
            return []
        if self._wrote_too_much:
            return ["The server wrote a message that is too large to be taken; it was dropped."]
        if not self._wrote_no_frames:
            return []
        other = "lsp" if self._framing == "ndjson" else "ndjson"
        return [f"What the server writes is not framed as {self._framing}: try --framing {other}."]


def _open_address(address: str, timeout: float | None, opener: Any) -> "Opener":
    patience = CONNECT_TIMEOUT if timeout is None else min(timeout, CONNECT_TIMEOUT)
    try:
        found: Opener = opener(address, timeout=patience)
    except UsageError:
        raise click.UsageError(
            "which server? Begin with tcp://HOST:PORT or unix:PATH, or end with"
            " -- and the command that starts it"
            + (f" ({address!r} is no address)" if address else "")
        ) from None
    return found
