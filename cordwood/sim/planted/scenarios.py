"""The scenario of a planted bug: the swarm's draw, changed to what the bug needs.

The swarm meets every case in the end. But a mistake in the way a disk is read back shows only when
a power cut comes at the right millisecond. A scenario tests whether the checkers see a bug that
acts, so each bug may name the conditions under which it acts: these faults and no others, closer
together, in a shorter run. All other options stay as the seed drew them.

Source: Groce et al., "Swarm testing" (ISSTA 2012): leaving features out finds more bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cordwood.log_attributes import LogAttributes
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.settings import MIB, SequencerSettings, StorageSettings
from cordwood.sim.fault_plan import SEQUENCER, Damage, Fault
from cordwood.sim.knobs import TurnedKnobs
from cordwood.sim.links import LinkSettings
from cordwood.sim.options import RunOptions

Scenario = Callable[[RunOptions], RunOptions]
"""Turns a seed's draw into the options of a bug's run."""

LENGTH_S = 20.0
"""Half the length of a swarm run: the condition of a bug is met as often in it."""

RATE = 2.0
"""Factor on the swarm's calls per second, so that calls are in flight when a fault strikes."""

AWAY = ((1, 2), (3, 4), (2, 5), (1, 4))
"""Number of nodes, out of five, that are away in turn."""


def as_drawn(options: RunOptions) -> RunOptions:
    """The swarm, unchanged."""
    return options


def scenario(
    *kinds: str,
    scenes: tuple[str, ...] = (),
    every_s: float = 1.5,
    length_s: float = LENGTH_S,
    turns: TurnedKnobs = (),
    shape: Scenario = as_drawn,
    **workload: Any,
) -> Scenario:
    """Only faults of these kinds, one after another, and a workload with these changes.

    Args:
        kinds: at least one.
        scenes: schedules that are all played.
        turns: knobs that are turned in place of the seed's draw.
        shape: further changes.
        workload: fields of `WorkloadOptions`.
    """

    def turned(options: RunOptions) -> RunOptions:
        names = {name for name, _ in turns}
        drawn = replace(options.workload, long_ledgers=False)
        # A scenario says itself where it wants events in the event log, and ledgers that stay open.
        cluster = replace(options.cluster, replicated_events=False)
        if options.loses_disks:
            # Trap: if a disk were lost too, too few nodes would be left, with any bug.
            cluster = replace(cluster, rebuild_after_s=0.0)
        return shape(
            replace(
                options,
                length_s=length_s,
                cluster=cluster,
                loses_disks=False,
                loses_metadata=False,
                faults=replace(
                    options.faults,
                    kinds=kinds,
                    pause_s=every_s,
                    scenes=scenes,
                    scene_chance=1.0,
                ),
                workload=replace(drawn, **{"pause_s": drawn.pause_s / RATE, **workload}),
                turns=(*(turn for turn in options.turns if turn[0] not in names), *turns),
                absent=(),
                paced=False,
                loses="",
                loses_events=False,
                must_count=False,
            )
        )

    return turned


def cluster_of(nodes: int, copies: int) -> Scenario:
    """This many nodes in one rack, and this many copies."""

    def shaped(options: RunOptions) -> RunOptions:
        replication = Replication(copies)
        cluster = replace(options.cluster, nodes=nodes, racks=1, regions=0, replication=replication)
        places = Nodeset(
            tuple(Member(NodeId(n), "", cluster.location(NodeId(n))) for n in range(1, nodes + 1))
        )
        faults = replace(options.faults, nodeset=places, replication=replication)
        return replace(options, cluster=cluster, faults=faults)

    return shaped


def planned(*faults: Fault) -> Scenario:
    """Only these faults, and no drawn faults."""
    return lambda options: replace(options, plan=faults)


def both(*shapes: Scenario) -> Scenario:
    """One change after another."""

    def shaped(options: RunOptions) -> RunOptions:
        for shape in shapes:
            options = shape(options)
        return options

    return shaped


def _beside_strangers(options: RunOptions) -> RunOptions:
    """A stranger speaks to every node all the time, and no other fault strikes."""
    shaped = cluster_of(5, 3)(options)
    return replace(shaped, plan=(Fault("stranger", (1, 2, 3, 4, 5), 1.0, LENGTH_S - 2.0),))


