"""Stands between a client and the daemon it starts, and keeps what passes.

    python tap.py DIRECTORY COMMAND [ARGUMENT ...]

Bytes go through as they come, signals are handed on, the daemon's exit status becomes ours. What
the daemon wrote is in `stdout` and `stderr`, what it was sent in `stdin`, its process id in `pid`,
how it ended in `status` (written last, so that whoever sees it can read the rest). Plain standard
library, few imports: it must not be slower to start than the daemon.
"""

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def copy(source: int, goal: int, kept: str) -> None:
    """Copy until the end, and keep every byte before it is passed on."""
    with open(kept, "wb", buffering=0) as file:
        while data := os.read(source, 65536):
            file.write(data)
            try:
                while data:
                    data = data[os.write(goal, data) :]
            except BrokenPipeError:
                goal = os.open(os.devnull, os.O_WRONLY)
    os.close(goal)


def main() -> None:
    directory, *command = sys.argv[1:]
    # Blocked until there is a daemon to hand them to.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    daemon = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS),
    )
    assert daemon.stdin and daemon.stdout and daemon.stderr
    with open(os.path.join(directory, "pid"), "w") as file:
        file.write(str(daemon.pid))

    def hand_on(number: int, frame: FrameType | None) -> None:
        daemon.send_signal(number)

    for number in SIGNALS:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def start(source: int, goal: int, name: str) -> threading.Thread:
        kept = os.path.join(directory, name)
        thread = threading.Thread(target=copy, args=(source, goal, kept), daemon=True)
        thread.start()
        return thread

    start(0, daemon.stdin.fileno(), "stdin")
    outputs = [
        start(daemon.stdout.fileno(), 1, "stdout"),
        start(daemon.stderr.fileno(), 2, "stderr"),
    ]
    status = daemon.wait()
    for output in outputs:
        output.join()
    with open(os.path.join(directory, "status.new"), "w") as file:
        file.write(str(status))
    os.rename(os.path.join(directory, "status.new"), os.path.join(directory, "status"))
    os._exit(status if status >= 0 else 128 - status)  # stdin may still be waiting for more


if __name__ == "__main__":
    main()
