"""Memory that a process has used stays its own, for it will be used again.

Nodes keep all of it (`keep_memory`). A client keeps at most 48 MiB (`keep_some_memory`), because
its process belongs to the application.

glibc gives memory back as soon as it can: a free block of 128 KiB or more by a system call
of its own, and the top of the heap whenever it is as large. A node takes and frees
megabytes for each wave and each flush; each page of it then comes anew from the kernel,
which zeroes it, and on a virtual machine that costs more than writing to it. Measured over
RocksDB, a memtable filled and flushed in bodies of 64 KiB: 2.2 ms of processor time a MiB,
and 1.4 ms with this.

The price: a process keeps its peak memory until it ends, up to its own limits (log cache, windows,
block cache).

Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

MMAP_THRESHOLD_BYTES = 32 << 20
"""The most that glibc takes: a block of our hard limit, and RocksDB's arenas, are below."""

TRIM_THRESHOLD_BYTES = 1 << 30
"""Far above a node's limits."""

SAMPLE_BYTES = 24 << 20
"""glibc keeps up to twice the size of the largest block that was freed, here 48 MiB: three windows
of a reader, with their records. The most that it looks at is 32 MiB."""

ARENAS = 1
"""All threads share one heap, so that what RocksDB's thread frees the loop may use. They
seldom ask at the same time: they hold the interpreter's lock, or write to the disk."""


def keep_memory() -> bool:
    """Keep freed memory in this process from now on; False if the machine does not support it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library: its ways are its own
    options = (
        (M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
        (M_ARENA_MAX, ARENAS),
    )
    return all(mallopt(option, value) == 1 for option, value in options)


def keep_some_memory() -> None:
    """Keep up to 48 MiB of freed memory in this process from now on, if its C library is glibc.

    glibc sets its limits by the largest block that was freed. Before the first free of a large
    block, it returns free memory above 256 KiB to the kernel. A reader takes that memory again for
    each wave, and took 1.13 to 1.4 times as long. Each program that once frees an array of this
    size has the same limits. A program that set its own, by `mallopt` or its environment, keeps
    them.
    """
    # The sample is never written, so the kernel gives it no page.
    sample = np.empty(SAMPLE_BYTES, np.uint8)
    del sample