def _damaged(options: RunOptions) -> RunOptions:
    """Two copies on four nodes, so that possibly only the two other nodes answer."""
    shaped = cluster_of(4, 2)(options)
    faults = replace(shaped.faults, damage=Damage.WITHIN)
    # Data of lost disks is not rebuilt here.
    return replace(shaped, faults=faults, loses_disks=False)


def kept_by_time(options: RunOptions) -> RunOptions:
    """All records are kept, in partitions so short that most times are near an edge."""
    storage = StorageSettings(
        flush_age_s=0.5,
        partition_age_s=1.0,
        retention_every_s=1.0,
        disk_look_s=0.5,
        recent_bytes=0,
        scrub_bytes_s=0,
    )
    return replace(
        options,
        cluster=replace(options.cluster, storage=storage, attributes=LogAttributes()),
    )


def _kept_by_size(options: RunOptions) -> RunOptions:
    """Logs keep the bytes of a few seconds, in partitions of one second."""
    shaped = cluster_of(5, 3)(kept_by_time(options))
    attributes = LogAttributes(backlog_bytes=60_000)
    return replace(shaped, cluster=replace(shaped.cluster, attributes=attributes))


def _small_wals(options: RunOptions) -> RunOptions:
    return replace(options, fills=True, cluster=replace(options.cluster, wal_bytes=MIB))


LATE_RELEASES: TurnedKnobs = (("sequencer.releases.RELEASE_DELAY_S", 2),)
"""Nodes hear late of acknowledged records."""

RECOVERIES = scenario(
    "crash", scenes=("half_heard_then_kill", "stalls_then_kill"), turns=LATE_RELEASES
)
"""Sequencers die with stores in flight, again and again."""

STRANGERS = scenario(
    "stranger", shape=_beside_strangers, turns=(("wire.arrivals.FRAME_GRACE_S", 0),)
)
CROWDS = scenario(
    "stranger", shape=_beside_strangers, turns=(("wire.arrivals.UNFINISHED_BYTES_MAX", 0),)
)

RETRIES = scenario(
    "torn_sequencer",
    shape=both(
        cluster_of(5, 2),
        planned(*(Fault("torn_sequencer", (SEQUENCER,), 3.0 + 3.0 * at, 2.0) for at in range(6))),
    ),
    turns=(*LATE_RELEASES, ("sequencer.appender.STICKY_BYTES", 0)),
    idempotent=0.7, lanes=4, burst=3, lull_s=0.0, pause_s=0.05, grouped=0.0, length_s=21.0,
)  # fmt: skip
"""Each block of a producer is on different nodes, and sequencers die with a block in flight and a
later block stored. The first block is a hole below the second, and both are sent again."""


PRODUCERS_MANY = scenario(
    "torn_sequencer", "client_crash", "reset", "crash", every_s=0.8,
    turns=(("protocol.producers.USERS", 0),),
    idempotent=1.0, lanes=4, burst=3, lull_s=0.0, pause_s=0.1, grouped=0.2,
)  # fmt: skip
"""More producers than a log remembers. Each begins anew after an error, so first blocks are sent
again all the time."""


def two_racks(options: RunOptions) -> RunOptions:
    """Six nodes in two racks, and two copies over both of them."""
    replication = Replication(2, 2)
    cluster = replace(options.cluster, nodes=6, racks=2, regions=0, replication=replication)
    nodes = map(NodeId, range(1, 7))
    places = Nodeset(tuple(Member(n, "", cluster.location(n)) for n in nodes))
    faults = replace(options.faults, nodeset=places, replication=replication)
    return replace(options, cluster=cluster, faults=faults)


PAIRS = ((1, 2), (2, 3), (3, 6), (4, 5), (5, 4), (6, 1))
"""A node that moves into the rack of another node."""

MOVED = scenario(
    "moved_rack",
    shape=both(
        two_racks,
        planned(
            *(
                fault
                for turn, (moved, other) in enumerate(PAIRS)
                for fault in (
                    Fault("moved_rack", (moved,), 2.5 + 5.0 * turn, 4.5),
                    Fault("pause", (moved, other), 3.9 + 5.0 * turn, 2.5),
                    Fault("crash", (SEQUENCER,), 3.95 + 5.0 * turn, 0.3),
                )
            )
        ),
    ),
    length_s=33.0,
    turns=(*LATE_RELEASES, ("sequencer.appender.STICKY_BYTES", 0)),
)  # fmt: skip
"""A node of one rack is started in the other rack. Then it is away, together with a node of that
rack which shares copysets with it, and the sequencer dies."""


