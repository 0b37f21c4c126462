"""What holds for every test: in CI, nothing may skip, and nothing is drawn at random.

A test that needs Emacs, Neovim or Node skips where the program is missing, so that ``make test``
works anywhere. CI installs all of them, and there a skipped or xfailed test fails the session: it
would be a promise that nobody checks. ``DUET_RPC_NO_SKIPS=1`` asks for the same on any machine,
``0`` waives it.

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

import hypothesis
import pytest


def skips_are_forbidden() -> bool:
    asked = os.environ.get("DUET_RPC_NO_SKIPS") or os.environ.get("CI") or ""
    return asked.lower() not in ("", "0", "false", "no")


hypothesis.settings.register_profile("anywhere", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "anywhere")


class NoSkips:
    """Collect every skip and xfail of a session, and fail it at the end if there was one."""

    def __init__(self) -> None:
        self._skipped: list[str] = []

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped:
            return
        # A skip is told as (path, line, reason); an xfailed test carries its traceback instead.
        where = report.longrepr
        reason = where[2] if isinstance(where, tuple) else getattr(report, "wasxfail", "xfailed")
        self._skipped.append(f"{report.nodeid}: {reason or 'no reason given'}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    # Before the terminal reporter's own hook, which prints the summary.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._skipped and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._skipped:
            return
        terminalreporter.section("no test may skip here (CI or DUET_RPC_NO_SKIPS is set)", red=True)
        for line in self._skipped:
            terminalreporter.write_line(line)


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
    if skips_are_forbidden():
        config.pluginmanager.register(NoSkips(), "duet-rpc-no-skips")
