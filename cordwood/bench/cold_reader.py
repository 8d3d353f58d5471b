"""The effect of a reader of cold data on appends, and on readers at the tail.

One node has a log that was flushed to LogsDB long ago and is in no cache. Records are appended to
another log at a fixed rate and read at its tail, first alone. Then a reader in a separate process
goes through the cold log at the same time, again and again, as fast as it can. The process has a
session of its own, as a service or another login has: Linux shares cores by session, so a reader in
the appender's session would take the appender's share. The reference of each latency is the same
latency alone, a moment before. The cold log may also be in main storage, and no longer on the node:
then the reader asks the node only for the end.

As a program this module is that reader: `python -m cordwood.bench.cold_reader URL` reads until its
standard input ends, and prints its bytes a second.

Source: docs/design.md §5 ("a reader of old records does not disturb readers at the tail");
docs/sources/s3stream.md (e), the row on catch-up reads.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

from cordwood import aio
from cordwood.bench.append import Say
from cordwood.bench.append_loops import client_settings
from cordwood.bench.figure import Figure, Sample, make_figure, percentile_ms
from cordwood.bench.logsdb import drop_from_cache
from cordwood.bench.pace import TIME, until
from cordwood.bench.place import bench_place
from cordwood.block import Record
from cordwood.client.store import Store
from cordwood.errors import Unreachable
from cordwood.log_attributes import LogAttributes
from cordwood.protocol.gap_detection import Delivery
from cordwood.settings import MIB, StorageSettings

COLD = "bench/cold"
HOT = "bench/hot"

TICK_S = 0.002
"""Pause between two records: 500 a second are a small load, so their latency shows what delays
them."""

SIZE = 1024
FILL_TIMEOUT_S = 120.0
END_TIMEOUT_S = 30.0
LOOK_S = 0.1
FILL_IN_FLIGHT = 8
FILL_BATCH = 64
FLUSHED_SHARE = 0.75
"""Share of the cold log that must be in LogsDB: the last blocks may stay in the cache for a
minute."""
LEFT_SHARE = 0.25
"""Share of a log in main storage that may still be on the node: its newest partition."""
TIERED = LogAttributes(tier=True, local_retention=0.0, tier_after_bytes=8 * MIB, tier_after_s=1.0)
SHORT_PARTITIONS = StorageSettings(
    partition_bytes=32 * MIB, partition_age_s=5.0, retention_every_s=1.0
)
"""Settings for small partitions. A node drops whole partitions, and with the defaults the last one
stays for a quarter of an hour."""


@dataclass(frozen=True, slots=True)
class ColdProfile:
    """The sizes of the measurement.

    Attributes:
        cold_bytes: bytes of the cold log: more than all caches of the node.
        seconds: length of each half of a repeat.
        is_tiered: whether the cold log is in main storage, a directory beside the node's.
    """

    cold_bytes: int = 320 * MIB
    seconds: float = 3.0
    is_tiered: bool = False

    @property
    def reader(self) -> str:
        """The reader's name in figures."""
        return "tier_reader" if self.is_tiered else "cold_reader"


@dataclass(slots=True)
class _Seen:
    """Seconds of appends, and seconds that records took to a reader at the tail."""

    appends: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


async def bench_cold_reader(
    profile: ColdProfile, *, directory: str, repeats: int, say: Say
) -> list[Figure]:
    """Measure on a fresh node.

    Raises:
        CordwoodError: it did not start, or an append or a read failed.
    """
    blocks = profile.cold_bytes // (SIZE * FILL_BATCH)
    hot = round(2 * repeats * (profile.seconds + 1) / TICK_S)
    say(f"{profile.reader}: filling")
    pairs: list[tuple[_Seen, _Seen]] = []
    rates: list[float] = []
    async with bench_place(
        None, directory, nodes=1, blocks=blocks + hot // 8, block_bytes=SIZE * FILL_BATCH,
        storage=SHORT_PARTITIONS if profile.is_tiered else None,
    ) as place, await aio.connect(place.url) as store:  # fmt: skip
        logsdb = os.path.join(place.directory, "node-1", "logsdb")
        if profile.is_tiered:
            await store.create_log(COLD, attributes=TIERED)
            await _fill(place.url, blocks)
            await _wait_until_let_go(place.directory, logsdb, profile)
        else:
            await _fill(place.url, blocks)
            await _wait_until_flushed(logsdb, profile.cold_bytes * FLUSHED_SHARE)
        await store.append(HOT, bytes(TIME.size))
        for repeat in range(repeats):
            alone = await _offered(store, profile.seconds)
            drop_from_cache(place.directory if profile.is_tiered else logsdb)
            async with _cold_reader(place.url, rates):
                pairs.append((alone, await _offered(store, profile.seconds)))
            say(f"{profile.reader}: {repeat + 1} of {repeats}")
    return _figures(profile, pairs, rates)


