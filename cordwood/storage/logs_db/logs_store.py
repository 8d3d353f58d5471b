"""LogsDB: the blocks that a node has flushed from its WAL. Partitions divide them by time, and
blocks are sorted by log inside each partition.

A flush takes all changes of a prefix of the WAL. Its order makes a crash at any point harmless::

    blocks into partitions ► each flushed ► metadata, with the WAL's offset, in one batch
    ► that flushed ► only then is the WAL trimmed

Losses that a start finds in the WAL are part of that batch (`note_lost`): until they are durable,
nothing is trimmed and the WAL itself keeps showing them.

A start loads the metadata and replays the WAL after its offset. Blocks of a flush that did not get
as far as its metadata are there twice then, and are equal. So counts are exact, and no write needs
a read first.

Blocks go by append time: to the last partition that starts at or before it, but never farther back
than the newest but one, so that old partitions are left alone. It is always safe to put a block
into a later partition than that of its time: no partition is then dropped too early. Append times
do not fall along a log, so the partitions of a log are in the order of its LSNs. An exception is a
hole that recovery plugs late; reads merge blocks of partitions that overlap.

Source: docs/design.md §5; docs/sources/logdevice.md 2.13; docs/sources/bookkeeper.md (c),
"Checkpoint" (a mark that runs ahead of one flush loses data).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from cordwood.errors import Corrupt, NotOurCluster
from cordwood.layout import logs_db
from cordwood.layout.ledger_records import LEDGERS_TABLE
from cordwood.layout.logs_db import DirectoryEntry, LogState, PartitionRow
from cordwood.layout.scrub_rows import (
    PROGRESS_KEY,
    DamagedRange,
    Progress,
    pack_progress,
    read_progress,
)
from cordwood.layout.staged import STAGED_TABLE
from cordwood.layout.waves import AmendedBlock, StoredBlock
from cordwood.nodes import NodeId
from cordwood.protocol.wal_ring import Range, clipped, outside, united
from cordwood.settings import StorageSettings
from cordwood.storage.ledgers.ledger_table import LedgerTable
from cordwood.storage.logs_db.heads_read import read_entries
from cordwood.storage.logs_db.logs_read import Counts, Found, IndexQuery, home_of, read_blocks
from cordwood.storage.logs_db.lost_partitions import can_be_read, take_for_rotten
from cordwood.storage.logs_db.partition import (
    Added,
    BlockRun,
    Homes,
    Partition,
    PartitionBlocks,
    StoredLog,
    Wanted,
)
from cordwood.storage.logs_db.partition_drops import PartitionDrops, TrimOf
from cordwood.storage.logs_db.tables import Row, Tables, TablesFailed, scan_all
from cordwood.storage.scrub.damage_book import DamageBook
from cordwood.storage.space.payload_count import PayloadCount
from cordwood.storage.staging.staged_table import StagedTable

logger = logging.getLogger(__name__)

META = logs_db.META_TABLE

WRITE_BYTES = 1 << 20
"""The most bytes of one write into a table. The loop waits about a millisecond for the GIL during
such a write."""

OPEN_PARTITIONS = 2
"""Partitions that take blocks: sequencers' clocks differ, and a block that comes a little
late belongs to the partition before the newest."""

DIRECTORIES_KEPT = 1024
"""The most logs whose directories stay in memory. Logs with readers need them."""


class LogsStore:
    """See the module. Made by `LogsStore.open`; one flush at a time, any number of reads.

    Attributes:
        offset: of the WAL; all records up to it are here. -1 for none.
        partitions: oldest first.
        logs: the state of each log.
        drops: partitions dropped since the start.
        forgotten: how often trimmed data was taken out.
        staged, ledgers: the tables of staged blocks and of ledgers.
        damages: the known damaged ranges.
        on_rot: called with damaged ranges that a read found.
        lost: ranges of WAL offsets with records that no flush had taken and no start could read,
            this start and all earlier ones. They are never forgotten, because their contents are
            unknown: blocks of any log, and seals too. So no trim and no repair of a log ends the
            loss. Recoveries work without the node, as without a node that is down. If they cannot
            (a store of one node), the epochs that were open at the damage stay open until an
            operator accepts the loss (`accept_loss`) or replaces the node by a node with a new
            number.
    """

    def __init__(self, tables: Tables, settings: StorageSettings) -> None:
        self.offset = -1
        self.lost: tuple[Range, ...] = ()
        self._noted: tuple[Range, ...] = ()
        self._accepted: tuple[Range, ...] = ()
        self._has_accepted = False
        self.drops = 0
        self.partitions: list[Partition] = []
        self.logs: dict[int, StoredLog] = {}
        self.forgotten = 0
        self._tables = tables
        self._settings = settings
        self._drops = PartitionDrops(self, tables)
        # Flushes, drops and cuts write one after another.
        self._writing = asyncio.Lock()
        self._next_number = 1
        self._last_us = 0
        self.staged = StagedTable(tables)
        self.ledgers = LedgerTable(tables)
        self.damages = DamageBook(tables)
        self.on_rot: Callable[[Sequence[DamagedRange]], None] = lambda found: None
        self._payload = PayloadCount()
        # Takes over the values that were written to the metadata, once that is durable.
        self._written: Callable[[], None] | None = None
        # Present entries of open partitions, for flushes that add to them.
        self._entries: dict[tuple[int, int], DirectoryEntry] = {}
        self._directories: OrderedDict[int, list[tuple[Partition, DirectoryEntry]]] = OrderedDict()

    # ---- opening ----

    @classmethod
    async def open(
        cls, tables: Tables, settings: StorageSettings, node: NodeId
    ) -> tuple[LogsStore, dict[int, LogState]]:
        """Open the tables on the disk, and load the state of every log as of `offset`.

        Raises:
            NotOurCluster: the tables are another node's.
            TablesFailed, Corrupt: they cannot be read.
        """
        store = cls(tables, settings)
        names = await tables.open()
        if META not in names:
            await tables.create(META)
        await store._check_origin(node)
        missing = await store._read_partitions(names)
        await store.damages.open()
        keys = [
            logs_db.OFFSET_KEY, logs_db.LOST_KEY, logs_db.NOTED_KEY, logs_db.ACCEPTED_KEY,
            logs_db.ACCEPTED_RANGES_KEY,
        ]  # fmt: skip
        offset, lost, noted, upto, accepted = await tables.get(META, keys)
        if offset is not None:
            store.offset = logs_db.read_offset(offset)
        store._has_accepted = upto is not None
        if accepted is not None:
            store._accepted = logs_db.read_lost(accepted)
        elif upto is not None:  # an older version wrote it
            store._accepted = ((0, logs_db.read_offset(upto)),)
        if lost is not None:
            store.lost = logs_db.read_lost(lost)
        if noted is not None:
            store._noted = logs_db.read_lost(noted)
        states = await store._read_states()
        # After the states were read: the losses are noted for each log that had blocks there.
        for partition in missing:
            await take_for_rotten(store, partition)
            await tables.create(partition.table)
        for partition in store.partitions[-OPEN_PARTITIONS:]:
            if partition not in missing and not await can_be_read(tables, partition):
                await take_for_rotten(store, partition)
        return store, states

    def note_lost(self, damage: Sequence[Range]) -> bool:
        """Note the ranges that this start could not read in the WAL. Records there are lost if no
        flush had taken them.

        It is durable with the next flush, before which the WAL still shows it.

        Returns:
            Whether any record was lost.
        """
        # A record that ends past `offset` may be the record of `offset`, or a missing one. Below,
        # LogsDB has the record.
        lost = [each for each in outside(damage, self._accepted) if each[1] > self.offset]
        self.lost = united((*self.lost, *lost))
        return bool(lost)

    async def keep_lost(self) -> None:
        """Make noted losses durable at once, if the WAL will not show them again.

        Raises:
            TablesFailed: it cannot be written.
        """
        async with self._writing:
            await self._tables.write(META, [(logs_db.LOST_KEY, logs_db.pack_lost(self.lost))])
            await self._tables.flush(META)

    @property
    def owes_note(self) -> bool:
        """Whether something was lost for which logs are to be sealed and ledgers to be fenced."""
        return bool(self.lost) and self.lost != self._noted

    async def keep_noted(self) -> None:
        """Note that logs were sealed and ledgers fenced, durably, for all losses.

        Raises:
            TablesFailed: it cannot be written; they are sealed and fenced once more then.
        """
        async with self._writing:
            await self._tables.write(META, [(logs_db.NOTED_KEY, logs_db.pack_lost(self.lost))])
            await self._tables.flush(META)
            self._noted = self.lost

    async def accept_loss(self, shown: Sequence[Range], upto: int) -> None:
        """Accept all losses: this node knows its blocks again.

        Trap: the WAL shows its damage until a flush has come by. So what was accepted is kept as
        ranges: beside them the WAL has whole records that LogsDB does not have yet, and what rots
        there later is lost anew.

        Durable when it returns; a crash before that changes nothing.

        Args:
            shown: the damage that the WAL shows.
            upto: the WAL's end.
        Raises:
            TablesFailed: it cannot be written.
        """
        accepted = clipped(shown, 0, upto)
        async with self._writing:
            rows: list[Row] = [
                (logs_db.LOST_KEY, logs_db.pack_lost(())),
                (logs_db.ACCEPTED_KEY, logs_db.pack_offset(upto)),
                (logs_db.ACCEPTED_RANGES_KEY, logs_db.pack_lost(accepted)),
            ]
            await self._tables.write(META, rows)
            await self._tables.flush(META)
            self.lost, self._accepted, self._has_accepted = (), accepted, True

    async def keep_accepted_below(self, end: int) -> None:
        """Forget what was accepted from the WAL's offset `end` on, durably: the WAL ends there, and
        new records come to these offsets.

        Raises:
            TablesFailed: it cannot be written.
        """
        left = clipped(self._accepted, 0, end)
        if left == self._accepted:
            return
        async with self._writing:
            row = (logs_db.ACCEPTED_RANGES_KEY, logs_db.pack_lost(left))
            await self._tables.write(META, [row])
            await self._tables.flush(META)
            self._accepted = left

    @property
    def has_lost(self) -> bool:
        """Whether records were ever lost here before a flush took them, accepted or not."""
        return bool(self.lost) or self._has_accepted

    async def heal_loss(self) -> None:
        """Note that all lost blocks that count are here again, and that LogsDB has all records that
        the WAL showed.

        Unlike an acceptance this says nothing of the WAL: what rots there later is lost anew.
        Durable when it returns; a crash before that changes nothing.

        Raises:
            TablesFailed: it cannot be written.
        """
        async with self._writing:
            await self._tables.write(META, [(logs_db.LOST_KEY, logs_db.pack_lost(()))])
            await self._tables.flush(META)
            self.lost = ()

    async def _check_origin(self, node: NodeId) -> None:
        (found,) = await self._tables.get(META, [logs_db.ORIGIN_KEY])
        if found is None:
            await self._tables.write(META, [(logs_db.ORIGIN_KEY, logs_db.pack_origin(node))])
            await self._tables.flush(META)
        elif (theirs := logs_db.read_origin(found)) != node:
            raise NotOurCluster(f"this LogsDB is node {theirs}'s, not node {node}'s")

    async def _read_partitions(self, names: Sequence[str]) -> list[Partition]:
        """Take the partitions over; returns the partitions that have lost their tables."""
        for key, value in await scan_all(
            self._tables, META, *logs_db.PARTITIONS, bytes_max=WRITE_BYTES
        ):
            row = logs_db.read_partition(value)
            number = logs_db.read_partition_key(key)
            self.partitions.append(Partition(number, *row))
        known = {partition.table for partition in self.partitions}
        self.staged.is_made = STAGED_TABLE in names
        self.ledgers.is_made = LEDGERS_TABLE in names
        for table in sorted({*names} - known - {META, STAGED_TABLE, LEDGERS_TABLE}):
            # From an unfinished flush: the WAL has all of it.
            logger.info("dropping table %s, which no flush finished", table)
            await self._tables.drop(table)
        self._next_number = max((each.number for each in self.partitions), default=0) + 1
        there = {*names}
        return [each for each in self.partitions if each.table not in there]

    async def _read_states(self) -> dict[int, LogState]:
        states: dict[int, LogState] = {}
        for key, value in await scan_all(self._tables, META, *logs_db.STATES):
            state = logs_db.read_state(value)
            log = logs_db.read_state_key(key)
            states[log] = state
            self._last_us = max(self._last_us, state.append_time_us)
            if state.last:
                self.logs[log] = StoredLog(state.last, state.blocks, state.bytes)
        return states

    # ---- flushing ----

    async def flush(
        self,
        blocks: Sequence[StoredBlock],
        states: Mapping[int, LogState],
        offset: int,
        now_us: int,
        staged: Sequence[Row] = (),
        ledgers: Iterable[Row] = (),
    ) -> None:
        """Take the changes of the WAL's records up to `offset`; returns once they are durable.

        Args:
            blocks: all that was stored since the last flush.
            states: of all logs that changed since, as of `offset`; their `last`, `blocks`
                and `bytes` are not looked at.
            now_us: wall clock, for the age of partitions.
            staged, ledgers: rows of the tables of staged blocks and of ledgers.
        Raises:
            TablesFailed: nothing counts as flushed; the same may be tried again.
        """
        async with self._writing:
            await self.settle_metadata()
            if offset == self.offset:
                return  # an earlier try came as far as its metadata
            if ledgers:
                await self.ledgers.flush(ledgers)
            await self._flush(blocks, states, offset, now_us, staged)

    async def _flush(
        self,
        blocks: Sequence[StoredBlock],
        states: Mapping[int, LogState],
        offset: int,
        now_us: int,
        staged: Sequence[Row],
    ) -> None:
        assert offset > self.offset, "a flush goes on where the last one ended"
        homes = await self.homes_of(blocks)
        # An amended block goes to the partition of its body, so it fills no new partition.
        rolled = self._rolled([each for each in blocks if id(each) not in homes], now_us)
        if rolled is not None:
            await self._tables.create(rolled.table)
            self.partitions.append(rolled)
            self._next_number += 1
        shares = self._shares(blocks, homes)
        for share in shares:
            await self.write_rows(share.partition.table, share.rows())
        # Order matters: the rows are durable before the metadata that names them. A crash between
        # leaves rows that no read looks at, and the WAL still has the blocks.
        for share in shares:
            await self._tables.flush(share.partition.table)
        if staged:
            await self.staged.flush(staged)
        await self.flush_metadata(shares, states, offset)

    async def homes_of(self, blocks: Sequence[StoredBlock]) -> Homes:
        """The places of amended blocks' bodies; blocks without one are written whole."""
        amended = [block for block in blocks if type(block) is AmendedBlock]
        if not amended:
            return {}
        bare = {id(block) for block in amended}
        whole = {block.header for block in blocks if id(block) not in bare}
        homes: dict[int, Partition | None] = {}
        for block in amended:
            header = block.header
            if header in whole:
                homes[id(block)] = None
                continue
            directory, known = await self.directory(header.log), self.damages.of_log(header.log)
            home = await home_of(self._tables, directory, block, known)
            if home is not None:
                homes[id(block)] = home
        return homes

    def _rolled(self, blocks: Sequence[StoredBlock], now_us: int) -> Partition | None:
        """The next partition, if a partition that takes these blocks is full.

        A full partition that takes no blocks needs no successor. A log may keep it for a long time
        beside the newest partition, while the newest partition is dropped and made again.
        """
        takers = self.partitions[-OPEN_PARTITIONS:]
        if not blocks:
            return None
        if takers:
            start_us = takers[-1].start_us
            is_late = any(block.header.append_time_us < start_us for block in blocks)
            lookers = takers if is_late else takers[-1:]
            # A repaired block must not go into the partition of its rotten copy.
            is_rotten = self.damages.holds(takers[-1].number)
            if not is_rotten and not any(self._is_due(each, now_us) for each in lookers):
                return None
        start_us = max(takers[-1].start_us, self._last_us) + 1 if takers else 0
        return Partition(self._next_number, start_us, now_us)

    def _is_due(self, partition: Partition, now_us: int) -> bool:
        limits = self._settings
        if not partition.files:
            return False
        return (
            partition.bytes >= limits.partition_bytes
            or partition.files >= limits.partition_files
            or (
                partition is self.partitions[-1]
                and now_us - partition.made_us >= limits.partition_age_s * 1e6
            )
        )

    def _shares(self, blocks: Sequence[StoredBlock], homes: Homes) -> list[PartitionBlocks]:
        if not blocks:
            return []
        newest, *older = reversed(self.partitions[-OPEN_PARTITIONS:])
        older = [each for each in older if not self.damages.holds(each.number)]
        last = PartitionBlocks(newest)
        before = PartitionBlocks(older[0]) if older else last
        start_us = newest.start_us
        shares = {share.partition.number: share for share in (before, last)}
        for block in blocks:
            share = last if block.header.append_time_us >= start_us else before
            if homes and id(block) in homes:
                home = homes[id(block)]
                if home is not None:
                    share = shares.setdefault(home.number, PartitionBlocks(home))
                share.amend(block)
            else:
                share.add(block)
        return [shares[number] for number in sorted(shares) if shares[number].bytes]

    async def write_rows(self, table: str, rows: Iterable[Row]) -> None:
        """Write rows, a call for each megabyte."""
        some: list[Row] = []
        size = 0
        for row in rows:
            some.append(row)
            size += len(row[0]) + len(row[1] or b"")
            if size >= WRITE_BYTES:
                await self._tables.write(table, some)
                some, size = [], 0
        if some:
            await self._tables.write(table, some)

    async def flush_metadata(
        self, shares: Sequence[PartitionBlocks], states: Mapping[int, LogState], offset: int
    ) -> None:
        added: list[Added] = [(share.partition.number, share.entries()) for share in shares]
        counted, waiting = self._payload.of_flush(shares, states, self.partitions)
        added += counted
        entries = await self._joined_entries(added)
        logs = self._joined_logs(added)
        rows: list[Row] = [(logs_db.OFFSET_KEY, logs_db.pack_offset(offset))]
        if self.lost:
            rows.append((logs_db.LOST_KEY, logs_db.pack_lost(self.lost)))
        for share in shares:
            partition = share.partition
            row = PartitionRow(
                partition.start_us,
                partition.made_us,
                partition.bytes + share.bytes,
                partition.files + 1,
            )
            rows.append((logs_db.partition_key(partition.number), logs_db.pack_partition(row)))
        for (log, number), entry in entries.items():
            rows.append((logs_db.directory_key(log, number), logs_db.pack_entry(entry)))
            rows.append((logs_db.member_key(number, log), logs_db.pack_last(entry.last)))
        for log, state in states.items():
            held = logs.get(log) or self.logs.get(log) or StoredLog()
            whole = state._replace(last=held.last, blocks=held.blocks, bytes=held.bytes)
            rows.append((logs_db.state_key(log), logs_db.pack_state(whole)))

        def take() -> None:
            self._payload.keep(waiting)
            self._take(shares, entries, logs, offset)
            times = (each.append_time_us for each in states.values())
            self._last_us = max([self._last_us, *times])

        await self.write_metadata(rows, take)

    async def write_metadata(self, rows: Sequence[Row], take: Callable[[], None]) -> None:
        """Change the metadata in one write, so that a crash leaves all of it or nothing; `take` is
        called once it is durable.

        The caller holds the lock, so no other task writes to the tables meanwhile.

        Raises:
            TablesFailed, TablesNoSpace, Overloaded: `settle_metadata` goes on with it.
        """
        assert self._written is None, "what was written before is settled first"
        await self._tables.write(META, rows)
        self._written = take
        await self.settle_metadata()

    async def settle_metadata(self) -> None:
        """Finish a change of the metadata that was written and not made durable.

        Trap: its rows can be read already. A second try from the beginning would add the same
        changes to them again, and a log's blocks would count twice.
        """
        if self._written is not None:
            await self._tables.flush(META)
            take, self._written = self._written, None
            take()

    async def _joined_entries(
        self, added: Sequence[Added]
    ) -> dict[tuple[int, int], DirectoryEntry]:
        """The directory entries that a flush changes, in their new state."""
        wanted = [(log, number) for number, entries in added for log in entries]
        unknown = [
            each for each in wanted if each not in self._entries and self._partition(each[1]).files
        ]
        keys = [logs_db.directory_key(log, number) for log, number in unknown]
        found = await self._tables.get(META, keys) if keys else []
        for each, value in zip(unknown, found, strict=True):
            if value is not None:
                self._entries[each] = logs_db.read_entry(value)
        joined: dict[tuple[int, int], DirectoryEntry] = {}
        for number, entries in added:
            for log, entry in entries.items():
                place = (log, number)
                before = joined.get(place) or self._entries.get(place)
                joined[place] = entry if before is None else before.joined(entry)
        return joined

    def _joined_logs(self, added: Sequence[Added]) -> dict[int, StoredLog]:
        joined: dict[int, StoredLog] = {}
        for _, entries in added:
            for log, entry in entries.items():
                held = joined.get(log) or self.logs.get(log) or StoredLog()
                joined[log] = StoredLog(
                    max(held.last, entry.last), held.blocks + entry.blocks, held.bytes + entry.bytes
                )
        return joined

    def _take(
        self,
        shares: Sequence[PartitionBlocks],
        entries: Mapping[tuple[int, int], DirectoryEntry],
        logs: Mapping[int, StoredLog],
        offset: int,
    ) -> None:
        """The flush is durable: take its state over."""
        self.offset = offset
        for share in shares:
            share.partition.bytes += share.bytes
            share.partition.files += 1
        self._entries.update(entries)
        takers = {each.number for each in self.partitions[-OPEN_PARTITIONS:]}
        if any(number not in takers for _, number in self._entries):
            kept = {each: entry for each, entry in self._entries.items() if each[1] in takers}
            self._entries = kept
        self.logs.update(logs)
        for log in logs:
            self._directories.pop(log, None)

    # ---- dropping ----

    async def drop_trimmed(self, trim_of: TrimOf, now_us: int = 0) -> list[Partition]:
        """Drop fully trimmed partitions; returns them.

        The newest stays because it takes the next blocks, unless it has reached the maximum age.

        Raises:
            TablesFailed, Corrupt: the store below cannot go on.
        """
        async with self._writing:
            await self.settle_metadata()
            old_us = now_us - int(self._settings.partition_age_s * 1e6)
            with_newest = bool(self.partitions) and self.partitions[-1].made_us <= old_us
            return await self._drops.drop_trimmed(trim_of, with_newest=with_newest)

    async def cut_trimmed(self, trim_of: TrimOf) -> Partition | None:
        """See `PartitionDrops.cut_trimmed`.

        Raises:
            TablesFailed, Corrupt: the store below cannot go on.
        """
        async with self._writing:
            await self.settle_metadata()
            return await self._drops.cut_trimmed(trim_of)

    async def note_damage(self, damaged: DamagedRange, why: str) -> bool:
        """Note a range as damaged, so that reads report it as unknown. Returns False if it was
        noted before.

        Raises:
            TablesFailed, TablesNoSpace: the note is in memory only, until the next start.
        """
        async with self._writing:
            return await self.damages.note(damaged, why)

    async def note_all_damage(self, found: Sequence[DamagedRange], why: str) -> None:
        """See `DamageBook.note_all`."""
        async with self._writing:
            await self.damages.note_all(found, why)

    async def note_mended(self, damaged: DamagedRange, start: int, last: int | None = None) -> bool:
        """See `DamageBook.note_mended`."""
        async with self._writing:
            return await self.damages.note_mended(damaged, start, last)

    async def note_progress(self, progress: Progress) -> None:
        """Remember over a restart how far scrubbing has come.

        Raises:
            TablesFailed, TablesNoSpace: it is not remembered.
        """
        async with self._writing:
            row = (PROGRESS_KEY, pack_progress(progress))
            await self._tables.write(META, [row])
            await self._tables.flush(META)

    async def progress(self) -> Progress:
        """How far scrubbing had come.

        Raises:
            TablesFailed, Corrupt: the metadata cannot be read.
        """
        (value,) = await self._tables.get(META, [PROGRESS_KEY])
        return Progress() if value is None else read_progress(value)

    async def note_missing(self, since_us: Mapping[int, int]) -> None:
        """Remember over a restart since when (µs, wall clock) the log tree lacks each log.

        Raises:
            TablesFailed, TablesNoSpace: it is not remembered.
        """
        async with self._writing:
            row = (logs_db.MISSING_KEY, logs_db.pack_missing(since_us))
            await self._tables.write(META, [row])
            await self._tables.flush(META)

    async def missing(self) -> dict[int, int]:
        """Since when (µs, wall clock) the log tree lacks each log, as it was noted last.

        Raises:
            TablesFailed, Corrupt: the metadata cannot be read.
        """
        (value,) = await self._tables.get(META, [logs_db.MISSING_KEY])
        return {} if value is None else logs_db.read_missing(value)

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Keep flushes, drops and cuts from running for the length of the `with` statement."""
        async with self._writing:
            yield

    async def parts(self, partition: Partition) -> dict[int, DirectoryEntry]:
        """See `PartitionDrops.parts`."""
        return await self._drops.parts(partition)

    @property
    def open_partitions(self) -> int:
        """How many of the newest partitions still take blocks."""
        return OPEN_PARTITIONS

    def on_forgotten(
        self, partition: Partition, left: Mapping[int, StoredLog], logs: Sequence[int]
    ) -> None:
        """Logs have nothing in a partition any more; `left` are their blocks elsewhere."""
        self.forgotten += 1
        self.logs.update(left)
        for log in logs:
            self._directories.pop(log, None)
            self._entries.pop((log, partition.number), None)

    def _partition(self, number: int) -> Partition:
        return next(each for each in reversed(self.partitions) if each.number == number)

    # ---- reading ----

    def last(self, log: int) -> int:
        """The highest LSN held of a log, 0 for none."""
        held = self.logs.get(log)
        return held.last if held is not None else 0

    @property
    def tables(self) -> Tables:
        """The body that it refers to, to be read."""
        return self._tables

    @property
    def stored_bytes(self) -> int:
        """Bytes of blocks over all partitions."""
        return sum(partition.bytes for partition in self.partitions)

    async def directory(self, log: int) -> list[tuple[Partition, DirectoryEntry]]:
        """Where a log's blocks are: partitions by first LSN, with the log's part of each.

        Raises:
            TablesFailed, Corrupt: the metadata cannot be read.
        """
        if log not in self.logs:
            return []
        kept = self._directories.get(log)
        if kept is not None:
            self._directories.move_to_end(log)
            return kept
        held = self.logs[log]
        found: list[tuple[Partition, DirectoryEntry]] = []
        partitions = {each.number: each for each in self.partitions}
        for key, value in await scan_all(self._tables, META, *logs_db.directory_range(log)):
            _, number = logs_db.read_directory_key(key)
            if number in partitions:  # else it was dropped meanwhile
                found.append((partitions[number], logs_db.read_entry(value)))
        found.sort(key=lambda each: (each[1].first, each[1].last))
        if self.logs.get(log) is held:  # else a flush or a drop came between
            self._directories[log] = found
            if len(self._directories) > DIRECTORIES_KEPT:
                self._directories.popitem(last=False)
        return found

    async def entries(self, logs: Sequence[int]) -> dict[int, list[Found]]:
        """The index entries of logs that have few, by log. A log is left out if it has to be read
        by itself.

        Args:
            logs: one of the `heads_read.batches`.
        """
        offset, forgotten = self.offset, self.forgotten
        partitions = {each.number: each for each in self.partitions}
        try:
            found = await read_entries(self._tables, partitions, logs)
        except (TablesFailed, Corrupt):
            return {}  # the read of each log says what is wrong, and where
        # Race: blocks may have left the cache for a table that was scanned before.
        if found is None or (offset, forgotten) != (self.offset, self.forgotten):
            return {}
        return {log: each for log, each in found.items() if not self.damages.of_log(log)}

    async def read(
        self,
        log: int,
        start: int,
        bound: int,
        counts: Counts,
        wanted: Wanted | None = None,
        *,
        bytes_max: int,
        blocks_max: int,
    ) -> BlockRun:
        """Blocks that end at or after `start` and begin at or before `bound`.

        Args:
            counts: leaves out copies that lost, before anything else is looked at.
            wanted: leaves out blocks or bodies, before these are read; None wants all.
            bytes_max: of wanted blocks; it ends once it is reached. At least one block is given if
                any exists.
            blocks_max: likewise, for the number of blocks.
        Raises:
            TablesFailed: the store below does not answer.
            Corrupt: the metadata cannot be read. Where a part of the range fails its checksum,
                the run says so, and goes on after it.
        """
        query = IndexQuery(log, start, bound, counts, wanted, bytes_max, blocks_max)
        # Race: blocks repaired from now on may be only in the cache, which the caller has already
        # searched. So it stays unknown to this read, also where the read begins anew.
        mended = frozenset(filter(self.damages.is_mended, self.damages.of_log(log)))
        while True:
            forgotten = self.forgotten
            known = self.damages.of_log(log)
            noticed: list[DamagedRange] = []
            try:
                directory = await self.directory(log)
                run = await read_blocks(self._tables, directory, query, known, mended, noticed)
            except TablesFailed:
                if forgotten == self.forgotten:
                    raise
                # A partition was dropped under it, of which all is trimmed.
                continue
            # The damage may lie where a cut removed blocks, which are trimmed too.
            if not run.damaged or forgotten == self.forgotten:
                if noticed and forgotten == self.forgotten:
                    self.on_rot(noticed)
                return run
