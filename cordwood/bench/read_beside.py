"""Reads beside NATS JetStream, in turns on one machine and disk.

The same records are read in two ways: catching up, as bytes objects one by one, and following the
tail, where each record carries the time at which it was due. Both clusters acknowledge records
before they are read. Cordwood has synced every copy; NATS holds each record on a majority.

Source: docs/sources/hotpath.md §5; docs/sources/hotpath.md ("coordinated omission").
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from time import perf_counter

from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure, percentile_ms
from cordwood.bench.nats import REFERENCE_IS, NatsClient, nats_cluster
from cordwood.bench.nats_reading import connected_reader
from cordwood.bench.pace import TICK_S, stamped
from cordwood.bench.place import bench_place
from cordwood.bench.read import RECORDS, Filled, fill_log, read_sample
from cordwood.bench.read_tail import TAIL, TailProfile, tail_lag

FILL_IN_FLIGHT = 2_048
"""Messages in flight while the stream is filled, which is not measured."""

FILL_STEP_S = 0.5

CONSUMER_S = 0.5
"""Longest time to make a consumer. It does not get earlier records."""

PROFILE = replace(RECORDS, records=200_000)
"""Half of the records of the read without NATS, because NATS's stream takes longer to fill."""


async def bench_read_beside_nats(
    program: str, *, directory: str, nodes: int, repeats: int, say: Say,
    tail: TailProfile = TAIL, records: int = PROFILE.records,
) -> list[Figure]:  # fmt: skip
    """Measure catching up and lag, on fresh clusters.

    Args:
        program: nats-server.
    Raises:
        Unreachable: either cluster did not start, or NATS failed.
        CordwoodError: an append or a read failed.
    """
    profile = replace(PROFILE, records=records)
    blocks = -(-records // profile.batch) + repeats * round(tail.seconds / TICK_S)
    say("read_beside_nats: starting")
    async with (
        bench_place(
            None, directory, nodes=nodes, blocks=blocks, block_bytes=profile.size * profile.batch
        ) as place,
        nats_cluster(program, place.directory) as nats,
    ):
        filled = await fill_log(place.url, profile)
        await _fill_stream(nats, profile.size, records)
        say("read_beside_nats: both have their records")
        reads: list[Sample] = []
        lags: list[Sample] = []
        for repeat in range(repeats):
            reads.append(await _catch_up(place.url, nats.port, filled, records))
            lags.append(await _lag(place.url, nats.port, tail))
            say(f"read_beside_nats: {repeat + 1} of {repeats}")
    usual = {"size": profile.size, "nodes": nodes, "cores": os.cpu_count() or 0}
    return [
        make_figure(
            f"{profile.name}_beside_nats", "records/s", reads, reference_is=REFERENCE_IS,
            parameters={**usual, "batch": profile.batch, "records": records},
        ),
        make_figure(
            "read_tail_lag_beside_nats", "ms", lags,
            reference_is=f"the median lag of {REFERENCE_IS}",
            parameters={**usual, "rate": tail.rate, "tick_ms": round(TICK_S * 1000, 3)},
        ),
    ]  # fmt: skip


async def _fill_stream(nats: NatsClient, size: int, records: int) -> None:
    filled = 0.0
    while filled < records:
        began = perf_counter()
        rate = await nats.publish(size, FILL_IN_FLIGHT, FILL_STEP_S)
        filled += rate * (perf_counter() - began) * 0.99


async def _catch_up(url: str, port: int, filled: Filled, records: int) -> Sample:
    theirs = await connected_reader(port)
    try:
        reference = await theirs.catch_up(1, records)
    finally:
        theirs.close()
    ours = await read_sample(url, PROFILE, filled, reference)
    return Sample(ours.value, reference)


async def _lag(url: str, port: int, tail: TailProfile) -> Sample:
    theirs = sorted(await _nats_lags(port, tail))
    ours = await tail_lag(url, tail)
    assert ours.p50_ms is not None, "lags have percentiles"
    return Sample(ours.p50_ms, percentile_ms(theirs, 0.5), ours.p50_ms, ours.p99_ms)


async def _nats_lags(port: int, tail: TailProfile) -> list[float]:
    """Offer records to the stream at a fixed rate, and take the lag of each, s."""
    ticks, batch = round(tail.seconds / TICK_S), max(1, round(tail.rate * TICK_S))
    reading, writing = await connected_reader(port), await connected_reader(port)
    try:
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(reading.follow(ticks * batch))
            # The consumer must exist before the first record.
            await asyncio.sleep(CONSUMER_S)
            await stamped(writing.offer, ticks, batch, tail.size)
        return following.result()
    finally:
        reading.close()
        writing.close()