def _seldom_flushed(options: RunOptions) -> RunOptions:
    storage = StorageSettings(flush_age_s=60.0, disk_look_s=0.5, scrub_bytes_s=0)
    cluster = replace(options.cluster, storage=storage, attributes=LogAttributes())
    return replace(options, cluster=cluster)


def _slow_disks(*faults: Fault) -> Scenario:
    """All five disks are always slow, so that writes are in flight at every fault."""
    slow = Fault("slow_disk", (1, 2, 3, 4, 5), 2.0, LENGTH_S - 2.0)
    return both(cluster_of(5, 3), _seldom_flushed, planned(slow, *faults))


POWER = scenario(
    "power_cut",
    shape=_slow_disks(
        *(
            Fault("power_cut", (turn % 5 + 1,), 3.0 + 3.2 * turn + after_s, 0.1)
            for turn in range(5)
            for after_s in (0.0, 0.9)
        )
    ),
)
"""The power fails with writes in flight, and again while a node restarts after the first
failure."""

WRITE_ERRORS_TOLD = tuple(("write_error", 0.15 * time) for time in range(5))
"""Every second fault is a full disk, for which nodes wait; a write error ends a node, which then
meets no more faults."""

WRITE_ERRORS = scenario(
    "write_error",
    shape=_slow_disks(
        *(
            Fault(kind, (turn % 5 + 1,), 3.0 + 3.2 * turn + after_s, 0.1)
            for turn in range(5)
            for kind, after_s in (*WRITE_ERRORS_TOLD, ("power_cut", 0.9))
        )
    ),
    lull_s=0.0,
)
"""Writes fail, and soon the node must start from their remains."""

FULL_DISKS = scenario(
    "full_disk",
    shape=_slow_disks(
        *(Fault("full_disk", (at % 5 + 1,), 3.0 + 1.1 * at, 0.8) for at in range(14))
    ),
    lull_s=0.0,
)
"""Nodes refuse stores while other stores are in flight, from any sender."""


FULL_WALS = scenario(
    "crash",
    shape=both(
        _slow_disks(*(Fault("crash", (at % 5 + 1,), 5.0 + 2.5 * at, 0.3) for at in range(6))),
        _small_wals,
    ),
    payload_bytes_max=8000,
    burst=20,
    lull_s=0.0,
)
"""Nodes refuse stores while other stores are in flight."""


TRIMS = scenario("crash", every_s=1.0, shape=_seldom_flushed, trim_s=0.7, restart_s=3.0)
"""Trim points are in the WAL alone when nodes die."""

TIMES = scenario("crash", every_s=8.0, shape=kept_by_time, ask_s=0.05, restart_s=4.0)

SIZES = scenario("pause", every_s=6.0, shape=_kept_by_size, length_s=14.0)
"""Logs keep a number of bytes, and copysets use three nodes of five at a time."""

KEYS_SOUGHT = scenario("crash", every_s=5.0, sorters=1, length_s=14.0)
"""A client looks keys up."""

AMNESIA = scenario("amnesia", every_s=3.0)

OLDER_DISKS = scenario("older_disk", every_s=3.0)

BAD_DISKS = scenario("crash", "pause", shape=_damaged, restart_s=1.0)
"""One node has lost records, and the other nodes that hold them are away now and then."""


def scrubbed(options: RunOptions) -> RunOptions:
    """All records are kept, are soon in LogsDB, and are scrubbed every few seconds."""
    storage = StorageSettings(
        flush_age_s=0.5, disk_look_s=0.5, recent_bytes=0, scrub_bytes_s=MIB, scrub_every_s=2.0
    )
    cluster = replace(options.cluster, storage=storage, attributes=LogAttributes())
    return replace(options, cluster=cluster)


ROT = scenario(
    "rotten_tables",
    shape=both(
        _damaged, scrubbed,
        planned(*(Fault("rotten_tables", (1,), 6.0 + 3.0 * turn, 0.3) for turn in range(3))),
    ),
    length_s=16.0,
    trim_s=0.0,
)  # fmt: skip
"""Rows rot on the disk of one node while it does not run."""


def _audited(options: RunOptions) -> RunOptions:
    return replace(options, audited=True)


AUDITED = scenario("crash", every_s=4.0, length_s=8.0, shape=_audited)
"""Nodes are scanned for their copies at the end."""

AUDITED_ROT = scenario(
    "rotten_tables",
    shape=both(
        _damaged, scrubbed, _audited,
        planned(*(Fault("rotten_tables", (1,), 6.0 + 3.0 * turn, 0.3) for turn in range(3))),
    ),
    length_s=16.0,
    trim_s=0.0,
)  # fmt: skip
"""The same with rotten rows."""

