"""Interfaces that are written from services: they run, and both type checkers know their types."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic
import pytest

from duet_rpc import Service, UsageError, testing
from duet_rpc.codegen.interface import InterfaceOptions, write_interface
from tests.check_types import _RUN as CHECKING
from tests.check_types import PYTHON
from tests.cli.shell import run
from tests.codegen import odd_shop

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGETS = (
    "bank.py",
    "durable_bank.py",
    "editor_daemon.py",
    "outbox.py",
    "payments.py",
    "three_servers.py:words",
    "todo.py",
)


def write(service: Service, folder: Path, name: str = "made", **options: Any) -> Any:
    """Write the interface of a service, and import it."""
    text = write_interface(service, InterfaceOptions(made_by="a test", **options))
    file = folder / f"{name}.py"
    file.write_text(text)
    return load(file)


def load(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[file.stem]
    return module


def copy_all(cls: Any) -> bool:
    return bool(cls.__module__ == odd_shop.__name__)


@pytest.fixture(params=["imported", "copied"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The module of the odd shop, with its classes or with copies of them."""
    copies: Callable[[Any], bool] = copy_all if request.param == "copied" else lambda cls: False
    module = write(odd_shop.shop, tmp_path, copies=copies)
    module.types = odd_shop if request.param == "imported" else module
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pytest.mark.clause("client-33")
async def test_it_subscribes(made: Any) -> None:
    async with testing.connect(odd_shop.shop) as client:
        async with made.proxy(client).visitors() as visitors:
            found = [(visitors.seq, visitor) async for visitor in visitors]
    person, blue = made.types.Person, made.types.Colour.BLUE
    assert found == [(1, person("Ada", [], blue)), (2, person("Bo", [], blue))]


@pytest.mark.clause("client-33")
async def test_it_calls_what_the_service_has(made: Any) -> None:
    types = made.types
    async with testing.connect(odd_shop.shop) as client:
        shop = made.proxy(client)
        [found] = await shop.list(types.Colour.BLUE)
        assert found == types.Shop("a", types.Person("b", [], types.Colour.BLUE), [])
        assert await shop.sell("tea", price=5) == ("here", 0, 5)
        assert await shop.sell("tea", price=5, from_="there", extras={"a": 1}) == ("there", 1, 5)
        with pytest.raises(types.OutOfStock):
            await shop.sell(item="none", price=1)
        assert await shop.text_document_hover({"street": "High Street"}) == "High Street"
        assert await shop.add_up(1, 2, 3) == 6
        when = made.datetime(2026, 1, 2)
        assert await shop.call_import(when) == when
        await shop.ring(types.Size.LARGE)
        assert await shop.admin_list_all() == {}
        for shape in (types.Circle(2.0), types.Square(2.0)):
            assert [point async for point in shop.watch(shape)] == [types.Point(0), types.Point(1)]


def test_the_same_for_a_blocking_client(tmp_path: Path) -> None:
    made = write(odd_shop.shop, tmp_path, is_blocking=True)
    with testing.connect_blocking(odd_shop.shop) as client:
        shop = made.proxy(client)
        assert shop.add_up(1, 2) == 3
        assert list(shop.watch(odd_shop.Circle(2.0))) == [odd_shop.Point(0), odd_shop.Point(1)]


def test_what_cannot_be_copied_is_refused() -> None:
    class Model(pydantic.BaseModel):
        name: str

    @dataclass
    class Computed:
        at: float = field(default_factory=lambda: 1.0)

    service, other = Service("odd"), Service("other")

    @service.query
    def get() -> Model:
        raise NotImplementedError

    @other.query
    def make() -> Computed:
        raise NotImplementedError

    options = InterfaceOptions(made_by="a test", copies=lambda cls: True)
    with pytest.raises(UsageError, match="Model cannot be copied, only imported"):
        write_interface(service, options)
    with pytest.raises(UsageError, match=r"the default of .*Computed.at cannot be copied"):
        write_interface(other, options)


