"""A language server as its client sees it: the life of a session, features, documents, results."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from lsprotocol import types as lsprotocol_types

from duet_rpc import Client, Context, Service, UsageError, testing
from duet_rpc.errors import InvalidParams, InvalidRequest, NotInitialized, RpcError
from duet_rpc.lsp import (
    Diagnostic,
    LanguageServer,
    Location,
    Position,
    Range,
    Session,
    TextDocument,
    TextDocumentIdentifier,
    TextEdit,
)
from duet_rpc.policy import AGENT, EDITOR, Policy

if TYPE_CHECKING:
    from lsprotocol import types

URI = "file:///a.txt"
AT = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 4}}
FIRST = Range(Position(0, 0), Position(0, 3))
WIRE_FIRST = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 3}}


class Told:
    """The client's end: what it is told, and what it answers."""

    def __init__(self) -> None:
        self.diagnostics: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.service = Service()

        @self.service.notification(name="textDocument/publishDiagnostics")
        async def published(uri: str, diagnostics: list[Any], version: int | None = None) -> None:
            self.diagnostics.put_nowait(
                {"uri": uri, "diagnostics": diagnostics, "version": version}
            )

        for name in ("window/showMessage", "window/logMessage"):

            @self.service.notification(name=name)
            async def shown(type: int, message: str) -> None:
                self.messages.put_nowait({"type": type, "message": message})

        @self.service.query(name="workspace/configuration")
        def configuration(items: list[dict[str, Any]]) -> list[Any]:
            return [item["section"].upper() for item in items]

        @self.service.query(name="workspace/applyEdit")
        def apply_edit(edit: dict[str, Any], label: str = "") -> dict[str, Any]:
            return {"applied": True, "label": label, "edit": edit}


@asynccontextmanager
async def session(
    server: LanguageServer,
    text: str = "one two three",
    *,
    capabilities: Any = None,
    told: Told | None = None,
    policy: Policy = EDITOR,
) -> AsyncIterator[Client]:
    """A session that is initialized, with one document open."""
    client_service = Told().service if told is None else told.service
    async with testing.connect(
        server.make_service(), policy=policy, service=client_service
    ) as client:
        await client.call("initialize", {"capabilities": capabilities or {}})
        await client.notify("initialized", {})
        opened = {"uri": URI, "languageId": "text", "version": 1, "text": text}
        await client.notify("textDocument/didOpen", {"textDocument": opened})
        yield client


# The life of a session.


async def test_requests_are_refused_before_initialize_and_after_shutdown() -> None:
    server = LanguageServer("words")
    ran = []

    @server.hover
    def hover(document: TextDocument) -> str:
        return document.text

    @server.feature("workspace/didChangeConfiguration")
    def changed(settings: Any) -> None:
        ran.append(settings)

    async with testing.connect(server.make_service(), policy=EDITOR) as client:
        with pytest.raises(NotInitialized):
            await client.call("textDocument/hover", AT)
        with pytest.raises(NotInitialized):
            await client.call("shutdown")
        await client.notify("workspace/didChangeConfiguration", {"settings": "too soon"})
        await client.call("initialize", {"capabilities": {}})
        with pytest.raises(InvalidRequest):
            await client.call("initialize", {"capabilities": {}})
        await client.notify("workspace/didChangeConfiguration", {"settings": "in time"})
        assert await client.call("shutdown") is None
        await client.notify("workspace/didChangeConfiguration", {"settings": "too late"})
        for method in ("textDocument/hover", "shutdown"):
            with pytest.raises(InvalidRequest):
                await client.call(method, AT)
    assert ran == ["in time"]