WAL_LOST = scenario(
    "zeroed",
    shape=both(
        _damaged, _seldom_flushed,
        planned(*(Fault("zeroed", (1,), 4.0 + 3.0 * turn, 0.3) for turn in range(3))),
    ),
    turns=(("sequencer.appender.STICKY_BYTES", 0),),
    length_s=16.0,
    trim_s=0.0,
    scribes=0,
)  # fmt: skip
"""One node loses records of its WAL, and is healed from the others."""


def _seldom_refreshed(options: RunOptions) -> RunOptions:
    return replace(options, cluster=replace(options.cluster, refresh_s=5.0))


GIVEN_UP = scenario(
    "crash",
    shape=both(
        cluster_of(5, 3), _seldom_refreshed,
        planned(*(Fault("crash", (1,), 3.0 + 12.0 * turn, 9.0) for turn in range(3))),
    ),
    turns=(("sequencer.appender.STICKY_BYTES", 0),),
    length_s=39.0, lull_s=0.0, given_up=(1,),
)  # fmt: skip
"""A node is down and given up, and comes back before all other nodes have heard that it is back."""

FEW_NODES = scenario("crash", "pause", shape=cluster_of(3, 3))
"""As many nodes as copies, so every absent node is missed."""

SINGLE_COPIES = scenario(
    "crash", shape=cluster_of(3, 1), turns=LATE_RELEASES
)  # fmt: skip
"""Recovery needs every node."""


def _far(options: RunOptions) -> RunOptions:
    return replace(
        cluster_of(5, 3)(options), link=LinkSettings(delay_min_s=0.02, delay_jitter_s=0.05)
    )


FAR_NODES = scenario(
    "crash",
    shape=both(
        _far,
        planned(*(Fault("crash", (at % 5 + 1,), 3.0 + 1.4 * at, 0.3) for at in range(12))),
    ),
    lull_s=0.0,
)
"""Stores take long to reach nodes that die, one after another."""


def _small_runs(options: RunOptions) -> RunOptions:
    sequencer = SequencerSettings(run_bytes=1024, store_timeout_s=0.5, store_timeout_max_s=1.0)
    client = replace(options.workload.client, block_records=3, block_bytes=2048)
    return replace(
        options,
        cluster=replace(options.cluster, sequencer=sequencer),
        workload=replace(options.workload, client=client, payload_bytes_max=400),
    )


GROUPS = scenario(
    "crash", "slow_disk", scenes=("half_heard_then_kill", "stalls_then_kill"),
    shape=_small_runs, turns=(("sequencer.appender.STICKY_BYTES", 0),),
    grouped=1.0, burst=60, buffered=0.0, idempotent=0.5,
)  # fmt: skip
"""Groups are in flight to different nodes, a few blocks at a time, when a sequencer dies."""

PURGES = scenario(
    "partition",
    shape=both(
        cluster_of(5, 3),
        planned(
            *(
                Fault(kind, nodes, at_s + 9.0 * turn, for_s)
                for turn in range(3)
                for kind, nodes, at_s, for_s in (
                    ("sequencers_only", (3,), 3.0, 5.0),
                    ("sequencers_cut", (1, 2, 4, 5), 3.0, 5.0),
                    ("disk_stall", (3,), 7.9, 0.0),
                )
            )
        ),
    ),
    length_s=30.0,
    restart_s=0.7,
    readers=2,
    lull_s=0.0,
)
"""The sequencer and one more node are cut off with their stores, and are replaced. That node hears
of its epoch's end while its disk stands still, and readers begin just then."""


def _long_epochs(options: RunOptions) -> RunOptions:
    return replace(options, cluster=replace(options.cluster, sequencer=SequencerSettings()))


REPLACED = scenario(
    "client_crash",
    shape=both(
        cluster_of(5, 3),
        _long_epochs,
        planned(
            Fault("client_partition", (SEQUENCER,), 3.0, 9.0),
            Fault("peer_partition", (SEQUENCER,), 3.0, 15.0),
            *(Fault("client_crash", (), 13.0 + at, 0.3) for at in range(5)),
        ),
    ),
    length_s=19.0,
    ask_s=0.0,
    trim_s=0.0,
)
"""The sequencer is replaced and cannot hear of it. New clients look for the log at its old
sequencer."""

