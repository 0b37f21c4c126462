"""Stands between a client and the daemon it starts, and keeps what passes.

    python tap.py DIRECTORY COMMAND [ARGUMENT ...]

Bytes go through as they come, signals are handed on, the daemon's exit status becomes ours. What
the daemon wrote is in `stdout` and `stderr`, what it was sent in `stdin`, its process id in `pid`,
how long it took from the end of its input to its own in `lasted` if it came to that, the signals
that were handed on in `signals`, how it ended in `status` (written last, so that whoever sees it
can read the rest). Plain standard library, few imports: it must not be slower to start than the
daemon.
"""

import os
import signal
import subprocess
import sys
import threading
import time
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
    ended: list[float] = []
    handed_on: list[int] = []
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

    def keep(name: str, text: str) -> None:
        with open(os.path.join(directory, name), "w") as file:
            file.write(text)

    keep("pid", str(daemon.pid))

    def hand_on(number: int, frame: FrameType | None) -> None:
        handed_on.append(number)
        daemon.send_signal(number)

    for number in SIGNALS:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def start(source: int, goal: int, name: str) -> threading.Thread:
        kept = os.path.join(directory, name)
        thread = threading.Thread(target=copy, args=(source, goal, kept), daemon=True)
        thread.start()
        return thread

    def copy_input(goal: int) -> None:
        copy(0, goal, os.path.join(directory, "stdin"))
        ended.append(time.monotonic())

    threading.Thread(target=copy_input, args=(daemon.stdin.fileno(),), daemon=True).start()
    outputs = [
        start(daemon.stdout.fileno(), 1, "stdout"),
        start(daemon.stderr.fileno(), 2, "stderr"),
    ]
    status = daemon.wait()
    now = time.monotonic()
    keep("signals", " ".join(map(str, handed_on)))
    if ended:
        keep("lasted", f"{now - ended[0]:.3f}")
    for output in outputs:
        output.join()
    keep("status.new", str(status))
    os.rename(os.path.join(directory, "status.new"), os.path.join(directory, "status"))
    os._exit(status if status >= 0 else 128 - status)  # stdin may still be waiting for more


if __name__ == "__main__":
    main()
