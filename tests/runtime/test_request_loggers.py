"""`ctx.logger` in the handlers of clients: to the client's `log`, else to Python's `logging`."""

import logging
from typing import Any

import pytest

from duet_rpc import Context, Service
from tests.runtime.faces import PATIENCE, Face


class Recorder:
    """A log of somebody's own."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, dict[str, Any]]] = []
        self.failures: list[tuple[str, BaseException, dict[str, Any]]] = []

    def note(self, severity: str, text: str, **fields: Any) -> None:
        self.notes.append((severity, text, fields))

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        self.failures.append((text, error, fields))
        return "reference"


def logging_service() -> Service:
    ours = Service()

    @ours.query
    def speak(ctx: Context) -> None:
        ctx.logger.info("%d of %d", 1, 2)
        ctx.logger.critical("the last")
        try:
            raise KeyError("lost")
        except KeyError:
            ctx.logger.exception("it failed")

    return ours


def server() -> Service:
    theirs = Service()

    @theirs.query
    def have_it_speak(ctx: Context) -> None:
        ctx.call("speak", timeout=PATIENCE).result()

    return theirs


def test_lines_go_to_the_clients_log(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    log = Recorder()
    face.connect(server(), service=logging_service(), log=log).call("have_it_speak")
    ids = {"method": "speak", "correlation_id": "1", "connection_id": "client-1"}
    assert log.notes == [("info", "1 of 2", ids), ("error", "the last", ids)]
    ((text, error, fields),) = log.failures
    assert (text, type(error), fields) == ("it failed", KeyError, ids)
    assert not caplog.records


def test_lines_go_to_logging_without_a_log(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    face.connect(server(), service=logging_service()).call("have_it_speak")
    first, second, third = caplog.records
    assert [record.getMessage() for record in caplog.records] == ["1 of 2", "the last", "it failed"]
    assert third.exc_info is not None
    for record in (first, second, third):
        assert record.name == "duet_rpc.handler"
        found = [getattr(record, name) for name in ("method", "correlation_id", "connection_id")]
        assert found == ["speak", "1", "client-1"]
