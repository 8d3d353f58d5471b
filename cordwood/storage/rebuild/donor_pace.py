"""Measures the delay of foreground work beside a donor, and paces the donor by it.

A store's delay is the time from the moment when the engine takes it until it is durable, and the
delay of the event loop before that. Both are measured on this node: a receiving node that is no
donor has no influence.

Source: docs/protocol/rebuilding.md; `protocol.rebuild_pace`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cordwood.protocol.rebuild_pace import PERIOD_S, YieldingPace
from cordwood.storage.store_waits import StoreWaits

LAG_EVERY_S = 0.025
"""The time between two looks at the delay of the loop; each look takes a few microseconds."""

FIRST_S = 0.1
"""The first period is shorter: it only finds out whether there is foreground work. On a node
without foreground work, a donor would otherwise spend most of a short rebuilding at the lowest
pace."""

HEAD_COST_BYTES = 128
"""The cost of a look at a block's head, in bytes of a donor's pace: less than a hundredth of a
move."""

RUN_S = 0.25
"""The longest time of a run at the present pace, so that other work does not wait long behind
it."""


class DonorPace:
    """See the module; `watch` works while the donor does.

    Args:
        bytes_s_max: 0 for no bound.
    """

    def __init__(self, bytes_s_max: float, waits: StoreWaits) -> None:
        self._rule = YieldingPace(bytes_s_max)
        self._waits = waits
        self._turn: Callable[[float, float], None] = lambda bytes_s, now: None

    @property
    def bytes_s(self) -> float:
        """The present pace; 0 for no bound."""
        return self._rule.bytes_s

    @property
    def is_yielding(self) -> bool:
        """Whether foreground work holds the donor back."""
        return self._rule.is_yielding

    def follow(self, turn: Callable[[float, float], None]) -> None:
        """Call `turn` with the pace and the time, now and at each change."""
        self._turn = turn
        turn(self._rule.bytes_s, asyncio.get_running_loop().time())

    def run_bytes(self, most: int) -> int:
        """The allowed bytes of a run, at most `most`."""
        return min(most, max(1, int(self.bytes_s * RUN_S))) if self.bytes_s else most

    async def breathe(self, heads: int) -> None:
        """Give other tasks a turn after this many heads."""
        held_back = self.is_yielding and self.bytes_s
        await asyncio.sleep(heads * HEAD_COST_BYTES / self.bytes_s if held_back else 0)

    async def watch(self) -> None:
        """Pace the donor, until cancelled."""
        loop = asyncio.get_running_loop()
        self._waits.take()  # drop the waits from before
        await asyncio.sleep(FIRST_S)
        if not self._waits.stores:
            self._look(0, 0.0)
        looks = max(1, round(PERIOD_S / LAG_EVERY_S))
        while True:
            late_s = 0.0
            for _ in range(looks):
                due_s = loop.time() + LAG_EVERY_S
                await asyncio.sleep(LAG_EVERY_S)
                late_s += max(0.0, loop.time() - due_s)
            stores, waited_s = self._waits.take()
            self._look(stores, waited_s + late_s / looks)

    def _look(self, stores: int, wait_s: float) -> None:
        before = self._rule.bytes_s
        self._rule.on_look(stores, wait_s)
        if self._rule.bytes_s != before:
            self._turn(self._rule.bytes_s, asyncio.get_running_loop().time())
