"""What a process holds: memory, descriptors, threads. Taken after a collection, when it is idle."""

import gc
import os
import sys
import threading


def held() -> dict[str, int]:
    """Count what this process holds right now.

    `blocks` are those of Python's allocator. They count what the garbage collector does not see as
    well, and not what the allocator keeps for later; `resident` has both.
    """
    for _ in range(3):
        gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return {
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "blocks": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,
        "threads": threading.active_count(),
    }
