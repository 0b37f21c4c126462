"""What holds for every test: in CI, nothing may skip, and nothing is drawn at random.

A test that needs Emacs, Neovim or Node skips where the program is missing, so that ``make test``
works anywhere; its last line says what was not tested, and how to get it. A skip therefore gives
as its reason what is missing and how it is installed: ``Emacs (install emacs-nox)``. CI installs
all of them, and there a skipped or xfailed test fails the session: it would be a promise that no
one checks. ``DUET_RPC_NO_SKIPS=1`` asks for the same on any machine, ``0`` waives it.

Tests marked ``long`` take minutes for what they look for. ``make test`` leaves them out, ``make
check`` and CI do not.

Property tests have no time limit for an example, because a loaded machine is no fault of ours. In
CI they try the same examples each time, so that a failure is never somebody else's; anywhere else
they go on looking.

Every test is a debug run: connections, also those of child processes, check the account of their
slots at every turn, and a test during which one was wrong fails. ``DUET_DEBUG=0`` does without.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest


def skips_are_forbidden() -> bool:
    asked = os.environ.get("DUET_RPC_NO_SKIPS") or os.environ.get("CI") or ""
    return asked.lower() not in ("", "0", "false", "no")


hypothesis.settings.register_profile("anywhere", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "anywhere")


class Skips:
    """Collect every skip and xfail of a session; say at its end what was not tested, or fail it.

    In a parallel run the processes that run the tests see them, and the one that reports hears of
    all but those of whole modules, which it is told when the others end.
    """

    def __init__(self, forbidden: bool) -> None:
        self._forbidden = forbidden
        self._skipped: dict[str, str] = {}

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped:
            return
        # A skip is told as (path, line, reason); an xfailed test carries its traceback instead.
        where = report.longrepr
        reason = where[2] if isinstance(where, tuple) else getattr(report, "wasxfail", "xfailed")
        self._skipped[report.nodeid] = reason.removeprefix("Skipped: ") or "no reason given"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._skipped |= getattr(node, "workeroutput", {}).get("duet_rpc_skipped", {})

    # Before the terminal reporter's own hook, which prints the summary.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["duet_rpc_skipped"] = self._skipped
        elif (self._forbidden and self._skipped) and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not (self._forbidden and self._skipped):
            return
        terminalreporter.section("no test may skip here (CI or DUET_RPC_NO_SKIPS is set)", red=True)
        for test, reason in self._skipped.items():
            terminalreporter.write_line(f"{test}: {reason}")

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Write the last line, below everything that pytest has to say."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        missing = list(dict.fromkeys(self._skipped.values()))
        if "not long" in config.option.markexpr:
            missing.append("long runs (make check)")
        if missing and reporter is not None and not hasattr(config, "workerinput"):
            reporter.write_line(f"Not tested here: {', '.join(missing)}")


@pytest.fixture(autouse=True)
def slots_are_accounted_for() -> Iterator[None]:
    """Fail a test during which a connection, of whatever process, has lost a slot."""
    yield
    told = Path(os.environ.get("DUET_DEBUG", "0"))
    if told.is_file() and (violations := told.read_text()):
        told.write_text("")
        pytest.fail(f"an invariant was broken:\n{violations}")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("DUET_DEBUG") != "0":
        # One for each process, or a parallel test would be blamed.
        file, os.environ["DUET_DEBUG"] = tempfile.mkstemp(prefix="duet-rpc-violations-")
        os.close(file)
        config.add_cleanup(lambda: os.unlink(os.environ["DUET_DEBUG"]))
    config.pluginmanager.register(Skips(skips_are_forbidden()), "duet-rpc-skips")
