"""The daemon, clause by clause: its methods, its end, its log. More is in `tests/daemon/`."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duet_rpc.version import __version__
from tests.daemon.process import Process, environment, frame, frames, notification, request


@pytest.fixture(scope="module")
def daemon() -> Iterator[Process]:
    """One daemon for all the cases that leave it alive."""
    with Process("rpc") as process:
        yield process


# Methods.


@pytest.mark.clause("daemon-1")
def test_initialize_says_who_is_serving(daemon: Process) -> None:
    assert daemon.call("initialize") == {
        "serverInfo": {"name": "duet-rpc", "version": __version__},
        "protocolVersion": "2.0",
    }


@pytest.mark.clause("daemon-1")
def test_initialize_takes_whatever_an_editor_sends(daemon: Process) -> None:
    capabilities = {"processId": 1, "capabilities": {"x": [1]}, "rootUri": None}
    assert daemon.call("initialize", capabilities)["protocolVersion"] == "2.0"


@pytest.mark.clause("messages-5")
def test_no_handshake_is_required() -> None:
    with Process("rpc") as fresh:
        assert fresh.call("version") == {"version": __version__}


@pytest.mark.clause("daemon-1")
def test_list_methods_has_names_and_descriptions(daemon: Process) -> None:
    listed = daemon.call("listMethods")
    assert all(set(method) == {"name", "description"} for method in listed)
    assert all(method["description"] for method in listed)
    names = {method["name"] for method in listed}
    assert names >= {
        "initialize",
        "listMethods",
        "describeMethods",
        "version",
        "setLogLevel",
        "shutdown",
        "exit",
        "rpc.discover",
    }


@pytest.mark.clause("daemon-1")
def test_describe_methods_has_params_and_returns(daemon: Process) -> None:
    described = {method["name"]: method for method in daemon.call("describeMethods")}
    assert described["setLogLevel"] == {
        "name": "setLogLevel",
        "params": ["level: string"],
        "returns": "object",
    }
    assert described["version"] == {"name": "version", "params": [], "returns": "object"}


@pytest.mark.clause("daemon-1")
def test_version(daemon: Process) -> None:
    assert daemon.call("version") == {"version": __version__}


@pytest.mark.clause("messages-4")
@pytest.mark.parametrize("none", [b"", b',"params":null', b',"params":[]', b',"params":{}'])
def test_no_params_may_be_said_in_four_ways(daemon: Process, none: bytes) -> None:
    id = f"four {none.decode()}"
    body = b'{"jsonrpc":"2.0","id":"%b","method":"version"%b}' % (
        id.replace('"', '\\"').encode(),
        none,
    )
    daemon.send(frame(body))
    assert daemon.result(id) == {"version": __version__}


@pytest.mark.clause("daemon-1")
@pytest.mark.parametrize("level", ["debug", "INFO", "Warn", "error", "info"])
def test_set_log_level_takes_any_case(daemon: Process, level: str) -> None:
    assert daemon.call("setLogLevel", {"level": level}) == {
        "level": level.lower(),
        "success": True,
    }


@pytest.mark.clause("daemon-3")
@pytest.mark.parametrize("params", [{"level": "loud"}, ["loud"], {"level": ""}])
def test_set_log_level_refuses_others_with_the_accepted_ones(daemon: Process, params: Any) -> None:
    error = daemon.error(daemon.start("setLogLevel", params))
    assert (error["code"], error["message"]) == (-32602, "Invalid params")
    assert error["data"]["param"] == "level"
    assert error["data"]["accepted"] == ["debug", "info", "warn", "error"]


@pytest.mark.clause("daemon-3")
@pytest.mark.parametrize("params", [None, {"level": 5}, {"level": "info", "more": 1}])
def test_set_log_level_refuses_bad_params(daemon: Process, params: Any) -> None:
    error = daemon.error(daemon.start("setLogLevel", params))
    assert error["code"] == -32602
    assert {"param", "expected", "received"} <= set(error["data"])


@pytest.mark.clause("daemon-1")
def test_rpc_discover_is_an_openrpc_document(daemon: Process) -> None:
    document = daemon.call("rpc.discover")
    assert document["openrpc"] == "1.3.2"
    assert {"initialize", "shutdown"} <= {method["name"] for method in document["methods"]}


@pytest.mark.clause("errors-4")
def test_an_unknown_method_is_answered(daemon: Process) -> None:
    assert daemon.error(daemon.start("server/discover"))["code"] == -32601


@pytest.mark.clause("batches-1", "policies-8")
def test_a_batch_is_refused(daemon: Process) -> None:
    daemon.send(frame(b'[{"jsonrpc":"2.0","id":1,"method":"version"}]'))
    refused = daemon.wait_for(lambda message: message.get("id") is None, "refusal")
    assert refused["error"]["code"] == -32600
    assert refused["error"]["message"] == "Batch requests not supported"
    assert refused["error"]["data"]["reason"] == "batch-not-supported"


@pytest.mark.clause("framing-3", "messages-3")
def test_answers_have_one_header_and_no_more_members_than_the_specification_names() -> None:
    with Process("rpc") as fresh:
        fresh.send(frame(b'{"jsonrpc":"2.0","id":1.0,"method":"version"}'))
        fresh.close_input()
        assert fresh.wait() == 0
        body = b'{"jsonrpc":"2.0","id":1.0,"result":{"version":"%b"}}' % __version__.encode()
        assert fresh.wire == frame(body)


# The end.


@pytest.mark.clause("daemon-7")
def test_shutdown_is_answered_and_ends_with_0() -> None:
    with Process("rpc") as ending:
        assert ending.call("shutdown") == {"message": "Shutting down gracefully"}
        assert ending.wait() == 0


@pytest.mark.clause("daemon-7")
def test_shutdown_as_a_notification_ends_with_0_and_no_answer() -> None:
    with Process("rpc") as ending:
        ending.send(notification("shutdown"))
        assert ending.wait() == 0
        assert ending.wire == b""


@pytest.mark.clause("daemon-7")
def test_exit_is_accepted() -> None:
    with Process("rpc") as ending:
        ending.send(request("shutdown", id=1) + notification("exit"))
        assert ending.wait() == 0
        assert [message["id"] for message in ending.messages] == [1]


@pytest.mark.clause("daemon-7", "daemon-8")
def test_the_end_of_stdin_ends_with_0_when_everything_is_answered() -> None:
    with Process("rpc") as ending:
        ending.send(b"".join(request("version", id=id) for id in range(200)))
        ending.close_input()
        assert ending.wait() == 0
        assert [message["id"] for message in frames(ending.wire)] == list(range(200))


@pytest.mark.clause("daemon-7")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_a_signal_ends_with_0(number: signal.Signals) -> None:
    with Process("rpc") as ending:
        assert ending.call("version")
        ending.signal(number)
        assert ending.wait() == 0
        assert f"why={number.name}" in ending.log


@pytest.mark.clause("daemon-10")
def test_a_request_after_shutdown_is_answered_that_it_was_not_started() -> None:
    with Process("rpc") as ending:
        ending.send(request("shutdown", id=1) + request("version", id=2))
        assert ending.wait() == 0
        assert ending.error(2)["code"] == -32018
        assert ending.error(2)["data"]["reason"] == "shutting-down"


@pytest.mark.clause("daemon-5")
def test_requests_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "requests.bin").write_bytes(request("version", id=1) + request("version", id=2))
    descriptor = os.open(tmp_path / "requests.bin", os.O_RDONLY)
    with Process("rpc", stdin=descriptor) as reading:
        os.close(descriptor)
        assert reading.wait() == 0
        assert [message["id"] for message in frames(reading.wire)] == [1, 2]


# The log.


@pytest.mark.clause("logs-1", "logs-4")
def test_the_log_is_on_stderr_and_starts_with_version_pid_level_and_sink() -> None:
    with Process("rpc") as fresh:
        line = fresh.wait_for_log("started")
        for field in (f"version={__version__}", f"pid={fresh.pid}", "level=info", "sink=stderr"):
            assert field in line.split()


@pytest.mark.clause("logs-1", "daemon-15")
def test_the_option_wins_over_the_variable(tmp_path: Path) -> None:
    env = environment(DUET_RPC_LOG=str(tmp_path / "variable"))
    with Process("rpc", "--log-file", tmp_path / "option", env=env) as fresh:
        fresh.close_input()
        assert fresh.wait() == 0
        assert fresh.log == ""
    assert "started" in (tmp_path / "option").read_text()
    assert not (tmp_path / "variable").exists()


@pytest.mark.clause("logs-2")
def test_a_log_file_that_cannot_be_written_is_one_warning_and_then_stderr(tmp_path: Path) -> None:
    with Process("rpc", "--log-file", tmp_path / "no" / "folder") as fresh:
        fresh.close_input()
        assert fresh.wait() == 0
        assert fresh.log.count(" warn ") == 1
        assert "sink=stderr" in fresh.log


@pytest.mark.clause("logs-3", "logs-5")
def test_client_faults_are_warnings_with_the_ids() -> None:
    with Process("rpc") as fresh:
        fresh.send(request("lost", id=77) + request("lost", id=None) + notification("lost too"))
        line = fresh.wait_for_log(" id=77 ")
        assert " warn " in line and "method=lost" in line and "correlation_id=77" in line
        assert "correlation_id=" in fresh.wait_for_log(" id=null ")
        assert " warn " in fresh.wait_for_log("lost too")


@pytest.mark.clause("logs-5")
def test_lifecycle_is_info() -> None:
    with Process("rpc") as fresh:
        fresh.close_input()
        assert fresh.wait() == 0
        severities = [line.split()[1] for line in fresh.log.splitlines()]
        assert set(severities) == {"info"}


@pytest.mark.clause("logs-8")
def test_no_payload_stands_in_the_log() -> None:
    with Process("rpc", "--log-level", "debug") as fresh:
        fresh.send(frame(b'{"private words') + request("version", {"private": "words"}, id=1))
        assert fresh.answer(1)
        fresh.wait_for_log("parse error")
        assert "private" not in fresh.log.replace("method=version", "")
