"""What is to be sent and the peer has not taken yet.

Small answers go straight out. A peer that does not read makes the rest pile up here. Backpressure:
`over` then says that it is too much, and the connection starts and reads nothing more until half of
it is gone.
Only answers count for that. A call of ours, however large, must not stop our reading: its own
answer, and those of the calls before it, could not come.
"""

from collections import deque
from collections.abc import Callable

from duet_rpc.transports.channel import Send
from duet_rpc.wire.framing import Frame


class Outbox:
    """Bytes on their way out, in order. It belongs to the thread that holds the connection."""

    def __init__(
        self, send: Send, max_bytes: int, on_over: Callable[[], None] = lambda: None
    ) -> None:
        self._send = send
        self._max_bytes = max_bytes
        self._on_over = on_over
        self._kept: deque[tuple[memoryview, bool]] = deque()
        self._answers = 0
        self.size: int = 0
        """Bytes that the peer has not taken."""
        self.over: bool = False
        """Too much is kept; false again when half of what is allowed is left."""
        self.lost: bool = False
        """The peer closed its end: what we would send reaches no one."""

    def put(self, data: Frame, answers: bool = True) -> None:
        """Send what the peer takes now and keep the rest; only answers can be too much."""
        sent = 0
        if not self._kept:
            try:
                # Parts are sent below; to ask here would cost every small answer something.
                sent = self._send(data)  # type: ignore[arg-type]
            except (BlockingIOError, TypeError):
                pass
            except OSError:
                self.lose()
                return
            if sent == len(data):
                return
        for part in data if isinstance(data, tuple) else (memoryview(data)[sent:],):
            self._kept.append((memoryview(part), answers))
            self.size += len(part)
            self._answers += len(part) if answers else 0
        if isinstance(data, tuple):
            self.flush()
        if answers and self._answers > self._max_bytes:
            self.over = True
            self._on_over()

    def flush(self) -> None:
        """Send what was kept, as far as the peer reads."""
        try:
            while self._kept:
                data, answers = self._kept[0]
                sent = self._send(data)
                self.size -= sent
                if answers:
                    self._answers -= sent
                if sent < len(data):
                    self._kept[0] = data[sent:], answers
                    break
                self._kept.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.lose()
        if self._answers <= self._max_bytes // 2:
            self.over = False

    def lose(self) -> None:
        """Send nothing more: what is sent reaches no one."""
        self.lost = True
        self._send = len  # all of it is gone at once
        self.over = False
        self._kept.clear()
        self.size = self._answers = 0
