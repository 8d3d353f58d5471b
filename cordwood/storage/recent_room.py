"""The memory of a node for blocks and ledger entries that were flushed and may be read again soon.

Most reads are of recent writes. Both kinds share one bound, and the oldest items leave first,
whatever their kind. So a node that has only one kind uses all of the memory for it.

Source: docs/sources/s3stream.md (b) ("LogCache": what was uploaded stays until room is wanted).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

RECENT_COST = 1024
"""Memory of a block, or of a run of entries, beside its bytes: headers and views are some ten
objects."""

KEPT_TIMES = 2
"""A view is copied if it keeps more than this many times its own bytes in memory. A read from a
socket has 64 KiB, so at most half of that is copied, in some microseconds. A frame that fills most
of a read, or has a buffer of its own, is kept without a copy."""


class RecentRoom:
    """See the module.

    Attributes:
        bytes: bytes kept, with RECENT_COST for each item.
        bytes_max: the most after `trim`; 0 keeps nothing.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._order: deque[tuple[Callable[[Any], None], Any, int]] = deque()

    def add(self, drop: Callable[[Any], None], item: Any, size: int) -> None:
        """Keep an item of so many bytes until `drop` is called with it. Then call `trim`."""
        self._order.append((drop, item, size + RECENT_COST))
        self.bytes += size + RECENT_COST

    def trim(self) -> None:
        """Drop the oldest items above the bound."""
        while self.bytes > self.bytes_max:
            drop, item, size = self._order.popleft()
            self.bytes -= size
            drop(item)


def own_bytes(view: memoryview) -> memoryview:
    """The bytes of a view, as a copy if the view keeps more than KEPT_TIMES its own bytes in
    memory.

    A small frame arrives together with others, in one read from a socket. A view of the small frame
    would keep all bytes of that read in memory, and no bound counts them.
    """
    if memoryview(view.obj).nbytes <= KEPT_TIMES * view.nbytes:
        return view
    return memoryview(bytes(view))
