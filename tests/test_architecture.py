"""Imports go one way: from a higher tier to a lower one, never back.

The tables below are the architecture. A new module has to be placed in them before the tests pass.
Imports are read from the source, so one inside a function or under ``TYPE_CHECKING`` counts like
any other: to know a thing of a higher tier, in whatever way, is to depend on it.
"""

import ast
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = "duet_rpc"

# Lowest first. A name is a module or a package with all that is in it; the longest name that fits
# counts, so `ledger.states` may stand below the rest of `ledger`. Modules of one tier may import
# one another.
TIERS: tuple[tuple[str, ...], ...] = (
    (
        *("errors", "options", "collector", "startup", "kinds", "forks"),
        *("redaction", "tracebacks", "version"),
    ),
    (
        *("policy", "context", "hooks", "wire"),
        *("ledger.states", "ledger.retry_age", "ledger.upkeep", "ledger.fingerprint"),
    ),
    ("service", "methods", "around", "engine"),
    ("transports", "ledger", "retry"),
    ("hosts",),  # what waits and runs for a connection
    ("server", "client"),
    ("http",),
    ("blocking", "testing", "mcp", "lsp", "codegen"),
    ("cli",),
    ("__init__", "__main__"),  # the faces: nothing imports them
)

# The exceptions, each with its reason; only inside a function, so that importing the one does not
# load the other.
FETCHED_WHEN_CALLED = {
    ("service", "server.server"),  # Service.run() is the one-line way to serve
}

# Bytes in, values out: these modules neither wait nor log, and time comes in from outside.
PURE = (
    "errors",
    "options",
    "collector",
    "startup",
    "kinds",
    "redaction",
    "policy",
    "context",
    "hooks",
    "wire",
    "service",
    "methods",
    "around",
    "engine",
    "ledger.states",
    "ledger.retry_age",
    "ledger.upkeep",
    "ledger.fingerprint",
    *("http.messages", "http.principal", "http.rules", "http.statuses", "http.head"),
    *("http.stream", "http.introduction"),
)
KEPT_OUT_OF_PURE = frozenset({"asyncio", "threading", "socket", "os", "time", "logging"})


RANKS = {name: rank for rank, tier in enumerate(TIERS) for name in tier}


def placed(module: str, names: Iterable[str]) -> str | None:
    """Return the longest of ``names`` that is ``module`` or a package around it."""
    fitting = [name for name in names if f"{module}.".startswith(f"{name}.")]
    return max(fitting, key=len, default=None)


def tier_of(module: str) -> int | None:
    name = placed(module, RANKS)
    return None if name is None else RANKS[name]


class Import(NamedTuple):
    line: int
    name: str  # absolute; `from a import b` is `a.b`, whether b is a module or not
    in_function: bool
    for_types: bool


def imports(module: str, source: str, is_package: bool = False) -> Iterator[Import]:
    """Yield everything that ``source`` imports, wherever it stands."""
    package = [PACKAGE, *(part for part in module.split(".") if part != "__init__")]
    if not is_package:
        package.pop()

    def visit(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(node.lineno, alias.name, in_function, for_types)
            case ast.ImportFrom(names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                base = [*base, node.module] if node.module else base
                for alias in names:
                    name = ".".join([*base, alias.name])
                    yield Import(node.lineno, name, in_function, for_types)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                in_function = True
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=orelse):
                for statement in body:
                    yield from visit(statement, in_function, True)
                for statement in orelse:
                    yield from visit(statement, in_function, for_types)
                return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_function, for_types)

    return visit(ast.parse(source), False, False)


def target(name: str, modules: Collection[str]) -> str | None:
    """Return the module of ours, relative to the package, that importing ``name`` loads."""
    first, _, rest = name.partition(".")
    if first != PACKAGE:
        return None
    known = [*RANKS, *(module.removesuffix(".__init__") for module in modules)]
    return placed(rest, known) or "__init__"


