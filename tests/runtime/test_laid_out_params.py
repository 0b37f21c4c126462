"""Params that the caller has written as JSON already, laid out in any way, reach the server."""

import sys

import pytest
from msgspec import Raw

from duet_rpc.errors import UsageError
from tests.runtime.faces import PATIENCE, Face

SERVER = """
import sys
from duet_rpc import Server, Service
from duet_rpc.policy import SPEC

service = Service()

@service.command
def keep(a: int = 0) -> int:
    return a

Server(service, policy=SPEC).run_stdio(framing=sys.argv[1])
"""


@pytest.mark.parametrize("framing", ["lsp", "ndjson"])
@pytest.mark.parametrize(
    ("text", "kept"), [(b"{ }", 0), (b" {\n}\n", 0), (b'\r\n{\n\t"a":\n1 }', 1)]
)
def test_laid_out_params(face: Face, framing: str, text: bytes, kept: int) -> None:
    driver = face.spawn(sys.executable, "-c", SERVER, framing, framing=framing, timeout=PATIENCE)
    params = Raw(text)
    assert driver.do(lambda client: client.command("keep", params)) == kept
    (item,) = driver.batch(lambda batch: [batch.command("keep", params)])
    assert item.result() == kept
    assert "openrpc" in driver.call("rpc.discover", Raw(b" {\n} "))
    driver.close()


@pytest.mark.parametrize("text", [b"", b" ", b" 5", b'"x"'])
def test_what_is_no_params_is_refused(face: Face, text: bytes) -> None:
    driver = face.spawn(sys.executable, "-c", SERVER, "lsp", framing="lsp", timeout=PATIENCE)
    with pytest.raises(UsageError, match="list or an object"):
        driver.call("rpc.discover", Raw(text))
    driver.close()
