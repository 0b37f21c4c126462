"""What a process holds: memory, descriptors, threads. Taken after a collection, when it is idle."""

import ctypes
import gc
import os
import sys
import threading

ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(128 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 1024),
}
"""Has glibc give back what is freed. By itself it keeps up to 64 MiB of it for each of its arenas,
of which there are eight for each core, and threads fill them one after another."""


def held() -> dict[str, int]:
    """Count what this process holds right now.

    `blocks` are those of Python's allocator, for objects up to 512 bytes; they count what the
    garbage collector does not see as well. `allocated` are the bytes that C has in use, which are
    those of larger objects, of SQLite and of the rest. `resident` is what the process costs.
    `garbage` are objects that the collector had not come to by itself.
    """
    garbage = gc.collect()
    gc.collect()  # what finalizers have made
    pages = int(open("/proc/self/statm").read().split()[1])
    return {
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "allocated": allocated(),
        "blocks": sys.getallocatedblocks(),
        "garbage": garbage,
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,
        "threads": threading.active_count(),
    }


class MallInfo(ctypes.Structure):
    """What glibc says of its allocator; see mallinfo2(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated() -> int:
    """Count the bytes that are in use by malloc; 0 where only glibc could say."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo.restype = MallInfo
    told = mallinfo()
    return int(told.uordblks) + int(told.hblkhd)