async def test_what_is_served_is_announced() -> None:
    server = LanguageServer("words", version="2", sync="full", capabilities={"experimental": {}})

    @server.hover
    def hover() -> None: ...
    @server.completion(trigger_characters=["."])
    def complete() -> None: ...
    @server.feature("completionItem/resolve")
    def resolve(params: dict[str, Any]) -> Any: ...
    @server.feature("textDocument/prepareRename")
    def prepare() -> None: ...
    @server.rename
    def rename(new_name: str) -> None: ...
    @server.feature("workspace/executeCommand")(commands=["sort"])
    def execute(command: str) -> None: ...
    @server.feature("textDocument/semanticTokens/full")(legend={"tokenTypes": ["word"]})
    def tokens() -> None: ...
    @server.feature("textDocument/didSave")(include_text=True)
    def saved(text: str = "") -> None: ...

    general = {"general": {"positionEncodings": ["utf-7", "utf-8", "utf-16"]}}
    async with testing.connect(server.make_service(), policy=EDITOR) as client:
        answer = await client.call("initialize", {"capabilities": general})
    assert answer == {
        "serverInfo": {"name": "words", "version": "2"},
        "capabilities": {
            "positionEncoding": "utf-8",
            "textDocumentSync": {"openClose": True, "change": 1, "save": {"includeText": True}},
            "hoverProvider": True,
            "completionProvider": {"triggerCharacters": ["."], "resolveProvider": True},
            "renameProvider": {"prepareProvider": True},
            "executeCommandProvider": {"commands": ["sort"]},
            "semanticTokensProvider": {"legend": {"tokenTypes": ["word"]}, "full": True},
            "experimental": {},
        },
    }


SERVER = """
from duet_rpc.lsp import LanguageServer
LanguageServer("small").run()
"""


def frame(body: str) -> bytes:
    return f"Content-Length: {len(body)}\r\n\r\n{body}".encode()


INITIALIZE = frame('{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}')
SHUTDOWN = frame('{"jsonrpc":"2.0","id":2,"method":"shutdown"}')
EXIT = frame('{"jsonrpc":"2.0","method":"exit"}')


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (INITIALIZE + SHUTDOWN + EXIT, 0),
        (INITIALIZE + EXIT, 1),
        (EXIT, 1),
        (INITIALIZE + SHUTDOWN, 0),
        (INITIALIZE, 0),  # the end of the input is no exit
        (b"", 0),
    ],
)
def test_how_a_process_ends(sent: bytes, status: int) -> None:
    command = [sys.executable, "-c", SERVER]
    finished = subprocess.run(command, input=sent, capture_output=True, timeout=50)
    assert finished.returncode == status, finished.stderr
    assert b"Traceback" not in finished.stderr
    if SHUTDOWN in sent:
        assert b'"id":2,"result":null' in finished.stdout


# Documents and diagnostics.


@pytest.mark.parametrize("policy", [EDITOR, AGENT], ids=lambda policy: str(policy.name))
@pytest.mark.parametrize("waits", [False, True], ids=["def", "async def"])
async def test_requests_see_the_changes_that_were_sent_before(policy: Policy, waits: bool) -> None:
    server, told = LanguageServer("words"), Told()

    def find(document: TextDocument) -> Iterator[Diagnostic]:
        if "two" in document.text:
            yield Diagnostic(FIRST, "two")

    async def find_later(document: TextDocument) -> list[Diagnostic]:
        await asyncio.sleep(0)
        return list(find(document))

    server.on_change(find_later if waits else find)

    @server.hover
    def hover(document: TextDocument) -> str:
        return f"{document.version}: {document.text}"

    async with session(server, told=told, policy=policy) as client:
        first = await told.diagnostics.get()
        assert first == {
            "uri": URI,
            "version": 1,
            "diagnostics": [{"range": WIRE_FIRST, "message": "two"}],
        }
        for number in range(50):
            insert = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
            change = {
                "textDocument": {"uri": URI, "version": number + 2},
                "contentChanges": [{"range": insert, "text": "😀"}],
            }
            await client.notify("textDocument/didChange", change)
            shown = await client.call("textDocument/hover", AT)
            text = "😀" * (number + 1) + "one two three"
            assert shown["contents"] == {"kind": "plaintext", "value": f"{number + 2}: {text}"}
        whole = {"textDocument": {"uri": URI, "version": 99}, "contentChanges": [{"text": ""}]}
        await client.notify("textDocument/didChange", whole)
        for _ in range(50):
            await told.diagnostics.get()
        assert await told.diagnostics.get() == {"uri": URI, "version": 99, "diagnostics": []}
        await client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
        assert await told.diagnostics.get() == {"uri": URI, "version": None, "diagnostics": []}
        with pytest.raises(InvalidParams):
            await client.call("textDocument/hover", AT)


