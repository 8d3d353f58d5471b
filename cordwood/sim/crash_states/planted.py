"""Bugs that crash states must catch: slips in the WAL, the storage engine, a node's start, a disk.

Each is planted as `sim.planted` plants its own, and the exploration of its subject must break a
promise within a few seeds. Most are slips that other log stores had.

Source: docs/sources/reliability.md §2 and §6 (mutant list: ack before fsync, skip dir fsync, WAL
trimmed too early, ring wrap overwrites a live block, recovery stops at first bad block).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cordwood.errors import NotOurCluster
from cordwood.layout.logs_db import META_TABLE, OFFSET_KEY, LogState, pack_offset
from cordwood.layout.wal_block import WAL_UNIT_BYTES, WalHeader
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

Plant = Sequence[tuple[Any, str, Any]]


@dataclass(frozen=True, slots=True)
class CrashBug:
    """A bug and the subject whose promises it breaks."""

    bug: PlantedBug
    subject: Subject[Any]


# ---- the WAL ----


def _ack_before_durable() -> Plant:
    original = Wal._write

    def write(self: Wal, block: WalBlock) -> None:
        waiters, block.waiters = block.waiters, []
        original(self, block)
        for on_durable in waiters:
            on_durable(None)

    return [(Wal, "_write", write)]


def _window_grows_in_memory() -> Plant:
    def grow(self: Wal, stop: int) -> None:
        length = self._window.wanted_length(stop)
        if length is not None:
            self._window.length = length
            self._loop.call_soon(self._pump)

    return [(Wal, "_grow", grow)]


def _trim_before_durable() -> Plant:
    original = Wal.trim

    async def trim(self: Wal, offset: int) -> None:
        self._planted_trim = asyncio.create_task(original(self, offset))  # type: ignore[attr-defined]

    return [(Wal, "trim", trim)]


def _trim_frees_what_is_live() -> Plant:
    original = RingSpace.on_trimmed

    def on_trimmed(self: RingSpace, floor: int) -> None:
        original(self, min(self.next, floor + self.ring // 2))

    return [(RingSpace, "on_trimmed", on_trimmed)]


def _closed_before_drained() -> Plant:
    original = Wal._finish

    async def finish(self: Wal) -> None:
        await self._write_header(graceful=True, durable=self._known_durable)
        await original(self)

    return [(Wal, "_finish", finish)]


def _recovery_stops_at_a_hole() -> Plant:
    original = WalScan.on_nothing

    def on_nothing(self: WalScan) -> None:
        original(self)
        self.cursor = 1 << 60

    return [(WalScan, "on_nothing", on_nothing)]


def _tail_without_padding() -> Plant:
    original = RingSpace._find

    def find(self: RingSpace, size: int) -> Placement:
        return replace(original(self, size), padding=None)

    return [(RingSpace, "_find", find)]


def _header_chosen(choose: Callable[[list[WalHeader]], WalHeader]) -> Plant:
    original = wal_file.newest_header

    async def newest_header(file: Any, path: str, slots: Sequence[Any]) -> WalHeader:
        found = [slot for slot in slots if isinstance(slot, WalHeader)]
        return choose(found) if found else await original(file, path, slots)

    return [(wal_file, "newest_header", newest_header)]


def _header_by_clock() -> Plant:
    """Each third header write comes after the clock was set back."""
    return _header_chosen(
        lambda found: max(found, key=lambda header: (header.sequence % 3, header.sequence))
    )


def _header_older() -> Plant:
    return _header_chosen(lambda found: min(found, key=lambda header: header.sequence))


class _AnySum:
    """A checksum that equals every other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _bodies_are_not_summed() -> Plant:
    return [(wal_recovery, "crc32c", lambda body: _AnySum())]


