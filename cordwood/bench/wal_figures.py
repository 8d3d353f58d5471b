"""The WAL's standard measurements, each beside fio on the same path.

Runs of the WAL and of fio take turns, so that both meet the same minutes of a shared
disk; the median of the pairs' ratios counts.

Source: docs/sources/s3stream.md (c) (WriteBench); docs/sources/hotpath.md §1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.fio import FioJob, FioResult, find_fio, run_fio
from cordwood.bench.wal import WalProfile, WalRun, ring_place, run_wal
from cordwood.layout.wal_block import WAL_RECORD_HEADER_BYTES
from cordwood.write_budget import parse_budget

Say = Callable[[str], None]
"""Called with the present step, for a person at the terminal."""

NO_FIO = "fio is not installed"

FIO_LENGTH_MAX = 1 << 30
"""Bytes of the ring that fio writes again and again: with more bytes a disk's cache behaves
differently."""


@dataclass(frozen=True, slots=True)
class WalCase:
    """One measurement: the name of its figures, and the WAL's profile."""

    name: str
    profile: WalProfile


def _filling(write_bytes: int) -> int:
    """Bytes of the body whose record, alone in its block, fills a write exactly."""
    return write_bytes - WAL_RECORD_HEADER_BYTES


STANDARD = (
    WalCase("wal_256KiB", WalProfile(record_bytes=_filling(256 << 10), in_flight=32)),
    WalCase("wal_64KiB", WalProfile(
        record_bytes=_filling(64 << 10), in_flight=64, block_bytes=64 << 10)),
    WalCase("wal_4KiB", WalProfile(
        record_bytes=_filling(4096), in_flight=64, block_bytes=4096)),
    WalCase("wal_4KiB_one_at_a_time", WalProfile(
        record_bytes=_filling(4096), in_flight=1, depth=1, block_bytes=4096)),
    WalCase("wal_100B", WalProfile(record_bytes=100, in_flight=16_384)),
    WalCase("wal_100B_in_batches", WalProfile(
        record_bytes=100, in_flight=16 * 2500, batch=2500)),
)  # fmt: skip
"""Large writes, small writes, a single write (its latency), and records far below a block's size,
one by one and by `append_many`, a block's worth at a time.

More records are in flight than at the device, so that the caller's queue is never empty."""


@dataclass(frozen=True, slots=True)
class _Measure:
    """One figure of a case: the end of its name, and its field in both results."""

    name: str
    unit: str
    of_wal: Callable[[WalRun], float]
    of_fio: Callable[[FioResult], float] | None


MEASURES = (
    _Measure("throughput", "MB/s", lambda run: run.bytes_per_s / 1e6,
             lambda fio: fio.bytes_per_s / 1e6),
    _Measure("at_the_device", "MB/s", lambda run: run.written_bytes / run.seconds / 1e6,
             lambda fio: fio.bytes_per_s / 1e6),
    _Measure("iops", "writes/s", lambda run: run.writes_per_s, lambda fio: fio.operations_per_s),
    _Measure("records", "records/s", lambda run: run.records / run.seconds, None),
    _Measure("mean", "us", lambda run: run.mean_us, lambda fio: fio.mean_us),
    _Measure("p50", "us", lambda run: run.p50_us, lambda fio: fio.p50_us),
    _Measure("p99", "us", lambda run: run.p99_us, lambda fio: fio.p99_us),
    _Measure("max", "us", lambda run: run.max_us, lambda fio: fio.max_us),
)  # fmt: skip
"""Latencies are those of a record, from its due time until it is durable. With more records in
flight than at the device, a record waits for its turn; fio's operation does not wait."""


