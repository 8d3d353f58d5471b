"""Bugs that crash states must catch: mistakes in the WAL, the storage engine, a node's start, a
disk.

Each bug is planted as in `sim.planted`, and the exploration of its subject must find a broken
promise within a few seeds. Most are mistakes of other log stores.

Source: docs/sources/reliability.md §2 and §6 (mutant list: ack before fsync, skip dir fsync, WAL
trimmed too early, ring wrap overwrites a live block, recovery stops at first bad block).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from crc32c import crc32c

from cordwood.errors import CordwoodError, NotOurCluster
from cordwood.layout.logs_db import META_TABLE, OFFSET_KEY, LogState, pack_offset
from cordwood.layout.wal_block import WAL_UNIT_BYTES, WalHeader
from cordwood.layout.wal_run import intact_bodies
from cordwood.layout.waves import StoredBlock
from cordwood.nodes import Member
from cordwood.protocol.seal import SealTable
from cordwood.protocol.wal_ring import Placement, RingSpace, ScanVerdict, WalScan
from cordwood.sim.crash_states.engine_subject import EngineSubject
from cordwood.sim.crash_states.explorer import PromiseBroken, Subject, explore
from cordwood.sim.crash_states.node_subject import NodeSubject
from cordwood.sim.crash_states.recorder import RecordingDisk, RecordingFile
from cordwood.sim.crash_states.staging_subject import StagingSubject
from cordwood.sim.crash_states.wal_subject import WalSubject
from cordwood.sim.memory_logs import MemoryTables
from cordwood.sim.planted import PlantedBug, planted
from cordwood.sim.planted.bug import Plant, at, notes_of, together, value
from cordwood.storage.data_directory import DataDirectory
from cordwood.storage.engine import StorageEngine
from cordwood.storage.identity import Identity
from cordwood.storage.log_cache import FlushSet
from cordwood.storage.logs_db.flusher import Flusher
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.partition import Partition
from cordwood.storage.logs_db.partition_drops import PartitionDrops
from cordwood.storage.staging.staged_index import StagedIndex
from cordwood.storage.staging.staged_table import StagedTable
from cordwood.storage.wal import wal_file, wal_recovery, wal_runs
from cordwood.storage.wal.delta_wal import Wal
from cordwood.storage.wal.wal_batches import BatchPlaces
from cordwood.storage.wal.wal_blocks import WalBlock
from cordwood.storage.wal.wal_file import newest_header
from cordwood.storage.wal.wal_recovery import ReadableFile


@dataclass(frozen=True, slots=True)
class CrashBug:
    """A bug, and the subject with the promises that it breaks."""

    bug: PlantedBug
    subject: Subject[Any]


# ---- the WAL ----


def _ack_before_durable(right: Any, self: Wal, block: WalBlock) -> None:
    waiters, block.waiters = block.waiters, []
    right(self, block)
    for on_durable in waiters:
        on_durable(None)


def _window_grows_in_memory(self: Wal, stop: int) -> None:
    length = self._window.wanted_length(stop)
    if length is not None:
        self._window.length = length
        self._loop.call_soon(self._pump)


async def _trim_before_durable(right: Any, self: Wal, offset: int) -> None:
    notes_of(self)["trim"] = asyncio.create_task(right(self, offset))


def _trim_frees_what_is_live(right: Any, self: RingSpace, floor: int) -> None:
    right(self, min(self.next, floor + self.ring // 2))


async def _closed_before_drained(right: Any, self: Wal) -> None:
    await self._write_header(graceful=True, durable=self._known_durable)
    await right(self)


def _recovery_stops_at_a_hole(right: Any, self: WalScan) -> None:
    right(self)
    self.cursor = 1 << 60


def _tail_without_padding(right: Any, self: RingSpace, size: int) -> Placement:
    found: Placement = right(self, size)
    return replace(found, padding=None)


def _header_chosen(choose: Callable[[list[WalHeader]], WalHeader]) -> Plant:
    async def chosen(
        right: Any, file: ReadableFile, path: str, slots: Sequence[WalHeader | CordwoodError]
    ) -> WalHeader:
        found = [slot for slot in slots if isinstance(slot, WalHeader)]
        header: WalHeader = choose(found) if found else await right(file, path, slots)
        return header

    return at(newest_header, within=wal_file).around(chosen)


def _header_by_clock() -> Plant:
    """Every third header write comes after the clock was set back."""
    return _header_chosen(
        lambda found: max(found, key=lambda header: (header.sequence % 3, header.sequence))
    )


def _header_older() -> Plant:
    return _header_chosen(lambda found: min(found, key=lambda header: header.sequence))


class _AnySum:
    """A checksum that equals every other checksum."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _any_sum(data: Any, value: int = 0, gil_release_mode: int = 0) -> Any:
    return _AnySum()