def violations(modules: Mapping[str, str]) -> list[str]:
    """Check the sources, by module name relative to the package; return one line for each fault."""
    faults = []
    for path, source in modules.items():
        module = path.removesuffix(".__init__")
        tier = tier_of(module)
        if tier is None:
            faults.append(f"{module} stands in no tier: place it in a tier (TIERS, in this file)")
            continue
        for found in imports(module, source, is_package=path.endswith("__init__")):
            outside = found.name.partition(".")[0] in KEPT_OUT_OF_PURE
            if outside and placed(module, PURE) and not found.for_types:
                faults.append(f"{module}:{found.line} imports {found.name}: it is to stay pure")
            used = target(found.name, modules)
            used_tier = None if used is None else tier_of(used)
            if used_tier is None or used_tier <= tier:
                continue
            if found.in_function and (module, used) in FETCHED_WHEN_CALLED:
                continue
            faults.append(f"{module}:{found.line} imports {used}, which stands in a higher tier")
    return faults


def our_modules() -> dict[str, str]:
    root = SOURCE / PACKAGE
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text("utf-8")
        for path in sorted(root.rglob("*.py"))
    }


def test_no_module_imports_a_higher_tier() -> None:
    modules = our_modules()
    assert modules, f"no sources in {SOURCE}"
    assert not violations(modules), "\n" + "\n".join(violations(modules))


