"""A swarm: each seed draws another cluster, other clients and other faults.

One shape of cluster, tested for ever, finds the bugs of that shape only. Leaving faults out is as
important as putting them in: a run that has every fault at once hides bugs that two faults alone
would show.

Source: Groce et al., "Swarm testing" (ISSTA 2012); TigerBeetle's src/vopr.zig;
docs/sources/reliability.md §1, §4.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from cordwood.log_attributes import LogAttributes
from cordwood.lsn import ESN_ISSUED_MAX
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.settings import MIB, REORDERINGS, ClientSettings, SequencerSettings, StorageSettings
from cordwood.sim.aftermath import COPIES, FEW
from cordwood.sim.cluster import ClusterOptions
from cordwood.sim.event_losses import with_events
from cordwood.sim.fault_plan import CLIENT_KINDS, KINDS, SCENES, Damage, FaultOptions, spare_nodes
from cordwood.sim.knobs import HEALING, TurnedKnobs, draw_turns
from cordwood.sim.links import LinkSettings
from cordwood.sim.options import FAR_S, SETTLE_S, RunOptions
from cordwood.sim.streams import stream
from cordwood.sim.workload import WorkloadOptions, turn_calls

DAMAGE_SHARE = 0.12
"""Share of the seeds in which disks lose synced data, within the atlas."""

SLOW_SCRUB = {"scrub_bytes_s": 20_000, "scrub_every_s": 0.1, "flush_age_s": 0.02}
"""Pace of slow scrubbing, and the flush interval that goes with it. Scrubbing is continuous, and so
slow that late records come between its look at an index and its look at the bodies. Flushes are so
frequent that a repeated wave comes after one. In about one run of twenty a body is seen before its
index entry; slower scrubbing would see the ends of logs too seldom."""

QUICK_SCRUB = {"scrub_bytes_s": MIB, "scrub_every_s": 5.0}
"""Pace of fast scrubbing: a pass takes a second or less. Runs whose disks lose data use one of the
two."""

SCRUB_SHARE = 0.1
"""Share of the other seeds that also scrub: there, scrubbing may report no damage."""

FILLS_SHARE = 0.04
"""Share of the seeds in which the WALs run full."""

RECORDS = (900.0, 1200.0)
"""Records that the producers of a run try to append, including the settling after the faults: about
the thousand that a run must acknowledge to count. Calls are the costly part of a simulation, and
many different runs find more bugs than many calls. If a run lacks records when it settles, its
producers hurry, and it settles longer if that is not enough."""

NODES = (3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 6, 6, 7)
"""Sizes of clusters. Large clusters are rare: seven nodes take some three times as long as
three."""

STORE_TIMEOUTS_S = (0.01, 0.1, 0.1, 0.5, 0.5, 1.0)
"""Timeouts of stores. The shortest is LogDevice's, and about as long as a store: waves overlap, so
that answers to an earlier wave come while a later wave is under way."""

ABSENT_SHARE = 0.25
"""Share of the seeds in which some nodes are still dead, and one node hangs, when the other nodes
must recover and go on (L3)."""

BEYOND_RECORDS = 2.0
"""Factor for that share where logs may stand still for ever before the faults are over."""

PUBLISH_ESNS_MIN = 500
"""More than a batch can bring to one log: three tasks of up to 60 records each."""

PACED_ESNS_MIN = 1000
"""More records than bursts of 100 bring to a log while appends are measured. One change of epoch
beside a slow disk delays three appends, which the p99 of 300 appends allows; two changes are too
many (seed 8800043)."""

REGIONS_SHARE = 0.25
"""Share of the seeds with regions above the racks, among seeds with enough copies and racks."""

RETENTION_SHARE = 0.3
"""Share of the seeds in which logs have retention."""

PACED_SHARE = 0.08
"""Share of the possible seeds in which the duration of appends is measured: the measurement makes a
run half as long again."""

REBALANCED_SHARE = 0.5
"""Share of the seeds with lost disks in which nodes also give copies to other nodes."""

LOSES_SHARE = 0.15
"""Share of the seeds in which nodes are lost for ever at the end."""

LONG_S = (18.0, 28.0)
SHORT_S = (6.0, 10.0)
SHORT_SHARE = 0.8
"""How long faults strike, and the share of the seeds with the shorter time. A short run hits about
as many probes in less time of a core, so that many short runs find more. The other seeds are for
bugs that need many faults one after another, such as the longer scenes."""

ALONE_SHARE = 0.03
"""Share of the seeds that play only the longest scene, without other faults. Among other faults its
five steps meet in none of 500 seeds; alone they meet in about one of four."""

ALONE_S = 24.0
"""How long faults last in a run with that scene: the scene takes 17 s."""

STICKY = "sequencer.appender.STICKY_BYTES"
REFRESH = "client.cluster.REFRESH_S"
SNAPSHOT_EVERY = "protocol.event_log_follower.SNAPSHOT_EVERY"

UNSTUCK_SHARE = 0.5
"""Share of the seeds in which every run has its own copyset, among seeds that did not turn this
knob. Holes need runs on different nodes. With the default limit a simulated run has one copyset
until a wave fails."""

READ_ONLY_SHARE = 0.25
"""Share of the possible seeds in which an operator makes nodes read-only."""

WEIGHTS_SHARE = 0.3
"""Share of the possible seeds with nodes of different weights, some of weight 0."""

GIVEN_UP_SHARE = 0.25
"""Share of the possible seeds in which an operator gives up nodes that are down."""

SCRIBES_SHARE = 0.1
"""Share of the possible seeds in which ledgers are written: such a run takes a third longer. Runs
whose disks lose data, or whose appends are measured, have no ledgers."""

LONG_LEDGERS_SHARE, SWITCHES_SHARE = 0.25, 0.5
"""Shares of the seeds with ledgers. In the first, ledgers stay open for the whole run: it has a few
with many entries and fragments. In the second, an operator switches repairs off and on."""

UNHEALED_SHARE = 0.5
"""Share of the seeds with accepted losses in which nodes do not heal their WALs."""

AUDITED_SHARE = 0.3
"""Share of the seeds in which nodes are scanned for their copies at the end."""

SPLIT_CHANCE, OFTEN_SPLIT_CHANCE = 0.03, 0.3
"""Share of the segments that are cut in two; one seed of five has the second share. Some hundred
frames of a run, or some thousand, then arrive in pieces. Each piece costs a further step."""

FAR_BURST = 30
"""Records of a call over far links: this many, one after the other, take two of a client's five
seconds."""

DISKS_SHARE = 0.1 / ((1 - DAMAGE_SHARE) * (1 - FILLS_SHARE) * (1 - ALONE_SHARE))
"""Share of the possible seeds in which disks are lost for ever: one in ten of all seeds."""

DISKS_KINDS = ("crash", "pause", "partition", "slow_links", "reset", "metadata_outage")
DISKS_S = (8.0, 14.0)
"""How long faults strike in a run that loses disks; lost data is healed after that."""

REPLICATED_SHARE = 0.8
"""The share with an event log, of the seeds that lose disks and of the seeds that lose nodes at
their end. The event log has the statuses of lost nodes."""

LOSES_METADATA_SHARE = 0.5
"""The share of the seeds with an event log in which the metadata store goes away when a disk is
lost."""

CALM_S = 1.5
"""No faults before this time: a log works after some tenths of a second."""

CALM_SHARE = 0.1
"""Share of the seeds with few faults, so that slow work in quiet times is seen too."""


def swarm_options(seed: int, damage: Damage | None = None) -> RunOptions:
    """Draw the options of a seed's run.

    Args:
        damage: how much may be destroyed; None draws that too, within the tolerated damage.
    """
    chance = stream(seed, "options")
    if damage is None:
        damage = Damage.WITHIN if chance.random() < DAMAGE_SHARE else Damage.NONE
    fills = damage is Damage.NONE and chance.random() < FILLS_SHARE
    cluster = replace(
        _cluster(chance, fills, damage),
        gossip_s=stream(seed, "gossip").choice((0.1, 0.2, 0.2, 0.2)),
        **_retention(stream(seed, "retention")),
    )
    kept = stream(seed, "recent").choice((0, 0, 10_000, 128 * MIB))
    scrub = _scrub(stream(seed, "scrub"), damage, fills)
    cluster = replace(cluster, storage=replace(cluster.storage, recent_bytes=kept, **scrub))
    cluster = _in_regions(stream(seed, "regions"), cluster)
    client = _client(chance)
    length_s = chance.uniform(*LONG_S)
    shorter = stream(seed, "length")
    if shorter.random() < SHORT_SHARE:
        length_s = shorter.uniform(*SHORT_S)
    faults = _faults(chance, cluster, damage)
    absent = () if fills else _absent(stream(seed, "absent"), faults)
    loses = _loses(stream(seed, "loses"), damage, absent, fills)
    if cluster.replication.copies == cluster.nodes:
        loses = ""  # records appended until then could not be read: the run would not count
    paced = _is_paced(stream(seed, "paced"), cluster, absent, fills)
    spared: tuple[NodeId, ...] = ()
    if damage is Damage.NONE and not (fills or loses or paced):
        spared = tuple(_spared(stream(seed, "spared"), faults, absent))
    read_only = _some(stream(seed, "read-only"), spared, READ_ONLY_SHARE)
    weights = _weights(stream(seed, "weights"), cluster, () if read_only else spared)
    cluster = replace(cluster, weights=weights)
    if absent or damage is Damage.WITHIN or read_only or weights:
        # Absent and damaged nodes are drawn from all nodes, and a small nodeset may need each of
        # its nodes. Seed 61117 damaged two nodes of a nodeset of four, for four copies. Its epoch
        # waited for an operator's report for ever, as it must.
        faults = replace(faults, kinds=tuple(k for k in faults.kinds if k != "fewer_nodes"))
    if absent:
        # An epoch that began while all other nodes were in one rack cannot store its end over two
        # racks until an absent node is back (seed 8801478).
        faults = replace(faults, kinds=tuple(k for k in faults.kinds if k != "moved_rack"))
    idempotent = stream(seed, "producers").choice((0.0, 0.5, 1.0))
    options = RunOptions(
        length_s=length_s,
        cluster=cluster,
        workload=replace(
            _workload(chance, client, length_s, fills, damage, idempotent),
            conditional=stream(seed, "conditional").choice((0.0, 0.0, 0.3)),
            members=stream(seed, "members").choice((0, 0, 0, 1, 2, 3)),
            reset_s=stream(seed, "resets").choice((0.0, 1.5, 4.0)),
            grouped=stream(seed, "grouped").choice((0.0, 0.3, 0.6)),
            buffered=stream(seed, "buffered").choice((0.0, 0.0, 0.5, 1.0)),
            publishers=_publishers(stream(seed, "publishers"), cluster),
            publish_s=stream(seed, "publish").choice((1.0, 2.0)),
            trim_s=stream(seed, "trims").choice((0.0, 0.0, 2.0, 6.0)),
            holders=stream(seed, "holders").choice((0, 0, 0, 2)),
            outsiders=stream(seed, "outsiders").choice((0, 0, 0, 0, 0, 1)),
            callers=(callers := stream(seed, "callers").choice((0, 0, 0, 0, 0, 2))),
            crossers=stream(seed, "crossers").choice((0, 0, 0, 0, 0, 3)),
            keyed=(keyed := stream(seed, "keyed").choice((0.0, 0.5, 1.0))),
            manners=_manners(stream(seed, "manners"), keyed),
            browsers=stream(seed, "browsers").choice((0, 0, 0, 1)),
            crowds=stream(seed, "crowds").choice((0, 0, 0, 0, 1)),
            read_only=read_only,
            given_up=_some(stream(seed, "given-up"), (*absent, *spared), GIVEN_UP_SHARE),
            scribes=(scribes := _scribes(stream(seed, "scribes"), damage, fills or paced)),
            long_ledgers=bool(scribes)
            and stream(seed, "long-ledgers").random() < LONG_LEDGERS_SHARE,
            switches=int(bool(scribes) and stream(seed, "switches").random() < SWITCHES_SHARE),
            resenders=stream(seed, "resenders").choice((0, 0, 0, 1)),
            sorters=stream(seed, "sorters").choice((0, 0, 0, 0, 0, 0, 1)),
        ),
        faults=faults,
        link=_link(chance),
        turns=_unhealed(
            accepts := damage is Damage.WITHIN and stream(seed, "accepts").random() < 0.7,
            stream(seed, "unhealed"),
            _prompt(
                callers,
                _unstuck(
                    stream(seed, "unstuck"),
                    draw_turns(stream(seed, "knobs")) if chance.random() < 0.7 else (),
                ),
            ),
        ),
        buggify=chance.random() < 0.7,
        fills=fills,
        absent=absent,
        paced=paced,
        loses=loses,
        accepts=accepts,
        audited=accepts or stream(seed, "audited").random() < AUDITED_SHARE,
    )
    if options.is_far:
        # A buffered writer with one batch at a time takes a tenth of a second for each call, and
        # the time varies by chance: of a hundred calls, the third-slowest says nothing about a
        # node.
        options = replace(options, paced=False, workload=replace(
            options.workload, burst=min(options.workload.burst, FAR_BURST)
        ))  # fmt: skip
    if damage is Damage.NONE and stream(seed, "alone").random() < ALONE_SHARE:
        return _alone(options)
    disks = stream(seed, "disks")
    if damage is Damage.NONE and not fills and disks.random() < DISKS_SHARE:
        return _losing_disks(options, disks)
    said = stream(seed, "events")
    if options.loses and said.random() < REPLICATED_SHARE:
        return with_events(options, said, loses_copies=options.loses == COPIES)
    return options


def _unstuck(chance: random.Random, turns: TurnedKnobs) -> TurnedKnobs:
    """The turned knobs, and in some more seeds a copyset of its own for each run, see
    UNSTUCK_SHARE."""
    is_drawn = any(name == STICKY for name, _ in turns)
    return turns if is_drawn or chance.random() >= UNSTUCK_SHARE else (*turns, (STICKY, 0))


def _prompt(callers: int, turns: TurnedKnobs) -> TurnedKnobs:
    """The turned knobs. In a run with callers no client looks names up every 15 s: there S32 checks
    the manual's promise that a name's former log is read for 8 s at the most (seed 8800727)."""
    return tuple(turn for turn in turns if not callers or turn[0] != REFRESH)


def _unhealed(accepts: bool, chance: random.Random, turns: TurnedKnobs) -> TurnedKnobs:
    """The turned knobs. In half the seeds in which an operator accepts losses, no node heals its
    WAL: otherwise no loss would be left to accept after some seconds."""
    return (*turns, (HEALING, 0)) if accepts and chance.random() < UNHEALED_SHARE else turns


def _alone(options: RunOptions) -> RunOptions:
    """The run with one scene in place of its faults, on a cluster that can play it: one node in
    five is left behind, while waves choose their copysets one by one and appends go on."""
    work = options.workload
    slower = (work.rush_s + work.lull_s) / work.rush_s  # without lulls, and with as many records
    return replace(
        options,
        length_s=ALONE_S,
        cluster=replace(
            options.cluster, nodes=5, racks=1, regions=0, replication=Replication(3),
            sequencer=SequencerSettings(), wal_bytes=32 * MIB, weights={},
        ),
        workload=replace(
            work, lull_s=0.0, pause_s=work.pause_s * slower, publishers=0, scribes=0,
            long_ledgers=False, read_only=(), given_up=(), switches=0,
        ),
        faults=FaultOptions(kinds=(), alone="left_behind"),
        link=None,
        turns=((STICKY, 0),),
        buggify=False,
        fills=False,
        absent=(),
        paced=False,
        loses="",
    )  # fmt: skip


def _losing_disks(options: RunOptions, chance: random.Random) -> RunOptions:
    """The run with disks that are lost for ever at any time, and spare nodes for new copies.

    A dead node soon counts as lost, but not after the shortest crashes. No node is given up by an
    operator, and no log trims by time: otherwise the data of a lost disk need not be rebuilt.
    Ledgers of lost disks are not rebuilt.
    """
    nodes, copies = chance.choice(((6, 3), (5, 2)))
    replication = Replication(copies)
    cluster = replace(
        options.cluster, nodes=nodes, racks=1, regions=0, replication=replication, weights={},
        attributes=LogAttributes(), rebuild_after_s=4.0, refresh_s=1.0,
    )  # fmt: skip
    places = Nodeset(
        tuple(Member(NodeId(n), "", cluster.location(NodeId(n))) for n in range(1, nodes + 1))
    )
    faults = replace(
        options.faults, kinds=DISKS_KINDS, scenes=(), nodeset=places, replication=replication
    )
    length_s = chance.uniform(*DISKS_S)
    rebalanced = tuple(range(1, nodes + 1)) if chance.random() < REBALANCED_SHARE else ()
    work = replace(
        options.workload, read_only=(), given_up=(), scribes=0, long_ledgers=False, lull_s=0.0,
        rebalanced=rebalanced, switches=0,
    )  # fmt: skip
    turns = options.turns
    # Drawn last, so that all other draws of a seed stay as they were.
    replicated = chance.random() < REPLICATED_SHARE
    cluster = replace(cluster, replicated_events=replicated)
    if replicated:
        turns = (*turns, (SNAPSHOT_EVERY, chance.randrange(2)))
    return replace(
        options, length_s=length_s, cluster=cluster, faults=faults, workload=work, turns=turns,
        link=None, absent=(), paced=False, loses="", loses_disks=True,
        loses_metadata=replicated and chance.random() < LOSES_METADATA_SHARE,
    )  # fmt: skip


def _is_paced(
    chance: random.Random, cluster: ClusterOptions, absent: tuple[NodeId, ...], fills: bool
) -> bool:
    """Whether the duration of appends is measured (L7). Without one node, enough nodes must be left
    for every copy, and full epochs must be rare enough. With one copy no epoch can be sealed while
    any node is stopped, and a full epoch waits for its seal."""
    wanted = chance.random() < PACED_SHARE and not (absent or fills)
    copies = cluster.replication.copies
    spare = cluster.nodes > copies + 1 and copies > 1
    return wanted and spare and cluster.sequencer.esns >= PACED_ESNS_MIN


def _loses(chance: random.Random, damage: Damage, absent: tuple[NodeId, ...], fills: bool) -> str:
    """Which nodes are lost for ever at the end."""
    if damage is not Damage.NONE or absent or fills or chance.random() >= LOSES_SHARE:
        return ""
    return chance.choice((FEW, COPIES, COPIES))


def _scribes(chance: random.Random, damage: Damage, is_other: bool) -> int:
    """Clients that write ledgers."""
    if damage is not Damage.NONE or is_other or chance.random() >= SCRIBES_SHARE:
        return 0
    return chance.choice((1, 1, 2))


def _publishers(chance: random.Random, cluster: ClusterOptions) -> int:
    """Queries that publish: none where epochs are shorter than their batches. Only tests have
    epochs as short as that."""
    publishers = chance.choice((0, 0, 0, 1, 2))
    return publishers if cluster.sequencer.esns >= PUBLISH_ESNS_MIN else 0


def _manners(chance: random.Random, keyed: float) -> float:
    """Share of the reads that are not plain: asking for keys makes sense where records have
    keys."""
    return chance.choice((0.0, 0.5, 0.9) if keyed else (0.0, 0.5))


def _absent(chance: random.Random, faults: FaultOptions) -> tuple[NodeId, ...]:
    """Nodes that stay away when the faults are over: no more than replication survives."""
    if faults.damage is not Damage.NONE or chance.random() >= ABSENT_SHARE:
        return ()
    assert faults.nodeset is not None, "a swarm says where its nodes are"
    members = faults.nodeset.nodes
    spare = spare_nodes(chance.sample(members, len(members)), faults)
    most = min(len(spare), faults.replication.copies - 1)
    return tuple(spare[: chance.randint(1, most)]) if most else ()


def _spared(
    chance: random.Random, faults: FaultOptions, absent: tuple[NodeId, ...]
) -> list[NodeId]:
    """Nodes that the other nodes can do without, in addition to the absent nodes."""
    assert faults.nodeset is not None, "a swarm says where its nodes are"
    others = [node for node in faults.nodeset.nodes if node not in absent]
    order = [*absent, *chance.sample(others, len(others))]
    return [node for node in spare_nodes(order, faults) if node not in absent]


def _some(chance: random.Random, nodes: tuple[NodeId, ...], share: float) -> tuple[NodeId, ...]:
    """Some of the nodes, in this share of the seeds."""
    if chance.random() >= share or not nodes:
        return ()
    return nodes[: chance.randint(1, len(nodes))]


def _weights(
    chance: random.Random, cluster: ClusterOptions, spared: tuple[NodeId, ...]
) -> dict[int, float]:
    """Weights of some nodes, in some seeds: some spare nodes have weight 0."""
    if chance.random() >= WEIGHTS_SHARE or not spared:
        return {}
    weights = {number: chance.choice((0.3, 1.0, 5.0)) for number in range(1, cluster.nodes + 1)}
    return weights | dict.fromkeys(spared[: chance.randint(0, len(spared))], 0.0)


def nodeset_of(options: ClusterOptions) -> Nodeset:
    """The locations of a cluster's nodes."""
    return Nodeset(
        tuple(
            Member(NodeId(n), "", options.location(NodeId(n))) for n in range(1, options.nodes + 1)
        )
    )


