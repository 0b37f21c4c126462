"""`duet-rpc call`: one call, its result on stdout."""

import shlex
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from duet_rpc.cli.ages import UNKNOWN_AGE, is_moment, read_age, write_moment
from duet_rpc.cli.connect import ReachingCommand, Target, reaching_options
from duet_rpc.cli.exit_codes import EXIT_CODES, choose_exit_code
from duet_rpc.cli.failures import Attempt, advise, encode_failure, say_error
from duet_rpc.cli.output import Output, cut, is_terminal, safe, tell, tell_failure, write_compact
from duet_rpc.errors import CallTimeout, DuetError, InternalError, ResultUnserializable, UsageError
from duet_rpc.redaction import without_password

if TYPE_CHECKING:
    from duet_rpc.blocking import Client
    from duet_rpc.wire.dialect import Progress


_SHORT = 1.0
"""Seconds in which a server can refuse a notification."""


@click.command("call", cls=ReachingCommand, epilog=EXIT_CODES)
@click.argument("words", nargs=-1, metavar="METHOD [PARAM]...")
@click.option(
    "--json",
    metavar="FILE",
    help="Take the params from a file (- for stdin), or write the object or array itself.",
)
@click.option("--notify", is_flag=True, help="Send a notification: only a refusal is answered.")
@click.option(
    "--command/--query",
    "is_command",
    default=None,
    show_default="as the server describes it",
    help="Call it as a command, with a key; or as a query, without.",
)
@click.option("--key", metavar="KEY", help="The idempotency key of a command; also to retry one.")
@click.option(
    "--retry",
    is_flag=True,
    help="The command was sent before under this key, no one knows when.",
)
@click.option(
    "--since",
    metavar="WHEN",
    help="A retry: when it was first sent, as an age (90s, 5m, 2h) or a time.",
)
@reaching_options
def command(
    target: Target,
    words: list[str],
    output: Output,
    *,
    json: str | None,
    notify: bool,
    is_command: bool | None,
    key: str | None,
    retry: bool,
    since: str | None,
) -> None:
    """Call a method and print its result.

    TARGET is tcp://HOST:PORT or unix:PATH. A server that talks on stdin and stdout is started by
    its COMMAND after --, and ended afterwards.

    PARAM is NAME=TEXT, or NAME:=JSON for any other value. @FILE in place of the value reads it from
    a file, @- from stdin.

    A command is sent under an idempotency key. When no one can say whether it happened, the key is
    shown, to send the very same command again: under one key it takes effect at most once, or again
    if it is declared retry safe. --since or --retry tell that it was sent before: a server that
    cannot know what became of it then says so instead of running it.

    The items of a subscription are printed as they come, one a line, until Ctrl-C.

    \b
    duet-rpc call tcp://127.0.0.1:8765 notes.add text=milk tags:='["shop"]'
    duet-rpc call unix:bank.sock bank.transfer --json transfer.json --key order-17
    duet-rpc call add a:=1 b:=2 -- python sums.py
    """
    from duet_rpc.cli.params import Sources, list_text_items, read_params

    if not words:
        raise click.UsageError("which method? It comes after the server's address, or first")
    if key is not None and is_command is False:
        raise click.UsageError("a query has no key")
    if notify and (key is not None or is_command):
        raise click.UsageError("a command is not sent with --notify: it could not be answered")
    method, *items = words
    params = read_params(items, json, Sources())
    if not notify:
        key = _settle_key(params, key)
    if key == "":
        raise click.UsageError(
            "the idempotency key is empty (is a shell variable unset?): every call would be a"
            " command of its own. Give a key, or leave it out to have one made"
        )
    age = _read_age(key, retry, since)
    attempt = Attempt(
        method=method,
        key=key,
        sent=False,
        given_as_text=list_text_items(items),
        age=age,
        # Said again later, an age would be too young.
        tells_age=age is not None and (since is None or is_moment(since)),
    )
    call = _Call(target, attempt, params, is_command, output)
    try:
        result = target.talk(call.notify if notify else call.run)
    except DuetError as error:
        _fail(error, attempt, target, output)
    if result is not None:
        output.value(result)


