"""At the end of a run, waits until nodes have mended rot in LogsDB, and losses of their WALs, from
copies of other nodes.

A node need not mend what another node trimmed: it regards this as damaged until it hears of the
trim.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio

from cordwood.sim.cluster import SimCluster
from cordwood.sim.end_events import CopiesMended
from cordwood.sim.history import HistoryRecorder

LOOK_S = 0.5
MENDED_S = 150.0
"""Twice the longest pause before a repair is tried again, and the time of one slow scrubbing
pass."""


async def wait_mended(cluster: SimCluster, recorder: HistoryRecorder) -> None:
    """Wait until no node regards a copy as damaged or lost, and note the nodes that still do."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + MENDED_S
    while (waits := _damaged(cluster)) and loop.time() < ends_s:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    recorder.add(CopiesMended(recorder.now_us, waits))


def _damaged(cluster: SimCluster) -> tuple[int, ...]:
    engines = {int(number): node.engine for number, node in sorted(cluster.running.items())}
    return tuple(
        number
        for number, engine in engines.items()
        if engine.damage
        or any(
            each.last > max(other.gone_of(each.log) for other in engines.values())
            for each, _ in engine.logs.damages.all()
        )
    )
