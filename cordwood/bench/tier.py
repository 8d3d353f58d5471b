"""How fast a log goes to main storage, and comes back from it, beside plain puts and gets.

- *Upload.* An uploader takes blocks as a node sends them, writes objects and reads them back, puts
  and commits them. Beside it, objects of the same size are put as plain bytes, into the same store
  in the same run: by the library `obstore` alone, and by Cordwood's own store. In a directory the
  library alone does not sync, so it is measured twice: with the syncs of Cordwood, and without.
- *Catch-up.* One reader takes all records into Arrow, beside plain gets of the same bytes, again by
  both.
- *Puts.* The number of charged requests for a GiB of bodies, heads and pages included, beside one
  put for each object.
- *First record.* `tier_first` measures it.
- *Merges.* Small objects are merged into large objects, as by nodes, `cordwood tier compact` and
  Spark. Both sides count the bytes of stored objects, so that good compression does not look like
  speed.

The process keeps its memory, as nodes and `cordwood tier` do (`host.kept_memory`). An application
that reads without this takes a quarter more processor time, for pages that it gives back to the
kernel and takes again.

Source: docs/objects.md, "Uploading" and "Reading".
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.logsdb import drop_from_cache
from cordwood.bench.obstore_alone import ObstoreAlone, open_alone
from cordwood.bench.place import PREFIX
from cordwood.bench.tier_first import AWAY_S, FirstRecord, first_record
from cordwood.block import BlockHeader, Buffer, Codec, Gap
from cordwood.client.read.arrow_batches import BatchGatherer
from cordwood.client.read.tier_read import held_block
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.layout.arrow import COLUMNS
from cordwood.layout.body import encode_body, seal_body
from cordwood.lsn import LogId, make_lsn
from cordwood.protocol.gap_detection import Delivery
from cordwood.protocol.merge_plan import MergePolicy
from cordwood.protocol.tier_plan import OBJECT_BYTES
from cordwood.settings import MIB
from cordwood.tier.addresses import open_object_store
from cordwood.tier.collect import list_all
from cordwood.tier.compact import compact_log
from cordwood.tier.history import GET_S, HistoryReader
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import Etag, ObjectStore
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.uploader import PUT_S, Item, LogUploader

LOG = 1
MADE_US = 1
"""The time at which the log was made: its origin, which clients read."""
GIB = 1 << 30
SMALL_BYTES = MIB
"""Bytes of bodies in each object that is merged."""
MERGED_BYTES = 64 * MIB
"""Bytes of bodies that are merged: those of one object."""
RANDOM_SHARE = 0.5
"""Share of random bytes in a record: the others are zeros, so that an object is half as large as
its bodies."""


PUTS_ARE = {
    "": "puts of the same bytes by obstore alone, as durable",
    "_unsynced_puts": "puts of the same bytes by obstore alone, not synced: into the page cache",
    "_own_puts": "puts of the same bytes by Cordwood's own store",
}
GETS_ARE = {
    "": "gets of the same bytes by obstore alone",
    "_own_gets": "gets of the same bytes by Cordwood's own store",
}
"""The references, by the ends of their figures' names."""


