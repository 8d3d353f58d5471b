"""Readers at the tail: the lag of one reader, and the cost of a hundred readers for appends.

*Lag* is the time from the call that appends a record until a reader has it as an object: the whole
way through client, sequencer, three disks and back. Records are offered at a fixed rate, even if
earlier ones are not done, so that a stall is measured and not waited for. Writer and reader are two
clients on one loop, whose other work adds to the lag. `fan_out` measures the second figure.

Source: docs/sources/hotpath.md ("coordinated omission"); docs/sources/logdevice.md 4.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from time import perf_counter

from cordwood import aio
from cordwood.bench.append import Say
from cordwood.bench.fan_out import BATCH, IN_FLIGHT, fan_out
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.pace import TICK_S, TIME, stamped
from cordwood.bench.place import bench_place
from cordwood.block import Record
from cordwood.client.store import Store

LOG = "bench/tail"

WARM_UP_S = 1.0
"""Records that are not counted: the first ones start a sequencer."""

END_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class TailProfile:
    """The sizes of the measurement.

    Attributes:
        size: bytes of a record.
        rate: records offered a second, for the lag.
        seconds: how long they are offered.
        records: appended for each number of readers, in a second or two.
        readers: number of readers at the tail, compared with one.
    """

    size: int = 256
    rate: int = 10_000
    seconds: float = 5.0
    records: int = 64_000
    readers: int = 100


TAIL = TailProfile()


async def bench_tail(
    profile: TailProfile, *, url: str | None, directory: str, nodes: int, repeats: int, say: Say
) -> list[Figure]:
    """Measure lag and fan-out, on one cluster.

    Raises:
        CordwoodError: the cluster did not start, or an append or a read failed.
    """
    total = round(profile.rate * (profile.seconds + WARM_UP_S)) + 2 * profile.records
    blocks = repeats * (round((profile.seconds + WARM_UP_S) / TICK_S) + 2 * profile.records)
    say("read_tail: starting" if url is None else f"read_tail: {url}")
    async with bench_place(
        url, directory, nodes=nodes, blocks=blocks,
        block_bytes=max(1, repeats * total * profile.size // blocks),
    ) as place:  # fmt: skip
        lags: list[Sample] = []
        fans: list[Sample] = []
        for repeat in range(repeats):
            lags.append(await tail_lag(place.url, profile))
            fans.append(await fan_out(place.url, profile.readers, profile.records, profile.size))
            say(f"read_tail: {repeat + 1} of {repeats}")
    usual = {"size": profile.size, "nodes": nodes, "cores": os.cpu_count() or 0}
    return [
        make_figure(
            "read_tail_lag", "records/s", lags,
            reference_is="records offered a second; the milliseconds are the lag",
            parameters={**usual, "tick_ms": round(TICK_S * 1000, 3)},
        ),
        make_figure(
            f"append_beside_{profile.readers}_readers", "records/s", fans,
            reference_is="the same appends beside one reader",
            parameters={**usual, "batch": BATCH, "in_flight": IN_FLIGHT},
        ),
    ]  # fmt: skip


async def tail_lag(url: str, profile: TailProfile) -> Sample:
    """Offer records at a fixed rate, and take the lag of each."""
    ticks = round((profile.seconds + WARM_UP_S) / TICK_S)
    batch = max(1, round(profile.rate * TICK_S))
    async with await aio.connect(url) as store, await aio.connect(url) as reading:
        await store.append(LOG, bytes(8))
        stream = await reading.read(LOG, "tail", None)
        lags: list[float] = []
        counted_from = perf_counter() + WARM_UP_S

        async def follow() -> None:
            left = ticks * batch
            while left > 0:
                items = await stream.next_items()
                now = perf_counter()
                for item in items:
                    if isinstance(item, Record):
                        left -= 1
                        (offered,) = TIME.unpack_from(item.value)
                        if offered >= counted_from:
                            lags.append(now - offered)

        async with asyncio.timeout(profile.seconds + WARM_UP_S + END_TIMEOUT_S):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(follow())

                def offer(values: list[bytes]) -> None:
                    tasks.create_task(_append(store, values))

                await stamped(offer, ticks, batch, profile.size)
        stream.close()
        seconds = perf_counter() - counted_from
    lags.sort()
    p50, p99 = lags[len(lags) // 2], lags[len(lags) * 99 // 100]
    return Sample(len(lags) / seconds, profile.rate, p50 * 1000, p99 * 1000)


async def _append(store: Store, values: list[bytes]) -> None:
    await store.append_many(LOG, values)
