"""A thread beside the commands, such as the heartbeat of leases and the sweeper."""

import threading


class BackgroundThread:
    """A daemon thread: it starts with the first command and ends with the ledger."""

    NAME = "duet"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the thread, if it does not run yet."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self.NAME, daemon=True)
                thread.start()
                self._thread = thread  # only now: `close` waits for one that has started

    def close(self) -> None:
        """End the thread, after what it is doing. Idempotent."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)

    def _run(self) -> None:
        raise NotImplementedError
