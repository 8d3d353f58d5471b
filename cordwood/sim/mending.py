"""At the end of a run, waits until nodes have mended rot in LogsDB, and losses of their WALs, from
copies of other nodes.

A node need not mend what another node trimmed: it regards this as damaged until it hears of the
trim. Nor is a deleted log mended if its last epoch was not recovered, or if a node does not know
that: no sequencer recovers it any more, or tells of its releases. Its records go after
`deleted_keep_s`.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio

from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.memory import MemoryMetadata
from cordwood.sim.cluster import SimCluster
from cordwood.sim.end_events import CopiesMended
from cordwood.sim.history import HistoryRecorder

LOOK_S = 0.5
MENDED_S = 150.0
"""Twice the longest pause before a repair is tried again, and the time of one slow scrubbing
pass."""


async def wait_mended(
    cluster: SimCluster, recorder: HistoryRecorder, quiet: MemoryMetadata
) -> None:
    """Wait until no node regards a copy as damaged or lost, and note the nodes that still do.

    Args:
        quiet: the metadata store, without its faults.
    """
    loop = asyncio.get_running_loop()
    tree = LogTree(quiet)
    ends_s = loop.time() + MENDED_S
    while (waits := await _damaged(cluster, tree)) and loop.time() < ends_s:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    recorder.add(CopiesMended(recorder.now_us, waits))


async def _damaged(cluster: SimCluster, tree: LogTree) -> tuple[int, ...]:
    running = cluster.running.values()
    logs = {each.log for node in running for each, _ in node.engine.logs.damages.all()}
    deleted = {log for log in sorted(logs) if await tree.is_deleted(log)}
    engines = {int(number): node.engine for number, node in sorted(cluster.running.items())}
    return tuple(
        number
        for number, engine in engines.items()
        if engine.damage
        or any(
            each.last > max(other.gone_of(each.log) for other in engines.values())
            and not (
                each.log in deleted
                and each.last
                > min(other.cache.log(each.log).readable for other in engines.values())
            )
            for each, _ in engine.logs.damages.all()
        )
    )