class _Call:
    """One call, which learns on the way what it calls."""

    def __init__(
        self,
        target: Target,
        attempt: Attempt,
        params: Any,
        is_command: bool | None,
        output: Output,
    ) -> None:
        self._target = target
        self._attempt = attempt
        self._params = params
        self._is_command = is_command
        self._output = output
        self._shows_progress = is_terminal(sys.stderr)
        self._progress_shown = False
        self._missed = 0

    def notify(self, client: "Client") -> None:
        """Send it, and see whether the server refuses it.

        There is no answer to wait for. But whatever the server answers to what comes next, it has
        seen the notification by then.
        """
        self._attempt.sent = True
        client.notify(self._attempt.method, self._params)
        try:
            client.call("describeMethods", timeout=_SHORT)
        except DuetError:
            pass  # one that has no such method, no time or no life any more has still got it
        if self._target.refusal is not None:
            raise self._target.refusal

    def run(self, client: "Client") -> bytes | None:
        """Call it, as a command if it is one; None if what came of it is printed already."""
        from msgspec import Raw

        from duet_rpc.client.attempts import in_ms, new_key
        from duet_rpc.engine.calls import encode_params
        from duet_rpc.wire.params import RetryAge, add_metadata

        attempt, params = self._attempt, self._params
        is_known = False
        if self._is_command is None and attempt.key is None:
            kind = self._look_up(client)
            self._is_command, is_known = kind == "command", kind is not None
            if kind == "subscription":
                self._follow(client)
                return None
        if self._is_command or attempt.key is not None:
            if attempt.key is None:
                attempt.key = new_key()
            retry = None if attempt.age is None else RetryAge(2, in_ms(attempt.age))
            params = Raw(add_metadata(encode_params(params), key=attempt.key, retry=retry) or b"")
        # Only our own servers are known to bear the token that asks for progress.
        wants_news = is_known and (params is None or isinstance(self._params, dict))
        attempt.sent, attempt.first_sent = True, write_moment(attempt.age)
        try:
            result: bytes = client.call(
                attempt.method,
                params,
                returns=Raw,
                on_progress=self._on_progress if wants_news else None,
                total_timeout=self._target.total_timeout if wants_news else None,
            )
        finally:
            if self._progress_shown:
                click.echo("\r\x1b[K", err=True, nl=False)
        return result

    def _follow(self, client: "Client") -> None:
        """Print the items of a subscription as they come, until it ends or is interrupted.

        That is the usual way to end it, and no failure.
        """
        from msgspec import Raw

        self._attempt.sent = True
        subscription = client.subscribe(
            self._attempt.method, self._params, returns=Raw, timeout=self._target.total_timeout
        )
        try:
            with subscription as items:
                for item in items:
                    self._output.value(item)
                    if items.missed:
                        self._tell_missed(items.missed)
        except KeyboardInterrupt:
            pass

    def _tell_missed(self, missed: int) -> None:
        if missed != self._missed:
            tell(f"{missed - self._missed} items were dropped: they were not read in time")
            self._missed = missed

    def _look_up(self, client: "Client") -> str | None:
        """Ask of what kind the method is; None if the server does not know it."""
        from duet_rpc.cli.discovery import describe_methods

        try:
            discovered = describe_methods(client)
        except CallTimeout:
            raise CallTimeout(
                "the server did not say in time what its methods are, so nothing was called;"
                " --query or --command does without asking"
            ) from None
        if discovered is None:
            return None
        self._attempt.known_methods = discovered.names
        found = discovered.find(self._attempt.method)
        return None if found is None else found.kind

    def _on_progress(self, progress: "Progress") -> None:
        if self._shows_progress:
            self._progress_shown = True
            click.echo(f"\r\x1b[K{cut(_say_progress(progress), 78)}", err=True, nl=False)


def _say_progress(progress: "Progress") -> str:
    """Say in a line how far the call is."""
    done, total, message = progress.done, progress.total, progress.message
    parts = []
    if isinstance(done, (int, float)) and total is not None and total > 0:
        parts.append(f"{100 * done / total:.0f}%")
    elif isinstance(done, str):
        parts.append(safe(done))
    elif done is not None:
        parts.append(write_compact(done))
    if message:
        parts.append(safe(message))
    return " ".join(parts)


def _settle_key(params: Any, key: str | None) -> str | None:
    """Say the key: of --key, or of the params, where it may also be given."""
    from duet_rpc.engine.calls import encode_params
    from duet_rpc.wire.params import find_key

    try:
        return find_key(encode_params(params), key)
    except UsageError as error:
        raise click.UsageError(str(error)) from None


def _read_age(key: str | None, retry: bool, since: str | None) -> float | None:
    """Say how many seconds ago the command was first sent; None if it was not."""
    if not retry and since is None:
        return None
    if key is None:
        raise click.UsageError("--retry and --since are about a try before: give its --key")
    return UNKNOWN_AGE if since is None else read_age(since)


def _write_retry_line(attempt: Attempt, failure: DuetError) -> str:
    """Write our own command line again, with the key and when it was first sent; no passwords.

    A try that was refused before it began is none that a server could have to remember.
    """
    from duet_rpc.client.attempts import NOT_BEGUN

    words = [without_password(word) for word in sys.argv[1:]]
    end = words.index("--") if "--" in words else len(words)
    added: list[str] = []
    assert attempt.key is not None, "only commands are sent again"
    if not any(each == "--key" or each.startswith("--key=") for each in words[:end]):
        added += ["--key", attempt.key]
    is_retry = attempt.age is not None or not isinstance(failure, NOT_BEGUN)
    if attempt.first_sent and is_retry and not attempt.tells_age:
        added += ["--since", attempt.first_sent]
    return shlex.join(["duet-rpc", *words[:end], *added, *words[end:]])


def _fail(error: DuetError, attempt: Attempt, target: Target, output: Output) -> NoReturn:
    """Say what went wrong and what to do, and end the process."""
    if attempt.key is not None:
        attempt.retry_line = _write_retry_line(attempt, error)
    lines = [*target.explain_framing(error), *advise(error, attempt)]
    tell_failure(say_error(error), lines, no_color=output.no_color)
    if isinstance(error, InternalError | ResultUnserializable) and target.unseen:
        tell("The server wrote:")
        for line in target.unseen:
            tell(f"  | {safe(line)}")
    if output.json_wanted:
        output.value(encode_failure(error, attempt))
    sys.exit(choose_exit_code(error))
