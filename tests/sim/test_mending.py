"""Which damage a run waits for at its end."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest

from cordwood.layout.scrub_rows import DamagedRange
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.memory import MemoryMetadata
from cordwood.sim.cluster import SimCluster
from cordwood.sim.end_events import CopiesMended
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.loop import SimLoop
from cordwood.sim.mending import wait_mended

FIRST, LAST = (1 << 32) + 1, (1 << 32) + 9


def cluster_with(damaged: DamagedRange, readable: int) -> SimCluster:
    """One node, which knows this damage and has read up to `readable`."""
    held = SimpleNamespace(readable=readable)
    engine = SimpleNamespace(
        damage=(),
        gone_of=lambda log: 0,
        logs=SimpleNamespace(damages=SimpleNamespace(all=lambda: [(damaged, "rotten")])),
        cache=SimpleNamespace(log=lambda log: held),
    )
    return cast(SimCluster, SimpleNamespace(running={2: SimpleNamespace(engine=engine)}))


@pytest.mark.parametrize(
    ("is_deleted", "readable", "waits"),
    [
        (False, FIRST, (2,)),  # its epoch will be recovered
        (True, FIRST, ()),  # seed 61001085: nobody recovers a deleted log
        (True, LAST, (2,)),  # it is released, so the node can mend it
    ],
)
def test_the_damage_of_a_deleted_log_counts_if_it_was_released(
    is_deleted: bool, readable: int, waits: tuple[int, ...]
) -> None:

    async def scenario() -> tuple[int, ...]:
        metadata = MemoryMetadata(random.Random(1))
        tree = LogTree(metadata)
        log = (await tree.create("a")).log_id
        if is_deleted:
            await tree.delete("a")
        recorder = HistoryRecorder(lambda: 0)
        damaged = DamagedRange(1, int(log), FIRST, LAST)
        await wait_mended(cluster_with(damaged, readable), recorder, metadata)
        said = recorder.events[-1]
        assert isinstance(said, CopiesMended)
        return said.waits

    loop = SimLoop(random.Random(1))
    try:
        assert loop.run_until_complete(scenario()) == waits
    finally:
        loop.close()
