"""Opens the store that an operator names, and says plainly what is wrong with it.

Looking at a store changes nothing: a file that is not there, or that no server has used as a store,
is an error and not a new database.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from duet_rpc.cli.exit_codes import NO_CONNECTION
from duet_rpc.cli.output import Failed, safe
from duet_rpc.errors import StoreUnavailable, UsageError
from duet_rpc.redaction import without_password

if TYPE_CHECKING:
    from duet_rpc.ledger.stores.base import Store

F = TypeVar("F", bound=Callable[..., Any])


def store_option(command: F) -> F:
    """Give a command the option that names the store."""
    return click.option(
        "--store",
        required=True,
        metavar="URL",
        envvar="DUET_RPC_STORE",
        show_envvar=True,
        help="Where the commands are kept: sqlite:///commands.db, postgresql://..., redis://...",
    )(command)


@contextmanager
def open_named(url: str) -> "Iterator[Store]":
    """Open a store for as long as the block runs."""
    from duet_rpc.ledger.stores.base import open_store

    scheme = url.partition(":")[0]
    if scheme == "memory":
        raise click.UsageError("memory: is in the process of its server, and ends with it")
    try:
        store = open_store(url)
    except UsageError as error:
        raise click.UsageError(_hide(str(error))) from None
    except ValueError as error:
        raise click.UsageError(f"{_hide(url)}: {error}") from None
    try:
        if scheme == "sqlite":
            _check_file(url)
        yield store
    except StoreUnavailable as error:
        raise _fail(url, error.__cause__) from None
    except UsageError as error:
        raise Failed(f"{_hide(url)}: {error}", NO_CONNECTION) from None
    finally:
        store.close()


def _check_file(url: str) -> None:
    """See that the file is there and is a store, without making it one."""
    import sqlite3
    from urllib.parse import quote, unquote, urlsplit

    path = unquote(urlsplit(url).path)[1:]
    if not os.path.exists(path):
        raise Failed(
            f"there is no file {safe(path)}",
            NO_CONNECTION,
            ["sqlite:///name is relative to this directory, sqlite:////name is absolute."],
        )
    try:
        # Not mode=ro, which cannot read a file in WAL mode that no one has open.
        connection = sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=5)
        try:
            query = "SELECT count(*) FROM sqlite_master WHERE name = 'duet_commands'"
            [(tables,)] = connection.execute(query).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise _fail(url, error) from None
    if not tables:
        raise Failed(
            f"{safe(path)} holds no commands: no server has used it as its store yet",
            NO_CONNECTION,
        )


def _fail(url: str, cause: BaseException | None) -> Failed:
    reason = " ".join(str(cause).split()) if cause is not None and str(cause) else ""
    why = f": {safe(reason)}" if reason else "; is it running?"
    return Failed(f"cannot use the store {_hide(url)}{why}", NO_CONNECTION)


def _hide(text: str) -> str:
    """Show what was given without its password, and without what a terminal obeys."""
    return safe(without_password(text))
