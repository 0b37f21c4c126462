"""`--reload`: become the new version of the service, between two requests, on the same descriptors.

A thread looks at the files of the service now and then. When one has changed, the new version is
imported on trial in another process; if that works, this process replaces itself (`exec`) as soon
as it is quiet. Bytes that the client has sent meanwhile wait in the pipe, so the client notices
nothing. There is no supervisor that could end before or after the service.
"""

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from duet_rpc.errors import ShuttingDown
from duet_rpc.server.logs import Logs
from duet_rpc.transports.stdio import return_stdio

if TYPE_CHECKING:
    from duet_rpc.hosts.loop import LoopHost
    from duet_rpc.hosts.threads import ThreadHost

INTERVAL = 0.3
"""Seconds between two looks: quick for a person, nothing for the machine."""


class Reload:
    """Watches the files of a service that was loaded from `target`."""

    def __init__(self, target: str, file: str, logs: Logs) -> None:
        self._target = target
        self._folder = os.path.dirname(file)
        self._logs = logs
        self._seen = self._stamp_files()

    def watch(self, host: "ThreadHost | LoopHost") -> None:
        """Start to watch; the host is the one whose process is replaced."""
        threading.Thread(target=self._watch, args=(host,), daemon=True).start()

    def _watch(self, host: "ThreadHost | LoopHost") -> None:
        while True:
            time.sleep(INTERVAL)
            state = self._stamp_files()
            if state == self._seen:
                continue
            self._seen = state
            problem = self._find_problem()
            if problem is not None:
                why = problem if self._logs.log_exception_text else None
                self._logs.note(
                    "error", "the changed service does not load; serving the old", why=why
                )
                continue
            while self._stamp_files() == state:
                host.post(lambda: self._replace(host))
                time.sleep(0.05)

    def _stamp_files(self) -> dict[str, int]:
        """Say when each file of the service was last changed: its own, and those it imported."""
        state = {}
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if path is None or not path.startswith(self._folder + os.sep):
                continue
            if f"{os.sep}site-packages{os.sep}" in path:
                continue
            try:
                state[path] = os.stat(path).st_mtime_ns
            except OSError:
                state[path] = 0  # being replaced by an editor; there will be another look
        return state

    def _find_problem(self) -> str | None:
        """Import the new version in another process; return what is wrong with it."""
        program = "import sys; from duet_rpc.cli.load import try_service; try_service(sys.argv[1])"
        trial = subprocess.run(
            [sys.executable, "-B", "-c", program, self._target],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        return None if trial.returncode == 0 else trial.stderr.strip()[-1000:]

    def _replace(self, host: "ThreadHost | LoopHost") -> None:
        requests = host.connection.requests
        if requests.has_subscriptions:  # which might never end by themselves
            host.act(requests.end_subscriptions, ShuttingDown())
        if not host.quiet:
            return
        self._logs.note("info", "the service has changed; starting anew")
        self._logs.flush(0.5)
        return_stdio()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
