"""What is to be sent and the peer has not taken yet.

Small answers go straight out. A peer that does not read makes the rest pile up here; `over` then
says that it is too much, and the connection starts and reads nothing more until half of it is gone.
"""

from collections import deque

from duet_rpc.transports.channel import Send


class Outbox:
    """Bytes on their way out, in order. It belongs to whoever holds the connection."""

    def __init__(self, send: Send, max_bytes: int) -> None:
        self._send = send
        self._max_bytes = max_bytes
        self._kept: deque[memoryview] = deque()
        self.size = 0
        """Bytes that the peer has not taken."""
        self.over = False
        """Too much is kept; false again when half of what is allowed is left."""
        self.lost = False
        """The peer closed its end: what we would say reaches nobody."""

    def put(self, data: bytes) -> None:
        """Send what the peer takes now and keep the rest."""
        if self.lost:
            return
        sent = 0
        if not self._kept:
            try:
                sent = self._send(data)
            except OSError:
                self._lose()
                return
            if sent == len(data):
                return
        self._kept.append(memoryview(data)[sent:])
        self.size += len(data) - sent
        self.over = self.over or self.size > self._max_bytes

    def flush(self) -> None:
        """Send what was kept, as far as the peer reads."""
        try:
            while self._kept:
                data = self._kept[0]
                sent = self._send(data)
                if sent == len(data):
                    self._kept.popleft()
                else:
                    self._kept[0] = data[sent:]
                self.size -= sent
                if not sent:
                    break
        except OSError:
            self._lose()
        if self.size <= self._max_bytes // 2:
            self.over = False

    def _lose(self) -> None:
        self.lost = True
        self.over = False
        self._kept.clear()
        self.size = 0
