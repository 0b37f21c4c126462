"""The public names: what ``__all__`` of the public modules lists, and what importing them costs."""

import importlib
import importlib.util
import inspect
import subprocess
import sys

import pytest

import duet_rpc

PUBLIC = [
    name
    for name in (
        "duet_rpc",
        "duet_rpc.blocking",
        "duet_rpc.hooks",
        "duet_rpc.lsp",
        "duet_rpc.mcp",
        "duet_rpc.policy",
        "duet_rpc.testing",
    )
    if importlib.util.find_spec(name) is not None
]


def own_docstring(thing: object) -> str:
    """Return the docstring that a person wrote, not the signature that a dataclass makes up."""
    text = getattr(thing, "__doc__", None) or ""
    return "" if text.startswith(f"{getattr(thing, '__name__', '')}(") else text.strip()


def isort_key(name: str) -> tuple[int, str]:
    """Put CONSTANTS first, then Classes, then the rest: the order that `make format` keeps."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    names = list(module.__all__)
    assert names == sorted(set(names), key=isort_key), "__all__ is sorted, each name once"
    for exported in names:
        thing = getattr(module, exported)  # also fetches what the module loads on demand
        if inspect.isclass(thing) or inspect.isroutine(thing):
            assert own_docstring(thing), f"{name}.{exported} has no docstring"


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_lists_every_public_name(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module)), "completion in a shell goes by dir()"


def test_importing_the_package_loads_nothing_heavy() -> None:
    # An editor user waits for the daemon's start. asyncio alone would be most of it.
    program = (
        "import sys; before = set(sys.modules); import duet_rpc; "
        "heavy = {'asyncio', 'click', 'copy', 'inspect', 'platform', 'textwrap',"
        " 'typing_extensions'} | {'duet_rpc.ledger.ledger', 'duet_rpc.hooks',"
        " 'duet_rpc.methods.parameters', 'duet_rpc.methods.wording'}; "
        "print(*sorted(heavy & (set(sys.modules) - before)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    assert finished.stdout.split() == []


@pytest.mark.parametrize("name", ["PostgresStore", "RedisStore"])
def test_what_needs_an_extra_is_public_too(name: str) -> None:
    assert own_docstring(getattr(duet_rpc, name)) and name in dir(duet_rpc)


@pytest.mark.parametrize(
    ("name", "driver", "extra"),
    [("PostgresStore", "psycopg", "postgres"), ("RedisStore", "redis", "redis")],
)
def test_without_the_extras_all_else_is_there(name: str, driver: str, extra: str) -> None:
    program = f"""
import sys
sys.modules.update(psycopg=None, redis=None)  # as if they were not installed
from duet_rpc import *
try:
    from duet_rpc import {name}
except ModuleNotFoundError as error:
    print(error)
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    told = finished.stdout.strip()
    assert told.startswith(f"{name} needs {driver}") and f"duet-rpc[{extra}]" in told


@pytest.mark.parametrize("threads", [1, 2])
def test_what_msgspec_does_without_is_there_for_everybody_else(threads: int) -> None:
    program = f"""
import sys, threading
over = threading.Event()
if {threads} == 2:
    threading.Thread(target=over.wait).start()
import duet_rpc
print("typing_extensions" in sys.modules)
import platform, textwrap, typing_extensions
print(platform.machine() != "", textwrap.dedent("  a"))
over.set()
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    assert finished.stdout.split() == [str(threads == 2), "True", "a"]


def test_what_msgspec_does_without_is_loaded_when_it_is_needed() -> None:
    program = """
import duet_rpc, msgspec, uuid
class Note(msgspec.Struct):
    '''A line.

    Another.
    '''
print(msgspec.json.schema(Note)["$defs"]["Note"]["description"])
print(uuid.uuid1().version)
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    assert finished.stdout.split() == ["A", "line.", "Another.", "1"]
