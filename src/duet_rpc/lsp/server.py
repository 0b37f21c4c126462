"""A language server: functions for features, and everything that the protocol wants around them.

It is a face above `Service` and `Server`: each function becomes a method of a service under the
protocol's name, and that is served on stdin and stdout as any other.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from duet_rpc.context import Context, RemotePeer
from duet_rpc.lsp.documents import Documents
from duet_rpc.lsp.features import (
    IGNORED,
    SyncKind,
    camel_case,
    describe_capabilities,
    is_notification,
)
from duet_rpc.lsp.handlers import adapt
from duet_rpc.lsp.lifecycle import Editor, Lifecycle
from duet_rpc.lsp.results import find_converter, is_list_of_items, send_as_is
from duet_rpc.lsp.synchronisation import Synchronisation, make_check
from duet_rpc.lsp.work_done import CANCEL, OpenWork, WorkDone
from duet_rpc.options import check
from duet_rpc.policy import EDITOR, Policy
from duet_rpc.server.server import Server
from duet_rpc.service import Service

if TYPE_CHECKING:
    from duet_rpc.server.logs import Logs

F = TypeVar("F", bound=Callable[..., Any])


class FeatureDecorator:
    """Registers a function for one method of the protocol: with options, or without parentheses."""

    def __init__(self, server: "LanguageServer", method: str) -> None:
        self._server = server
        self._method = method

    @overload
    def __call__(self, handler: F, /) -> F: ...
    @overload
    def __call__(
        self, /, *, inline: bool = False, timeout: float | None = None, **options: Any
    ) -> Callable[[F], F]: ...
    def __call__(
        self,
        handler: Any = None,
        /,
        *,
        inline: bool = False,
        timeout: float | None = None,
        **options: Any,
    ) -> Any:
        """Register a function; `options` are those of the capability, in snake_case."""
        scope = sys._getframe(1).f_locals  # where hints that are written as texts are known

        def register(handler: F) -> F:
            self._server._add(self._method, handler, scope, inline, timeout, options)
            return handler

        return register if handler is None else register(handler)


class NamedFeature:
    """A feature that has a decorator of its own, `@server.hover`."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __get__(self, server: "LanguageServer", owner: object = None) -> FeatureDecorator:
        return FeatureDecorator(server, self._method)


