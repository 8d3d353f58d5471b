"""The time of a start with a WAL full of live records.

The WAL is in the state after a kill: the header does not say that the end was graceful, so the
start also looks through a window past the end. The reference is fio reading as many bytes in the
same order: a start that checks all bytes cannot be quicker.

Source: docs/sources/s3stream.md (a), "Recovery" (92.7 s for 1 GiB, later 15.3 s).
"""

from __future__ import annotations

import contextlib
import os
from time import perf_counter

from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.fio import FioJob, find_fio, run_fio
from cordwood.bench.wal import OWNER, ring_place
from cordwood.bench.wal_figures import NO_FIO, Say
from cordwood.host.real_disk import RealDisk
from cordwood.layout.wal_block import WAL_RECORD_HEADER_BYTES
from cordwood.storage.wal.delta_wal import Wal
from cordwood.storage.wal.wal_errors import WalFull
from cordwood.storage.wal.wal_recovery import READ_BUFFER_BYTES

RECORD_BYTES = (1 << 10, 64 << 10)
"""A client's small record alone in its wave, and a block of a busy client."""

FILL_BYTES = 4 << 20
"""Records appended at a time: enough to keep the disk busy, with a usual window for recovery."""


async def bench_start(
    path: str, capacity_bytes: int, record_bytes: int, *, repeats: int, say: Say
) -> Figure:
    """Fill a WAL that `bench_wal_file` made and time starts on it.

    Raises:
        Unreachable: fio failed.
        WalFailed: a write did.
    """
    name = figure_name(record_bytes)
    size = await _fill(path, record_bytes)
    say(f"{name}: {size >> 20:,} MiB are live")
    offset, _ = ring_place(capacity_bytes)
    program = find_fio()
    job = FioJob(path, offset, size, READ_BUFFER_BYTES, 1, None, reads=True)
    samples = []
    for repeat in range(repeats):
        reading = None if program is None else await run_fio(program, job)
        seconds = await _start(path)
        samples.append(Sample(seconds, None if reading is None else size / reading.bytes_per_s))
        say(f"{name}, run {repeat + 1} of {repeats}: {seconds:.2f} s")
    return make_figure(
        name, "s", samples,
        reference_is=NO_FIO if program is None else job.describe(),
        parameters={"record_bytes": record_bytes, "ring_bytes": size, "cores": os.cpu_count() or 0},
    )  # fmt: skip


def figure_name(record_bytes: int) -> str:
    """The figure of starts that find records of this size."""
    return f"wal_recovery_of_{record_bytes}B_records"


async def _fill(path: str, record_bytes: int) -> int:
    """Fill the ring with durable records, and leave it as a killed process would. Returns its
    bytes."""
    disk = RealDisk()
    try:
        wal = await Wal.open(disk, path, owner=OWNER)
        await wal.reset()
        body = [os.urandom(record_bytes)]
        together = max(1, FILL_BYTES // (record_bytes + WAL_RECORD_HEADER_BYTES))
        _, done = wal.append(body)
        with contextlib.suppress(WalFull):
            while True:
                for _ in range(together):
                    _, done = wal.append(body)
                await done
        await done  # the last that was taken
        return wal.used_bytes
    finally:
        await (
            disk.close()
        )  # but not the WAL, so that its header does not say that the end was graceful


async def _start(path: str) -> float:
    """Seconds from opening until the WAL would take an append; all records are checked, and no
    object is made for a record."""
    began = perf_counter()
    disk = RealDisk()
    try:
        wal = await Wal.open(disk, path, owner=OWNER)
        async for _ in wal.recover_runs():
            pass
        return perf_counter() - began
    finally:
        await disk.close()
