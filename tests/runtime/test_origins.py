"""Where a request comes from: what the handlers of a client know of the server that calls them."""

import sys
import textwrap
from pathlib import Path

import pytest

from duet_rpc import Context, Origin, Service
from duet_rpc.transports.link import SocketOpener
from tests.runtime.faces import PATIENCE, Face
from tests.transports.lines import serving


def asking() -> Service:
    """Make a service whose one method asks its caller something."""
    service = Service()

    @service.query
    def ask(ctx: Context) -> str:
        return str(ctx.call("whence", timeout=PATIENCE).result())

    return service


def telling(found: list[Origin]) -> Service:
    """Make a service that keeps where it was called from."""
    service = Service()

    @service.query
    def whence(ctx: Context) -> str:
        found.append(ctx.origin)
        return ctx.origin.transport

    return service


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_client_knows_the_address_of_the_server_that_calls(
    face: Face, transport: str, tmp_path: Path
) -> None:
    found: list[Origin] = []
    with serving(transport, tmp_path, service=asking()) as served:
        driver = face.open(SocketOpener(served.address), service=telling(found))
        assert driver.call("ask") == transport
        driver.close()
    assert [(origin.transport, origin.address) for origin in found] == [(transport, served.address)]


def test_a_client_knows_that_the_server_is_its_child(face: Face, tmp_path: Path) -> None:
    found: list[Origin] = []
    script = tmp_path / "server.py"
    script.write_text(
        textwrap.dedent(
            """
            from duet_rpc import Context, Service

            service = Service()

            @service.query
            def ask(ctx: Context) -> str:
                return ctx.call("whence").result()

            service.run()
            """
        )
    )
    driver = face.spawn(sys.executable, str(script), service=telling(found))
    assert driver.call("ask", timeout=PATIENCE) == "stdio"
    assert found[0] == Origin(connection_id="client-1", transport="stdio")
    driver.close()
