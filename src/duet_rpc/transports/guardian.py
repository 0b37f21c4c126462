"""A tiny process that kills a child's process group when we are gone.

A server that ignores the end of its input would outlive a parent that dies by SIGKILL. So the
parent holds one end of a pipe, the leash, and a shell waits at the other: when no one holds the
leash any more, the child's whole group is killed. The guardian is started before the child and gets
its pid after; if the parent dies in between, it finds the child by the pipe on its stdin. An
orderly end releases the guardian first, so that it never kills a group whose number was given to
somebody else.

What it cannot see: a copy of the parent made by `fork` alone holds the leash too.
"""

import os
import subprocess

_SHELL = "/bin/sh"

# Only `readlink` and `sleep` are programs; everything else is the shell's own.
_SCRIPT = """
read -r pid
while read -r line; do :; done
if [ -n "$pid" ]; then
    kill -9 "-$pid"
    exit
fi
for pause in 0.1 0.4; do
    sleep "$pause"
    for stdin in /proc/[0-9]*/fd/0; do
        if [ "$(readlink "$stdin")" = "$1" ]; then
            pid=${stdin#/proc/}
            kill -9 "-${pid%%/*}"
            kill -9 "${pid%%/*}"
        fi
    done
done
"""


class Guardian:
    """Watches over one child, from before its start until `release`."""

    def __init__(self, stdin_fd: int) -> None:
        """Start to watch over the child that will have the pipe `stdin_fd` as its stdin."""
        pipe = f"pipe:[{os.fstat(stdin_fd).st_ino}]"
        far_end, self._leash = os.pipe2(os.O_CLOEXEC)
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [_SHELL, "-c", _SCRIPT, "duet-rpc-guardian", pipe],
                stdin=far_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,  # what ends our terminal's jobs must not end it with us
            )
        except OSError:  # a system without a shell: the child sees the end of its input, no more
            self._process = None
        finally:
            os.close(far_end)

    def watch(self, pid: int) -> None:
        """Say which process group it is; the leader must not be reaped before `release`."""
        try:
            os.write(self._leash, b"%d\n" % pid)
        except BrokenPipeError:
            pass  # somebody killed it; nothing depends on it while we live

    def release(self) -> None:
        """End the guardian without harm to anybody; idempotent."""
        if self._leash < 0:
            return
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        os.close(self._leash)
        self._leash = -1
