"""Rebuilding after a disk is lost for ever, beside appends of the same run.

A fresh cluster takes blocks of several logs, as fast as it can: this is the reference. A range of
one node's WAL rots, and is healed. Then a node is killed, and its blocks are rebuilt while nothing
else runs. Then small appends run in a closed loop: for a while with all other nodes well, while the
blocks of a second node are rebuilt, and again afterwards.

The figures are bytes moved a second beside block appends, rate and p99 of the small appends beside
those without rebuilding, the largest donor's share beside an even share, and the time until the
range is healed.

Source: docs/protocol/rebuilding.md.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter

from cordwood import aio
from cordwood.bench.append import Say
from cordwood.bench.append_loops import (
    AppendRun,
    Limit,
    append_batches,
    append_singles,
    client_settings,
)
from cordwood.bench.figure import Figure, Sample, make_figure, percentile_ms
from cordwood.bench.place import PREFIX
from cordwood.bench.wal_range import time_wal_range
from cordwood.client.append.open_log import Appending
from cordwood.client.store import Store
from cordwood.errors import BadSetting, CordwoodError, Rejected, Unreachable
from cordwood.local_cluster import ClusterShape, LocalCluster, local_cluster
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId
from cordwood.settings import MIB

VICTIM = NodeId(2)
"""The node that is lost first, in a quiet cluster."""

SECOND = NodeId(3)
"""The node that is lost next, beside small appends."""

THIRD = NodeId(4)
"""The node whose WAL rots in one range, before the losses."""

WAL_RANGE_S = 5.0
"""Longest time to heal one range."""

LOGS = 24
"""Number of logs: enough for copysets on all nodes."""

DEAD_S = 60.0
"""The longest time until the other nodes regard a killed node as dead."""

HEALED_S = 600.0

LOOK_S = 0.05
"""The pause between two looks at a rebuilding that takes seconds: nothing runs beside it."""

LOOK_BESIDE_S = 0.5
"""The same beside small appends, where it takes most of a minute: each look takes time of the
nodes, and would count as the rebuilding's."""


@dataclass(frozen=True, slots=True)
class RebuildProfile:
    """The sizes of the measurement.

    Attributes:
        nodes: of the cluster, in one rack; two are lost, and blocks have three copies.
        total_bytes: of payloads that are stored before the loss.
        size, batch: bytes of a record, and records of a block.
        beside_bytes, beside_in_flight: of the small appends.
        seconds: how long these are measured before the loss.
    """

    nodes: int = 6
    total_bytes: int = 256 * MIB
    size: int = 1024
    batch: int = 256
    beside_bytes: int = 256
    beside_in_flight: int = 64
    seconds: float = 8.0


async def bench_rebuild(
    profile: RebuildProfile, *, directory: str, repeats: int, say: Say
) -> list[Figure]:
    """The figures of the module.

    Raises:
        BadSetting: too few nodes for a lost one.
        Unreachable: a node did not start, or the cluster did not heal.
        CordwoodError: an append failed.
    """
    if profile.nodes < 5:
        raise BadSetting("five nodes at least: two lost ones, and three for the copies")
    samples = _Samples()
    for repeat in range(repeats):
        say(f"rebuild: {repeat + 1} of {repeats}")
        below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
        try:
            shape = ClusterShape(profile.nodes, 1, 3, 1, 256 * MIB)
            async with local_cluster(below, shape) as cluster:
                await _repeat(profile, cluster, samples, say)
        finally:
            shutil.rmtree(below, ignore_errors=True)
    parameters: dict[str, int | float | str] = {
        "nodes": profile.nodes, "mib": profile.total_bytes // MIB, "size": profile.size,
        "batch": profile.batch, "cores": os.cpu_count() or 0,
    }  # fmt: skip
    blocks = "payload bytes of block appends, before the loss"
    alone = "before and after the loss"
    figures = [
        ("rebuild_moved", "MB/s", samples.moved, blocks),
        ("rebuild_beside", "records/s", samples.beside, f"the same small appends {alone}"),
        ("rebuild_beside_p99", "ms", samples.p99, f"their p99 {alone}"),
        ("rebuild_moved_beside", "MB/s", samples.moved_beside, blocks),
        ("rebuild_largest_share", "MB", samples.shares, "an even share of what all donors gave"),
        ("rebuild_wal_range", "s", samples.wal_range, "what it may take"),
    ]
    return [
        make_figure(name, unit, found, parameters=parameters, reference_is=told)
        for name, unit, found, told in figures
    ]


@dataclass(slots=True)
class _Samples:
    """The values of the repeats, for one figure each."""

    moved: list[Sample] = field(default_factory=list)
    beside: list[Sample] = field(default_factory=list)
    p99: list[Sample] = field(default_factory=list)
    moved_beside: list[Sample] = field(default_factory=list)
    shares: list[Sample] = field(default_factory=list)
    wal_range: list[Sample] = field(default_factory=list)


