"""Run a command and write down what it used: `usage.py REPORT CPUS COMMAND...`.

Stands between a client and the server that it starts, so that the server's processor time and peak
memory are known without the help of either. The peak that the kernel tells is never below that of
the process that started the command; this one is kept small for that reason.
"""

import os
import signal
import sys


def main(report: str, cpus: str, command: list[str]) -> int:
    if cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    child = os.posix_spawnp(command[0], command, os.environ)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    # Only the child may hold the pipes: each side must see the other's end.
    os.close(0)
    os.close(1)
    _, status, used = os.wait4(child, 0)
    try:
        with open(report, "w", encoding="utf-8") as file:
            file.write(f"{used.ru_utime + used.ru_stime} {used.ru_maxrss * 1024}")
    except FileNotFoundError:
        pass  # the run has failed meanwhile and nobody waits for this
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