HANGING = scenario(
    "pause",
    shape=both(
        cluster_of(5, 3),
        planned(*(Fault("pause", (1, 2, 3, 4, 5), at_s, 7.0) for at_s in (4.0, 13.0))),
    ),
    append_timeout_s=3.0,
    lull_s=0.0,
)
"""Every node is stopped, for longer than a call may take."""


def _large_blocks(options: RunOptions) -> RunOptions:
    client = replace(options.workload.client, block_records=16_384, block_bytes=MIB)
    return replace(options, workload=replace(options.workload, client=client))


LARGE_BLOCKS = scenario("crash", every_s=4.0, shape=_large_blocks, burst=60)

BEHIND = scenario(
    "pause",
    shape=both(
        cluster_of(5, 3),
        planned(
            *(
                fault
                for turn in range(4)
                for fault in (
                    Fault("pause", AWAY[turn], 3.0 + 4.0 * turn, 2.5),
                    Fault("crash", (SEQUENCER,), 3.05 + 4.0 * turn, 0.3),
                )
            )
        ),
    ),
    turns=LATE_RELEASES,
    readers=3,
    lull_s=0.0,
)
"""Nodes are stopped before they sent the end of an epoch to readers, and the next epoch begins."""

APART = scenario(
    "client_partition",
    shape=both(
        cluster_of(5, 2),
        planned(
            Fault("client_partition", (SEQUENCER,), 3.0, 9.0),
            Fault("peer_partition", (SEQUENCER,), 3.0, 17.0),
        ),
    ),
    length_s=22.0,
    ask_s=0.1,
)
"""Clients start another sequencer, of which the old sequencer does not hear, and come back to the
old."""

BAD_LINES = scenario("corrupting_links", "reset", every_s=1.0, ask_s=0.05, trim_s=0.2)

BAD_METADATA = scenario("metadata_loss", "crash", "metadata_slow")

CONSUMERS = scenario(
    "client_pause", "client_crash", members=3, logs=("/sim/a", "/sim/b", "/sim/c"), readers=3,
    turns=(("client.read.consumer.MEMBER_TTL_S", 0),),
)  # fmt: skip
"""Members of a consumer are stopped until other members have their logs, and then go on."""

TOKENS = scenario("crash", "pause", every_s=3.0, holders=2)
"""Clients take a log from one another."""

NAMES = scenario("slow_links", every_s=60.0, callers=3, length_s=45.0)
"""A name passes from one log to the next while callers stay connected, with few other calls."""

RIGHTS = scenario("crash", "pause", "metadata_slow", every_s=3.0, outsiders=2)
"""A log demands a read token that changes, and some readers have none of the tokens."""

PUBLISHING = scenario(
    "client_crash", "crash", publishers=2, publish_s=0.5, logs=("/sim/a", "/sim/b"), readers=2
)  # fmt: skip

READERS = scenario(
    "crash", "slow_links", "link_cut", "pause", scenes=("behind_readers",),
    restart_s=2.0, readers=3,
)  # fmt: skip

MANNERS = scenario(
    "crash", keyed=1.0, manners=0.9, browsers=1, restart_s=1.0, burst=20, ask_s=0.2
)  # fmt: skip
"""Readers ask for some keys, for batches, or for all logs, and begin inside blocks."""

NODESETS = scenario(
    "fewer_nodes", "crash", every_s=1.0, shape=cluster_of(6, 2), restart_s=8.0, readers=3,
    turns=(("sequencer.appender.STICKY_BYTES", 0),),
)  # fmt: skip
"""Nodesets change, and nodes that keep them restart, while readers go from epoch to epoch."""

READ_ONLY = scenario("crash", every_s=1.5, shape=cluster_of(5, 2), read_only=(1, 2))
"""Two nodes of five are read-only now and then, and nodes restart meanwhile."""


def _weighed(options: RunOptions) -> RunOptions:
    shaped = cluster_of(5, 2)(options)
    return replace(shaped, cluster=replace(shaped.cluster, weights={1: 0.0, 2: 3.0}))


WEIGHTS = scenario("crash", every_s=3.0, shape=_weighed)
"""One node has weight 0."""

CALM = scenario("crash", every_s=8.0, length_s=8.0)

PACED = scenario(
    "crash", every_s=8.0, length_s=8.0,
    shape=both(cluster_of(5, 3), lambda options: replace(options, paced=True)),
)  # fmt: skip
"""Appends are measured while one node is stopped or slow."""