async def test_a_running_handler_keeps_the_document_that_it_was_given() -> None:
    server, started, changed = LanguageServer("words"), asyncio.Event(), asyncio.Event()

    @server.hover
    async def hover(document: TextDocument) -> str:
        started.set()
        await changed.wait()
        return f"{document.version}: {document.text}"

    @server.completion
    def complete(document: TextDocument) -> list[str]:
        return [document.text]

    async with session(server, policy=AGENT) as client:
        hovering = asyncio.ensure_future(client.call("textDocument/hover", AT))
        await started.wait()
        whole = {"textDocument": {"uri": URI, "version": 2}, "contentChanges": [{"text": "new"}]}
        await client.notify("textDocument/didChange", whole)
        assert await client.call("textDocument/completion", AT) == [{"label": "new"}]
        changed.set()
        assert (await hovering)["contents"]["value"] == "1: one two three"


async def test_a_check_that_returns_none_publishes_nothing() -> None:
    server, told = LanguageServer("words"), Told()

    @server.on_change
    def look(document: TextDocument, session: Session) -> None:
        session.show_message(document.text, "warning")

    async with session(server, told=told):
        assert await told.messages.get() == {"type": 2, "message": "one two three"}
        assert told.diagnostics.empty()


# What handlers take.


class OwnStruct(msgspec.Struct, rename="camel"):
    text_document: TextDocumentIdentifier
    position: Position


@dataclass
class OwnDataclass:
    textDocument: TextDocumentIdentifier
    position: Position


async def asked(server: LanguageServer, method: str = "textDocument/hover", **more: Any) -> Any:
    async with session(server) as client:
        return await client.call(method, {**AT, **more})


async def test_params_by_name() -> None:
    server = LanguageServer("words")

    @server.rename
    def rename(
        document: TextDocument, position: Position, new_name: str, *, work_done_token: Any = 7
    ) -> Any:
        return [document.word_at(position), new_name, work_done_token]

    method = "textDocument/rename"
    async with session(server) as client:
        edit = await client.call(method, {**AT, "newName": "x", "unknown": 1})
        assert edit == {"changes": {URI: ["two", "x", 7]}}
        edit = await client.call(method, {**AT, "newName": "x", "workDoneToken": "t"})
        assert edit["changes"][URI][2] == "t"
        with pytest.raises(InvalidParams) as refused:
            await client.call(method, AT)
        assert refused.value.data["param"] == "newName"


async def test_params_as_a_whole() -> None:
    def by_dict(params: dict[str, Any]) -> str:
        return f"{params['position']['character']} {sorted(params)}"

    def by_struct(params: OwnStruct) -> str:
        return f"{params.position.character} {params.text_document.uri}"

    def by_dataclass(params: OwnDataclass, document: TextDocument, ctx: Context) -> str:
        return f"{params.position.character} {document.text} {ctx.method}"

    def by_lsprotocol(params: lsprotocol_types.HoverParams) -> lsprotocol_types.Hover:
        assert isinstance(params.position, lsprotocol_types.Position)
        assert server.documents[URI].word_at(params.position) == "two"
        return lsprotocol_types.Hover(f"{params.position.character} {params.text_document.uri}")

    def by_name_of_it(params: "types.HoverParams") -> "types.Hover":
        return by_lsprotocol(params)

    server = LanguageServer("words")
    server.hover(by_dataclass)
    async with session(server) as client:
        with pytest.raises(InvalidParams):
            await client.call("textDocument/hover", {**AT, "textDocument": 5})

    for handler, shown in (
        (by_dict, "4 ['position', 'textDocument']"),
        (by_struct, f"4 {URI}"),
        (by_dataclass, "4 one two three textDocument/hover"),
        (by_lsprotocol, f"4 {URI}"),
        (by_name_of_it, f"4 {URI}"),
    ):
        server = LanguageServer("words")
        server.hover(handler)
        contents = (await asked(server))["contents"]
        assert (contents if isinstance(contents, str) else contents["value"]) == shown