async def bench_wal(path: str, case: WalCase, *, repeats: int, say: Say) -> list[Figure]:
    """Measure one case on a WAL that `bench_wal_file` made.

    Returns:
        A figure for each of MEASURES. Without fio they have no reference.
    Raises:
        BadSetting: the WAL has not the size of the profile.
        Unreachable: fio failed.
        WalFailed: a write failed.
    """
    program = find_fio()
    job = _job(path, case.profile)
    pairs: list[tuple[WalRun, FioResult | None]] = []
    for repeat in range(repeats):
        beside = None if program is None else await run_fio(program, job)

        def tell(second: int, run: WalRun, number: int = repeat + 1) -> None:
            if second < case.profile.seconds:  # after the last second, the run's own line follows
                say(f"{case.name}, run {number}, second {second}: {run_words(run)}")

        pairs.append((await run_wal(path, case.profile, tell), beside))
        say(f"{case.name}, run {repeat + 1} of {repeats}: {run_words(pairs[-1][0])}")
    return [_figure(case, measure, pairs, job, program) for measure in MEASURES]


def run_words(run: WalRun) -> str:
    """A run, or a second of it, in one line."""
    return (
        f"{run.bytes_per_s / 1e6:,.1f} MB/s, {run.writes_per_s:,.0f} writes/s, "
        f"{run.records / run.seconds:,.0f} records/s, mean {run.mean_us:,.0f} us, "
        f"max {run.max_us:,.0f} us"
    )


def _job(path: str, profile: WalProfile) -> FioJob:
    offset, length = ring_place(profile.capacity_bytes)
    return FioJob(
        path, offset, min(length, FIO_LENGTH_MAX), profile.write_bytes, profile.writes,
        profile.seconds, profile.bytes_per_s,
    )  # fmt: skip


def _figure(
    case: WalCase,
    measure: _Measure,
    pairs: Sequence[tuple[WalRun, FioResult | None]],
    job: FioJob,
    program: str | None,
) -> Figure:
    of_fio, profile = measure.of_fio, case.profile
    samples = [
        Sample(measure.of_wal(run), None if fio is None or of_fio is None else of_fio(fio))
        for run, fio in pairs
    ]
    return make_figure(
        f"{case.name}_{measure.name}", measure.unit, samples,
        reference_is=NO_FIO if program is None else job.describe(),
        parameters={
            "record_bytes": profile.record_bytes, "in_flight": profile.in_flight,
            "batch": profile.batch,
            "depth": profile.depth, "block_bytes": profile.block_bytes,
            "seconds": profile.seconds, "cores": os.cpu_count() or 0,
        },
    )  # fmt: skip


def custom_case(
    record_bytes: int | None,
    in_flight: int | None,
    depth: int | None,
    block_bytes: int | None,
    throughput_mib: float | None,
    *,
    batch: int = 1,
    budget: str = "",
) -> WalCase:
    """A case from options; other values are those of `WalProfile`, or follow from the options.

    Args:
        batch: records of one `append_many`; 1 appends each alone.
        throughput_mib: MiB a second of records; None as fast as it goes.
        budget: as `write_budget.parse_budget` takes it.
    Raises:
        BadSetting: the options contradict each other or exceed a limit.
    """
    depth = 4 if depth is None else depth
    profile = WalProfile(
        record_bytes=_filling(64 << 10) if record_bytes is None else record_bytes,
        in_flight=16 * depth * batch if in_flight is None else in_flight,
        batch=batch,
        depth=depth,
        block_bytes=256 << 10 if block_bytes is None else block_bytes,
        bytes_per_s=None if throughput_mib is None else throughput_mib * (1 << 20),
        budget=parse_budget(budget),
    )
    return WalCase(f"wal_{profile.record_bytes}B_records", profile)


def sized(cases: Sequence[WalCase], *, seconds: float, capacity_bytes: int) -> list[WalCase]:
    """These cases with this length of runs, and this size of the WAL.

    Raises:
        BadSetting: that WAL is too small for one of them.
    """
    return [
        replace(case, profile=replace(
            case.profile, seconds=seconds, capacity_bytes=capacity_bytes
        ))
        for case in cases
    ]  # fmt: skip
