# mypy: disable-error-code="import-not-found, untyped-decorator"
"""pjrpc: its synchronous dispatcher from text to text, hosted by a plain loop."""

from __future__ import annotations

import pjrpc.server

from bench import driver
from bench.peers.python import hosted

registry = pjrpc.server.MethodRegistry()


@registry.add("add")
def add(a: int, b: int) -> int:
    return a + b


@registry.add("echo")
def echo(value: object) -> object:
    return value


def dispatch() -> driver.Answer:
    dispatcher = pjrpc.server.Dispatcher()
    dispatcher.add_methods(registry)

    def answer(data: bytes) -> str | None:
        found = dispatcher.dispatch(data.decode(), None)
        return found[0] if found else None

    return answer


def serve() -> None:
    hosted.serve(dispatch())


if __name__ == "__main__":
    driver.main(serve=serve, dispatch=dispatch)