@pytest.mark.parametrize("hint", [OwnStruct, lsprotocol_types.HoverParams])
async def test_params_that_do_not_fit_are_refused(hint: Any) -> None:
    server = LanguageServer("words")

    def hover(params: Any) -> None: ...

    hover.__annotations__["params"] = hint
    server.hover(hover)
    async with session(server) as client:
        for position in ({"line": 0}, {"line": 0, "character": "x"}, 5):
            with pytest.raises(InvalidParams):
                await client.call("textDocument/hover", {**AT, "position": position})


async def test_lsprotocol_goes_out_as_the_protocol_spells_it() -> None:
    server = LanguageServer("words")

    @server.code_action
    def actions(params: lsprotocol_types.CodeActionParams) -> list[lsprotocol_types.CodeAction]:
        assert params.context.diagnostics[0].severity is lsprotocol_types.DiagnosticSeverity.Error
        edit = lsprotocol_types.TextEdit(params.range, "new")
        return [
            lsprotocol_types.CodeAction(
                "fix",
                lsprotocol_types.CodeActionKind.QuickFix,
                is_preferred=True,
                edit=lsprotocol_types.WorkspaceEdit({URI: [edit]}),
            )
        ]

    context = {"diagnostics": [{"range": WIRE_FIRST, "message": "bad", "severity": 1}]}
    found = await asked(server, "textDocument/codeAction", range=WIRE_FIRST, context=context)
    edit = {"changes": {URI: [{"range": WIRE_FIRST, "newText": "new"}]}}
    assert found == [{"title": "fix", "kind": "quickfix", "isPreferred": True, "edit": edit}]


# What handlers return.


@pytest.mark.parametrize(
    ("method", "returned", "sent"),
    [
        ("textDocument/hover", None, None),
        (
            "textDocument/hover",
            "shown",
            {"contents": {"kind": "plaintext", "value": "shown"}},
        ),
        ("textDocument/completion", ("a", "b"), [{"label": "a"}, {"label": "b"}]),
        ("textDocument/completion", {"isIncomplete": True, "items": []}, None),
        ("textDocument/definition", FIRST, {"uri": URI, "range": WIRE_FIRST}),
        ("textDocument/definition", Location("b", FIRST), {"uri": "b", "range": WIRE_FIRST}),
        ("textDocument/references", [FIRST], [{"uri": URI, "range": WIRE_FIRST}]),
        ("textDocument/documentHighlight", [FIRST], [{"range": WIRE_FIRST}]),
        ("textDocument/formatting", "one two three", []),
        (
            "textDocument/formatting",
            "new",
            [
                {
                    "range": {**WIRE_FIRST, "end": {"line": 0, "character": 13}},
                    "newText": "new",
                }
            ],
        ),
        (
            "textDocument/rename",
            iter([TextEdit(FIRST, "x")]),
            {"changes": {URI: [{"range": WIRE_FIRST, "newText": "x"}]}},
        ),
        ("textDocument/foldingRange", iter([{"startLine": 1}]), [{"startLine": 1}]),
    ],
)
async def test_short_forms_of_results(method: str, returned: Any, sent: Any) -> None:
    server = LanguageServer("words")

    @server.feature(method)
    def answer(document: TextDocument) -> Any:
        return returned

    assert await asked(server, method) == (returned if isinstance(returned, dict) else sent)


async def test_markdown_is_for_clients_that_show_it() -> None:
    server = LanguageServer("words")

    @server.hover
    async def hover(document: TextDocument) -> str:
        return "*shown*"

    can = {"textDocument": {"hover": {"contentFormat": ["markdown", "plaintext"]}}}
    async with session(server, capabilities=can) as client:
        shown = await client.call("textDocument/hover", AT)
    assert shown["contents"] == {"kind": "markdown", "value": "*shown*"}