def _resumes_in_the_hole() -> Plant:
    original = WalScan.verdict

    def verdict(self: WalScan) -> ScanVerdict:
        right = original(self)
        return replace(right, resume=right.holes[0][0] // 4096 * 4096) if right.holes else right

    return [(WalScan, "verdict", verdict)]


def _holes_are_not_told() -> Plant:
    def tell_holes(self: Wal) -> None:
        self._untold_holes = ()

    return [(Wal, "_tell_holes", tell_holes)]


def _window_and_runs_forgotten() -> Plant:
    """Two guards of one door: either alone is missed by no promise."""

    def admits(self: WalScan, offset: int, incarnation: int) -> bool:
        return offset == self.cursor

    return [*_window_grows_in_memory(), (WalScan, "admits", admits)]


def _damage_is_not_told() -> Plant:
    """A record that fails its sum is passed over as one that was never there."""
    original = WalScan.verdict

    def verdict(self: WalScan) -> ScanVerdict:
        right = original(self)
        return replace(right, damage=(), holes=(*right.holes, *right.damage))

    return [(WalScan, "verdict", verdict)]


# ---- the storage engine ----


def _store_settled_at_once() -> Plant:
    original = StorageEngine._append_store

    def append_store(
        self: StorageEngine,
        wave: int,
        parts: Any,
        taken: list[StoredBlock],
        refused: Any,
        settled: Callable[[Any], None],
        *rest: Any,
    ) -> None:
        settled(refused)
        original(self, wave, parts, taken, refused, lambda _: None, *rest)

    return [(StorageEngine, "_append_store", append_store)]


def _seal_answered_at_once() -> Plant:
    original = StorageEngine._write_mark

    async def write_mark(self: StorageEngine, *arguments: Any) -> None:
        self._planted_mark = asyncio.create_task(original(self, *arguments))  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    return [(StorageEngine, "_write_mark", write_mark)]


def _restart_forgets_seals() -> Plant:
    original = StorageEngine._replay

    def replay(self: StorageEngine, offset: int, body: memoryview) -> None:
        original(self, offset, body)
        self.seals = SealTable()

    return [(StorageEngine, "_replay", replay)]


def _ends_are_not_replayed() -> Plant:
    original = StorageEngine._replay

    def replay(self: StorageEngine, offset: int, body: memoryview) -> None:
        if body[0] != 3:
            original(self, offset, body)

    return [(StorageEngine, "_replay", replay)]


def _tables_are_not_flushed() -> Plant:
    """The metadata is durable, and so says that the blocks are, which they are not."""
    original = MemoryTables.flush

    async def flush(self: MemoryTables, table: str) -> None:
        if table == META_TABLE or not self._tables[table].files:
            await original(self, table)

    return [(MemoryTables, "flush", flush)]


def _wal_trimmed_before_flush() -> Plant:
    original = Flusher._take

    async def take(self: Flusher, batch: FlushSet) -> None:
        await self._engine.wal.trim(batch.offset)
        await original(self, batch)

    return [(Flusher, "_take", take)]


def _metadata_before_blocks() -> Plant:
    """As of the right flush, its two halves in the wrong order."""
    original = LogsStore._write

    async def write(self: LogsStore, table: str, rows: Any) -> None:
        await self._tables.write(META_TABLE, [(OFFSET_KEY, pack_offset(self._planted_offset))])  # type: ignore[attr-defined]
        await self._tables.flush(META_TABLE)
        await original(self, table, rows)

    flush = LogsStore.flush

    async def noting(self: LogsStore, blocks: Any, states: Any, offset: int, *rest: Any) -> None:
        self._planted_offset = offset  # type: ignore[attr-defined]
        await flush(self, blocks, states, offset, *rest)

    return [(LogsStore, "_write", write), (LogsStore, "flush", noting)]


def _flush_forgets_states() -> Plant:
    """Blocks and offset are flushed, what is known of their logs is not."""
    flush = LogsStore.flush

    async def forgetting(self: LogsStore, blocks: Any, states: Any, *rest: Any) -> None:
        await flush(self, blocks, {log: LogState() for log in states}, *rest)

    return [(LogsStore, "flush", forgetting)]


def _flush_takes_the_largest_log() -> Plant:
    """A flush takes the log that has most, and its offset says that it took a prefix of all."""
    flush = LogsStore.flush

    async def taking(self: LogsStore, blocks: Sequence[StoredBlock], *rest: Any) -> None:
        sizes: dict[int, int] = {}
        for block in blocks:
            sizes[block.header.log] = sizes.get(block.header.log, 0) + block.wire_bytes
        largest = max(sizes, key=sizes.__getitem__, default=0)
        await flush(self, [each for each in blocks if each.header.log == largest], *rest)

    return [(LogsStore, "flush", taking)]


def _amends_go_by_time() -> Plant:
    original = LogsStore._homes

    async def homes(self: LogsStore, blocks: Sequence[StoredBlock]) -> Any:
        return dict.fromkeys(await original(self, blocks))

    return [(LogsStore, "_homes", homes)]


def _trim_not_written() -> Plant:
    async def trim(self: StorageEngine, log: int, lsn: int, released: int) -> int:
        self.cache.log(log).trim_to(lsn)
        return lsn

    return [(StorageEngine, "trim", trim)]


def _table_dropped_before_metadata() -> Plant:
    original = PartitionDrops._drop

    async def drop(self: PartitionDrops, partition: Partition, parts: Any) -> None:
        await self._tables.drop(partition.table)
        await self._tables.create(partition.table)
        await original(self, partition, parts)

    return [(PartitionDrops, "_drop", drop)]


# ---- staged blocks ----


def _cut_takes_all() -> Plant:
    original = MemoryTables.cut

    async def cut(self: MemoryTables, table: str, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        await original(self, table, [(b"", b"\xff" * 32)])

    return [(MemoryTables, "cut", cut)]


def _pins_are_not_flushed() -> Plant:
    original = StagedIndex.cut

    def cut(self: StagedIndex) -> Any:
        held = dict(self.blocks)
        self.blocks = {stage: replace(each, pin=None) for stage, each in held.items()}
        try:
            return original(self)
        finally:
            self.blocks = held

    return [(StagedIndex, "cut", cut)]


def _staged_table_is_not_flushed() -> Plant:
    original = StagedTable.flush

    async def flush(self: StagedTable, rows: Any) -> None:
        tables, self._tables = self._tables, _Unflushed(self._tables)  # type: ignore[assignment]
        try:
            await original(self, rows)
        finally:
            self._tables = tables

    return [(StagedTable, "flush", flush)]


class _Unflushed:
    """Tables that take all and flush nothing."""

    def __init__(self, tables: Any) -> None:
        self.create, self.write = tables.create, tables.write

    async def flush(self, table: str) -> None:
        """Nothing."""


def _what_went_comes_back() -> Plant:
    original = StagedIndex.cut

    def cut(self: StagedIndex) -> Any:
        return [row for row in original(self) if row[1] is not None]

    return [(StagedIndex, "cut", cut)]


# ---- a node's first start ----


def _identity_before_wal() -> Plant:
    original = DataDirectory.open_wal

    async def open_wal(self: DataDirectory) -> Wal:
        settings, disk = self._settings, self._host.disk
        directory, size = settings.directory, settings.storage.wal_bytes
        if await disk.read_file(f"{directory}/identity") is None:
            identity = Identity(self._cluster.hex(), settings.node, size)
            await disk.write_file(f"{directory}/identity", msgspec.json.encode(identity))
            await Wal.format(disk, f"{directory}/wal", size, owner=settings.node)
        return await original(self)

    return [(DataDirectory, "open_wal", open_wal)]


def _half_a_start_is_refused() -> Plant:
    original = DataDirectory._make_wal

    async def make_wal(self: DataDirectory, path: str, identity_path: str) -> int:
        if "wal" in await self._host.disk.list_dir(self._settings.directory):
            raise NotOurCluster(f"{path} is there without {identity_path}")
        return await original(self, path, identity_path)

    return [(DataDirectory, "_make_wal", make_wal)]


def _claimed_before_it_is_written() -> Plant:
    claim, write = DataDirectory.claim, DataDirectory._write_claims

    async def not_yet(self: DataDirectory, claims: tuple[str, ...]) -> None:
        self._late_claims = claims  # type: ignore[attr-defined]

    async def claim_first(self: DataDirectory, reached: int, room: int = 0) -> Member:
        member = await claim(self, reached, room)
        await write(self, self._late_claims)  # type: ignore[attr-defined]
        return member

    return [
        (DataDirectory, "_write_claims", not_yet),
        (DataDirectory, "claim", claim_first),
    ]


def _new_claim_replaces_the_last() -> Plant:
    write = DataDirectory._write_claims

    async def only_new(self: DataDirectory, claims: tuple[str, ...]) -> None:
        await write(self, claims[-1:])

    return [(DataDirectory, "_write_claims", only_new)]


def _reached_is_an_end() -> Plant:
    original = DataDirectory.note

    async def note(self: DataDirectory, reached: int) -> None:
        await original(self, reached + WAL_UNIT_BYTES)

    return [(DataDirectory, "note", note)]


def _runs_are_not_summed() -> Plant:
    return [(wal_runs, "intact_bodies", lambda _data, starts, *_: len(starts))]


def _batch_trimmed_as_a_record() -> Plant:
    return [(BatchPlaces, "header_of", lambda _, offset: offset)]


# ---- a disk ----


def _directory_not_synced() -> Plant:
    return [(RecordingDisk, "syncs_names", False)]


def _direct_writes_in_cache() -> Plant:
    return [(RecordingFile, "is_durable", False)]


WAL, ENGINE, NODE = WalSubject(), EngineSubject(), NodeSubject()
STAGING = StagingSubject()


def _bug(subject: Subject[Any], name: str, story: str, plant: Callable[[], Plant]) -> CrashBug:
    return CrashBug(PlantedBug(name, story, plant), subject)


CRASH_BUGS: tuple[CrashBug, ...] = (
    _bug(WAL, "told-before-durable", "a record is told durable when its write starts",
         _ack_before_durable),
    _bug(WAL, "trim-before-durable", "a trim returns before its header is durable",
         _trim_before_durable),
    _bug(WAL, "trim-frees-live", "a trim frees more of the ring than was trimmed",
         _trim_frees_what_is_live),
    _bug(WAL, "closed-before-drained", "the header says closed while writes are in flight",
         _closed_before_drained),
    _bug(WAL, "stops-at-first-hole", "recovery ends at the first bad block",
         _recovery_stops_at_a_hole),
    _bug(WAL, "tail-without-padding", "a lap's tail is skipped and no record says so",
         _tail_without_padding),
    _bug(WAL, "header-by-clock", "of two header slots the one with the later clock counts",
         _header_by_clock),
    _bug(WAL, "header-older", "of two good headers the older one counts", _header_older),
    _bug(WAL, "bodies-not-summed", "recovery trusts a record whose header is good",
         _bodies_are_not_summed),
    _bug(WAL, "runs-not-summed", "recovery sums records that stand alone, and no runs of them",
         _runs_are_not_summed),
    _bug(WAL, "batch-header-lost", "a trim inside a batch lets recovery start at that record",
         _batch_trimmed_as_a_record),
    _bug(WAL, "resumes-in-hole", "writing resumes in the first hole, over what lies behind it",
         _resumes_in_the_hole),
    _bug(WAL, "holes-not-told", "a second recovery calls the first one's holes damage",
         _holes_are_not_told),
    _bug(WAL, "window-in-memory", "the window grows before its header is durable, and runs mix",
         _window_and_runs_forgotten),
    _bug(WAL, "writes-in-cache", "direct writes end in the drive's cache", _direct_writes_in_cache),
    _bug(WAL, "damage-not-told", "what fails its checksum is taken for never written",
         _damage_is_not_told),
    _bug(ENGINE, "store-settled-at-once", "a store is settled before the WAL has it",
         _store_settled_at_once),
    _bug(ENGINE, "seal-answered-at-once", "a seal is answered before the WAL has it",
         _seal_answered_at_once),
    _bug(ENGINE, "restart-forgets-seals", "a restart forgets its seals", _restart_forgets_seals),
    _bug(ENGINE, "ends-not-replayed", "a restart brings back what an epoch's end dropped",
         _ends_are_not_replayed),
    _bug(ENGINE, "tables-not-flushed", "LogsDB's metadata is flushed and its blocks are not",
         _tables_are_not_flushed),
    _bug(ENGINE, "wal-trimmed-early", "the WAL is trimmed before LogsDB has what it held",
         _wal_trimmed_before_flush),
    _bug(ENGINE, "offset-before-blocks", "LogsDB tells of an offset before it has the blocks",
         _metadata_before_blocks),
    _bug(ENGINE, "flush-forgets-states", "a flush takes blocks and leaves seals and ends behind",
         _flush_forgets_states),
    _bug(ENGINE, "flush-takes-largest", "a flush takes the log that has most, not a prefix of all",
         _flush_takes_the_largest_log),
    _bug(ENGINE, "amends-by-time", "a flush puts an amend where its body need not be",
         _amends_go_by_time),
    _bug(ENGINE, "trim-not-written", "a trim point lives in memory until the next flush",
         _trim_not_written),
    _bug(ENGINE, "table-before-metadata", "a partition's table goes before what names it",
         _table_dropped_before_metadata),
    _bug(ENGINE, "cut-takes-all", "a partition of which most is trimmed is cut down to nothing",
         _cut_takes_all),
    _bug(STAGING, "pins-not-flushed", "a flush takes staged blocks without who pinned them",
         _pins_are_not_flushed),
    _bug(STAGING, "staged-not-flushed", "the WAL is trimmed before the staged table is durable",
         _staged_table_is_not_flushed),
    _bug(STAGING, "unstaged-comes-back", "a flush leaves what was let go in its table",
         _what_went_comes_back),
    _bug(NODE, "identity-before-wal", "a node writes its identity, then formats its WAL",
         _identity_before_wal),
    _bug(NODE, "half-start-refused", "a WAL without an identity is refused for ever",
         _half_a_start_is_refused),
    _bug(NODE, "claim-not-written-first", "a start claims the node, then writes down by which name",
         _claimed_before_it_is_written),
    _bug(NODE, "claim-overwrites", "a start forgets the claim that stands when it writes its own",
         _new_claim_replaces_the_last),
    _bug(NODE, "reached-is-an-end", "the metadata store is told where the next record would go",
         _reached_is_an_end),
    _bug(NODE, "directory-not-synced", "new names are not synced to their directory",
         _directory_not_synced),
)  # fmt: skip
"""Every bug that can be planted here."""


def search(bug: CrashBug, seeds: int) -> str:
    """Plant a bug and explore so many seeds; the broken promise and its story, "" for none."""
    for seed in range(seeds):
        story = story_of(bug, seed)
        if story:
            return story
    return ""


def story_of(bug: CrashBug, seed: int) -> str:
    """Plant a bug and explore one seed; the broken promise and its story, "" for none."""
    with planted(bug.bug):
        try:
            explore(bug.subject, seed)
        except PromiseBroken as error:
            return str(error)
    return ""
