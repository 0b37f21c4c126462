"""A host for peers that answer text with text and bring no stdio transport of their own.

A plain blocking loop over buffered files with LSP headers: the least that anyone could add.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bench import driver


def serve(answer: driver.Answer) -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    while header := stdin.readline():
        stdin.readline()
        reply = answer(stdin.read(int(header[16:])))
        if reply:
            body = reply.encode() if isinstance(reply, str) else reply
            stdout.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            stdout.flush()