@dataclass(frozen=True, slots=True)
class TierProfile:
    """The uploaded log.

    Attributes:
        record_bytes, block_records: of a record, and records in a block.
        total_bytes: of all payloads.
    """

    record_bytes: int = 256
    block_records: int = 2048
    total_bytes: int = 256 * MIB

    @property
    def blocks(self) -> int:
        """How many there are."""
        return max(1, self.total_bytes // (self.record_bytes * self.block_records))


async def bench_tier(
    profile: TierProfile, *, store: str, directory: str, repeats: int, say: Say
) -> list[Figure]:
    """Upload and read back, `repeats` times, each beside plain puts and gets.

    Args:
        store: of the object store; "" for a directory that is made and removed.
        directory: for this directory.
    Raises:
        BadSetting: the library obstore is not installed.
        CordwoodError: the store failed.
    """
    below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    blocks = made_blocks(profile)
    uploads: list[tuple[str, Sample]] = []
    reads: list[tuple[str, Sample]] = []
    records: list[Sample] = []
    puts: list[Sample] = []
    merges: list[Sample] = []
    firsts: list[FirstRecord] = []
    body_bytes = sum(header.raw_bytes for header, _ in blocks)
    objects_puts = 0
    try:
        async with real_host() as host:
            for repeat in range(repeats):
                at = f"{store}/bench-{repeat}" if store else os.path.join(below, str(repeat))
                objects = await open_object_store(host, at)
                try:
                    alone = open_alone(host, at)
                    counted = _Puts(objects)
                    seconds = await upload_log(counted, host, blocks)
                    names = [
                        (info.name, info.size) async for info in list_all(objects, "logs/")
                        if info.name.endswith(".parquet")
                    ]  # fmt: skip
                    size = sum(each for _, each in names)
                    objects_puts = len(names)
                    gib = body_bytes / GIB
                    puts.append(Sample(counted.puts / gib, objects_puts / gib))
                    for name, put_s in await _puts(alone, objects, names):
                        uploads.append((name, Sample(size / seconds / 1e6, size / put_s / 1e6)))
                    drop_from_cache(at)
                    read_s, rows = await _read(objects, host)
                    drop_from_cache(at)
                    get_s = await alone.gets(names)
                    drop_from_cache(at)
                    own_s = await _plain_gets(objects, names)
                    for name, each_s in (("", get_s), ("_own_gets", own_s)):
                        reads.append((name, Sample(size / read_s / 1e6, size / each_s / 1e6)))
                    plain_s = await host.run_blocking(
                        partial(_plain_rows, [await _whole(objects, *each) for each in names]),
                        timeout_s=GET_S,
                    )
                    records.append(Sample(rows / read_s, rows / (get_s + plain_s)))
                    first = await first_record(objects, host, LOG, make_lsn(1, 1), MADE_US)
                    firsts.append(first)
                    small = blocks[: max(1, len(blocks) * MERGED_BYTES // body_bytes)]
                    merges.append(Sample(await _merge(host, f"{at}-small", small), None))
                finally:
                    await objects.close()
                say(f"tier: {repeat + 1} of {repeats}")
    finally:
        shutil.rmtree(below, ignore_errors=True)
    parameters: dict[str, int | float | str] = {
        "record_bytes": profile.record_bytes, "block_records": profile.block_records,
        "body_bytes": body_bytes, "objects": objects_puts,
        "cores": os.cpu_count() or 0, "store": store or "a directory",
    }  # fmt: skip
    return [
        *_beside("tier_upload", uploads, PUTS_ARE, parameters),
        *_beside("tier_read", reads, GETS_ARE, parameters),
        make_figure("tier_read_records", "records/s", records,
                    reference_is="gets by obstore alone, then pyarrow alone, one thread",
                    parameters=parameters),
        *_first_figures(firsts, parameters),
        make_figure("tier_puts", "puts/GiB of bodies", puts, reference_is="a put for each object",
                    parameters=parameters),
        make_figure("tier_merge", "MB/s of bodies", merges, reference_is="none",
                    parameters={**parameters, "small_bytes": SMALL_BYTES}),
    ]  # fmt: skip


def _beside(
    name: str,
    samples: list[tuple[str, Sample]],
    references: dict[str, str],
    parameters: dict[str, int | float | str],
) -> list[Figure]:
    """A figure for each reference that was measured."""
    return [
        make_figure(name + end, "MB/s", [each for of, each in samples if of == end],
                    reference_is=reference_is, parameters=parameters)
        for end, reference_is in references.items()
        if any(of == end for of, _ in samples)
    ]  # fmt: skip


def _first_figures(
    firsts: list[FirstRecord], parameters: dict[str, int | float | str]
) -> list[Figure]:
    parameters = {**parameters, "away_ms": AWAY_S * 1000}
    return [
        make_figure("tier_first_record", "ms",
                    [Sample(each.seconds * 1000, each.get_s * 1000) for each in firsts],
                    reference_is="one get of its row group", parameters=parameters),
        make_figure("tier_first_record_gets", "gets one after another",
                    [Sample(each.turns, each.gets) for each in firsts],
                    reference_is="all gets, also those made at the same time",
                    parameters=parameters),
    ]  # fmt: skip


def made_blocks(profile: TierProfile) -> list[tuple[BlockHeader, bytes]]:
    """The log that is uploaded, block by block."""
    chance = random.Random(1)
    drawn = round(profile.record_bytes * RANDOM_SHARE)
    rest = bytes(profile.record_bytes - drawn)
    made: list[tuple[BlockHeader, bytes]] = []
    for number in range(profile.blocks):
        noise = chance.randbytes(drawn * profile.block_records)
        values = [noise[at : at + drawn] + rest for at in range(0, len(noise), drawn)]
        raw = encode_body(values, timestamps_us=1_000_000 * number)
        stored, stored_crc, raw_crc = seal_body(raw, Codec.NONE)
        header = BlockHeader(
            LogId(LOG), make_lsn(1, 1 + number * profile.block_records), profile.block_records,
            number, stored_bytes=len(stored), raw_bytes=len(raw), stored_crc=stored_crc,
            raw_crc=raw_crc,
        )  # fmt: skip
        made.append((header, stored))
    return made


class _Puts(PatientStore):
    """A store that counts its puts.

    Attributes:
        puts: calls, conditional ones too.
    """

    def __init__(self, store: PatientStore) -> None:
        self.__dict__.update(store.__dict__)
        self.puts = 0

    async def put(self, name: str, content: Sequence[Buffer], *, timeout_s: float) -> None:
        self.puts += 1
        await super().put(name, content, timeout_s=timeout_s)

    async def put_if(
        self, name: str, content: bytes, expected: Etag | None, *, timeout_s: float
    ) -> Etag:
        self.puts += 1
        return await super().put_if(name, content, expected, timeout_s=timeout_s)


async def _merge(host: Host, at: str, blocks: list[tuple[BlockHeader, bytes]]) -> float:
    """Bytes of bodies a second, in millions, from small objects into large ones."""
    store = await open_object_store(host, at)
    try:
        await upload_log(store, host, blocks, object_bytes=SMALL_BYTES)
        manifest = LogManifest(store, LOG, host, "bench")
        began = perf_counter()
        done = await compact_log(store, manifest, host, LOG, MergePolicy())
        return done.bytes / (perf_counter() - began) / 1e6
    finally:
        await store.close()


async def upload_log(
    store: ObjectStore,
    host: Host,
    blocks: list[tuple[BlockHeader, bytes]],
    object_bytes: int = OBJECT_BYTES,
) -> float:
    """Seconds until all blocks are in a store, and committed."""

    async def items() -> AsyncIterator[Item]:
        for block in blocks:
            yield block

    manifest = LogManifest(store, LOG, host, "bench")
    began = perf_counter()
    uploader = LogUploader(
        store, manifest, host, LOG, "/bench", created_us=MADE_US, object_bytes=object_bytes
    )
    await uploader.run(items(), make_lsn(1, 1))
    return perf_counter() - began


async def _puts(
    alone: ObstoreAlone, store: ObjectStore, names: list[tuple[str, int]]
) -> list[tuple[str, float]]:
    """Seconds of plain puts by each reference of PUTS_ARE."""
    sizes = [size for _, size in names]
    found = [
        ("", await alone.puts(sizes, is_synced=True)),
        ("_own_puts", await _plain_puts(store, names)),
    ]
    if alone.is_directory:
        # Trap: the machine writes these to the disk after their end, beside the next measurement.
        # So they come last, before the caches are synced and dropped.
        found.append(("_unsynced_puts", await alone.puts(sizes, is_synced=False)))
    return found


async def _plain_puts(store: ObjectStore, names: list[tuple[str, int]]) -> float:
    contents = [os.urandom(size) for _, size in names]
    began = perf_counter()
    for number, content in enumerate(contents):
        await store.put(f"plain/{number}", [content], timeout_s=PUT_S)
    return perf_counter() - began


async def _plain_gets(store: ObjectStore, names: list[tuple[str, int]]) -> float:
    began = perf_counter()
    for name, size in names:
        await store.get(name, 0, size, timeout_s=GET_S)
    return perf_counter() - began


async def _whole(store: ObjectStore, name: str, size: int) -> bytes:
    return await store.get(name, 0, size, timeout_s=GET_S)


def _plain_rows(contents: list[bytes]) -> float:
    """Seconds until pyarrow has the columns that readers are given, without any check."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    began = perf_counter()
    for content in contents:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=list(COLUMNS), use_threads=False)
    return perf_counter() - began


async def _read(store: ObjectStore, host: Host) -> tuple[float, int]:
    """Seconds until all of it is in Arrow, and the rows."""
    manifest = LogManifest(store, LOG, host, "bench")
    rows = 0
    gatherer = BatchGatherer(COLUMNS, None)
    began = perf_counter()
    # As a client's stream reads for `arrow`.
    async with HistoryReader(store, manifest, host, LOG, make_lsn(1, 1), as_rows=True) as history:
        async for item in history:
            if isinstance(item, Gap):
                continue
            delivery = Delivery(held_block(item), item.first, item.last)
            rows += sum(batch.num_rows for batch in gatherer.add("/bench", delivery))
        rows += sum(batch.num_rows for batch in gatherer.finish())
    return perf_counter() - began, rows
