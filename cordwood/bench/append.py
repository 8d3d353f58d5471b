"""How fast one client appends, beside the disk alone with as many copies.

Three standard profiles: small records one by one with many in flight, 64 KiB blocks, and
small records in blocks that the client makes.

Source: docs/design.md §4; docs/sources/hotpath.md §5 (its toy: 467,000/s and 260 to 570 MB/s).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cordwood import aio
from cordwood.bench.append_loops import (
    AppendRun,
    Limit,
    append_batches,
    append_singles,
    client_settings,
)
from cordwood.bench.disk_reference import WAVE_BYTES_MAX, DiskReference, disk_reference
from cordwood.bench.figure import Figure, Sample, make_figure, percentile_ms
from cordwood.bench.place import bench_place
from cordwood.client.store import Store
from cordwood.errors import BadSetting
from cordwood.layout.limits import BLOCK_RECORDS_MAX
from cordwood.settings import MIB

LOG = "bench/append"

SECONDS_MAX = 60.0
"""A repeat with a fixed number of records ends after this time in any case."""

WARM_UP_SHARE = 0.1
"""Appended before the first repeat: starts the sequencer and opens every connection."""

PLANNED_BYTES_PER_S = 400_000_000
"""Bytes for a repeat of a given number of seconds; the repeat ends when they are used up."""

Say = Callable[[str], None]
"""Called with the present step, for a person at the terminal."""


@dataclass(frozen=True, slots=True)
class AppendProfile:
    """One way to append.

    Attributes:
        name: of the figure.
        size: bytes of a record.
        in_flight: records, or batches, that wait for their answer at a time.
        batch: records of an `append_many`, which is one block; 0 appends single records.
        records: of one repeat.
        seconds: the end of a repeat, if `records` did not end it.
        counts_records: whether the figure of batches counts records and not bytes.
    """

    name: str
    size: int
    in_flight: int
    batch: int
    records: int
    seconds: float = SECONDS_MAX
    counts_records: bool = False

    def __post_init__(self) -> None:
        for name, least in (("size", 0), ("in_flight", 1), ("batch", 0), ("records", 1)):
            if getattr(self, name) < least:
                raise BadSetting(f"{name} is {getattr(self, name)}; it is at least {least}")
        if self.batch > BLOCK_RECORDS_MAX:
            raise BadSetting(f"batch is {self.batch}; a block has at most {BLOCK_RECORDS_MAX}")
        if self.batch * self.size > 4 * MIB:
            raise BadSetting(f"batches of {self.batch * self.size} bytes; a block is 4 MiB at most")

    @property
    def unit(self) -> str:
        """Small records count by number, batches by their bytes."""
        return "MB/s" if self._is_told_in_bytes else "records/s"

    @property
    def _is_told_in_bytes(self) -> bool:
        return self.batch > 0 and not self.counts_records

    @property
    def block_bytes(self) -> int:
        """The approximate bytes of one block: a batch, or an eighth of the records in flight."""
        return max(1, self.size) * (self.batch or max(1, self.in_flight // 8))

    @property
    def blocks(self) -> int:
        """About how many blocks a repeat makes."""
        return -(-self.records // (self.batch or max(1, self.in_flight // 8)))

    def value(self, run: AppendRun) -> float:
        """What a run reached, in `unit`."""
        rate = run.records / run.seconds
        return rate * self.size / 1e6 if self._is_told_in_bytes else rate

    def per_bytes(self, bytes_per_second: float) -> float:
        """A rate of bytes, in `unit`."""
        if self._is_told_in_bytes:
            return bytes_per_second / 1e6
        return bytes_per_second / max(1, self.size)


SINGLES = AppendProfile("append_256B_singles", 256, 2048, 0, 400_000)
BLOCKS = AppendProfile("append_64KiB_blocks", 1024, 16, 64, 160_000)
RECORDS = AppendProfile("append_256B_in_128KiB_blocks", 256, 8, 512, 800_000, counts_records=True)
STANDARD = (SINGLES, BLOCKS, RECORDS)


def custom_profile(
    size: int | None,
    in_flight: int | None,
    batch: int | None,
    records: int | None,
    seconds: float | None,
) -> AppendProfile:
    """A profile from options; other values are those of the nearest standard profile.

    Raises:
        BadSetting: the options contradict each other or exceed a limit.
    """
    usual = BLOCKS if batch else SINGLES
    size = usual.size if size is None else size
    in_flight = usual.in_flight if in_flight is None else in_flight
    if seconds is not None:
        fitting = max(1, int(seconds * PLANNED_BYTES_PER_S) // max(256, size))
        records = fitting if records is None else min(records, fitting)
    if records is None:
        # As many bytes as the standard profile, but enough that a repeat is not only warm-up.
        records = max(4 * in_flight * (batch or 1), usual.records * usual.size // max(64, size))
    kind = f"x{batch}_batches" if batch else "_singles"
    name = f"append_{size}B{kind}_{in_flight}_in_flight"
    return AppendProfile(name, size, in_flight, batch or 0, records, seconds or SECONDS_MAX)


async def bench_append(
    profile: AppendProfile, *, url: str | None, directory: str, nodes: int, repeats: int, say: Say
) -> Figure:
    """Measure one profile.

    Args:
        url: a running cluster, whose log `bench/append` then grows; None starts one.
        directory: for a fresh cluster and the reference's files.
        nodes: of a fresh cluster.
    Raises:
        CordwoodError: the cluster did not start, or an append failed.
    """
    blocks = round(profile.blocks * (repeats + WARM_UP_SHARE)) + 1
    say(f"{profile.name}: starting" if url is None else f"{profile.name}: {url}")
    async with (
        bench_place(
            url, directory, nodes=nodes, blocks=blocks, block_bytes=profile.block_bytes
        ) as place,
        await aio.connect(
            place.url, client_settings(profile.size, profile.in_flight, profile.batch)
        ) as store,
    ):
        await run_profile(store, profile, WARM_UP_SHARE)
        copies = (await store.log(LOG)).replication.copies
        async with disk_reference(
            place.directory,
            copies=copies,
            write_bytes=_reference_bytes(profile),
            lanes=profile.in_flight if profile.batch else 1,
        ) as reference:
            samples = []
            for repeat in range(repeats):
                samples.append(await _sample(store, profile, reference))
                say(f"{profile.name}: {repeat + 1} of {repeats}")
    return make_figure(
        profile.name, profile.unit, samples,
        reference_is=reference.describe(),
        parameters={
            "size": profile.size, "in_flight": profile.in_flight, "batch": profile.batch,
            "copies": copies, "nodes": len(store.members), "cores": os.cpu_count() or 0,
        },
    )  # fmt: skip


async def _sample(store: Store, profile: AppendProfile, reference: DiskReference) -> Sample:
    """Measure the reference, and at once after it the appends."""
    bytes_per_second = await reference.bytes_per_second()
    run = await run_profile(store, profile)
    ordered = sorted(run.latencies_s)
    return Sample(
        profile.value(run),
        profile.per_bytes(bytes_per_second),
        percentile_ms(ordered, 0.5),
        percentile_ms(ordered, 0.99),
    )


async def run_profile(store: Store, profile: AppendProfile, share: float = 1.0) -> AppendRun:
    """Append to one log as a profile says, or a share of that.

    Raises:
        CordwoodError: an append failed.
    """
    limit = Limit(max(1, int(profile.records * share)), profile.seconds * share)
    if profile.batch:
        values = [os.urandom(profile.size) for _ in range(profile.batch)]
        return await append_batches(store, LOG, values, profile.in_flight, limit)
    log = await store.open_log(LOG)
    return await append_singles([log], os.urandom(profile.size), profile.in_flight, limit)


def _reference_bytes(profile: AppendProfile) -> int:
    """Bytes of one write of the reference: a batch, or all records in flight, as in one wave."""
    if profile.batch:
        return max(1, profile.batch * profile.size)
    return max(1, min(WAVE_BYTES_MAX, profile.in_flight * profile.size))
