"""Rebuilding after a disk that is lost for good, beside appends of the same run.

A fresh cluster takes blocks of several logs, as fast as it can: that is the reference. Then small
appends run in a closed loop, for a while with all nodes well, and then while the blocks of a killed
node are made anew. The figures are bytes moved a second beside block appends, rate and p99 of the
small appends beside those of before, and the largest donor's share beside an even one.

Source: docs/protocol/rebuilding.md.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
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
from cordwood.client.append.open_log import Appending
from cordwood.client.store import Store
from cordwood.errors import BadSetting, CordwoodError, Rejected, Unreachable
from cordwood.local_cluster import ClusterShape, LocalCluster, local_cluster
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId
from cordwood.settings import MIB

VICTIM = NodeId(2)
LOGS = 24
"""Enough for copysets on all nodes."""

DEAD_S = 60.0
"""The longest until the others take a killed node for dead."""

HEALED_S = 600.0
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class RebuildProfile:
    """What is measured.

    Attributes:
        nodes: of the cluster, in one rack; blocks have three copies.
        total_bytes: of payloads that are stored before the loss.
        size, batch: bytes of a record, and records of a block.
        beside_bytes, beside_in_flight: of the small appends.
        seconds: how long these are timed before the loss.
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
    if profile.nodes < 4:
        raise BadSetting("four nodes at least: a lost one, and three for the copies")
    moved: list[Sample] = []
    beside: list[Sample] = []
    shares: list[Sample] = []
    for repeat in range(repeats):
        say(f"rebuild: {repeat + 1} of {repeats}")
        below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
        try:
            shape = ClusterShape(profile.nodes, 1, 3, 1, 256 * MIB)
            async with local_cluster(below, shape) as cluster:
                await _repeat(profile, cluster, moved, beside, shares, say)
        finally:
            shutil.rmtree(below, ignore_errors=True)
    parameters: dict[str, int | float | str] = {
        "nodes": profile.nodes, "mib": profile.total_bytes // MIB, "size": profile.size,
        "batch": profile.batch, "cores": os.cpu_count() or 0,
    }  # fmt: skip
    return [
        make_figure(
            "rebuild_moved", "MB/s", moved, parameters=parameters,
            reference_is="payload bytes of block appends, before the loss",
        ),
        make_figure(
            "rebuild_beside", "records/s", beside, parameters=parameters,
            reference_is="the same small appends before the loss",
        ),
        make_figure(
            "rebuild_beside_p99", "ms",
            [Sample(now.p99_ms or 0.0, now.p50_ms) for now in beside],
            parameters=parameters, reference_is="their p99 before the loss",
        ),
        make_figure(
            "rebuild_largest_share", "MB", shares, parameters=parameters,
            reference_is="an even share of what all donors gave",
        ),
    ]  # fmt: skip


async def _repeat(
    profile: RebuildProfile,
    cluster: LocalCluster,
    moved: list[Sample],
    beside: list[Sample],
    shares: list[Sample],
    say: Say,
) -> None:
    settings = client_settings(profile.size, 4 * LOGS, profile.batch)
    async with await aio.connect(cluster.url, settings) as store:
        names = [f"bench/rebuild/{number}" for number in range(LOGS)]
        for name in names:
            await store.create_log(name, attributes=LogAttributes(sticky_copysets=False))
        append_mb_s = await _fill(profile, store, names)
        say(f"rebuild: block appends at {append_mb_s:.1f} MB/s")
        opened = [await store.open_log("bench/rebuild/beside")]
        before = await _small(profile, opened, profile.seconds)
        given = await _to_give(store)
        cluster.kill(VICTIM)
        await _call_lost(store)
        seconds, during = await _heal(profile, store, opened)
    total = sum(given.values())
    say(f"rebuild: {total / 1e6:.0f} MB in {seconds:.1f} s")
    moved.append(Sample(total / 1e6 / seconds, append_mb_s))
    p99 = [percentile_ms(sorted(run.latencies_s), 0.99) for run in (before, during)]
    # In `p50_ms` stands the p99 of before: the figure of p99 is made of both.
    beside.append(Sample(during.records / during.seconds, before.records / before.seconds, *p99))
    shares.append(Sample(max(given.values()) / 1e6, total / len(given) / 1e6))


async def _to_give(store: Store) -> dict[NodeId, int]:
    """Bytes that each donor has to give if the node is lost, as the nodes count them.

    Raises:
        CordwoodError: a node does not say.
        BadSetting: there is nothing to give.
    """
    given: dict[NodeId, int] = {}
    for node, answer in (await store.if_lost([VICTIM])).items():
        if isinstance(answer, CordwoodError):
            raise answer
        if node != VICTIM:
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


async def _call_lost(store: Store) -> None:
    """Say that the killed node is lost, as soon as the others take it for dead.

    Raises:
        Unreachable: they never do.
    """
    ends_s = perf_counter() + DEAD_S
    while perf_counter() < ends_s:
        try:
            return await store.say_rebuild(VICTIM, "start")
        except Rejected:
            await asyncio.sleep(LOOK_S)
    raise Unreachable(f"node {VICTIM} was killed, and is not taken for dead after {DEAD_S:g} s")


async def _heal(
    profile: RebuildProfile, store: Store, logs: list[Appending]
) -> tuple[float, AppendRun]:
    """Seconds until the lost node counts as empty, and the small appends meanwhile.

    Raises:
        Unreachable: that takes too long.
    """
    began = perf_counter()
    runs: list[AppendRun] = []
    is_over = asyncio.Event()

    async def append() -> None:
        while not is_over.is_set():
            runs.append(await _small(profile, logs, 0.5))

    async def look() -> float:
        while perf_counter() < began + HEALED_S:
            lost = (await store.rebuilding(donors=False)).lost
            entry = next((each for each in lost if each.node == VICTIM), None)
            if entry is not None and entry.is_empty:
                is_over.set()
                return perf_counter() - began
            await asyncio.sleep(LOOK_S)
        raise Unreachable(f"node {VICTIM} is not rebuilt after {HEALED_S:g} s")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(append())
        looking = tasks.create_task(look())
    seconds = sum(run.seconds for run in runs)
    latencies = [each for run in runs for each in run.latencies_s]
    return looking.result(), AppendRun(seconds, len(latencies), latencies)