def _cluster(chance: random.Random, fills: bool, damage: Damage) -> ClusterOptions:
    nodes = chance.choice(NODES)
    racks = chance.randint(1, min(nodes, 4))
    copies = min(nodes, chance.choice((1, 2, 2, 3, 3, 3, 3, 4)))
    if damage is Damage.BEYOND:
        # With one copy a log always needs all of its nodes: few runs would count.
        copies = max(copies, 2)
    return ClusterOptions(
        nodes=nodes,
        racks=racks,
        replication=Replication(copies, chance.randint(1, min(copies, racks))),
        wal_bytes=chance.choice((1, 2)) * MIB if fills else chance.choice((24, 32, 64)) * MIB,
        refresh_s=chance.choice((0.5, 2.0, 5.0)),
        sequencer=SequencerSettings(
            run_bytes=chance.choice((1024, 8192, MIB, MIB)),
            store_timeout_s=(timeout_s := chance.choice(STORE_TIMEOUTS_S)),
            store_timeout_max_s=max(timeout_s, chance.choice((1.0, 2.0, 2.0))),
            esns=chance.choice((ESN_ISSUED_MAX, ESN_ISSUED_MAX, 1000, 1000, 500, 250)),
        ),
    )


def _in_regions(chance: random.Random, cluster: ClusterOptions) -> ClusterOptions:
    """The cluster, in some seeds with its racks in regions that its copies must span."""
    had = cluster.replication
    most = min(cluster.racks, had.copies, 3)
    if most < 2 or chance.random() >= REGIONS_SHARE:
        return cluster
    regions = chance.randint(2, min(cluster.racks, 3))
    wider = (("region", chance.randint(2, min(most, regions))),)
    racks = chance.choice((1, had.racks))
    return replace(cluster, regions=regions, replication=Replication(had.copies, racks, wider))


