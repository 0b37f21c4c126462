"""`serve --reload`: a new version takes over on the same pipes, and a broken one does not."""

from pathlib import Path

import pytest

from tests.daemon.process import Process, eventually, request, serve

SOURCE = """
from neighbour import NAME

VERSION = 1
service = Service()

@service.query
def which() -> str:
    return f"{NAME} {VERSION}"

@service.query
def hold(until: str) -> int:
    import os, time

    print("holding", flush=True)
    while not os.path.exists(until):
        time.sleep(0.01)
    return VERSION
"""


@pytest.mark.parametrize("policy", ["editor", "agent"])
def test_a_change_is_served_without_a_break(tmp_path: Path, policy: str) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'a'\n")
    file = tmp_path / "served.py"
    with serve(tmp_path, SOURCE, "--reload", "--policy", policy) as daemon:
        assert daemon.call("which") == "a 1"
        good = file.read_text()
        file.write_text(good.replace("VERSION = 1", "VERSION = 2"))
        eventually(lambda: daemon.call("which") == "a 2", "the second version")
        file.write_text("this is no Python\n")
        daemon.wait_for_log("does not load; serving the old")
        assert daemon.call("which") == "a 2"
        file.write_text(good.replace("VERSION = 1", "VERSION = 3"))
        eventually(lambda: daemon.call("which") == "a 3", "the third version")
        (tmp_path / "neighbour.py").write_text("NAME = 'b'\n")
        eventually(lambda: daemon.call("which") == "b 3", "the neighbour's change")
        daemon.close_input()
        assert daemon.wait() == 0


def test_a_request_that_runs_is_finished_first(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'a'\n")
    file, gate = tmp_path / "served.py", tmp_path / "gate"
    with serve(tmp_path, SOURCE, "--reload") as daemon:
        daemon.send(request("hold", [str(gate)], id="old"))
        daemon.wait_for_log("holding")
        file.write_text(file.read_text().replace("VERSION = 1", "VERSION = 2"))
        daemon.send(request("which", id="queued"))
        gate.touch()
        assert daemon.result("old") == 1
        assert daemon.result("queued") in ("a 1", "a 2")
        eventually(lambda: daemon.call("which") == "a 2", "the second version")


def test_the_end_is_the_end_after_a_change_too(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'a'\n")
    file = tmp_path / "served.py"
    with serve(tmp_path, SOURCE, "--reload") as daemon:
        assert isinstance(daemon, Process)
        assert daemon.call("which") == "a 1"
        file.write_text(file.read_text().replace("VERSION = 1", "VERSION = 2"))
        eventually(lambda: daemon.call("which") == "a 2", "the second version")
        assert daemon.call("shutdown") == {"message": "Shutting down gracefully"}
        assert daemon.wait() == 0
