"""Real editors drive a language server, set up as docs/language-server.md says."""

import glob
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.interop.clients import HERE, NODE_PACKAGES, ROOT, Tapped, needed, snippets

PROSE = str(ROOT / "examples" / "prose.py")
SLOW = str(HERE / "slow_prose.py")
MODULES = HERE / "node" / "node_modules"
EGLOT = "eglot (Emacs 29, or install elpa-eglot)"

DOUBLED = "“the” twice"
TEXT = "😀 the the one deux three\ndeux 😀\nand and"


class Editor:
    """An editor, and the language server that it starts as `python3`."""

    def __init__(self, directory: Path) -> None:
        self.tapped = Tapped(directory, sys.executable, "python3")
        self.notes = directory / "notes.txt"
        self.pid = self.tapped.kept / "pid"

    def how_to(self, language: str, name: str) -> str:
        """Save what the page shows in a language; return its path."""
        path = self.tapped.directory / name
        path.write_text(snippets("language-server.md", language), "utf-8")
        return str(path)

    def see(self, command: list[str], **environment: str) -> Any:
        """Run a client to its end; return what it saw."""
        known = {"NOTES": str(self.notes), "PID": str(self.pid), **environment}
        return self.tapped.saw(self.tapped.run(command, environment=known))


@pytest.fixture
def editor(tmp_path: Path) -> Editor:
    return Editor(tmp_path)


def find_eglot() -> str:
    """Find where eglot lies if it is no part of Emacs; empty if it may be."""
    places = os.environ.get("EMACSLOADPATH", "").split(os.pathsep)
    places += glob.glob("/usr/share/emacs/site-lisp/elpa*/eglot-*")
    return next((place for place in places if Path(place, "eglot.el").is_file()), "")


def test_eglot(editor: Editor) -> None:
    emacs = needed("emacs")
    found = find_eglot()
    probe = [emacs, "-Q", "--batch", *(["-L", found] if found else [])]
    is_there = '(princ (format "\\nSAW %s\\n" (if (require \'eglot nil t) "true" "false")))'
    if not editor.see([*probe, "--eval", is_there]):
        pytest.skip(EGLOT)
    editor.notes.write_text("one two three\ntwo\n")
    how_to = editor.how_to("elisp", "prose.el")
    scenarios = str(HERE / "emacs" / "eglot.el")
    saw = editor.see([*probe, "-l", how_to, "-l", scenarios, "-f", "scenario-prose"])
    assert "2 of 4 words" in str(saw["hovered"]["contents"])
    assert saw["completed"] == ["three"]
    shown = [f"prose [doubled]: {message}" for message in ("“and” twice", DOUBLED)]
    assert sorted(saw["changed"]) == shown
    renamed = "😀 the the one deux three 😀\nand and\n\ndeux\n"
    assert saw["renamed"] == renamed
    assert saw["formatted"] == renamed + "end"
    assert saw["status"] == 0
    editor.tapped.check()


def neovim(editor: Editor, scenario: str, **environment: str) -> Any:
    script = HERE / "neovim" / "language_server.lua"
    return editor.see(
        [needed("nvim"), "--clean", "--headless", "-c", f"luafile {script}"],
        SCENARIO=scenario,
        HOW_TO=editor.how_to("lua", "prose.lua"),
        **environment,
    )


ENDED_WELL = {"code": 0, "signal": 0}


def test_neovim(editor: Editor) -> None:
    saw = neovim(editor, "prose")
    assert saw["capabilities"]["hoverProvider"] is True
    assert saw["hover"]["contents"]["value"] == "**two**: 2 of 4 words"
    assert {item["label"] for item in saw["completion"]} == {"three"}
    assert sorted(saw["problems"]) == [["“and” twice", 2, 0], [DOUBLED, 0, 5]]
    assert saw["after"]["contents"]["value"] == "**two**: 2 of 8 words"
    assert saw["renamed"] == TEXT
    assert saw["formatted"] == f"end\n{TEXT}"
    assert saw["ended"] == ENDED_WELL
    editor.tapped.check()


def test_neovim_cancels(editor: Editor) -> None:
    saw = neovim(editor, "cancel", SERVER=SLOW)
    assert saw["hover"]["contents"]["value"] == "**one**: 1 of 1 words"
    assert saw["ended"] == ENDED_WELL
    errors = [each["error"]["code"] for each in editor.tapped.check() if "error" in each]
    assert errors == [-32800]


@pytest.mark.clause("lsp-8", "lsp-9", "lsp-10")
def test_neovim_is_told_progress_and_partial_results(editor: Editor) -> None:
    saw = neovim(editor, "progress", SERVER=SLOW)
    assert saw["shows"] is True
    assert saw["indexed"] == "indexed"
    assert [len(saw["list"]), saw["parts"]] == [2, []]
    told: dict[str, list[Any]] = {}
    for each in saw["progress"]:
        told.setdefault(each["token"], []).append(each["value"])
    title = {"kind": "begin", "title": "Index everything"}
    of_request = {**title, "percentage": 50, "message": "of the request"}
    assert told.pop("mine") == [of_request, {"kind": "end"}]
    assert [part for [part] in told.pop("parts")] == saw["list"]
    [own] = told.values()
    assert [value["kind"] for value in own] == ["begin", "report", "end"]
    assert own[1] == {"kind": "report", "percentage": 50, "message": "of the server"}
    assert saw["ended"] == ENDED_WELL
    editor.tapped.check()