def test_which_decision_lives_where_names_files_that_are_there() -> None:
    text = (SOURCE.parent / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition("## Which decision lives where")[2].partition("\n## ")[0]
    files = re.findall(r"\| `([\w/]+\.py)` \|$", table, re.MULTILINE)
    assert len(files) > 30
    assert not [name for name in files if not (SOURCE / PACKAGE / name).is_file()]


# Classes that share their name, and why.
SAME_NAME = {
    "Client": "the two faces of one client: `duet_rpc.Client` and `duet_rpc.blocking.Client`",
}


def places_of_classes(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """Say in which modules each class is defined."""
    places: dict[str, list[str]] = {}
    for module, source in modules.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    return places


def test_the_name_of_a_class_exists_once() -> None:
    """Two classes that want the same name: one of them is misnamed."""
    found = {name: at for name, at in places_of_classes(our_modules()).items() if len(at) > 1}
    assert found.keys() == SAME_NAME.keys(), found


def test_the_checker_sees_two_classes_of_one_name() -> None:
    sources = {"a": "class Line: ...", "b": "def make():\n    class Line: ...", "c": "Line = 3"}
    assert places_of_classes(sources) == {"Line": ["a", "b"]}


# What is larger says why in its docstring: "It has more than twenty methods because ...".
MOST = {"twenty methods": 20, "fifteen fields": 15, "400 lines": 400}

# Those that do not say so themselves, and why they are large.
LARGE = {
    "client.client.Client": "the methods of both faces, each with its overloads",
    "client.blocking.Client": "the methods of both faces, each with its overloads",
    "client.shared.SharedConnection": "all that needs the lock of a shared connection",
    "methods.parameters.Parameters": "what is prepared at registration, for one look-up each",
    "client.client": "a quarter are overloads",
    "client.shared": "all that needs the lock of a shared connection",
    "methods.parameters": "hints, decoders and adapters of one handler",
    "service": "each decorator has its overloads",
}


def fields_of(node: ast.ClassDef) -> set[str]:
    """Name the fields of a class: annotated, in `__slots__`, or set by `__init__`."""
    found: set[str] = set()
    for part in node.body:
        match part:
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                found |= {str(each.value) for each in ast.walk(value) if type(each) is ast.Constant}
            case ast.FunctionDef(name="__init__"):
                for each in ast.walk(part):
                    match each:
                        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                            found.add(name)
    return found


def unexplained(module: str, source: str) -> Iterator[tuple[str, str]]:
    """Name the module and each class of it that is too large and does not say why, and in what."""
    tree = ast.parse(source)
    sizes: list[tuple[str, str, dict[str, int]]] = [
        (module, ast.get_docstring(tree) or "", {"400 lines": len(source.splitlines())})
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            kinds = ast.FunctionDef | ast.AsyncFunctionDef
            methods = {each.name for each in node.body if isinstance(each, kinds)}
            size = {"twenty methods": len(methods), "fifteen fields": len(fields_of(node))}
            sizes.append((f"{module}.{node.name}", ast.get_docstring(node) or "", size))
    for name, text, size in sizes:
        words = " ".join(text.split())
        for what, count in size.items():
            if count > MOST[what] and f"more than {what} because" not in words:
                yield name, what


def test_what_is_large_says_why() -> None:
    found = [each for path, text in our_modules().items() for each in unexplained(path, text)]
    assert not [each for each in found if each[0] not in LARGE]


def test_the_checker_sees_what_is_large() -> None:
    methods = "\n".join(f"    def m{number}(self): ..." for number in range(21))
    slots = "    __slots__ = " + repr(tuple(f"s{number}" for number in range(14)))
    init = "    def __init__(self):\n        self.a, self.s1 = 1, 2\n        self.b += 1"
    source = f"class A:\n{methods}\nclass B:\n{slots}\n{init}\n" + "\n" * 400
    assert sorted(unexplained("m", source)) == [
        ("m", "400 lines"),
        ("m.A", "twenty methods"),
        ("m.B", "fifteen fields"),
    ]
    reason = "    'It has more than\\n twenty methods because of this.'\n"
    assert list(unexplained("m", f"class A:\n{reason}{methods}")) == []


# The checker, tried on sources that break the rules.

SOUND = {
    "errors": "",
    "wire.messages": "",
    "engine.connection": "",
    "transports.stdio": "",
    "ledger.states": "",
}


@pytest.mark.parametrize(
    "source",
    [
        "from duet_rpc.engine.connection import Connection",
        "from duet_rpc.engine import connection",
        "import duet_rpc.engine.connection as c",
        "from ..engine.connection import Connection",
        "from .. import engine",
        "def later():\n    from duet_rpc.engine.connection import Connection",
        "if TYPE_CHECKING:\n    from duet_rpc.engine.connection import Connection",
        "from duet_rpc.transports.stdio import Stdio",
        "from ..transports import stdio",
    ],
)
def test_the_checker_sees_an_import_of_a_higher_tier(source: str) -> None:
    faults = violations(SOUND | {"wire.messages": source})
    assert len(faults) == 1
    assert "which stands in a higher tier" in faults[0]


def test_the_checker_sees_an_import_of_the_face() -> None:
    faults = violations(SOUND | {"__init__": "", "cli.main": "from duet_rpc import Server"})
    assert faults == ["cli.main:1 imports __init__, which stands in a higher tier"]


def test_the_checker_resolves_relative_imports_inside_packages() -> None:
    upwards = {"ledger.states": "from ..transports import stdio"}
    assert violations(SOUND | upwards) == [
        "ledger.states:1 imports transports.stdio, which stands in a higher tier"
    ]
    from_a_package = {
        "transports.__init__": "from . import stdio\nfrom ..cli import main",
        "cli": "",
    }
    assert violations(SOUND | from_a_package) == [
        "transports:2 imports cli, which stands in a higher tier"
    ]


@pytest.mark.parametrize("name", sorted(KEPT_OUT_OF_PURE))
@pytest.mark.parametrize(
    "form", ["import {}", "import {}.x", "from {} import x", "def later():\n    import {} as it"]
)
def test_the_checker_keeps_io_and_clocks_out_of_pure_modules(form: str, name: str) -> None:
    source = form.format(name)
    assert len(violations(SOUND | {"ledger.states": source})) == 1
    assert violations(SOUND | {"transports.stdio": source}) == []


def test_the_checker_lets_pure_modules_name_types() -> None:
    for_types = "if TYPE_CHECKING:\n    from logging import Logger\nelse:\n    import json"
    assert violations(SOUND | {"engine.connection": for_types}) == []
    assert len(violations(SOUND | {"engine.connection": for_types.replace("json", "time")})) == 1


def test_the_checker_wants_exceptions_inside_functions() -> None:
    fetched = "def run():\n    from duet_rpc.server.server import Server"
    assert violations(SOUND | {"service": fetched, "server.server": ""}) == []
    assert len(violations(SOUND | {"service": "from duet_rpc.server.server import Server"})) == 1
    assert len(violations(SOUND | {"errors": fetched})) == 1


def test_the_checker_asks_for_a_place_for_every_module() -> None:
    faults = violations(SOUND | {"helpers": ""})
    assert len(faults) == 1
    assert "place it in a tier" in faults[0]


def test_the_checker_passes_what_is_in_order() -> None:
    source = "import json\nfrom duet_rpc.wire.messages import Request\nfrom ..errors import *"
    good = {"engine.connection": source}
    assert violations(SOUND | good) == []


# The engine's state has one owner: whoever else wants to change it calls a verb.
OWNED_BY_ENGINE = frozenset({"connection", "calls", "dispatcher", "queue", "framing"})
OWNERS = ("engine", "wire", "ledger")  # a ledger's connections are its database's


def foreign_changes(module: str, source: str) -> Iterator[str]:
    """Tell each assignment to a field of the engine's objects in a module that is no owner."""
    if placed(module, OWNERS):
        return

    def is_owned(node: ast.AST) -> bool:
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        return name.lstrip("_") in OWNED_BY_ENGINE

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()) if is_owned(value):
                yield f"{module}:{node.lineno} changes {ast.unparse(node)}"
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[value, *_]) if is_owned(
                value
            ):
                yield f"{module}:{node.lineno} changes {ast.unparse(value)}"


def test_only_the_engine_changes_its_state() -> None:
    modules = our_modules()
    faults = [fault for path, text in modules.items() for fault in foreign_changes(path, text)]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    "change",
    [
        "connection.closing = True",
        "self.connection.congested = False",
        "host.connection.calls.one_at_a_time = True",
        "connection._queue.budget: Budget = budget",
        "self._dispatcher.errors, x = 1, 2",
        "self._calls.last_id += 1",
        "del dispatcher.spent",
        "later = lambda: setattr(connection, 'closing', True)",
    ],
)
def test_the_checker_sees_a_change_from_outside(change: str) -> None:
    assert len(list(foreign_changes("hosts.threads", change))) == 1
    assert list(foreign_changes("engine.connection", change)) == []


