"""A peer that never stops asking: `flood.py PATH` sends stdin's bytes to a socket, again and again.

It reads what comes back and looks at none of it, until it is killed or the server closes.
"""

import os
import selectors
import socket
import sys


def main(path: str) -> None:
    requests = sys.stdin.buffer.read()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.setblocking(False)
    waiting = selectors.DefaultSelector()
    waiting.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
    unsent = memoryview(requests)
    while True:
        for _, ready in waiting.select():
            if ready & selectors.EVENT_WRITE:
                unsent = unsent[connection.send(unsent) :] or memoryview(requests)
            if ready & selectors.EVENT_READ and not os.read(connection.fileno(), 1 << 16):
                return


if __name__ == "__main__":
    main(sys.argv[1])