# Talking to the client.


async def test_a_handler_asks_the_client() -> None:
    server, told = LanguageServer("words"), Told()

    @server.feature("words/ask")
    async def ask(document: TextDocument, session: Session) -> Any:
        session.log_message("asking")
        session.publish_diagnostics(document, [Diagnostic(FIRST, "asked")])
        configured = await session.configuration("words", URI)
        applied = await session.apply_edit({"changes": {}}, "tidy")
        return [configured, applied, session.editor.supports("workspace.applyEdit")]

    @server.feature("words/askNow")
    def ask_now(session: Session) -> Any:
        return session.call("workspace/configuration", {"items": [{"section": "x"}]}).result()

    able = {"workspace": {"applyEdit": True}}
    async with session(server, told=told, capabilities=able) as client:
        configured, applied, can = await client.call("words/ask", AT)
        assert configured == ["WORDS"] and can
        assert applied == {"applied": True, "label": "tidy", "edit": {"changes": {}}}
        assert (await told.messages.get())["message"] == "asking"
        assert (await told.diagnostics.get())["diagnostics"][0]["message"] == "asked"
        assert await client.call("words/askNow", {}) == ["X"]


async def test_a_request_can_be_cancelled() -> None:
    server, started = LanguageServer("words"), asyncio.Event()

    @server.feature("words/wait")
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    @server.hover
    def hover(document: TextDocument) -> str:
        return "still here"

    async with session(server) as client:
        call = asyncio.ensure_future(client.call("words/wait", {}))
        await started.wait()
        call.cancel()
        assert (await client.call("textDocument/hover", AT))["contents"]["value"] == "still here"


async def test_each_session_begins_anew() -> None:
    server = LanguageServer("words")

    @server.hover
    def hover(document: TextDocument) -> str:
        return document.text

    for text in ("first", "second"):
        async with session(server, text) as client:
            assert (await client.call("textDocument/hover", AT))["contents"]["value"] == text
            await client.call("shutdown")
    async with testing.connect(server.make_service(), policy=EDITOR) as client:
        with pytest.raises(NotInitialized):
            await client.call("textDocument/hover", AT)
        assert len(server.documents) == 0


# Mistakes of the author.


def test_mistakes_are_told_where_they_are_made() -> None:
    server = LanguageServer("words")
    with pytest.raises(UsageError, match="sync"):
        LanguageServer("words", sync="none")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Unheard"):

        @server.hover
        def hover(document: "Unheard") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UsageError, match="params are all there is"):

        @server.rename
        def rename(params: dict[str, Any], new_name: str) -> None: ...

    with pytest.raises(UsageError, match="one by one"):

        @server.rename
        def rename_any(**params: Any) -> None: ...

    with pytest.raises(UsageError, match="takes a TextDocument"):

        @server.on_change
        def check(text: str) -> None: ...

    with pytest.raises(UsageError, match="yields"):

        @server.hover
        async def stream() -> AsyncIterator[str]:
            yield ""

    with pytest.raises(UsageError, match="served by a function"):
        server.hover(5)  # type: ignore[call-overload]

    @server.feature("textDocument/didOpen")
    def opened() -> None: ...

    with pytest.raises(UsageError, match="textDocument/didOpen"):
        server.make_service()


async def test_an_error_of_a_handler_is_answered() -> None:
    class CannotRename(RpcError):
        code, message = -32803, "Cannot rename"

    server = LanguageServer("words")

    @server.rename
    def rename(document: TextDocument) -> None:
        raise CannotRename()

    async with session(server) as client:
        with pytest.raises(RpcError) as failed:
            await client.call("textDocument/rename", {**AT, "newName": "x"})
    assert failed.value.code == -32803


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    program = """
import sys
from duet_rpc.lsp import LanguageServer
server = LanguageServer("small")
@server.hover
def hover(params: "types.HoverParams") -> "types.Hover": ...
server.make_service()
print(*sorted({"asyncio", "attr", "inspect", "lsprotocol", "urllib.parse"} & set(sys.modules)))
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    assert finished.stdout.split() == []
