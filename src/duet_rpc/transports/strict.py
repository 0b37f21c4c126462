"""Line framing for sockets, where whoever connects may speak another protocol altogether.

A web page can make a browser POST any text to a port of its user's machine. Line by line, the HTTP
headers would be so many parse errors, and a line of the body would run. So the first line that
does not begin like JSON ends the connection. (A framing with headers needs no such care: a request
line is no header, and that alone loses the boundary.)
"""

from duet_rpc.errors import ParseError
from duet_rpc.wire.framing import Event, Fault
from duet_rpc.wire.framing.line import LineFraming

_JSON_BEGINS = (b"{", b"[")


class StrictLines(LineFraming):
    """One JSON object or array a line; anything else loses the boundary."""

    def feed(self, data: bytes) -> list[Event]:
        """Take what was read; nothing comes out after the first line that is no JSON."""
        events = super().feed(data)
        for index, event in enumerate(events):
            if not isinstance(event, Fault) and not event.startswith(_JSON_BEGINS):
                detail = "a message is one line that holds a JSON object or array"
                fault = Fault(error=ParseError(data={"detail": detail}), boundary_lost=True)
                return [*events[:index], fault]
        return events
