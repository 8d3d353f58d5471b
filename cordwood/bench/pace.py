"""Records offered by the clock: each carries the time at which it was due, and none is offered
earlier.

The next records are offered at their time even if earlier ones are not done, so that a stall is
measured and not waited for.

Source: docs/sources/hotpath.md ("coordinated omission").
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from time import perf_counter

TICK_S = 0.005
"""Pause between two batches of records: 50 records at 10,000 a second, as in a busy service."""

TIME = struct.Struct("<d")
"""The time at which a record was due, by `perf_counter`, s: its first 8 bytes."""


async def until(due: float) -> None:
    """Wait until `perf_counter` says `due`, and never less.

    An event loop counts in milliseconds and may wake a task before its time. A record offered then
    could arrive before it was due, and its lag would be negative.
    """
    while (wait_s := due - perf_counter()) > 0:  # noqa: ASYNC110 - for a time, not an event
        await asyncio.sleep(wait_s)


async def stamped(offer: Callable[[list[bytes]], None], ticks: int, batch: int, size: int) -> None:
    """A batch each TICK_S by the clock, records of `size` bytes; each says when it was due."""
    rest = bytes(max(0, size - TIME.size))
    began = perf_counter()
    for tick in range(ticks):
        due = began + tick * TICK_S
        await until(due)
        offer([TIME.pack(due) + rest] * batch)