def _bodies_are_not_summed() -> Plant:
    return at(crc32c, within=wal_recovery).instead(_any_sum)


def _resumes_in_the_hole(right: Any, self: WalScan) -> ScanVerdict:
    told: ScanVerdict = right(self)
    return replace(told, resume=told.holes[0][0] // 4096 * 4096) if told.holes else told


def _holes_are_not_told(self: Wal) -> None:
    self._untold_holes = ()


def _window_and_runs_forgotten() -> Plant:
    """Two checks against the same error: without one of them, no promise breaks."""

    def admits(self: WalScan, offset: int, incarnation: int) -> bool:
        return offset == self.cursor

    return together(
        at(Wal.grow_window).instead(_window_grows_in_memory), at(WalScan.admits).instead(admits)
    )


def _damage_is_not_told(right: Any, self: WalScan) -> ScanVerdict:
    """A record with a wrong checksum is passed over as if it had never been there."""
    told: ScanVerdict = right(self)
    return replace(told, damage=(), holes=(*told.holes, *told.damage))


# ---- the storage engine ----


def _store_settled_at_once(
    right: Any,
    self: StorageEngine,
    wave: int,
    parts: Any,
    taken: list[StoredBlock],
    refused: Any,
    settled: Callable[[Any], None],
    by_recovery: bool,
) -> None:
    settled(refused)
    right(self, wave, parts, taken, refused, lambda _: None, by_recovery)


async def _seal_answered_at_once(
    right: Any, self: StorageEngine, *arguments: Any, **named: Any
) -> None:
    notes_of(self)["mark"] = asyncio.create_task(right(self, *arguments, **named))
    await asyncio.sleep(0)


def _restart_forgets_seals(right: Any, self: StorageEngine, offset: int, body: memoryview) -> None:
    right(self, offset, body)
    self.seals = SealTable()


def _ends_are_not_replayed(right: Any, self: StorageEngine, offset: int, body: memoryview) -> None:
    if body[0] != 3:
        right(self, offset, body)


async def _tables_are_not_flushed(right: Any, self: MemoryTables, table: str) -> None:
    """The metadata is durable and names blocks that are not durable."""
    if table == META_TABLE or not self._tables[table].files:
        await right(self, table)


async def _wal_trimmed_before_flush(right: Any, self: Flusher, batch: FlushSet) -> None:
    await self._engine.wal.trim(batch.offset)
    await right(self, batch)


def _metadata_before_blocks() -> Plant:
    """The two halves of the right flush in the wrong order."""
    original = LogsStore.write_rows

    async def write(self: LogsStore, table: str, rows: Any) -> None:
        await self._tables.write(META_TABLE, [(OFFSET_KEY, pack_offset(notes_of(self)["offset"]))])
        await self._tables.flush(META_TABLE)
        await original(self, table, rows)

    flush = LogsStore.flush

    async def noting(
        self: LogsStore, blocks: Any, states: Any, offset: int, *rest: Any, **named: Any
    ) -> None:
        notes_of(self)["offset"] = offset
        await flush(self, blocks, states, offset, *rest, **named)

    return together(at(LogsStore.write_rows).instead(write), at(LogsStore.flush).instead(noting))


async def _flush_forgets_states(
    right: Any, self: LogsStore, blocks: Any, states: Any, *rest: Any, **named: Any
) -> None:
    """Blocks and offset are flushed, and the metadata of their logs is not."""
    await right(self, blocks, {log: LogState() for log in states}, *rest, **named)


async def _flush_takes_the_largest_log(
    right: Any, self: LogsStore, blocks: Sequence[StoredBlock], *rest: Any, **named: Any
) -> None:
    """A flush takes the largest log, and its offset claims a prefix of all logs."""
    sizes: dict[int, int] = {}
    for block in blocks:
        sizes[block.header.log] = sizes.get(block.header.log, 0) + block.wire_bytes
    largest = max(sizes, key=sizes.__getitem__, default=0)
    await right(self, [each for each in blocks if each.header.log == largest], *rest, **named)


async def _amends_go_by_time(right: Any, self: LogsStore, blocks: Sequence[StoredBlock]) -> Any:
    return dict.fromkeys(await right(self, blocks))


async def _trim_not_written(self: StorageEngine, log: int, lsn: int, released: int) -> int:
    self.cache.log(log).trim_to(lsn)
    return lsn


async def _table_dropped_before_metadata(
    right: Any, self: PartitionDrops, partition: Partition, parts: Any
) -> None:
    await self._tables.drop(partition.table)
    await self._tables.create(partition.table)
    await right(self, partition, parts)


# ---- staged blocks ----


async def _cut_takes_all(
    right: Any, self: MemoryTables, table: str, ranges: Sequence[tuple[bytes, bytes]]
) -> None:
    await right(self, table, [(b"", b"\xff" * 32)])


def _pins_are_not_flushed(right: Any, self: StagedIndex) -> Any:
    held = dict(self.blocks)
    self.blocks = {stage: replace(each, pin=None) for stage, each in held.items()}
    try:
        return right(self)
    finally:
        self.blocks = held


async def _staged_table_is_not_flushed(right: Any, self: StagedTable, rows: Any) -> None:
    tables, self._tables = self._tables, _Unflushed(self._tables)  # type: ignore[assignment]
    try:
        await right(self, rows)
    finally:
        self._tables = tables


class _Unflushed:
    """Tables that accept writes and flush nothing."""

    def __init__(self, tables: Any) -> None:
        self.create, self.write = tables.create, tables.write

    async def flush(self, table: str) -> None:
        """Nothing."""


def _what_went_comes_back(right: Any, self: StagedIndex) -> Any:
    return [row for row in right(self) if row[1] is not None]


# ---- a node's first start ----


async def _identity_before_wal(right: Any, self: DataDirectory) -> Wal:
    settings, disk = self._settings, self._host.disk
    directory, size = settings.directory, settings.storage.wal_bytes
    if await disk.read_file(f"{directory}/identity") is None:
        identity = Identity(self._cluster.hex(), settings.node, size)
        await disk.write_file(f"{directory}/identity", msgspec.json.encode(identity))
        await Wal.format(disk, f"{directory}/wal", size, owner=settings.node)
    wal: Wal = await right(self)
    return wal


async def _half_a_start_is_refused(
    right: Any, self: DataDirectory, path: str, identity_path: str
) -> int:
    if "wal" in await self._host.disk.list_dir(self._settings.directory):
        raise NotOurCluster(f"{path} is there without {identity_path}")
    size: int = await right(self, path, identity_path)
    return size


def _claimed_before_it_is_written() -> Plant:
    claim, write = DataDirectory.claim, DataDirectory.write_claims

    async def not_yet(self: DataDirectory, claims: tuple[str, ...]) -> None:
        notes_of(self)["claims"] = claims

    async def claim_first(self: DataDirectory, reached: int, room: int = 0) -> Member:
        member = await claim(self, reached, room)
        await write(self, notes_of(self)["claims"])
        return member

    return together(
        at(DataDirectory.write_claims).instead(not_yet),
        at(DataDirectory.claim).instead(claim_first),
    )


async def _new_claim_replaces_the_last(
    right: Any, self: DataDirectory, claims: tuple[str, ...]
) -> None:
    await right(self, claims[-1:])


async def _reached_is_an_end(right: Any, self: DataDirectory, reached: int) -> None:
    await right(self, reached + WAL_UNIT_BYTES)


def _all_intact(data: memoryview, starts: Any, stops: Any, expected: Any) -> int:
    return len(starts)


def _runs_are_not_summed() -> Plant:
    return at(intact_bodies, within=wal_runs).instead(_all_intact)


def _batch_trimmed_as_a_record() -> Plant:
    return at(BatchPlaces.header_of).instead(lambda self, offset: offset)


# ---- a disk ----


def _directory_not_synced() -> Plant:
    return value(lambda: RecordingDisk.syncs_names, False)


def _direct_writes_in_cache() -> Plant:
    return value(lambda: RecordingFile.is_durable, False)


WAL, ENGINE, NODE = WalSubject(), EngineSubject(), NodeSubject()
STAGING = StagingSubject()


def _bug(subject: Subject[Any], name: str, story: str, plant: Plant) -> CrashBug:
    return CrashBug(PlantedBug(name, story, plant), subject)


CRASH_BUGS: tuple[CrashBug, ...] = (
    _bug(WAL, "told-before-durable", "a record is reported durable when its write starts",
         at(Wal.begin_write).around(_ack_before_durable)),
    _bug(WAL, "trim-before-durable", "a trim returns before its header is durable",
         at(Wal.trim).around(_trim_before_durable)),
    _bug(WAL, "trim-frees-live", "a trim frees more of the ring than was trimmed",
         at(RingSpace.on_trimmed).around(_trim_frees_what_is_live)),
    _bug(WAL, "closed-before-drained", "the header says closed while writes are in flight",
         at(Wal.finish).around(_closed_before_drained)),
    _bug(WAL, "stops-at-first-hole", "recovery ends at the first bad block",
         at(WalScan.on_nothing).around(_recovery_stops_at_a_hole)),
    _bug(WAL, "tail-without-padding", "the tail of a lap is skipped without a record of it",
         at(RingSpace.find_placement).around(_tail_without_padding)),
    _bug(WAL, "header-by-clock", "the header slot with the later clock counts, not the higher "
                                 "number",
         _header_by_clock()),
    _bug(WAL, "header-older", "the older of two good headers counts", _header_older()),
    _bug(WAL, "bodies-not-summed", "recovery trusts a record whose header is good",
         _bodies_are_not_summed()),
    _bug(WAL, "runs-not-summed", "recovery checks the sums of single records, and not of runs "
                                 "of records",
         _runs_are_not_summed()),
    _bug(WAL, "batch-header-lost", "a trim inside a batch lets recovery start at that record",
         _batch_trimmed_as_a_record()),
    _bug(WAL, "resumes-in-hole", "writing resumes in the first hole, over records behind it",
         at(WalScan.verdict).around(_resumes_in_the_hole)),
    _bug(WAL, "holes-not-told", "a second recovery reports the holes of the first one as damage",
         at(Wal.tell_holes).instead(_holes_are_not_told)),
    _bug(WAL, "window-in-memory", "the window grows before its header is durable, and runs mix",
         _window_and_runs_forgotten()),
    _bug(WAL, "writes-in-cache", "direct writes stay in the drive's cache",
         _direct_writes_in_cache()),
    _bug(WAL, "damage-not-told", "a record that fails its checksum counts as never written",
         at(WalScan.verdict).around(_damage_is_not_told)),
    _bug(ENGINE, "store-settled-at-once", "a store is settled before the WAL has it",
         at(StorageEngine.append_store).around(_store_settled_at_once)),
    _bug(ENGINE, "seal-answered-at-once", "a seal is answered before the WAL has it",
         at(StorageEngine.write_mark).around(_seal_answered_at_once)),
    _bug(ENGINE, "restart-forgets-seals", "a restart forgets its seals",
         at(StorageEngine.replay).around(_restart_forgets_seals)),
    _bug(ENGINE, "ends-not-replayed", "a restart brings back records that an epoch's end dropped",
         at(StorageEngine.replay).around(_ends_are_not_replayed)),
    _bug(ENGINE, "tables-not-flushed", "LogsDB's metadata is flushed and its blocks are not",
         at(MemoryTables.flush).around(_tables_are_not_flushed)),
    _bug(ENGINE, "wal-trimmed-early", "the WAL is trimmed before LogsDB has its records",
         at(Flusher.take_batch).around(_wal_trimmed_before_flush)),
    _bug(ENGINE, "offset-before-blocks", "LogsDB reports an offset before it has the blocks",
         _metadata_before_blocks()),
    _bug(ENGINE, "flush-forgets-states", "a flush takes blocks and forgets seals and ends",
         at(LogsStore.flush).around(_flush_forgets_states)),
    _bug(ENGINE, "flush-takes-largest", "a flush takes the largest log, not a prefix of all logs",
         at(LogsStore.flush).around(_flush_takes_the_largest_log)),
    _bug(ENGINE, "amends-by-time", "a flush puts an envelope update into a partition that may "
                                   "not have the body",
         at(LogsStore.homes_of).around(_amends_go_by_time)),
    _bug(ENGINE, "trim-not-written", "a trim point lives in memory until the next flush",
         at(StorageEngine.trim).instead(_trim_not_written)),
    _bug(ENGINE, "table-before-metadata", "a partition's table is deleted before its directory "
                                          "entries",
         at(PartitionDrops.drop_partition).around(_table_dropped_before_metadata)),
    _bug(ENGINE, "cut-takes-all", "a partition that is mostly trimmed is cut down to nothing",
         at(MemoryTables.cut).around(_cut_takes_all)),
    _bug(STAGING, "pins-not-flushed", "a flush takes staged blocks without their pins",
         at(StagedIndex.cut).around(_pins_are_not_flushed)),
    _bug(STAGING, "staged-not-flushed", "the WAL is trimmed before the staged table is durable",
         at(StagedTable.flush).around(_staged_table_is_not_flushed)),
    _bug(STAGING, "unstaged-comes-back", "a flush leaves released staged blocks in their table",
         at(StagedIndex.cut).around(_what_went_comes_back)),
    _bug(NODE, "identity-before-wal", "a node writes its identity, then formats its WAL",
         at(DataDirectory.open_wal).around(_identity_before_wal)),
    _bug(NODE, "half-start-refused", "a WAL without an identity is refused for ever",
         at(DataDirectory.make_wal).around(_half_a_start_is_refused)),
    _bug(NODE, "claim-not-written-first", "a start claims the node, and only then records the "
                                          "name of its claim",
         _claimed_before_it_is_written()),
    _bug(NODE, "claim-overwrites", "a start forgets the present claim when it writes its own",
         at(DataDirectory.write_claims).around(_new_claim_replaces_the_last)),
    _bug(NODE, "reached-is-an-end", "the metadata store gets the offset of the next record "
                                    "instead of the last",
         at(DataDirectory.note).around(_reached_is_an_end)),
    _bug(NODE, "directory-not-synced", "new names are not synced to their directory",
         _directory_not_synced()),
)  # fmt: skip
"""Every bug that can be planted here."""


def search(bug: CrashBug, seeds: int) -> str:
    """Plant a bug and explore this many seeds. Returns the broken promise and its story, "" for
    none."""
    for seed in range(seeds):
        story = story_of(bug, seed)
        if story:
            return story
    return ""


def story_of(bug: CrashBug, seed: int) -> str:
    """Plant a bug and explore one seed. Returns the broken promise and its story, "" for none."""
    with planted(bug.bug):
        try:
            explore(bug.subject, seed)
        except PromiseBroken as error:
            return str(error)
    return ""
