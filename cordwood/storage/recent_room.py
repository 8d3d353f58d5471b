"""The memory of a node for what was flushed and may be read again soon: blocks, and ledger entries.

Most reads are of recent writes. All kinds share one bound, and the oldest go first, whatever they
are: a node that keeps only one kind has all of the room for it.

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
"""Of its own size, the most that a kept view may keep alive. A read of a socket has 64 KiB, so at
most half of that is copied, in some microseconds. A frame with most of a read, or with a buffer of
its own, is kept as it came."""


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
    """Bytes that will be kept, without much more than themselves: a view that keeps over
    KEPT_TIMES its own bytes alive is copied.

    A small frame arrives together with others, in one read of a socket. What is kept of it would
    keep all of that read, which no bound counts.
    """
    if memoryview(view.obj).nbytes <= KEPT_TIMES * view.nbytes:
        return view
    return memoryview(bytes(view))