def test_neovim_starts_a_killed_server_again(editor: Editor) -> None:
    saw = neovim(editor, "killed")
    assert saw["first"]["code"] == 137
    assert saw["hover"]["contents"]["value"] == "**one**: 1 of 1 words"
    assert saw["ended"] == ENDED_WELL


def node(editor: Editor, scenario: str = "", **environment: str) -> Any:
    """Run a scenario of the protocol, or the extension if none is named."""
    program = needed("node")
    if not (MODULES / "vscode-languageserver-protocol").is_dir():
        pytest.skip(NODE_PACKAGES)
    script, how_to = ("language_server.js", "prose.js") if scenario else CLIENT
    split = re.split(r"(?m)^(?=// [\w-]+\.js$)", snippets("language-server.md", "javascript"))
    block = next(block for block in split if block.startswith(f"// {how_to}\n"))
    (editor.tapped.directory / how_to).write_text(block, "utf-8")
    command = [program, str(HERE / "node" / script), str(editor.tapped.directory / how_to)]
    places = os.pathsep.join([str(MODULES), str(HERE / "node" / "editor")])
    known = {"SERVER": PROSE, "NODE_PATH": places, **environment}
    return editor.see([*command, *([scenario] if scenario else [])], **known)


CLIENT = ("language_client.js", "extension.js")
NODE_ENDED_WELL = {"code": 0, "signal": None}


def test_vscode_languageserver_protocol(editor: Editor) -> None:
    saw = node(editor, "prose")
    assert saw["hello"]["serverInfo"] == {"name": "prose", "version": "1.0"}
    assert saw["hello"]["capabilities"]["positionEncoding"] == "utf-16"
    assert saw["opened"] == [["two two", "“two” twice"]]
    assert saw["hover"]["contents"] == {"kind": "markdown", "value": "**three**: 1 of 4 words"}
    assert saw["completion"] == ["three"]
    assert saw["symbols"] == ["One"]
    assert saw["changed"] == []
    assert saw["renamed"] == "# One\r\n😀 zwei 😀 three\r\n"
    assert saw["definition"]["range"]["start"] == {"line": 1, "character": 3}
    assert saw["same"] is True
    assert saw["ended"] == NODE_ENDED_WELL
    editor.tapped.check()


def test_vscode_languageclient(editor: Editor) -> None:
    saw = node(editor)
    assert saw == {
        "opened": [["two two", "“two” twice"]],
        "hover": "**three**: 1 of 4 words",
        "completion": ["three"],
        "changed": [],
        "again": [["and and", "“and” twice"]],
        "renamed": "# One\r\n😀😀 and and 😀 zwei 😀 three\r\n",
    }
    editor.tapped.check()


def test_the_page_names_the_versions_that_are_tested() -> None:
    page = (ROOT / "docs" / "language-server.md").read_text("utf-8")
    wanted = json.loads((HERE / "node" / "package.json").read_text())["dependencies"]
    manifest = json.loads(snippets("language-server.md", "json"))
    client = "vscode-languageclient"
    assert manifest["dependencies"] == {client: wanted[client]}
    assert f"vscode-languageserver-protocol ({wanted['vscode-languageserver-protocol']})" in page
    assert re.search(rf"{client}\s+{re.escape(wanted[client])}", page)


@pytest.mark.parametrize("seed", ["1", "20", "300"])
def test_both_sides_hold_the_same_text_after_any_edits(editor: Editor, seed: str) -> None:
    saw = node(editor, "edits", SEED=seed)
    assert saw == {"same": 40, "ended": NODE_ENDED_WELL}
    editor.tapped.check()


def test_vscode_languageserver_protocol_cancels(editor: Editor) -> None:
    saw = node(editor, "cancel", SERVER=SLOW)
    assert saw["waiting"] == {"code": -32800}
    assert saw["hover"]["contents"]["value"] == "**one**: 1 of 1 words"
    assert saw["ended"] == NODE_ENDED_WELL
    editor.tapped.check()


def test_exit_without_shutdown_is_told_by_the_exit_code(editor: Editor) -> None:
    assert node(editor, "exit_without_shutdown")["ended"] == {"code": 1, "signal": None}
    assert editor.tapped.status == 1


def test_a_killed_server_is_started_again(editor: Editor) -> None:
    saw = node(editor, "killed")
    assert saw["first"]["code"] == 137
    assert saw["opened"] == []
    assert saw["ended"] == NODE_ENDED_WELL
