# mypy: disable-error-code="import-not-found, untyped-decorator"
"""jsonrpcserver: its dispatch function from text to text, hosted by a plain loop.

Schema validation of each request is off, as its documentation offers for speed.
"""

from __future__ import annotations

from jsonrpcserver import Success, dispatch, method

from bench import driver
from bench.peers.python import hosted


@method
def add(a: int, b: int) -> object:
    return Success(a + b)


@method
def echo(value: object) -> object:
    return Success(value)


def answer(data: bytes) -> str:
    text: str = dispatch(data.decode(), validator=lambda _: None)
    return text


def serve() -> None:
    hosted.serve(answer)


if __name__ == "__main__":
    driver.main(serve=serve, dispatch=lambda: answer)