def _figures(
    profile: ColdProfile, pairs: list[tuple[_Seen, _Seen]], rates: list[float]
) -> list[Figure]:
    parameters: dict[str, int | float | str] = {
        "cold_bytes": profile.cold_bytes, "tick_ms": TICK_S * 1000, "size": SIZE,
        "seconds": profile.seconds, "cores": os.cpu_count() or 0,
    }  # fmt: skip
    figures = []
    for name in ("appends", "lags"):
        of = {"appends": "append", "lags": "tail_lag"}[name]
        for share, end in ((0.5, "p50"), (0.99, "p99")):
            samples = [
                Sample(
                    percentile_ms(sorted(getattr(beside, name)), share),
                    percentile_ms(sorted(getattr(alone, name)), share),
                )
                for alone, beside in pairs
            ]
            figures.append(
                make_figure(
                    f"{of}_{end}_beside_{profile.reader}", "ms", samples,
                    reference_is="the same without that reader", parameters=parameters,
                )
            )  # fmt: skip
    read = [Sample(rate, None) for rate in rates]
    figures.append(
        make_figure(profile.reader, "MB/s", read, reference_is="none", parameters=parameters)
    )
    return figures


async def _fill(url: str, blocks: int) -> None:
    """Fill the cold log. All records differ, because objects would store equal ones only once."""
    settings = client_settings(SIZE, FILL_IN_FLIGHT, FILL_BATCH)
    left = iter(range(blocks))

    async def lane(store: Store) -> None:
        for _ in left:
            await store.append_many(COLD, [os.urandom(SIZE) for _ in range(FILL_BATCH)])

    async with (
        asyncio.timeout(FILL_TIMEOUT_S),
        await aio.connect(url, settings) as store,
        asyncio.TaskGroup() as lanes,
    ):
        for _ in range(FILL_IN_FLIGHT):
            lanes.create_task(lane(store))


async def _wait_until_flushed(logsdb: str, size: float) -> None:
    async with asyncio.timeout(FILL_TIMEOUT_S):
        while _bytes_below(logsdb) < size:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(LOOK_S)


async def _wait_until_let_go(directory: str, logsdb: str, profile: ColdProfile) -> None:
    """Wait until the log is in main storage, and the node has dropped all except the end of it."""
    history = os.path.join(directory, "history")
    async with asyncio.timeout(FILL_TIMEOUT_S):
        while (  # noqa: ASYNC110 - another process writes them
            _bytes_below(history, ".parquet") < profile.cold_bytes * FLUSHED_SHARE
            or _bytes_below(logsdb) > profile.cold_bytes * LEFT_SHARE
        ):
            await asyncio.sleep(LOOK_S)


def _bytes_below(directory: str, ending: str = ".sst") -> int:
    return sum(
        os.stat(os.path.join(at, name)).st_size
        for at, _, names in os.walk(directory)
        for name in names
        if name.endswith(ending)
    )


async def _offered(store: Store, seconds: float) -> _Seen:
    """Append a record each TICK_S by the clock, with a reader at the tail. Returns both
    latencies."""
    seen = _Seen()
    ticks = round(seconds / TICK_S)
    stream = await store.read(HOT, "tail", None)

    async def follow() -> None:
        left = ticks
        while left > 0:
            items = await stream.next_items()
            now = perf_counter()
            for item in items:
                if isinstance(item, Record):
                    left -= 1
                    seen.lags.append(now - TIME.unpack_from(item.value)[0])

    async def append(due: float) -> None:
        await store.append(HOT, TIME.pack(due) + bytes(SIZE - TIME.size))
        seen.appends.append(perf_counter() - due)

    async with asyncio.timeout(seconds + END_TIMEOUT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        began = perf_counter()
        for tick in range(ticks):
            due = began + tick * TICK_S
            await until(due)
            tasks.create_task(append(due))
    stream.close()
    return seen


@asynccontextmanager
async def _cold_reader(url: str, rates: list[float]) -> AsyncIterator[None]:
    """Run a process that reads the cold log for the length of the block. Gives its MB/s at the
    end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cordwood.bench.cold_reader", url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.stdout.readline()  # it reads now
        yield
        async with asyncio.timeout(END_TIMEOUT_S):
            printed, _ = await process.communicate(b"")  # which ends its input
        rates.append(float(printed))
    except (TimeoutError, ValueError) as error:
        raise Unreachable("the cold reader did not come to its end") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _read_cold(url: str) -> None:
    loop = asyncio.get_running_loop()
    over = loop.run_in_executor(None, sys.stdin.buffer.read)
    size, began = 0, perf_counter()
    async with await aio.connect(url) as store:
        while not over.done():
            stream = await store.read(COLD, "oldest", "tail")
            while not over.done() and (taken := await stream.next()) is not None:
                if size == 0:
                    began = perf_counter()
                    sys.stdout.write("reading\n")
                    sys.stdout.flush()
                if isinstance(taken, Delivery):
                    size += (taken.last - taken.first + 1) * SIZE
            stream.close()
    sys.stdout.write(f"{size / (perf_counter() - began) / 1e6}\n")


if __name__ == "__main__":
    asyncio.run(_read_cold(sys.argv[1]))