def _retention(chance: random.Random) -> dict[str, Any]:
    """Retention of logs, and partitions so small that some fill and are dropped in a run."""
    if chance.random() >= RETENTION_SHARE:
        return {}
    return {
        "attributes": chance.choice(
            (LogAttributes(backlog_s=15.0), LogAttributes(backlog_s=6.0),
             LogAttributes(backlog_bytes=20_000))
        ),
        "storage": StorageSettings(
            flush_age_s=1.0,
            partition_age_s=chance.choice((2.0, 5.0)),
            partition_bytes=chance.choice((8192, 50_000, 1 << 30)),
            retention_every_s=1.0,
            disk_look_s=0.5,
        ),
    }  # fmt: skip


def _scrub(chance: random.Random, damage: Damage, fills: bool) -> dict[str, Any]:
    """The pace of scrubbing, if any. A WAL that is flushed soon never runs full."""
    if damage is not Damage.NONE:
        return chance.choice((SLOW_SCRUB, QUICK_SCRUB))
    if chance.random() < SCRUB_SHARE and not fills:
        return SLOW_SCRUB
    return {"scrub_bytes_s": 0}


def _client(chance: random.Random) -> ClientSettings:
    return ClientSettings(
        window_bytes=chance.choice((8192, MIB, 32 * MIB)),
        window_records=chance.choice((64, 262_144)),
        block_bytes=chance.choice((2048, 16_384, MIB, MIB)),
        block_records=chance.choice((5, 12, 50, 16_384, 16_384)),
        read_bytes=chance.choice((16_384, 50_000, 8 * MIB)),
        read_memory_bytes=chance.choice((64 << 10, 1 << 20, 256 * MIB)),
        scd_enabled=chance.random() < 0.8,
        local_scd_enabled=chance.random() < 0.2,
        location=chance.choice(("", "rack1", "rack2")),
        scd_copyset_reordering_max=chance.choice(REORDERINGS),
        client_read_flow_control_threshold=chance.choice((0.7, 0.7, 0.3, 0.9)),
    )