def test_the_checker_lets_everyone_keep_a_connection() -> None:
    source = "self.connection = connection\nself._calls = connection.calls\nconnection.congest()"
    assert list(foreign_changes("hosts.threads", source)) == []


# Structs that the garbage collector does not see (`gc=False`) cost less. But a circle with one of
# them in it is never freed: so each is listed here, with the reason why it can be in none.
OUT_OF_THE_COLLECTORS_SIGHT = {
    "wire.messages.Request": "holds bytes and text",
    "wire.messages.Notification": "holds bytes and text",
    "wire.messages.Response": "holds bytes",
    "wire.messages._Envelope": "holds raw bytes",
    "engine.calls._Held": "holds bytes and numbers",
    "engine.calls._answer_of": "is read and dropped before anyone sees the result in it",
    "engine.intake._Answer": "lives while it is encoded; a batch drops its answers in any case",
    "engine.intake._envelope": "only where its params are",
    "methods.parameters.Parameters._define": "only where every param is a scalar",
}


def out_of_sight(module: str, source: str) -> Iterator[str]:
    """Name every class or function of ``source`` that says something about `gc` but True."""

    def visit(node: ast.AST, around: str) -> Iterator[str]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            around = f"{around}.{node.name}"
        if isinstance(node, ast.ClassDef | ast.Call):
            for keyword in node.keywords:
                value = keyword.value
                is_true = isinstance(value, ast.Constant) and value.value is True
                if keyword.arg == "gc" and not is_true:
                    yield around
        for child in ast.iter_child_nodes(node):
            yield from visit(child, around)

    return visit(ast.parse(source), module)


def test_what_the_collector_does_not_see_can_be_in_no_circle() -> None:
    found = {name for path, text in our_modules().items() for name in out_of_sight(path, text)}
    assert found == set(OUT_OF_THE_COLLECTORS_SIGHT), "list it, with the reason, or leave gc alone"


def test_what_holds_bytes_and_text_holds_nothing_else() -> None:
    """A field of another type could lead back to the struct."""
    from duet_rpc.engine import calls
    from duet_rpc.wire import messages

    for name, reason in OUT_OF_THE_COLLECTORS_SIGHT.items():
        if not reason.startswith("holds "):
            continue
        module, _, title = name.rpartition(".")
        cls = getattr({"engine.calls": calls, "wire.messages": messages}[module], title)
        for hint in typing.get_type_hints(cls).values():
            assert str(hint) in INNOCENT, f"{name} has a field of type {hint}"


INNOCENT = {
    "<class 'str'>",
    "<class 'bytes'>",
    "bytes | None",
    "list[int]",
    "tuple[int, ...]",
    "msgspec.Raw | msgspec.UnsetType",
    "bytes | tuple[bytes | memoryview, ...]",
}


def test_the_checker_sees_what_is_kept_out_of_the_collectors_sight() -> None:
    source = """
class A(Struct, gc=False): ...
class B(Struct, gc=True): ...
def make(x):
    return defstruct("C", [], gc=x)
class D:
    def make(self): return defstruct("D", [], gc=not self.y)
"""
    assert list(out_of_sight("m", source)) == ["m.A", "m.make", "m.D.make"]