async def _repeat(
    profile: RebuildProfile, cluster: LocalCluster, samples: _Samples, say: Say
) -> None:
    """Lose one node in a quiet cluster, and then another node beside small appends."""
    settings = client_settings(profile.size, 4 * LOGS, profile.batch)
    async with await aio.connect(cluster.url, settings) as store:
        names = [f"bench/rebuild/{number}" for number in range(LOGS)]
        for name in names:
            await store.create_log(name, attributes=LogAttributes(sticky_copysets=False))
        append_mb_s = await _fill(profile, store, names)
        say(f"rebuild: block appends at {append_mb_s:.1f} MB/s")
        wal_range_s = await time_wal_range(cluster, store, THIRD)
        samples.wal_range.append(Sample(wal_range_s, WAL_RANGE_S))
        say(f"rebuild: a range of node {THIRD}'s WAL in {wal_range_s:.2f} s")
        given = await _lose(cluster, store, VICTIM)
        seconds = await _wait_healed(store, VICTIM, LOOK_S)
        total = sum(given.values()) / 1e6
        say(f"rebuild: {total:.0f} MB in {seconds:.1f} s, nothing beside it; from {_words(given)}")
        samples.moved.append(Sample(total / seconds, append_mb_s))
        samples.shares.append(Sample(max(given.values()) / 1e6, total / len(given)))

        opened = [await store.open_log("bench/rebuild/beside")]
        before = await _small(profile, opened, profile.seconds)
        given = await _lose(cluster, store, SECOND)
        seconds, during = await _heal_beside(profile, store, opened)
        after = await _small(profile, opened, profile.seconds)
    total = sum(given.values()) / 1e6
    say(f"rebuild: {total:.0f} MB in {seconds:.1f} s beside small appends")
    samples.moved_beside.append(Sample(total / seconds, append_mb_s))
    # Other programs may share the machine: small appends alone are measured before and after the
    # loss.
    alone = AppendRun(
        before.seconds + after.seconds, before.records + after.records,
        [*before.latencies_s, *after.latencies_s],
    )  # fmt: skip
    samples.beside.append(Sample(during.records / during.seconds, alone.records / alone.seconds))
    samples.p99.append(Sample(*(
        percentile_ms(sorted(run.latencies_s), 0.99) for run in (during, alone)
    )))  # fmt: skip


def _words(given: Mapping[NodeId, int]) -> str:
    return ", ".join(f"{node}: {size / 1e6:.0f}" for node, size in sorted(given.items()))


async def _lose(cluster: LocalCluster, store: Store, node: NodeId) -> dict[NodeId, int]:
    """Kill a node and report it lost. Returns the bytes that each donor has to give, as the nodes
    count.

    Raises:
        CordwoodError: a node does not answer.
        BadSetting: there is nothing to give.
        Unreachable: the other nodes do not regard it as dead.
    """
    given = await _to_give(store, node)
    cluster.kill(node)
    await _call_lost(store, node)
    return given


async def _to_give(store: Store, lost: NodeId) -> dict[NodeId, int]:
    """Bytes that each donor has to give if the node is lost, as the nodes count them.

    Raises:
        CordwoodError: a node does not say.
        BadSetting: there is nothing to give.
    """
    given: dict[NodeId, int] = {}
    for node, answer in (await store.if_lost([lost])).items():
        if node in (lost, VICTIM):
            continue  # it is gone already, or gives nothing
        if isinstance(answer, CordwoodError):
            raise answer
        given[node] = answer.bytes
    if not any(given.values()):
        raise BadSetting("the lost node would hold nothing: store more (--mib)")
    return given


async def _fill(profile: RebuildProfile, store: Store, names: list[str]) -> float:
    """Store all blocks; payload MB a second."""
    values = [os.urandom(profile.size) for _ in range(profile.batch)]  # a block does not shrink
    each = Limit(profile.total_bytes // profile.size // len(names), HEALED_S)
    began = perf_counter()
    runs = await asyncio.gather(*(append_batches(store, name, values, 1, each) for name in names))
    return sum(run.records for run in runs) * profile.size / 1e6 / (perf_counter() - began)


async def _small(profile: RebuildProfile, logs: list[Appending], seconds: float) -> AppendRun:
    limit = Limit(1 << 40, seconds)
    return await append_singles(
        logs, os.urandom(profile.beside_bytes), profile.beside_in_flight, limit
    )


async def _call_lost(store: Store, node: NodeId) -> None:
    """Report the killed node as lost, as soon as the other nodes regard it as dead.

    Raises:
        Unreachable: they never do.
    """
    ends_s = perf_counter() + DEAD_S
    while perf_counter() < ends_s:
        try:
            return await store.say_rebuild(node, "start", forced=True)
        except Rejected:
            await asyncio.sleep(LOOK_S)
    raise Unreachable(f"node {node} was killed, and is not taken for dead after {DEAD_S:g} s")


async def _wait_healed(store: Store, node: NodeId, look_s: float) -> float:
    """Seconds until the lost node counts as empty.

    Args:
        look_s: pause between two looks.
    Raises:
        Unreachable: that takes too long.
    """
    began = perf_counter()
    while perf_counter() < began + HEALED_S:
        lost = (await store.rebuilding(donors=False)).lost
        entry = next((each for each in lost if each.node == node), None)
        if entry is not None and entry.is_empty:
            return perf_counter() - began
        await asyncio.sleep(look_s)
    raise Unreachable(f"node {node} is not rebuilt after {HEALED_S:g} s")


async def _heal_beside(
    profile: RebuildProfile, store: Store, logs: list[Appending]
) -> tuple[float, AppendRun]:
    """Seconds until the second node counts as empty, and the small appends meanwhile.

    Raises:
        Unreachable: that takes too long.
    """
    runs: list[AppendRun] = []
    is_over = asyncio.Event()

    async def append() -> None:
        while not is_over.is_set():
            runs.append(await _small(profile, logs, 0.5))

    async def look() -> float:
        try:
            return await _wait_healed(store, SECOND, LOOK_BESIDE_S)
        finally:
            is_over.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(append())
        looking = tasks.create_task(look())
    seconds = sum(run.seconds for run in runs)
    latencies = [each for run in runs for each in run.latencies_s]
    return looking.result(), AppendRun(seconds, len(latencies), latencies)
