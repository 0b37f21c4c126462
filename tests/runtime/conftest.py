"""The fixture `face`: each test that asks for it runs once for either client, and leaks nothing."""

from collections.abc import Iterator

import pytest

from tests.runtime.faces import Face, face_named


@pytest.fixture(params=["asyncio", "blocking"])
def face(request: pytest.FixtureRequest, rpc_no_leaks: None) -> Iterator[Face]:
    with face_named(request.param) as found:
        yield found
