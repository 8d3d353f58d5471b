"""How fast LogsDB reads its blocks, beside fio reading the same disk sequentially.

LogsDB alone, in this process: blocks are flushed as on a node, the database is closed, and the
machine's cache of its files is dropped before each repeat, so that reads reach the disk. One reader
takes batch after batch, as a read stream does. The reference reads a file in blocks of the same
size, one at a time, past the machine's cache.

Source: docs/design.md §5 ("batches of bounded size");
docs/sources/hotpath.md §2.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from crc32c import crc32c

from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.fio import FioJob, run_fio
from cordwood.bench.place import PREFIX
from cordwood.block import BlockHeader, Envelope
from cordwood.host.real import real_host
from cordwood.host.real_disk import RealDisk
from cordwood.host.seams import Host
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.logs_db import LogState
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LogId, make_lsn
from cordwood.nodes import NodeId
from cordwood.settings import MIB, StorageSettings
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.rocks_logs import rocks_tables
from cordwood.storage.push.read_streams import BATCH_BYTES

LOG = 1
FLUSH_BYTES = 32 * MIB
"""As `storage.flush_bytes`: a partition has many files, as on a node."""


@dataclass(frozen=True, slots=True)
class LogsDbProfile:
    """One way to read.

    Attributes:
        name: of the figure.
        block_bytes: of a body.
        total_bytes: of all bodies.
    """

    name: str
    block_bytes: int
    total_bytes: int = 256 * MIB

    @property
    def blocks(self) -> int:
        """How many there are."""
        return max(1, self.total_bytes // self.block_bytes)


STANDARD = (
    LogsDbProfile("logsdb_read_64KiB_blocks", 64 << 10),
    LogsDbProfile("logsdb_read_1KiB_blocks", 1 << 10, 32 * MIB),
)


async def bench_logsdb(
    profile: LogsDbProfile, program: str | None, *, directory: str, repeats: int, say: Say
) -> Figure:
    """Fill a LogsDB and read it back.

    Args:
        program: fio; None for no reference.
        directory: for the database; removed at the end.
    Raises:
        CordwoodError: LogsDB failed.
    """
    below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    settings = StorageSettings()
    samples = []
    try:
        async with real_host() as host:
            say(f"{profile.name}: filling")
            path = os.path.join(below, "logsdb")
            await _fill(path, settings, host, profile)
            job = await _reference(below, profile)
            for repeat in range(repeats):
                drop_from_cache(path)
                seconds = await _read(path, settings, host, profile)
                fio = None if program is None else await run_fio(program, job)
                samples.append(
                    Sample(
                        profile.blocks * profile.block_bytes / seconds / 1e6,
                        None if fio is None else fio.bytes_per_s / 1e6,
                    )
                )
                say(f"{profile.name}: {repeat + 1} of {repeats}")
    finally:
        shutil.rmtree(below, ignore_errors=True)
    return make_figure(
        profile.name, "MB/s", samples, reference_is=job.describe(),
        parameters={
            "block_bytes": profile.block_bytes, "blocks": profile.blocks,
            "batch_bytes": BATCH_BYTES, "cores": os.cpu_count() or 0,
        },
    )  # fmt: skip


async def _fill(path: str, settings: StorageSettings, host: Host, profile: LogsDbProfile) -> None:
    tables = rocks_tables(path, settings, host)
    try:
        store, _ = await LogsStore.open(tables, settings, NodeId(1))
        body = os.urandom(profile.block_bytes)
        together = max(1, FLUSH_BYTES // profile.block_bytes)
        for first in range(1, profile.blocks + 1, together):
            numbers = range(first, min(first + together, profile.blocks + 1))
            blocks = list(_blocks(numbers, body))
            await store.flush(blocks, {LOG: LogState()}, store.offset + 1, 1)
    finally:
        await tables.close()


def _blocks(numbers: range, body: bytes) -> Iterator[StoredBlock]:
    crc, size = crc32c(body), len(body)
    for number in numbers:
        header = BlockHeader(
            LogId(LOG), make_lsn(1, number), 1, number,
            stored_bytes=size, raw_bytes=size, stored_crc=crc, raw_crc=crc,
        )  # fmt: skip
        envelope = Envelope((1, 2, 3))
        wire = pack_header(header) + pack_envelope(envelope)
        yield StoredBlock(header, envelope, wire, body)


async def _read(path: str, settings: StorageSettings, host: Host, profile: LogsDbProfile) -> float:
    """Seconds that one reader takes for all blocks, from the first call for a batch."""
    tables = rocks_tables(path, settings, host)
    try:
        store, _ = await LogsStore.open(tables, settings, NodeId(1))
        bound, at, blocks = int(make_lsn(1, profile.blocks)), int(make_lsn(1, 1)), 0
        began = perf_counter()
        while at <= bound:
            run = await store.read(
                LOG, at, bound, lambda *_: True, bytes_max=BATCH_BYTES, blocks_max=4096
            )
            blocks, at = blocks + len(run.blocks), run.next
        seconds = perf_counter() - began
        assert blocks == profile.blocks, "all of it came back"
        return seconds
    finally:
        await tables.close()


async def _reference(directory: str, profile: LogsDbProfile) -> FioJob:
    """Write a file beside it, for one sequential read."""
    path, size = os.path.join(directory, "reference"), profile.blocks * profile.block_bytes
    size = -(-size // 4096) * 4096
    disk = RealDisk()
    try:
        file = await disk.open_direct(path, create_bytes=size)
        await file.close()
    finally:
        await disk.close()
    block = max(4096, profile.block_bytes)
    return FioJob(path, 0, size, block, 1, None, reads=True)


def drop_from_cache(path: str) -> None:
    """Drop the machine's cache of these files, so that reads reach the disk."""
    for directory, _, names in os.walk(path):
        for name in names:
            file = os.open(os.path.join(directory, name), os.O_RDONLY)
            try:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)
