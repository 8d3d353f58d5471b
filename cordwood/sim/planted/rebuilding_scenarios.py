"""Scenarios in which disks are lost for ever, see `sim.disk_losses`.

Ledgers have their own scenario: an entry survives one lost disk less than it has acks.
"""

from __future__ import annotations

from dataclasses import replace

from cordwood.log_attributes import LogAttributes
from cordwood.sim.fault_plan import Damage
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.scenarios import both, cluster_of, scenario

AFTER_S = 4.0
"""After this time a dead node counts as lost: longer than the shortest crashes, and shorter than
most."""

REFRESH_S = 1.0
"""As in production. Until all nodes have heard that a node is back, some refuse blocks that name
it, and appends must succeed within seconds of the return."""


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


def _replicating(options: RunOptions) -> RunOptions:
    cluster = replace(options.cluster, replicated_events=True)
    return replace(options, cluster=cluster, loses_metadata=True)


EVENTS_REPLICATED = scenario(
    "crash", "pause", "partition", "metadata_outage",
    shape=both(both(cluster_of(6, 3), _losing), _replicating),
    every_s=4.0, length_s=30.0, lull_s=0.0, read_only=(), given_up=(), scribes=0,
    turns=(("protocol.event_log_follower.SNAPSHOT_EVERY", 0),),
)  # fmt: skip
"""Disks are lost, mostly while the metadata store is away, and nodes hear of it by the event log."""


def _losing_events(options: RunOptions) -> RunOptions:
    """The events of nodes are in the event log, and some of its records are lost with two nodes."""
    cluster = replace(options.cluster, replicated_events=True, weights={}, refresh_s=REFRESH_S,
                      attributes=LogAttributes())  # fmt: skip
    faults = replace(options.faults, damage=Damage.NONE)
    return replace(options, cluster=cluster, faults=faults, loses="copies", loses_events=True,
                   loses_disks=False, accepts=False, fills=False, absent=(), paced=False)  # fmt: skip


EVENTS_LOST = scenario(
    "crash", "pause", "partition",
    shape=both(cluster_of(5, 2), _losing_events),
    every_s=4.0, length_s=12.0, lull_s=0.0, read_only=(), given_up=(), scribes=0,
    rebalanced=(1, 2, 3, 4, 5),
)  # fmt: skip
"""Two nodes of five are lost with records of the event log, and the others restart."""

REBALANCED = scenario(
    "crash", "pause", "partition",
    shape=both(cluster_of(6, 3), _losing),
    every_s=4.0, length_s=30.0, lull_s=0.0, read_only=(), given_up=(), scribes=0,
    rebalanced=(1, 2, 3, 4, 5, 6),
)  # fmt: skip
"""The same, and nodes give copies to other nodes now and then."""

TWO_COPIES_LOST = scenario(
    "crash", "pause",
    shape=both(cluster_of(5, 2), _losing),
    every_s=4.0, length_s=30.0, lull_s=0.0, read_only=(), given_up=(), scribes=0,
)  # fmt: skip
"""The same with two copies: a block that loses its second copy before it is rebuilt is gone."""

LEDGERS_LOST = scenario(
    "crash", "pause",
    shape=both(cluster_of(6, 2), _losing),
    every_s=4.0, length_s=30.0, lull_s=0.0, read_only=(), given_up=(), scribes=3,
    turns=(
        ("admin.ledger_autorecovery.LOOK_S", 0), ("protocol.ledger_autorecovery.GRACE_US", 0),
        ("protocol.ledger_autorecovery.AGAIN_MAX_S", 0), ("sim.ledger_clients.SHAPES", 0),
        # A check would mend the omissions of a repair before the run ends.
        ("admin.ledger_autorecovery.CHECKED_A_LOOK", 0),
    ),
)  # fmt: skip
"""One disk after another is lost while ledgers are written and recovered."""

LEDGERS_STAY_OPEN = scenario(
    "crash", "pause",
    shape=both(cluster_of(6, 2), _losing),
    every_s=4.0, length_s=50.0, lull_s=0.0, read_only=(), given_up=(), scribes=3,
    long_ledgers=True, producers=1, readers=1, publishers=0, holders=0, members=0, outsiders=0,
    callers=0, crossers=0, browsers=0, crowds=0, sorters=0, resenders=0,
    turns=(
        ("admin.ledger_autorecovery.LOOK_S", 0), ("protocol.ledger_autorecovery.GRACE_US", 0),
        ("protocol.ledger_autorecovery.AGAIN_MAX_S", 0),
        # A check would mend the omissions of a repair before the run ends.
        ("admin.ledger_autorecovery.CHECKED_A_LOOK", 0),
    ),
)  # fmt: skip
"""One disk after another is lost while ledgers stay open for the whole run: their writers change
their ensembles, and older fragments are repaired meanwhile."""
