"""The options of every command that serves, and the policy and log that they amount to.

Each option has an environment variable beside it, and wins over it: some clients start servers with
almost no environment, others offer no way to give arguments.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from duet_rpc.policy import PRESETS, Policy, preset, replace

if TYPE_CHECKING:
    from duet_rpc.server.logs import Logs

LEVELS = ("debug", "info", "warn", "error")

option = functools.partial(click.option, show_envvar=True)
"""Makes an option that has an environment variable beside it."""


def _usual_options(policy: str, framing: str) -> "tuple[Callable[[Any], Any], ...]":
    """Make the options that differ from one command to the other in what is usual."""
    return (
        option(
            "--policy",
            type=click.Choice(list(PRESETS), case_sensitive=False),
            default=policy,
            show_default=True,
            envvar="DUET_RPC_POLICY",
            help="The rules to serve under; see `duet-rpc policy`.",
        ),
        option(
            "--framing",
            type=click.Choice(["lsp", "ndjson", "auto"]),
            default=framing,
            show_default=True,
            envvar="DUET_RPC_FRAMING",
            help="How messages are separated: by Content-Length headers, one a line, or as the"
            " client's first byte shows.",
        ),
    )


_OPTIONS = (
    option(
        "--read-timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        envvar="DUET_RPC_READ_TIMEOUT",
        help="Give up a message whose last byte comes later than this after its first.  [30]",
    ),
    option(
        "--max-message-bytes",
        type=click.IntRange(min=1),
        metavar="BYTES",
        envvar="DUET_RPC_MAX_MESSAGE_BYTES",
        help="Refuse longer messages.  [10 MiB]",
    ),
    option(
        "--ordered-commands",
        is_flag=True,
        envvar="DUET_RPC_ORDERED_COMMANDS",
        help="Run the commands of a connection one at a time, in the order in which they came;"
        " queries go on beside them.",
    ),
    option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        default="info",
        show_default=True,
        envvar="DUET_RPC_LOG_LEVEL",
        help="Keep log lines of this severity and above.",
    ),
    option(
        "--log-file",
        type=click.Path(),
        envvar="DUET_RPC_LOG",
        help="Append the log to this file instead of writing it to stderr.",
    ),
    option(
        "--no-exception-text",
        is_flag=True,
        envvar="DUET_RPC_NO_EXCEPTION_TEXT",
        help="Log exceptions of handlers by their types and places, without their texts: those may"
        " hold values of callers.",
    ),
    click.option(
        "--no-color",
        is_flag=True,
        help="Write the log without colour, also to a terminal.  [env var: NO_COLOR]",
    ),
)


class ServeOptions(NamedTuple):
    """What was given, or stands in the environment."""

    policy: str
    framing: Any
    read_timeout: float | None
    max_message_bytes: int | None
    ordered_commands: bool
    log_level: str
    log_file: str | None
    no_exception_text: bool
    no_color: bool

    def make_policy(self, usual: str | None = None) -> Policy:
        """Look up the preset and replace the limits that were given.

        `usual` goes before what is usual for the command, where none was asked for.
        """
        name = self.policy
        if usual is not None and _is_default("policy"):
            name = usual
        given = {
            "read_timeout": self.read_timeout,
            "max_message_bytes": self.max_message_bytes,
            "ordered_commands": self.ordered_commands or None,
        }
        changes = {rule: value for rule, value in given.items() if value is not None}
        return replace(preset(name), **changes) if changes else preset(name)

    def make_logs(self) -> "Logs":
        """Open the log."""
        from duet_rpc.server.logs import Logs

        return Logs(
            level=self.log_level.lower(),
            path=self.log_file or None,
            colour=False if self.no_color else None,
            log_exception_text=not self.no_exception_text,
        )


def _is_default(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.DEFAULT


def serving_options(
    *, policy: str = "editor", framing: str = "lsp"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of serving; it is called with `ServeOptions` and its own."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(**given: Any) -> None:
            options = ServeOptions(*(given.pop(name) for name in ServeOptions._fields))
            run(options, **given)

        for each in reversed((*_usual_options(policy, framing), *_OPTIONS)):
            command = each(command)
        return command

    return decorate
