"""A parameter whose default is `msgspec.UNSET` tells "not given" from null, on every host."""

import json
import sys
from typing import Any

import pytest
from msgspec import UNSET, UnsetType

from duet_rpc import Service
from duet_rpc.errors import InvalidParams
from duet_rpc.policy import EDITOR, SPEC, Policy
from tests.cli.shell import run
from tests.helpers import exchange, request, result
from tests.runtime.faces import PATIENCE, Face


def seen(a: int | None | UnsetType) -> str:
    return "not given" if a is UNSET else repr(a)


def served() -> Service:
    service = Service()

    @service.query(inline=True)
    def at_once(a: int | None | UnsetType = UNSET) -> str:
        return seen(a)

    @service.query
    def in_a_thread(a: int | None | UnsetType = UNSET) -> str:
        return seen(a)

    @service.query
    async def in_a_task(a: int | None | UnsetType = UNSET) -> str:
        return seen(a)

    @service.command
    def do(a: int | None | UnsetType = UNSET) -> str:
        return seen(a)

    return service


METHODS = ["at_once", "in_a_thread", "in_a_task", "do"]


@pytest.mark.parametrize("method", METHODS)
def test_both_clients(face: Face, method: str) -> None:
    driver = face.connect(served(), timeout=PATIENCE)
    assert driver.call(method) == driver.call(method, {}) == driver.call(method, []) == "not given"
    assert driver.call(method, {"a": None}) == driver.call(method, [None]) == "None"
    assert driver.call(method, {"a": 1}) == "1"
    with pytest.raises(InvalidParams) as refused:
        driver.call(method, {"a": "x"})
    assert refused.value.data["expected"] == "integer | null"
    driver.close()


@pytest.mark.parametrize("policy", [SPEC, EDITOR], ids=["spec", "editor"])
@pytest.mark.parametrize("method", METHODS)
def test_every_policy(policy: Policy, method: str) -> None:
    answers = exchange(
        policy, served(), *(request(method, params) for params in (None, {}, {"a": None}, [2]))
    )
    assert [result(answer) for answer in answers] == ["not given", "not given", "None", "2"]


def test_a_proxy_leaves_out_what_is_not_given(face: Face) -> None:
    service = served()
    driver = face.connect(service, timeout=PATIENCE)

    def ask(client: Any) -> Any:
        return client.proxy(service).in_a_thread(UNSET)

    assert driver.do(ask) == "not given"
    assert driver.do(lambda client: client.proxy(service).in_a_thread(None)) == "None"
    driver.close()


def test_what_is_described_does_not_name_it(face: Face) -> None:
    driver = face.spawn(sys.executable, "-c", PROGRAM, timeout=PATIENCE)
    described = json.dumps([driver.call("describeMethods"), driver.call("rpc.discover")])
    assert "in_a_thread" in described and "nset" not in described
    driver.close()


PROGRAM = "from tests.runtime.test_absent_params import served; served().run()"


def test_the_command_line_does_not_name_it() -> None:
    ran = run("describe", "in_a_thread", "--format", "pretty", "--", sys.executable, "-c", PROGRAM)
    assert ran.code == 0 and "integer" in ran.out and "nset" not in ran.out, ran
