"""A background thread may be ended at any moment, also while it starts."""

import threading

import pytest

from duet_rpc.ledger.background import BackgroundThread


class Quiet(BackgroundThread):
    def _run(self) -> None:
        self._stop.wait(30)


def test_it_can_be_closed_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Quiet()
    made: list[threading.Thread] = []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            quiet.close()  # as another thread does when the input ends
            made.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Interrupted)
    quiet.start()
    quiet.close()
    made[0].join(30)
    assert not made[0].is_alive()
