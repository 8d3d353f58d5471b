"""Waits, at the end of a run, until what rotted in LogsDB, or was lost of a WAL, is mended from
other nodes' copies.

A node need not mend what another node trimmed: it takes that for damaged until it is told.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio

from cordwood.sim.cluster import SimCluster
from cordwood.sim.end_events import CopiesMended
from cordwood.sim.history import HistoryRecorder

LOOK_S = 0.5
MENDED_S = 150.0
"""Twice the longest pause before a repair is tried again, and what a pass of a slow scrub takes."""


async def wait_mended(cluster: SimCluster, recorder: HistoryRecorder) -> None:
    """Wait until no node takes a copy for damaged or lost, and note which still do."""
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
