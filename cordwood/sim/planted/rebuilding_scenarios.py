"""Scenarios in which disks are lost for good, see `sim.disk_losses`.

Nobody writes ledgers there: what a lost node held of ledgers is not made anew yet.
"""

from __future__ import annotations

from dataclasses import replace

from cordwood.log_attributes import LogAttributes
from cordwood.sim.fault_plan import Damage
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.scenarios import both, cluster_of, scenario

AFTER_S = 4.0
"""When a dead node counts as lost here: longer than the shortest crashes, and shorter than most."""

REFRESH_S = 1.0
"""As in production. Until all nodes have heard that a node is back, some refuse what names it, and
appends are owed within seconds of that."""


def _losing(options: RunOptions) -> RunOptions:
    cluster = replace(
        options.cluster,
        rebuild_after_s=AFTER_S,
        refresh_s=REFRESH_S,
        attributes=LogAttributes(),
        weights={},
    )
    faults = replace(options.faults, damage=Damage.NONE)
    return replace(options, cluster=cluster, faults=faults, loses_disks=True, accepts=False,
                   fills=False)  # fmt: skip


DISKS_LOST = scenario(
    "crash", "pause", "partition",
    shape=both(cluster_of(6, 3), _losing),
    every_s=4.0, length_s=30.0, lull_s=0.0, read_only=(), given_up=(), scribes=0,
)  # fmt: skip
"""Disks are lost while nodes crash and are cut off; six nodes, three copies."""

TWO_COPIES_LOST = scenario(
    "crash", "pause",
    shape=both(cluster_of(5, 2), _losing),
    every_s=4.0, length_s=30.0, lull_s=0.0, read_only=(), given_up=(), scribes=0,
)  # fmt: skip
"""The same with two copies: what is lost again before it is whole is gone."""
