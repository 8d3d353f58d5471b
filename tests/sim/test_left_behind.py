"""Scenes in which two sequencers of one log stand beside a node that missed the change."""

from __future__ import annotations

from typing import Any

import pytest

from cordwood.nodes import NodeId, Replication
from cordwood.protocol.disk_space import DiskSpace
from cordwood.sim.cluster import ClusterOptions
from cordwood.sim.fault_plan import SEQUENCER, Fault
from cordwood.sim.options import RunOptions
from cordwood.sim.planted import planted
from cordwood.sim.planted.bug import PlantedBug, at
from cordwood.sim.recorded_metadata import current_node
from cordwood.sim.replay import quiet_run
from cordwood.sim.run import Outcome, run_seed
from cordwood.sim.swarm import swarm_options
from cordwood.sim.workload import WorkloadOptions

LIGHT = WorkloadOptions(producers=1, lanes=3, readers=1, pause_s=0.2)


def play(*plan: Fault, length_s: float = 15.0) -> Outcome:
    with quiet_run():
        return run_seed(
            1,
            RunOptions(
                plan=plan,
                length_s=length_s,
                must_count=False,
                cluster=ClusterOptions(nodes=5, racks=1, replication=Replication(3)),
                workload=LIGHT,
                turns=(("sequencer.appender.STICKY_BYTES", 0),),
            ),
        )


@pytest.mark.slow
def test_a_store_that_comes_behind_a_purge_is_dropped() -> None:
    """A node that missed a recovery hears of it, and its disk stands still over that record.
    The sequencer that was replaced wakes up, reaches this node alone, and sends it stores of
    the old epoch: no seal refuses them, and they are durable behind the end of their epoch."""
    outcome = play(
        Fault("sequencers_only", (3,), 3.0, 9.85),
        Fault("pause", (SEQUENCER,), 9.11, 4.79),
        Fault("sequencers_cut", (1, 2, 4, 5), 11.61, 7.74),
        Fault("disk_stall", (3,), 12.75, 0.0),
        Fault("disk_stall", (3,), 13.34, 0.0),
    )
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert outcome.probes["late-block-dropped"] > 0


def _fails_at_node_2(right: Any, self: DiskSpace, free_bytes: int, total_bytes: int) -> bool:
    assert current_node() != NodeId(2), "planted"
    return bool(right(self, free_bytes, total_bytes))


def test_a_node_that_failed_is_told_as_that_and_not_looked_into() -> None:
    """A node that ends by an assertion has closed its stores. The dump at the end of the run
    asked them all the same, and its error was all that the run told."""
    fails = PlantedBug("", "", at(DiskSpace.on_free).around(_fails_at_node_2))
    with planted(fails):
        outcome = play(length_s=4.0)
    told = "\n".join(map(str, outcome.violations))
    assert "node 2 ended as no node may" in told
    assert "not open" not in told


def test_a_few_seeds_of_the_swarm_play_that_scene_and_nothing_else() -> None:
    drawn = {seed: swarm_options(seed) for seed in range(300)}
    alone = {seed: options for seed, options in drawn.items() if options.faults.alone}
    assert 3 <= len(alone) <= 20
    for seed, options in alone.items():
        kinds = [fault.kind for fault in options.drawn_plan(seed)]
        assert sorted(kinds) == sorted(
            ["sequencers_only", "pause", "sequencers_cut", "disk_stall", "disk_stall"]
        )