USE = """
from typing import assert_type

from duet_rpc import Client

import made
from made import *


async def use(client: Client) -> None:
    shop = made.proxy(client)
    for found in await shop.list(Colour.RED):
        assert_type(found.name, str)
    async for point in shop.watch(Circle(1.0)):
        assert_type(point.x, int)
    assert_type(await shop.add_up(1, 2), int)
    assert_type(await shop.text_document_hover({"street": "x"}), str)
    assert_type(await shop.sell("tea", price=Cents(5), from_="x"), tuple[str, int, Cents])
    await shop.sell("tea", price=Cents(5), idempotency_key="k")
"""


@pytest.mark.clause("client-33")
@pytest.mark.long  # and the type checkers come with what `make check` installs
@pytest.mark.timeout(240)
def test_type_checkers_know_the_types(tmp_path: Path) -> None:
    """All in one run of each checker: they take seconds to start."""
    variants: dict[str, dict[str, Any]] = {"made": {}, "made_blocking": {"is_blocking": True}}
    for name, options in variants.items():
        for copies in (False, True):
            folder = tmp_path / ("copied" if copies else "imported")
            folder.mkdir(exist_ok=True)
            chosen: Callable[[Any], bool] = copy_all if copies else lambda cls: False
            write(odd_shop.shop, folder, name, copies=chosen, **options)
    (tmp_path / "copied" / "use.py").write_text(USE)
    for target in TARGETS:
        folder = tmp_path / target.partition(".")[0]
        folder.mkdir()
        for flag in ("", "--blocking"):
            ran = run("stub", *([flag] if flag else []), EXAMPLES / target)
            assert ran.code == 0, ran
            (folder / f"client{flag[2:]}.py").write_text(ran.out)
    root = Path(__file__).parents[2]
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "typeCheckingMode": "strict",
                "pythonVersion": PYTHON,
                "reportWildcardImportFromLibrary": False,
                "extraPaths": [str(root)],
                "executionEnvironments": [
                    {"root": each.name, "extraPaths": [str(root)]}
                    for each in tmp_path.iterdir()
                    if each.is_dir()
                ],
            }
        )
    )
    checks = [["pyright", "."]]
    for folder in tmp_path.iterdir():
        if folder.is_dir():
            files = sorted(str(file) for file in folder.glob("*.py"))
            checks.append(["mypy", "--strict", "--python-version", PYTHON, *files])
    for check in checks:
        done = subprocess.run(
            [sys.executable, "-m", *check],
            cwd=tmp_path if check[0] == "pyright" else root,
            env=CHECKING,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(
        "from dataclasses import dataclass\n"
        "from duet_rpc import Service\n"
        "service = Service()\n"
        "@dataclass\n"
        "class Sum:\n"
        "    value: int\n"
        "@service.query\n"
        "def add(a: int, b: int) -> Sum:\n"
        "    return Sum(a + b)\n"
    )
    near = run("stub", "sums.py", cwd=tmp_path)
    assert near.code == 0 and "from sums import Sum" in near.out and "class Sums(" in near.out
    assert near.out.startswith('"""A typed client of the service, made by `duet-rpc stub sums.py`')
    far = run("stub", tmp_path / "sums.py", "--name", "Adder")
    assert far.code == 0 and "class Sum:" in far.out and "class Adder(Protocol):" in far.out
    module = run("stub", "sums:service", cwd=tmp_path)
    assert module.code == 0 and "from sums import Sum" in module.out
    copied = run("stub", "sums:service", "--types", "copy", cwd=tmp_path)
    assert copied.code == 0 and "class Sum:" in copied.out
    assert run("stub", "sums.py", "--name", "not a name", cwd=tmp_path).code == 2
    assert run("stub", "none.py", cwd=tmp_path).code == 2


AMBIGUOUS = """
from duet_rpc import RpcError, Service

class Gone(RpcError):
    code, message = 410, "Gone"

class Left(RpcError):
    code, message = 410, "Left"

service = Service()

@service.query
def find(id: int) -> int:
    if id:
        raise Gone()
    raise Left()
"""


@pytest.mark.parametrize(("words", "code"), [(["stub"], 1), (["serve"], 2)])
def test_two_errors_of_one_code_are_refused_in_one_line(
    words: list[str], code: int, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(AMBIGUOUS)
    ran = run(*words, "shop.py", cwd=tmp_path)
    assert (ran.code, ran.out) == (code, "")
    assert "name Gone and Left, which have the same code, 410" in ran.err
    assert "Traceback" not in ran.err
