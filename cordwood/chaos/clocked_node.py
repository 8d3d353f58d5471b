"""A node whose clock can be stepped from outside, at the seam through which it takes the time.

`python -m cordwood.chaos.clocked_node SETTINGS.json` runs an ordinary node whose wall clock is off
by the microseconds written in `DIRECTORY.clock`. Cordwood takes the time from that one seam only.
The clocks of RocksDB, SQLite and the kernel are not stepped. The monotonic clock never jumps on a
real machine either.

Source: docs/sources/reliability.md §5.1 ("clock jump").
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time

from cordwood.node_process import main
from cordwood.settings import NodeSettings

_OFFSET = struct.Struct("<q")


def clock_path(directory: str) -> str:
    """The file with the clock offset of the node on a directory; it is not on the node's own
    disk."""
    return directory.rstrip("/") + ".clock"


def step_clock(directory: str, offset_us: int) -> None:
    """From now on the clock of the node on this directory is off by this many microseconds."""
    with open(clock_path(directory), "r+b") as file:
        file.write(_OFFSET.pack(offset_us))


class SteppedClock:
    """The machine's wall clock and an offset that another process sets.

    Args:
        path: made with offset 0 if it does not exist.
    """

    def __init__(self, path: str) -> None:
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(_OFFSET.pack(0))
        with open(path, "rb") as file:
            self._shared = mmap.mmap(file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)

    def now_us(self) -> int:
        offset_us: int = _OFFSET.unpack(self._shared)[0]
        return time.time_ns() // 1000 + offset_us


def clock_of(settings: NodeSettings) -> SteppedClock:
    """The clock of a node with these settings."""
    return SteppedClock(clock_path(settings.directory))


if __name__ == "__main__":
    sys.exit(main(clock_of))
