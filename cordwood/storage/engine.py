"""The storage engine: every change goes through the WAL, in order, then into memory.

Memory holds only durable data: readers, digests and answers see a block only when its WAL record is
on stable storage. A seal takes effect at once and is answered when it is durable. So stores before
a seal are visible before its answer, and stores after it are refused.

The flusher moves the data from memory to LogsDB, and then trims the WAL. A start reads
the state in LogsDB, then the WAL's records after it (`layout.engine_record`).

Source: docs/design.md §5; docs/sources/logdevice.md 2.7, 2.13.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from cordwood.block import Buffer, EnvelopeFlag, Produced
from cordwood.decisions import (
    EpochClosed,
    EpochPurged,
    LogTrimmed,
    NodeFailed,
    SealRaised,
    SealRefused,
    tell,
)
from cordwood.errors import (
    CordwoodError,
    Fenced,
    NotOurCluster,
    Overloaded,
    RecordTooLarge,
    Rejected,
    Retryable,
)
from cordwood.layout.engine_record import (
    AMEND_KIND,
    STORE_KIND,
    AmendRecord,
    CleanRecord,
    NodesetsRecord,
    ProducedRecord,
    SealRecord,
    StagingRecord,
    StoreRecord,
    TierRecord,
    TrimRecord,
    pack_clean,
    pack_nodes,
    pack_produced_record,
    pack_seal,
    pack_tier,
    pack_trim,
    read_engine_record,
)
from cordwood.layout.ledger_records import LedgerChanges, LedgerEntries
from cordwood.layout.logs_db import LogState
from cordwood.layout.message import SealReply
from cordwood.layout.message_logs import EpochNodes
from cordwood.layout.nodesets import pack_nodesets, read_nodesets, untrimmed
from cordwood.layout.produced import pack_produced, read_produced
from cordwood.layout.staged import PinRecord, PlaceRecord, StageRecord, UnstageRecord
from cordwood.layout.waves import (
    Refusal,
    StoredBlock,
    StoreRefusal,
    is_amend,
    read_store,
    store_head,
)
from cordwood.lsn import NO_LOG, LogId, format_lsn
from cordwood.protocol.disk_space import DiskRoom
from cordwood.protocol.seal import SealTable, begun_before
from cordwood.settings import StorageSettings
from cordwood.storage.amends import Amends
from cordwood.storage.ledgers.ledger_index import LedgerIndex
from cordwood.storage.log_cache import EpochEnd, FlushSet, LogCache
from cordwood.storage.log_reader import LogReader
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.recent_blocks import RecentBlocks
from cordwood.storage.recent_room import RecentRoom
from cordwood.storage.refusals import damage_of, refusal_of, tell_refusal
from cordwood.storage.space.free_space import cache_bytes_max, cache_takes, first_wave_space
from cordwood.storage.staging.staged_index import StagedIndex
from cordwood.storage.store_waits import StoreWaits
from cordwood.storage.unheard import Unheard
from cordwood.storage.wal.delta_wal import Wal

logger = logging.getLogger(__name__)

BesideRecord = StagingRecord | LedgerEntries | LedgerChanges
"""Records of staged blocks and of ledgers. They go through the same WAL and the same flushes as
logs."""

SEAL_TIMEOUT_S = 10.0
"""A durable write takes under a millisecond; a disk that takes this long has stalled."""


class StorageEngine:
    """See the module. Made by `StorageEngine.open`, which replays the WAL.

    Attributes:
        cache: the durable blocks that LogsDB does not have yet, and the state of each log.
        logs, reader: LogsDB, and the reader of cache and LogsDB.
        staged, ledgers: blocks that wait to be published; and ledgers.
        failed: the reason why the node cannot store any more, "" while it can.
        damage: the durable records that were lost, "" for none. A damaged node stores and sends,
            but a record that it does not send does not count as absent. `LogsStore.lost` tells how
            this ends.
        has_lost: whether this start found lost records; seals may be among them.
        reached: WAL offset of the last durable record, -1 for none.
        stored_blocks: blocks stored since start.
        waits: how long stores of foreground work took.
        wants_flush: whether a writer waits for the space that a flush frees.
        is_out_of_space, disk: whether a flush waits for space, and the bytes that the disk still
            takes until it is measured again.
        low_space: why only recoveries may store (the disk is nearly full); "" if every sender may.
        rebuilding: the nodes whose data is reported as gone or being rebuilt: see `refusals`.
        is_given_away: whether this node's own data lies elsewhere, or counts as gone.
        unsure: this node does not know yet whether its data is what the cluster has: it takes no
            block but the event log's, no staged block and no ledger entry
            (docs/protocol/event-log.md).
        seals: the epochs that may still store; seals that are not durable yet are included.
        amends: the stores without bodies.
        read_only: the operator's reason for taking no blocks; "" while the node takes them.
    """

    def __init__(
        self,
        wal: Wal,
        logs: LogsStore,
        states: Mapping[int, LogState],
        settings: StorageSettings,
        on_change: Callable[[int], None],
        staged: StagedIndex | None = None,
        unheard: Unheard | None = None,
        ledgers: LedgerIndex | None = None,
    ) -> None:
        self.seals, self.unheard, self.amends = SealTable(), unheard, Amends(self)
        self.cache = LogCache(states)
        self.staged, self.logs = staged or StagedIndex(), logs
        self.ledgers = ledgers or LedgerIndex()
        self.ledgers.recent_room = room = RecentRoom(settings.recent_bytes)
        self._recent = RecentBlocks(room)
        self.reader = LogReader(self.cache, logs, self._recent)
        self.failed = self.damage = self.low_space = self.read_only = ""
        self.has_lost = self.is_out_of_space = self.is_given_away = False
        self.wants_flush = False
        self.reached, self.stored_blocks, self.disk = logs.offset, 0, DiskRoom()
        self.waits = StoreWaits()
        self.rebuilding: frozenset[int] = frozenset()
        self.unsure = False
        self._wal, self._cache_bytes = wal, settings.cache_bytes
        # Bytes in the WAL that are not durable yet, so not in the cache.
        self._bytes_on_way = 0
        self._sealed_durably: dict[int, int] = {}
        self._since_s = asyncio.get_running_loop().time()
        self._on_change = on_change
        self._on_gathered: Callable[[], None] = lambda: None
        for log, state in states.items():
            if state.seal:
                self.seals.seal(log, state.seal)
                self._on_sealed(log, state.seal)

    @classmethod
    async def open(
        cls,
        wal: Wal,
        logs: LogsStore,
        states: Mapping[int, LogState],
        settings: StorageSettings,
        on_change: Callable[[int], None],
        *,
        promised: int = -1,
        is_older: bool = False,
        unheard: Unheard | None = None,
    ) -> StorageEngine:
        """Replay the WAL's records that LogsDB does not have.

        Args:
            logs, states: the result of `LogsStore.open`.
            settings: the size of the cache, and the part of it that stays for readers.
            on_change: called with the log whenever its blocks or its release changed.
            promised: WAL offset of a record that another place knows to be durable; -1 for none.
                A WAL that ends below it has lost the records after its end.
            is_older: the WAL has lost these records, whatever the offsets say.
            unheard: stores of epochs that it does not know wait here; None takes them.
        Raises:
            Corrupt: a record passes its checksum but is not one of ours.
            NotOurCluster: LogsDB is older than the WAL: some records are missing.
        """
        staged = StagedIndex(await logs.staged.heads())
        ledgers = LedgerIndex(await logs.ledgers.states())
        engine = cls(wal, logs, states, settings, on_change, staged, unheard, ledgers)
        # The records between the end of the WAL and the offset of LogsDB are in neither place. A
        # start would lose them without an error.
        if wal.trim_offset > logs.offset:
            raise NotOurCluster(
                f"this node's WAL was trimmed up to {wal.trim_offset}, its LogsDB has only what "
                f"came up to {logs.offset}: bring back the LogsDB that belongs to it"
            )
        async for run in wal.recover_runs():
            for offset, body in run.above(logs.offset):
                engine.replay(offset, memoryview(body))
                if engine.amends.unrestored:
                    await engine.amends.restore()
        found = wal.recovery
        assert found is not None, "the WAL was recovered to its end"
        await logs.keep_accepted_below(found.resume)
        engine.has_lost = logs.note_lost(found.damage)
        if logs.offset >= found.resume:
            # The disk lost the WAL's newest writes, the header among them. LogsDB has the records
            # that were flushed; later records are lost. Records written from the WAL's end on
            # would pass for those that LogsDB has.
            start = wal.far_above(logs.offset)
            engine.has_lost = logs.note_lost(((found.resume, start),)) or engine.has_lost
            await logs.keep_lost()  # Before the WAL goes on, which does not show it any more.
            await wal.go_on_at(start)
            found = wal.recovery
            assert found is not None, "it goes on"
        if is_older or promised >= found.resume:
            # Records written from here on will cover the offsets of the missing end.
            missing = (found.resume, max(found.resume, promised) + 1)
            engine.has_lost = logs.note_lost((missing,)) or engine.has_lost
            await logs.keep_lost()
        if logs.lost:
            engine.damage = f"records at WAL offsets {logs.lost} cannot be read any more"
            logger.error(
                "%s; this node's silence proves nothing until an operator replaces it, or accepts "
                "the loss (`cordwood nodes accept-loss`)", engine.damage,
            )  # fmt: skip
        return engine

    async def heal_loss(self) -> None:
        """Note that all lost blocks that count are here again, durably, from other nodes.

        From now on this node's silence counts again as absence.

        Raises:
            Retryable: LogsDB does not have the records behind the damage yet, so a start would read
                the damage again.
            TablesFailed: it cannot be made durable.
        """
        if self.damage:
            found = self._wal.recovery
            assert found is not None, "the WAL was recovered to its end"
            if any(stop > self.logs.offset for _, stop in found.damage):
                raise Retryable("a flush has to come by the damage first")
            await self.logs.heal_loss()
            logger.warning("%s: healed from other nodes", self.damage)
            self.damage = ""

    async def accept_loss(self) -> None:
        """An operator accepts that the lost records are gone: no reader waits for them any more.

        From now on this node's silence counts again as absence, so readers may get a loss. What
        rots in the WAL later is lost anew.

        Raises:
            TablesFailed: the acceptance cannot be made durable.
        """
        if self.damage:
            found = self._wal.recovery
            assert found is not None, "the WAL was recovered to its end"
            await self.logs.accept_loss(found.damage, found.resume)
            logger.warning("%s: accepted, they are gone from now on", self.damage)
            self.damage = ""

    def watch(self, on_gathered: Callable[[], None]) -> None:
        """Have `on_gathered` called after each record that became durable."""
        self._on_gathered = on_gathered

    def ask_for_flush(self) -> None:
        """Note that a writer was refused because there was no space that a flush would have
        freed."""
        if self.cache.batch is not None:
            self.wants_flush = True
            self._on_gathered()

    def cut(self) -> FlushSet | None:
        """The changes since the last cut, for a flush; None without any."""
        self.wants_flush = False
        batch = self.cache.cut(self._sealed_durably)
        if batch is not None:
            batch.staged, batch.ledgers = self.staged.cut(), self.ledgers.cut()
            self._recent.begin((log, self.logs.last(log)) for log in batch.logs)
        return batch

    def evict(self, batch: FlushSet) -> None:
        """Drop a batch from memory, because LogsDB has it durably."""
        self._recent.add(batch.blocks, batch.logs)
        self.cache.evict(batch)
        self.staged.evict(batch.staged)
        self.ledgers.evict(batch.ledgers)

    @property
    def wal(self) -> Wal:
        """The WAL underneath."""
        return self._wal

    def sealed(self, log: int) -> int:
        """The epoch that sealed `log`, 0 for none."""
        return self.seals.of(log)

    def store(
        self, wave: int, payload: memoryview, settled: Callable[[Sequence[StoreRefusal]], None]
    ) -> None:
        """Take one STORE payload; `settled` is called once, with the refusals.

        Raises:
            Malformed, ChecksumMismatch: the payload is damaged; no block was taken.
        """
        if is_amend(payload):
            self.amends.store(wave, payload, settled)
            return
        seal_epoch, blocks = read_store(payload)
        if not blocks:
            self._store_nothing(wave, payload, settled)
            return
        # Before any check of the blocks: whether the epoch was handed out is not known yet.
        if self.unheard is not None and self.unheard.holds(self, wave, payload, blocks, settled):
            return
        taken: list[StoredBlock] = []
        refused: dict[int, StoreRefusal] = {}
        is_full = len(payload) > self.free_bytes
        for block in blocks:
            refusal = refusal_of(self, wave, block, seal_epoch, is_full, len(payload))
            refusal = refusal or damage_of(wave, block)
            if refusal is None:
                if not self.is_trimmed(block):
                    taken.append(block)
            else:
                refused[block.header.log] = refusal
                tell_refusal(self, block, seal_epoch, refusal)
        # Only refused or trimmed blocks: nothing needs to be durable before the answer.
        if not taken:
            settled(tuple(refused.values()))
            return
        parts: list[Buffer] = [STORE_KIND, payload]
        # The WAL must hold only the blocks that were taken: a replay would insert a refused block.
        if len(taken) < len(blocks):
            parts = [STORE_KIND, store_head(len(taken), seal_epoch)]
            for block in taken:
                parts += (block.wire, block.body)
        self.append_store(wave, parts, taken, tuple(refused.values()), settled, bool(seal_epoch))

    def _store_nothing(
        self, wave: int, payload: memoryview, settled: Callable[[Sequence[StoreRefusal]], None]
    ) -> None:
        """A sequencer probes how long a store takes: make an empty store durable like any other."""
        if self.failed or len(payload) > self.free_bytes:
            reason = Refusal.FAILED if self.failed else Refusal.FULL
            settled((StoreRefusal(wave, 0, reason),))
        else:
            self.append_store(wave, [STORE_KIND, payload], [], (), settled, by_recovery=False)

    async def settle_stores(self) -> None:
        """Return once all that was handed to the WAL before is durable and in effect, by a record
        of its own. Also on a node that takes no records: it keeps nothing new.

        Raises:
            Overloaded: the WAL has no space even for this.
            Retryable: the write failed.
        """
        await self._write([STORE_KIND, store_head(0)], [], _no_effect, reserve_ok=False)

    @property
    def has_stores_on_way(self) -> bool:
        """Whether blocks were taken that are not durable and in effect yet."""
        return self._bytes_on_way > 0

    def is_trimmed(self, block: StoredBlock) -> bool:
        """Whether a block is trimmed, or in main storage: storing it succeeds and keeps nothing."""
        held = self.cache.get(block.header.log)
        return held is not None and block.header.last <= held.gone

    @property
    def cache_bytes_max(self) -> int:
        """The most that the cache ever holds; see `storage.space.free_space`."""
        return cache_bytes_max(self._cache_bytes, self._wal.record_bytes_max)

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of blocks that LogsDB does not have yet."""
        return self.cache.bytes + self._bytes_on_way

    def cache_takes(self, size: int, *, by_recovery: bool) -> bool:
        """Whether there is free space for later waves; see `storage.space.free_space`."""
        return cache_takes(self._cache_bytes, self.unflushed_bytes, size, by_recovery=by_recovery)

    @property
    def free_bytes(self) -> int:
        """Bytes free for first waves, in the WAL, the cache and on the disk; 0 for none."""
        return 0 if self.read_only else self.repair_bytes

    @property
    def repair_bytes(self) -> int:
        """As `free_bytes`, for copies that this node held before: a read-only node mends these."""
        if self.low_space:
            return 0
        wal, waits = self._wal, self.unflushed_bytes
        room = first_wave_space(wal.capacity_bytes, wal.used_bytes, self._cache_bytes, waits)
        return self.disk.first_wave_space(waits, room)

    def append_amend(
        self,
        wave: int,
        blocks: list[StoredBlock],
        refused: tuple[StoreRefusal, ...],
        settled: Callable[[Sequence[StoreRefusal]], None],
        seal_epoch: int,
    ) -> None:
        """Write new envelopes for blocks that this node holds with their bodies."""
        head = store_head(len(blocks), seal_epoch, amends=True)
        parts = [AMEND_KIND, head, *(block.wire for block in blocks)]
        self.append_store(wave, parts, blocks, refused, settled, bool(seal_epoch))

    def append_store(
        self,
        wave: int,
        parts: list[Buffer],
        taken: list[StoredBlock],
        refused: tuple[StoreRefusal, ...],
        settled: Callable[[Sequence[StoreRefusal]], None],
        by_recovery: bool,
    ) -> None:
        def give_up(reason: Refusal) -> None:
            logs = dict.fromkeys(block.header.log for block in taken) or (0,)
            settled((*refused, *(StoreRefusal(wave, log, reason) for log in logs)))

        def on_durable(error: CordwoodError | None) -> None:
            self._bytes_on_way -= size
            if error is not None:
                self.fail(error)
                give_up(Refusal.FAILED)
                return
            # First the cache, then the answer: a reader that hears of the release must find the
            # block.
            self._insert(offset, taken)
            settled(refused)
            if is_foreground:
                self.waits.add(now() - came_s)
            self._on_gathered()

        now = asyncio.get_running_loop().time
        came_s = now()
        is_foreground = bool(taken) and not taken[0].envelope.flags & EnvelopeFlag.REBUILT
        size = sum(block.wire_bytes for block in taken)
        try:
            offset = self._wal.submit(parts, on_durable, reserve_ok=by_recovery)
        except (Overloaded, RecordTooLarge) as error:
            # Trap: "too large" depends on settings, as "full" does, and is no fault of the disk.
            # When it failed the engine, one frame ended every node that got it.
            logger.debug("a store was refused: %s", error)
            give_up(Refusal.FULL)
        except CordwoodError as error:
            self.fail(error)
            give_up(Refusal.FAILED)
        else:
            self._bytes_on_way += size

    def _insert(self, offset: int, blocks: Sequence[StoredBlock]) -> None:
        self.stored_blocks += len(blocks)
        self._note(offset, [block.header.log for block in blocks])
        changed: dict[int, None] = {}
        now_s = asyncio.get_running_loop().time()
        for block in blocks:
            log = self.cache.log(block.header.log)
            log.heard_s = now_s
            released = log.released
            self.cache.insert(block)
            if log.released != released:
                changed[block.header.log] = None
        for number in changed:
            self._on_change(number)

    def _note(self, offset: int, logs: list[int]) -> None:
        self.reached = offset
        self.cache.note(offset, logs, asyncio.get_running_loop().time())

    def release(self, log: int, lsn: int) -> None:
        """Note that a sequencer released the log up to `lsn`: readers may see records up to
        there."""
        if self.cache.log(log).release(lsn):
            self._on_change(log)

    async def seal(self, log: int, epoch: int, clean: int) -> SealReply:
        """Refuse epochs below `epoch` for good; answered once durable.

        Raises:
            Fenced: a higher epoch sealed already.
            Overloaded: the WAL has no room even for this.
        """
        if not self.seals.seal(log, epoch):
            ruling = self.seals.of(log)
            tell(SealRefused(LogId(log), epoch, ruling))
            raise Fenced(f"log {log} is sealed by epoch {ruling}, which is above {epoch}", ruling)
        # The table refuses older stores already, also while the mark is on its way.
        if self._sealed_durably.get(log) != epoch:
            # Trap: a recovery that is retried many times would fill the ring with its seal.
            await self.write_mark(
                log, pack_seal(SealRecord(log, epoch)), lambda: self._on_sealed(log, epoch)
            )
        held = self.cache.log(log)
        lngs, wrote = held.known_between(clean, epoch)
        quiet_s = asyncio.get_running_loop().time() - max(self._since_s, held.heard_s)
        return SealReply(
            lngs, held.append_time_us, wrote, is_sure=not self.damage, quiet_us=int(1e6 * quiet_s),
            begun=held.begun,
        )  # fmt: skip

    async def clean(self, log: int, epoch: int, end: EpochEnd) -> None:
        """The recovery that sealed with `end.seal` has mended epoch `epoch`.

        Raises:
            Fenced: a higher epoch sealed since, or the recovery is over.
            Overloaded: the WAL has no free space even for this.
        """
        ruling, held = self.seals.of(log), self.cache.log(log)
        # Race: a higher recovery decides anew about this epoch, and this outcome may differ.
        if ruling > end.seal:
            raise Fenced(f"log {log} is sealed by a higher epoch than {end.seal}", ruling)
        if held.has_ended(epoch, end):
            return
        # Race: as in `refusals`. The epoch may have ended otherwise, while this node was away. A
        # sender that is not over waits for this answer before its epoch releases a record.
        if held.is_outdated(end.seal):
            raise Fenced(
                f"log {log}: the recovery by epoch {end.seal} is over, and this node did not take "
                f"part to its end",
                held.ruling,
            )
        await self._close_epoch(log, epoch, end)

    def _on_sealed(self, log: int, epoch: int) -> None:
        tell(SealRaised(LogId(log), epoch))
        self._sealed_durably[log] = max(epoch, self._sealed_durably.get(log, 0))

    def unclean_epochs(self, log: int) -> tuple[list[int], int]:
        """See `recovery.purge.Store`."""
        over = (held := self.cache.log(log)).released >> 32
        return held.unclean_epochs(over), over - 1

    async def purge(
        self, log: int, epoch: int, seal: int, lng: int, produced: bytes = b"", attempt: int = 1
    ) -> None:
        """Drop the blocks of `epoch` that do not count: it was recovered while this node was away.

        Raises:
            Overloaded: the WAL has no room even for this.
        """
        tell(EpochPurged(LogId(log), epoch, seal))
        end = EpochEnd(seal, lng, produced, attempt) if seal else None
        await self._close_epoch(log, epoch, end)

    async def trim(self, log: int, lsn: int, released: int) -> int:
        """Trim a log up to `lsn`; returns the trim point when it is durable.

        A trim point never falls: an `lsn` at or below an earlier one has no effect.

        Args:
            released: the end of a block up to which the sequencer has released the log.
        Raises:
            Rejected: unreleased records may not be trimmed.
            Overloaded: the WAL has no room even for this.
            Retryable: it failed.
        """
        if lsn > released:
            raise Rejected(
                f"log {log} is released up to {format_lsn(released)}, and {format_lsn(lsn)} is "
                "above that: trim what readers may see"
            )
        # A repeated trim writes nothing: clients and peers repeat trims for ever.
        if lsn > self.cache.log(log).trim:
            record = TrimRecord(log, lsn, released)
            await self.write_mark(log, pack_trim(record), lambda: self.on_trimmed(record))
        return self.cache.log(log).trim

    async def tier(self, log: int, lsn: int, released: int) -> int:
        """Let go of a log up to `lsn`, which main storage holds durably; returns the tier point
        when it is durable here.

        Args:
            released: as of `trim`.
        Raises:
            Rejected, Overloaded, Retryable: as `trim`.
        """
        if lsn > released:
            raise Rejected(
                f"log {log} is released up to {format_lsn(released)}, and {format_lsn(lsn)} is "
                "above that: main storage holds what readers may see"
            )
        if lsn > self.cache.log(log).tier:
            record = TierRecord(log, lsn, released)
            await self.write_mark(log, pack_tier(record), lambda: self._on_tiered(record))
        return self.cache.log(log).tier

    def _on_tiered(self, record: TierRecord) -> None:
        held = self.cache.log(record.log)
        held.release(record.released)
        held.tier_to(record.lsn)
        self._on_change(record.log)

    def gone_of(self, log: int) -> int:
        """The last LSN of a log that this node gave up, because it was trimmed or is in main
        storage; 0 for none."""
        return held.gone if (held := self.cache.get(log)) is not None else 0

    def trim_of(self, log: int) -> int:
        """A log's trim point, 0 for none."""
        return held.trim if (held := self.cache.get(log)) is not None else 0

    def on_trimmed(self, record: TrimRecord) -> None:
        tell(LogTrimmed(LogId(record.log), record.lsn))
        held = self.cache.log(record.log)
        # Order matters: the trimmed records were released, so their epoch's LNG is above them.
        held.release(record.released)
        held.trim_to(record.lsn)
        self._on_change(record.log)

    async def tell_nodesets(self, log: int, epoch: int, history: Sequence[EpochNodes]) -> None:
        """Keep the history of nodesets, complete up to `epoch`; returns when it is durable.

        Raises:
            Overloaded: the WAL has no room even for this.
            Retryable: it failed.
        """
        held = self.cache.log(log)
        # A late call of an older sequencer must not shorten the history.
        if epoch > held.nodesets[0]:
            packed = pack_nodesets(untrimmed(history, held.trim))
            mark = pack_nodes(NodesetsRecord(log, epoch, packed))
            await self.write_mark(log, mark, lambda: held.tell_nodesets(epoch, packed))

    def check_unrecorded(self, log: int, epoch: int) -> None:
        """Check that this node knows no record of `epoch` or above, before the epoch begins.

        Raises:
            Fenced: it does: the epoch was handed out before, by a metadata store that was lost.
        """
        held = self.cache.get(log)
        if held is not None and held.recorded >= epoch:
            raise begun_before(log, epoch, held.recorded)

    async def tell_end(self, log: int, epoch: int, end: EpochEnd) -> None:
        """Note the end of an epoch that another node told. Returns when this is durable.

        Raises:
            Overloaded: the WAL has no room even for this.
            Retryable: it failed.
        """
        known = self.cache.log(log).ends.get(epoch)
        # The end of an earlier recovery or attempt must not replace a later one.
        if known is None or known.place < end.place:
            await self._close_epoch(log, epoch, end)

    async def tell_produced(
        self, log: int, epoch: int, produced: Sequence[Produced], append_time_us: int
    ) -> None:
        """Note the producers' blocks of an epoch and the latest append time that another node told.
        Returns when this is durable.

        Raises:
            Overloaded: the WAL has no room even for this.
            Retryable: it failed.
        """
        held = self.cache.log(log)
        if not held.knows_produced(epoch, produced, append_time_us):
            record = ProducedRecord(log, epoch, append_time_us, pack_produced(produced))

            def apply() -> None:
                held.heard_s = asyncio.get_running_loop().time()
                held.tell_produced(epoch, produced, append_time_us)
                self._on_change(log)

            await self.write_mark(log, pack_produced_record(record), apply)

    def nodesets(self, log: int) -> tuple[int, list[EpochNodes]]:
        """The history of nodesets without its trimmed part, after the epoch that completed it."""
        held = self.cache.get(log)
        if held is None:
            return 0, []
        epoch, packed = held.nodesets
        return epoch, untrimmed(read_nodesets(packed), held.trim)

    async def _close_epoch(self, log: int, epoch: int, end: EpochEnd | None) -> None:
        tell(EpochClosed(LogId(log), epoch, end is not None))
        if end is not None:
            # Trap: fix the LNG here and write it, because a later start may know only a lower LNG.
            end = self.cache.log(log).above_own_lng(epoch, end)
        mark = pack_clean(CleanRecord(log, epoch, *(end or EpochEnd(0, 0))))

        def apply() -> None:
            self.cache.log(log).close_epoch(epoch, end)
            self._on_change(log)

        await self.write_mark(log, mark, apply)

    async def write_mark(self, log: int, mark: bytes, apply: Callable[[], None]) -> None:
        """Write a control record; `apply` runs in its order among the stores."""
        await self._write([mark], [log], apply, reserve_ok=True)

    async def write_beside(
        self, parts: Sequence[Buffer], record: BesideRecord, *, reserve_ok: bool
    ) -> None:
        """Write a record of staged blocks or ledgers; returns when it is durable and in effect.

        Raises:
            Overloaded, RecordTooLarge: the WAL has no free space for it, now or ever.
            Retryable: the write failed.
        """
        await self.settle(self.begin_beside(parts, record, reserve_ok=reserve_ok))

    def begin_beside(
        self, parts: Sequence[Buffer], record: BesideRecord, *, reserve_ok: bool
    ) -> asyncio.Future[None]:
        """As `write_beside`, without waiting: `settle` waits for the returned future.

        Raises:
            Overloaded, RecordTooLarge, Retryable: see `write_beside`.
        """
        size = sum(map(len, parts))

        def apply() -> None:
            self._apply_beside(record)

        def on_settled(done: asyncio.Future[None]) -> None:
            self._bytes_on_way -= size
            if not done.cancelled():
                # If no caller waits for it, the failed engine tells all callers.
                done.exception()

        durable = self._begin(parts, [], apply, reserve_ok=reserve_ok)
        self._bytes_on_way += size
        durable.add_done_callback(on_settled)
        return durable

    def _apply_beside(self, record: BesideRecord) -> None:
        if isinstance(record, LedgerEntries | LedgerChanges):
            grown = self.ledgers.apply(record)
        else:
            grown = self.staged.apply(record)
        if grown:
            self.cache.add_staged(grown)

    async def _write(
        self,
        parts: Sequence[Buffer],
        logs: list[int],
        apply: Callable[[], None],
        *,
        reserve_ok: bool,
    ) -> None:
        await self.settle(self._begin(parts, logs, apply, reserve_ok=reserve_ok))

    def _begin(
        self,
        parts: Sequence[Buffer],
        logs: list[int],
        apply: Callable[[], None],
        *,
        reserve_ok: bool,
    ) -> asyncio.Future[None]:
        """Hand a record to the WAL. The returned future is done when the record is durable and in
        effect."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_durable(error: CordwoodError | None) -> None:
            if error is None:
                self._note(offset, logs)
                apply()
                self._on_gathered()
            else:
                self.fail(error)
            if durable.done():
                return  # Race: the caller gave up, and the record is in effect anyway.
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        if self.failed:
            raise Retryable(f"this node's WAL failed: {self.failed}")
        try:
            offset = self._wal.submit(parts, on_durable, reserve_ok=reserve_ok)
        except (Overloaded, RecordTooLarge):
            raise
        except CordwoodError as error:
            self.fail(error)
            raise Retryable(f"this node's WAL failed: {error}") from error
        return durable

    async def settle(self, durable: asyncio.Future[None]) -> None:
        """Wait for a record that was handed to the WAL. If the wait ends early, the record may
        still become durable.

        Raises:
            Overloaded: it is not durable in time.
            Retryable: the write failed.
        """
        try:
            async with asyncio.timeout(SEAL_TIMEOUT_S):
                await durable
        except TimeoutError:
            raise Overloaded(
                f"the control record was not durable after {SEAL_TIMEOUT_S:g} s; retry"
            ) from None
        except CordwoodError as error:
            self.fail(error)
            raise Retryable(f"this node's WAL failed: {error}") from error

    def fail(self, error: BaseException) -> None:
        """Store nothing from now on, because the WAL or LogsDB failed for good."""
        if not self.failed:
            self.failed = str(error) or type(error).__name__
            tell(NodeFailed(NO_LOG, self.failed))
            logger.error("this node stores nothing any more: %s", self.failed)

    def replay(self, offset: int, body: memoryview) -> None:
        match read_engine_record(body):
            case StoreRecord(_, blocks):
                self._note(offset, [block.header.log for block in blocks])
                for block in blocks:
                    self.cache.insert(block)
            case AmendRecord(_, blocks):
                self._note(offset, [block.header.log for block in blocks])
                self.amends.unrestored = blocks
            case SealRecord(log, epoch):
                self._note(offset, [log])
                self.seals.seal(log, epoch)
                self._on_sealed(log, epoch)
            case CleanRecord(log, epoch, seal) as end:
                self._note(offset, [log])
                self.cache.log(log).close_epoch(epoch, EpochEnd(*end[2:]) if seal else None)
            case TrimRecord(log, lsn, released):
                self._note(offset, [log])
                self.cache.log(log).release(released)
                self.cache.log(log).trim_to(lsn)
            case TierRecord(log, lsn, released):
                self._note(offset, [log])
                self.cache.log(log).release(released)
                self.cache.log(log).tier_to(lsn)
            case (
                StageRecord()
                | PinRecord()
                | UnstageRecord()
                | PlaceRecord()
                | LedgerEntries()
                | LedgerChanges()
            ) as record:
                self._note(offset, [])
                self._apply_beside(record)
            case NodesetsRecord(log, epoch, packed):
                self._note(offset, [log])
                self.cache.log(log).tell_nodesets(epoch, packed)
            case ProducedRecord(log, epoch, time_us, packed):
                self._note(offset, [log])
                self.cache.log(log).tell_produced(epoch, read_produced(packed), time_us)


def _no_effect() -> None:
    return
