"""How fast one client reads a log from its oldest record to its tail.

Three ways: every record as an object, as an application reads; Arrow batches; and whole blocks with
unopened bodies. Blocks are also read with every node sending every copy (`scd_enabled` off), which
shows the gain of sending one copy: each figure has the bytes that nodes sent for each byte that was
read.

Source: docs/design.md §7; docs/sources/hotpath.md §3.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from dataclasses import dataclass
from time import perf_counter

from cordwood import aio
from cordwood.bench.append import Say
from cordwood.bench.append_loops import Limit, append_batches, client_settings
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.loopback import REFERENCE_IS, loopback_bytes_per_second
from cordwood.bench.place import bench_place
from cordwood.block import Gap, Record
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.errors import BadSetting, Corrupt
from cordwood.layout.message import StatusReply
from cordwood.lsn import Lsn
from cordwood.protocol.gap_detection import Delivery
from cordwood.settings import ClientSettings

LOG = "bench/read"

FILL_IN_FLIGHT = 8
"""Records in flight while the log is filled, which is not measured."""

FILL_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ReadProfile:
    """A way to read.

    Attributes:
        name: of the figure.
        size: bytes of a record.
        batch: records of a block.
        records: in all.
        as_objects: open every body and make a `Record` of each.
        as_arrow: make Arrow batches; else, and without `as_objects`, whole blocks.
        single_copy: each block comes from one node; else from all that hold it.
    """

    name: str
    size: int
    batch: int
    records: int
    as_objects: bool
    as_arrow: bool = False
    single_copy: bool = True

    def __post_init__(self) -> None:
        if min(self.size, self.batch, self.records) < 1:
            raise BadSetting("size, batch and records are at least 1")

    @property
    def unit(self) -> str:
        """Records count by number, blocks by their bytes."""
        return "records/s" if self.as_objects or self.as_arrow else "MB/s"


RECORDS = ReadProfile("read_256B_records", 256, 1024, 400_000, True)
BLOCKS = ReadProfile("read_64KiB_blocks", 1024, 64, 160_000, False)
ARROW = ReadProfile("read_256B_arrow", 256, 1024, 800_000, False, as_arrow=True)
ALL_COPIES = ReadProfile("read_64KiB_blocks_all_send_all", 1024, 64, 160_000, False,
                         single_copy=False)  # fmt: skip
STANDARD = (RECORDS, ARROW, BLOCKS, ALL_COPIES)


def custom_profile(size: int | None, batch: int | None, records: int | None) -> ReadProfile:
    """A profile of objects from options; other values are those of the standard profile."""
    size = RECORDS.size if size is None else size
    batch = RECORDS.batch if batch is None else batch
    records = RECORDS.records if records is None else records
    return ReadProfile(f"read_{size}B_records_x{batch}", size, batch, records, True)


async def bench_read(
    profile: ReadProfile, *, url: str | None, directory: str, nodes: int, repeats: int, say: Say
) -> Figure:
    """Fill a log, then read it again and again, each time with a new client.

    Args:
        url: a running cluster, whose log `bench/read` then grows; None starts one.
        directory: for a fresh cluster.
        nodes: of a fresh cluster.
    Raises:
        CordwoodError: the cluster did not start, or a read failed.
    """
    blocks = -(-profile.records // profile.batch)
    say(f"{profile.name}: starting" if url is None else f"{profile.name}: {url}")
    async with bench_place(
        url, directory, nodes=nodes, blocks=blocks, block_bytes=profile.size * profile.batch
    ) as place:
        settings = client_settings(profile.size, FILL_IN_FLIGHT, profile.batch)
        async with await aio.connect(place.url, settings) as store:
            filled = await _fill(store, profile)
            copies = (await store.log(LOG)).replication.copies
            members = len(store.members)
            samples = []
            before = await _sent_bytes(store)
            for repeat in range(repeats):
                samples.append(await _sample(place.url, profile, filled))
                say(f"{profile.name}: {repeat + 1} of {repeats}")
            sent = await _sent_bytes(store) - before
    return make_figure(
        profile.name, profile.unit, samples,
        reference_is=REFERENCE_IS,
        parameters={
            "size": profile.size, "batch": profile.batch, "records": profile.records,
            "copies": copies, "nodes": members, "cores": os.cpu_count() or 0,
            "sent_per_byte_read": round(sent / (repeats * filled.records * profile.size), 3),
        },
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Filled:
    """What there is to read: `records` of them in `[first, last]`."""

    first: Lsn
    last: Lsn
    records: int


async def _fill(store: Store, profile: ReadProfile) -> Filled:
    before = await store.append(LOG, b"what is read comes after this")
    values = [os.urandom(profile.size) for _ in range(profile.batch)]
    whole = -(-profile.records // profile.batch) * profile.batch
    limit = Limit(whole, FILL_TIMEOUT_S)
    run = await append_batches(store, LOG, values, FILL_IN_FLIGHT, limit)
    return Filled(Lsn(before + 1), await store.tail(LOG), run.records)


async def fill_log(url: str, profile: ReadProfile) -> Filled:
    """Append what a profile reads to a cluster that runs."""
    settings = client_settings(profile.size, FILL_IN_FLIGHT, profile.batch)
    async with await aio.connect(url, settings) as store:
        return await _fill(store, profile)


async def _sample(url: str, profile: ReadProfile, filled: Filled) -> Sample:
    """The reference, and at once after it the whole log."""
    reference = await loopback_bytes_per_second(filled.records * profile.size)
    per = profile.size if profile.as_objects or profile.as_arrow else 1e6
    return await read_sample(url, profile, filled, reference / per)


async def read_sample(url: str, profile: ReadProfile, filled: Filled, reference: float) -> Sample:
    """Read the whole log with a new client.

    Args:
        reference: in the profile's unit.
    Raises:
        Corrupt: other records were read than were appended.
    """
    total = filled.records * profile.size
    settings = ClientSettings(scd_enabled=profile.single_copy)
    async with await aio.connect(url, settings) as store:
        began = perf_counter()
        stream = await store.read(LOG, filled.first, filled.last)
        records = await _reading(profile, stream)
        seconds = perf_counter() - began
    if records != filled.records:
        raise Corrupt(f"{records} records were read of the {filled.records} that {LOG} was given")
    if profile.as_objects or profile.as_arrow:
        return Sample(records / seconds, reference)
    return Sample(total / seconds / 1e6, reference)


async def _sent_bytes(store: Store) -> int:
    """Bytes that all nodes have sent to readers since their starts, without nodes that are down."""
    answers = (await store.status()).values()
    return sum(each.sent_bytes for each in answers if isinstance(each, StatusReply))


def _reading(profile: ReadProfile, stream: ReadStream) -> Coroutine[None, None, int]:
    if profile.as_arrow:
        return _read_arrow(stream)
    return _read_objects(stream) if profile.as_objects else _read_blocks(stream)


async def _read_arrow(stream: ReadStream) -> int:
    records = 0
    async for batch in stream.arrow():
        records += 0 if isinstance(batch, Gap) else batch.num_rows
    return records


async def _read_objects(stream: ReadStream) -> int:
    records = 0
    while items := await stream.next_items():
        records += sum(isinstance(item, Record) for item in items)
    return records


async def _read_blocks(stream: ReadStream) -> int:
    records = 0
    while (taken := await stream.next()) is not None:
        if isinstance(taken, Delivery):
            records += taken.last - taken.first + 1
    return records