class LanguageServer:
    """A language server on stdin and stdout, filled by decorators.

    What it announces in `initialize` is what is registered; `capabilities` are added to that, in
    the protocol's own form. `sync` says how changes come: as edits of ranges ("incremental") or as
    the whole text ("full"). Under the policy `EDITOR`, which is the default, requests are answered
    one after the other.

    It has more than fifteen fields because each common feature is one.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "",
        sync: SyncKind = "incremental",
        policy: Policy = EDITOR,
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        check("sync", sync, sync in ("incremental", "full"), '"incremental" or "full"')
        self.name = name
        self.version = version
        self.policy = policy
        self.documents: Documents = Documents()
        """The documents that are open."""
        self._sync = sync
        self._capabilities = dict(capabilities or {})
        self._features = Service(name, version=version)
        self._options: dict[str, dict[str, Any]] = {}
        """The methods that were registered, and the options of their capabilities."""
        self._lifecycle = Lifecycle()
        self._synchronisation = Synchronisation(self._lifecycle, self.documents)
        self._work = OpenWork()

    @property
    def editor(self) -> Editor:
        """What the client said of itself in `initialize`."""
        return self._lifecycle.editor

    @property
    def peer(self) -> RemotePeer | None:
        """The client, to be notified or called outside of requests; None before `initialize`."""
        return self._lifecycle.peer

    code_action: NamedFeature = NamedFeature("textDocument/codeAction")
    completion: NamedFeature = NamedFeature("textDocument/completion")
    definition: NamedFeature = NamedFeature("textDocument/definition")
    document_symbol: NamedFeature = NamedFeature("textDocument/documentSymbol")
    formatting: NamedFeature = NamedFeature("textDocument/formatting")
    hover: NamedFeature = NamedFeature("textDocument/hover")
    references: NamedFeature = NamedFeature("textDocument/references")
    rename: NamedFeature = NamedFeature("textDocument/rename")
    signature_help: NamedFeature = NamedFeature("textDocument/signatureHelp")

    def feature(self, method: str) -> FeatureDecorator:
        """Register a function for any request or notification by its name.

        `@server.feature("textDocument/foldingRange")`, and with options of the capability
        `@server.feature("workspace/executeCommand")(commands=["words.sort"])`.
        """
        return FeatureDecorator(self, method)

    def on_change(self, handler: F) -> F:
        """Register a function that is called after a document was opened or changed.

        The diagnostics that it returns are published; None publishes nothing. Later messages wait
        until it has ended.
        """
        scope = sys._getframe(1).f_locals
        self._synchronisation.checks.append(make_check(handler, self._lifecycle, scope))
        return handler

    def work_done(
        self, title: str, *, message: str | None = None, cancellable: bool = False
    ) -> WorkDone:
        """Have the client show the progress of work that belongs to no request.

        `async with server.work_done("Index") as work:` in a task, and `with` in a thread; inside,
        `work.report(done, total, message)`. If it is `cancellable`, look at `work.cancelled`. A
        client that cannot show it is sent nothing.
        """
        shows = self.editor.supports("window.workDoneProgress")
        peer = self._lifecycle.peer if shows else None
        return self._work.add(peer, title, message=message, cancellable=cancellable)

    def make_service(self) -> Service:
        """Make the service of a new session; one before it is over.

        For tests, each of which has a session of its own, and for a `Server` of your own.
        """
        self._lifecycle.begin_anew()
        self.documents.clear()
        service = Service(self.name, version=self.version)
        self._work = OpenWork()
        self._add_lifecycle(service)
        self._synchronisation.add_to(service)
        service.include(self._features)
        if CANCEL not in service:
            self._work.add_to(service)
        for name in IGNORED:
            if name not in service:
                service.notification(name=name, inline=True, ignore_unknown=True)(_ignore)
        return service

    def run(self, *, logs: "Logs | None" = None) -> None:
        """Serve on stdin and stdout until the client ends it; then the process ends.

        Its exit code is 1 if the client has sent `exit` without `shutdown`, else 0.
        """
        reason = Server(self.make_service(), policy=self.policy, dialect="lsp").run_stdio(logs=logs)
        sys.exit(1 if reason == "exit" and not self._lifecycle.has_shut_down else 0)

    def _add(
        self,
        method: str,
        handler: Callable[..., Any],
        scope: Mapping[str, Any],
        inline: bool,
        timeout: float | None,
        options: Mapping[str, Any],
    ) -> None:
        answers = not is_notification(method)
        served = adapt(
            handler,
            method,
            scope,
            lifecycle=self._lifecycle,
            documents=self.documents,
            convert=find_converter(method) if answers else send_as_is,
            answers=answers,
            in_parts=answers and is_list_of_items(method),
        )
        register = self._features.query if answers else self._features.notification
        register(name=method, ignore_unknown=True, inline=inline, timeout=timeout)(served)
        self._options[method] = {camel_case(name): value for name, value in options.items()}

    def _add_lifecycle(self, service: Service) -> None:
        lifecycle = self._lifecycle

        @service.query(name="initialize", inline=True, ignore_unknown=True)
        def initialize(
            capabilities: Any = None,
            clientInfo: Any = None,
            initializationOptions: Any = None,
            rootUri: str | None = None,
            workspaceFolders: list[dict[str, Any]] | None = None,
            *,
            ctx: Context,
        ) -> dict[str, Any]:
            """Say what the server can; the first request of a session."""
            about = clientInfo if isinstance(clientInfo, dict) else {}
            editor = Editor(
                name=str(about.get("name", "")),
                version=str(about.get("version", "")),
                capabilities=capabilities if isinstance(capabilities, dict) else {},
                initialization_options=initializationOptions,
                root_uri=rootUri,
                workspace_folders=workspaceFolders or (),
            )
            lifecycle.start(editor, ctx.peer)
            encoding = self.documents.encoding = editor.position_encoding
            described = describe_capabilities(self._options, self._sync, encoding)
            named = {"name": self.name} | ({"version": self.version} if self.version else {})
            return {"capabilities": described | self._capabilities, "serverInfo": named}

        @service.query(name="shutdown", inline=True, ignore_unknown=True)
        def shutdown() -> None:
            """Prepare for the end, which comes with exit."""
            lifecycle.shut_down()


def _ignore() -> None:
    """Take what no one has asked for."""