def _workload(
    chance: random.Random,
    client: ClientSettings,
    length_s: float,
    fills: bool,
    damage: Damage,
    idempotent: float,
) -> WorkloadOptions:
    """A workload large enough for a run that counts, see RECORDS."""
    producers, lanes = chance.randint(1, 3), chance.choice((1, 2, 3, 6))
    logs = chance.choice((1, 1, 2, 3))
    burst = chance.choice((30, 50, 100))
    # One of two calls has a single record, the other call up to `burst`.
    calls = chance.uniform(*RECORDS) / (0.75 + burst / 4) / (length_s + SETTLE_S)
    calls /= turn_calls(idempotent)
    lull_s = chance.choice((0.0, 0.0, 4.0, 8.0))
    rush_s = chance.uniform(2.0, 8.0)
    busy = rush_s / (rush_s + lull_s) if lull_s else 1.0
    payload = chance.choice((100, 400, 2000))
    if damage is Damage.BEYOND:
        calls *= BEYOND_RECORDS
    if fills:
        calls, payload = calls * 2, 8000
    return WorkloadOptions(
        producers=producers,
        readers=max(logs, chance.randint(1, 3)),
        logs=tuple(f"/sim/{letter}" for letter in "abc"[:logs]),
        pause_s=producers * lanes * busy / calls,
        burst=burst,
        lanes=lanes,
        payload_bytes_max=min(payload, client.block_bytes // 2),
        restart_s=chance.choice((5.0, 12.0, 40.0)),
        append_timeout_s=chance.choice((3.0, 5.0, 5.0, 10.0)),
        rush_s=rush_s,
        lull_s=lull_s,
        ask_s=chance.choice((0.0, 1.0, 3.0)),
        idempotent=idempotent,
        client=client,
    )


def _faults(chance: random.Random, cluster: ClusterOptions, damage: Damage) -> FaultOptions:
    calm = chance.random() < CALM_SHARE
    return FaultOptions(
        kinds=(*KINDS, *CLIENT_KINDS),
        calm_s=CALM_S,
        pause_s=12.0 if calm else chance.choice((1.3, 2.5, 4.0)),
        scenes=tuple(chance.sample(sorted(SCENES), len(SCENES))),
        scene_chance=0.0 if calm else chance.choice((0.0, 0.15, 0.35)),
        damage=damage,
        nodeset=nodeset_of(cluster),
        replication=cluster.replication,
    )


def _link(chance: random.Random) -> LinkSettings | None:
    """The links: between two racks, in one building, or between cities."""
    quiet = LinkSettings(split_chance=SPLIT_CHANCE)
    return chance.choice(
        (
            quiet,
            quiet,
            replace(quiet, split_chance=OFTEN_SPLIT_CHANCE),
            replace(quiet, delay_min_s=FAR_S, delay_jitter_s=0.01),
            replace(quiet, window_bytes=8192),
        )
    )
