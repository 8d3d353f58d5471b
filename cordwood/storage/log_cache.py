"""The log cache: the blocks that are in the WAL and not yet in LogsDB, by log, in LSN order.

It also keeps the state of each log (without its seal) while the node runs. Changes are gathered in
the order of the WAL, as a *batch*. A flush writes the batch to LogsDB, and its blocks leave the
cache once the write is durable. So a batch is a prefix of the WAL over all logs, and later changes
stay here.

Blocks are indexed by last LSN, so that a read may begin inside a block. Of two copies of one range
the copy of higher precedence is kept; a later copy of lower precedence is dropped.

`StorageEngine.cache_bytes_max` is its limit: the storage engine refuses blocks that would not fit.

Source: docs/design.md §2 (precedence), §5; docs/sources/s3stream.md (b) and trap 10 (cache order
must be WAL order).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cordwood.block import BlockHeader, EnvelopeFlag, Produced
from cordwood.decisions import CopyMet, LateBlockDropped, tell
from cordwood.layout.logs_db import LogState
from cordwood.layout.produced import pack_produced, read_produced
from cordwood.layout.waves import StoredBlock
from cordwood.storage.ledgers.ledger_cut import LedgerCut
from cordwood.storage.logs_db.tables import Row
from cordwood.storage.produced_index import ProducedIndex

ENDS_KNOWING_PRODUCERS = 64
"""The number of epoch ends that keep their producers. Only recovery asks for these, and only for
the last clean epoch."""


class EpochEnd(NamedTuple):
    """How an epoch was recovered: the seal, the attempt, and the LNG above which only the attempt's
    own copies count.

    `produced` is the state of the log's producers at the end of the epoch, packed.
    """

    seal: int
    lng: int
    produced: bytes = b""
    attempt: int = 1

    @property
    def place(self) -> tuple[int, int]:
        """The place of this end in the order of recoveries. Attempts under one seal may decide
        differently, so the attempt is a part of it."""
        return self.seal, self.attempt


class CachedLog:
    """One log's blocks.

    Attributes:
        released: last LSN that readers may see, as far as this node knows.
        clean: last epoch known to be recovered.
        lngs: LNG by epoch, for the epochs that this node knows.
        ends: how each clean epoch was recovered, as far as this node was told.
        append_time_us: the latest append time seen.
        heard_s: when a record was last taken, by the loop's clock; 0 for none since the start.
        trim: records up to this LSN are trimmed; 0 for none. It only rises.
        tier: records up to this LSN are in main storage, and this node lets them go; 0 for none.
            It only rises. Trap: these records are not trimmed. Readers find them in objects.
        gone: the higher of the two: up to it nothing is kept here.
        letting_go: no donor's copy of a block that begins up to here is taken: this node looks what
            main storage has, and may raise its tier point by that; 0 for none. It is not durable.
        bytes: bytes of headers, envelopes and bodies held here.
        produced: the producers' blocks in epochs that are not clean yet.
        nodesets: the history of nodesets (`layout.nodesets`), and the epoch up to which it is
            complete.
    """

    __slots__ = (
        "_blocks", "_closed", "_held", "_lasts", "append_time_us", "bytes", "clean", "ends",
        "gone", "heard_s", "letting_go", "lngs", "nodesets", "produced", "released", "tier", "trim",
    )  # fmt: skip

    def __init__(self, state: LogState | None = None) -> None:
        known = state or LogState()
        self._blocks: list[StoredBlock] = []
        self._lasts: list[int] = []
        self._closed = set(known.closed)
        # Epochs above `clean` that have blocks, here or in LogsDB.
        self._held = set(known.held)
        self.released = known.released
        self.clean = known.clean
        self.lngs = dict(known.lngs)
        produced = dict(known.produced)
        self.ends = {
            epoch: EpochEnd(seal, lng, produced.pop(epoch, b""), attempt)
            for epoch, seal, lng, attempt in known.ends
        }
        self.append_time_us = known.append_time_us
        self.heard_s = 0.0
        self.trim = known.trim
        self.tier = known.tier
        self.gone = max(known.trim, known.tier)
        self.letting_go = 0
        self.nodesets = known.nodesets
        self.bytes = 0
        self.produced = ProducedIndex(
            {epoch: read_produced(packed) for epoch, packed in produced.items()}
        )

    def state(self, seal: int) -> LogState:
        """The log's state without its blocks; `seal` is the epoch that sealed it durably."""
        return LogState(
            seal=seal,
            clean=self.clean,
            released=self.released,
            trim=self.trim,
            tier=self.tier,
            append_time_us=self.append_time_us,
            lngs=tuple(self.lngs.items()),
            ends=tuple((epoch, end.seal, end.lng, end.attempt) for epoch, end in self.ends.items()),
            closed=tuple(sorted(self._closed)),
            held=tuple(sorted(self._held)),
            produced=(
                *((epoch, end.produced) for epoch, end in self.ends.items() if end.produced),
                *(
                    (epoch, pack_produced(found))
                    for epoch, found in self.produced.all()
                    if epoch not in self.ends
                ),
            ),
            nodesets=self.nodesets,
        )

    def tell_nodesets(self, epoch: int, packed: bytes) -> None:
        """Take a history of nodesets that is complete up to `epoch`; later epochs' parts stay."""
        if epoch > self.nodesets[0]:
            self.nodesets = epoch, packed

    def __len__(self) -> int:
        return len(self._blocks)

    def insert(self, block: StoredBlock) -> bool:
        """Keep a block; False if it is too late, or a copy of the same range has precedence."""
        header = block.header
        if self._is_late(block):
            tell(LateBlockDropped(header.log, header.first, header.last))
            return False
        self.append_time_us = max(self.append_time_us, header.append_time_us)
        self._note_lng(block.envelope.lng)
        # A purge has to look at this epoch, if it is recovered while this node is away.
        if header.first >> 32 > self.clean:
            self._held.add(header.first >> 32)
        if header.producer and header.first >> 32 not in self.ends:
            # Trap: an epoch's end carries its producers. An index entry here, for blocks that a
            # retried recovery stored, would hide all other producers.
            self.produced.note(header, self.lngs.get(header.first >> 32, 0))
        # The usual case: blocks come in the order of their LSNs.
        if not self._lasts or header.last > self._lasts[-1]:
            self._lasts.append(header.last)
            self._blocks.append(block)
            self.bytes += block.wire_bytes
            return True
        at = bisect_left(self._lasts, header.last)
        while at < len(self._lasts) and self._lasts[at] == header.last:
            held = self._blocks[at]
            if held.header.first == header.first and held.header.kind == header.kind:
                is_better = self.replace_copy(at, block)
                tell(CopyMet(header.log, header.first, header.last, is_better))
                return is_better
            at += 1
        self._lasts.insert(at, header.last)
        self._blocks.insert(at, block)
        self.bytes += block.wire_bytes
        return True

    def copy_of(self, header: BlockHeader) -> StoredBlock | None:
        """This node's copy of exactly this block, None for none."""
        for at in range(self.index_from(header.last), len(self._blocks)):
            if self._lasts[at] != header.last:
                break
            if self._blocks[at].header == header:
                return self._blocks[at]
        return None

    def _is_late(self, block: StoredBlock) -> bool:
        """Whether the block was trimmed, or its epoch ended here, before it became durable."""
        if block.header.last <= self.gone:
            return True
        epoch, seal = block.header.first >> 32, block.envelope.seal_epoch
        end = self.ends.get(epoch)
        if end is not None:
            return block.header.last > end.lng and (seal, block.envelope.wave) < end.place
        if block.envelope.flags & EnvelopeFlag.REBUILT:
            return False  # its donor knew that the block counts
        return not seal and (epoch <= self.clean or epoch in self._closed)

    def replace_copy(self, at: int, block: StoredBlock) -> bool:
        held = self._blocks[at]
        # Waves and recoveries may arrive in any order: an older envelope must not win because it
        # came late.
        if held.envelope.precedence >= block.envelope.precedence:
            return False
        self._blocks[at] = block
        self.bytes += block.wire_bytes - held.wire_bytes
        return True

    def _note_lng(self, lng: int) -> None:
        epoch = lng >> 32
        if lng > self.lngs.get(epoch, 0):
            self.lngs[epoch] = lng
        if lng > self.released:
            # A sequencer tells LNGs only after every lower epoch is recovered, so its LNG releases
            # all lower epochs too.
            self.released = lng

    def release(self, lsn: int) -> bool:
        """Note that a sequencer released up to `lsn`. Returns False if this changes nothing."""
        epoch = lsn >> 32
        if lsn > self.lngs.get(epoch, 0):
            self.lngs[epoch] = lsn
        if lsn <= self.released:
            return False
        self.released = lsn
        return True

    @property
    def readable(self) -> int:
        """Last LSN that this node may send to readers.

        Released records are readable up to the first epoch that this node does not know to be
        clean, and in that epoch up to its LNG. Above the LNG this node may hold blocks that became
        holes in a recovery without this node.
        """
        if self.clean >= (self.released >> 32) - 1:
            return self.released
        unclean = self.clean + 1
        return self.lngs.get(unclean, unclean << 32)

    @property
    def recorded(self) -> int:
        """The highest epoch of which this node knows that it had records, or that it is over; 0 for
        none. It does not fall when records are trimmed.

        No block and no release of an epoch exists before its sequencer has begun it.
        """
        known: tuple[Iterable[int], ...] = (self.lngs, self.ends, self._closed, self._held)
        newest = max(max(epochs, default=0) for epochs in known)
        return max(newest, self.clean, self.released >> 32, self.gone >> 32)

    @property
    def begun(self) -> int:
        """The highest epoch of which this node knows that a sequencer began it, 0 for none.

        A sequencer tells its nodesets after its epoch has begun. Only for the first epoch it tells
        them just before.
        """
        return max(self.recorded, self.nodesets[0])

    @property
    def is_behind(self) -> bool:
        """Whether ended epochs have to be purged before this node may serve them."""
        return self.clean < (self.released >> 32) - 1

    def is_outdated(self, seal_epoch: int) -> bool:
        """Whether the recovery under this seal is over, as far as this node knows; False for 0, a
        sequencer's.

        An epoch releases only after its recovery has ended. No recovery cleans its own epoch: a
        later one does that, under a higher seal. So stores of a recovery that come after either are
        late, those of an earlier attempt under the same seal too.
        """
        return 0 < seal_epoch <= max(self.released >> 32, self.clean)

    @property
    def ruling(self) -> int:
        """The lowest epoch that may rule, as far as releases and clean epochs tell."""
        return max(self.released >> 32, self.clean + 1)

    def unclean_epochs(self, below: int) -> list[int]:
        """Epochs under `below` that have blocks here and are not known to be clean."""
        return sorted(epoch for epoch in self._held if epoch < below and epoch not in self._closed)

    def close_epoch(self, epoch: int, end: EpochEnd | None) -> None:
        """Note that `epoch` is over, and keep only its blocks that count; see `counts`.

        Lower epochs of which blocks are held may still have to be purged: `clean` moves
        only as far as nothing held is left behind it.

        Args:
            end: above its LNG only blocks of its recovery count. None if this node held no block
                that could need it. If a block came since, the epoch stays open: the node has to
                ask how it ended.
        """
        if end is None and epoch in self._held:
            return
        known = self.ends.get(epoch)
        if known is not None and end is not None and known.place > end.place:
            return  # Race: a late message of an attempt or recovery that a newer one overtook
        if end is not None:
            self.ends[epoch] = end
            old = self.ends.get(epoch - ENDS_KNOWING_PRODUCERS)
            if old is not None and old.produced:
                self.ends[epoch - ENDS_KNOWING_PRODUCERS] = old._replace(produced=b"")
            self._keep([block for block in self._blocks if self.counts_block(block)])
        self._closed.add(epoch)
        self.produced.drop(epoch)
        unclean = self.unclean_epochs(1 << 31)
        reached = [each for each in self._closed if not unclean or each < unclean[0]]
        self.clean = max([self.clean, *reached])
        self._closed = {each for each in self._closed if each > self.clean}
        self._held = {each for each in self._held if each > self.clean}

    def above_own_lng(self, epoch: int, end: EpochEnd) -> EpochEnd:
        """An epoch's end, with this node's own LNG if that is higher.

        A recovery that heard too few nodes may end an epoch below this node's LNG. All records up
        to an LNG were acknowledged, so a recovery that left them out was wrong.
        """
        return end._replace(lng=max(end.lng, self.lngs.get(epoch, 0)))

    def has_ended(self, epoch: int, end: EpochEnd) -> bool:
        """Whether this node was told exactly this end."""
        return self.ends.get(epoch) == self.above_own_lng(epoch, end)

    def wrote_in(self, epoch: int) -> list[Produced]:
        """The producers' blocks in `epoch`, as far as this node knows.

        If a recovery told this node the epoch's end and then failed, the next recovery gets only
        the producers in that end.
        """
        end = self.ends.get(epoch)
        told = [] if end is None else read_produced(end.produced)
        ended = [
            replace(each, places=places)
            for each in told
            if (places := tuple(place for place in each.places if place.first >> 32 == epoch))
        ]
        return [*self.produced.of(epoch), *ended]

    def tell_produced(self, epoch: int, produced: Iterable[Produced], append_time_us: int) -> None:
        """Take what another node knows of producers' blocks in an epoch without an end here, and
        of the latest append time."""
        self.append_time_us = max(self.append_time_us, append_time_us)
        if epoch not in self.ends:
            self.produced.take(epoch, produced)

    def knows_produced(self, epoch: int, produced: Iterable[Produced], append_time_us: int) -> bool:
        """Whether `tell_produced` would change nothing."""
        is_known = epoch in self.ends or self.produced.has(epoch, produced)
        return is_known and append_time_us <= self.append_time_us

    def produced_to_tell(self) -> Iterator[tuple[int, EpochEnd]]:
        """This node's knowledge of producers, for nodes that began anew.

        By epoch: the newest end, and for each epoch without an end an `EpochEnd` of seal 0. An
        empty `EpochEnd` of seal 0 is given too if no block is left to tell the latest append time.

        Producers' blocks above an LNG are left out: they may become holes, and there are copies of
        all that count.
        """
        newest = max(self.ends, default=0)
        if newest and self.ends[newest].produced:
            yield newest, self.ends[newest]
        if self.append_time_us and self.released and self.gone >= self.released:
            yield self.released >> 32, EpochEnd(0, 0)
        for epoch in sorted(self.produced.epochs):
            told = self.produced.settled(epoch, self.lngs.get(epoch, 0))
            if told and epoch > newest:
                yield epoch, EpochEnd(0, 0, pack_produced(told))

    def known_between(self, above: int, below: int) -> tuple[dict[int, int], dict[int, bytes]]:
        """By epoch: the known LNGs, and the known producers' blocks, packed.

        The cost depends on the entries held here, not on the distance between the two epochs.
        """
        lngs = {epoch: lng for epoch, lng in self.lngs.items() if above < epoch < below}
        written = {epoch for epoch in (*self.produced.epochs, *self.ends) if above < epoch < below}
        wrote = {epoch: pack_produced(self.wrote_in(epoch)) for epoch in sorted(written)}
        return lngs, {epoch: packed for epoch, packed in wrote.items() if packed}

    def trim_to(self, lsn: int) -> None:
        """Drop every block that ends at or below `lsn`, and take none from now on."""
        if lsn > self.trim:
            self.trim = lsn
            self._let_go(lsn)

    def tier_to(self, lsn: int) -> None:
        """As `trim_to`, for records that main storage holds."""
        if lsn > self.tier:
            self.tier = lsn
            self._let_go(lsn)

    def _let_go(self, lsn: int) -> None:
        self.gone = max(self.gone, lsn)
        at = self.index_from(lsn + 1)
        if at:
            self._keep(self._blocks[at:])
        # No block of lower epochs is held, so none has to be purged. The ends of these epochs stay:
        # a node that has not heard of the trim yet may ask for them.
        self._held = {epoch for epoch in self._held if epoch >= lsn >> 32}

    def counts(self, last: int, seal_epoch: int, wave: int) -> bool:
        """Whether a copy that ends at `last` counts, as far as its epoch's end is known.

        Copies of a higher recovery count too, because it kept the outcome that it found. So do
        copies of a later attempt of the same recovery. Copies of an earlier attempt do not count:
        it was given up, and may have decided differently.
        """
        end = self.ends.get(last >> 32)
        return end is None or last <= end.lng or (seal_epoch, wave) >= end.place

    def counts_block(self, block: StoredBlock) -> bool:
        """See `counts`."""
        envelope = block.envelope
        return self.counts(block.header.last, envelope.seal_epoch, envelope.wave)

    def drop(self, gone: set[int]) -> None:
        """Drop the blocks whose `id` is in `gone`: LogsDB has them."""
        self._keep([block for block in self._blocks if id(block) not in gone])

    def _keep(self, keep: list[StoredBlock]) -> None:
        if len(keep) < len(self._blocks):
            self._blocks = keep
            self._lasts = [block.header.last for block in keep]
            self.bytes = sum(block.wire_bytes for block in keep)

    @property
    def blocks(self) -> Sequence[StoredBlock]:
        """All of them, by last LSN."""
        return self._blocks

    @property
    def last(self) -> int:
        """The highest LSN held here, 0 for none."""
        return self._lasts[-1] if self._lasts else 0

    def index_from(self, lsn: int) -> int:
        """Index of the first block that ends at or after `lsn`."""
        return bisect_left(self._lasts, lsn)

    def from_lsn(self, lsn: int) -> Iterator[StoredBlock]:
        """Blocks that end at or after `lsn`, by last LSN."""
        for index in range(self.index_from(lsn), len(self._blocks)):
            yield self._blocks[index]

    def at(self, index: int) -> StoredBlock | None:
        """The block at an index, None past the end."""
        return self._blocks[index] if index < len(self._blocks) else None


@dataclass(slots=True)
class FlushSet:
    """The changes for one flush: by the WAL's records up to `offset` since the last flush.

    Attributes:
        since_s: the loop's time at which the first change came.
        offset: of the last record.
        blocks: in the order in which they came; some may have been replaced since.
        bytes: of these blocks.
        logs: the logs that changed.
        states: of these logs, as of `offset`; made when the batch is cut.
        staged, ledgers: rows of staged blocks and of ledgers, also made when the batch is cut.
        staged_bytes: of the bodies of staged blocks, and of entries of ledgers.
    """

    since_s: float
    offset: int = -1
    blocks: list[StoredBlock] = field(default_factory=list)
    bytes: int = 0
    logs: dict[int, None] = field(default_factory=dict)
    states: dict[int, LogState] = field(default_factory=dict)
    staged: list[Row] = field(default_factory=list)
    ledgers: LedgerCut = field(default_factory=LedgerCut)
    staged_bytes: int = 0


class LogCache:
    """Every log of one storage node.

    Args:
        states: of the logs that LogsDB knows.
    """

    def __init__(self, states: Mapping[int, LogState] | None = None) -> None:
        known = states or {}
        self._logs = {log: CachedLog(state) for log, state in known.items()}
        self._batch: FlushSet | None = None
        self._bytes = 0

    def log(self, log: int) -> CachedLog:
        """The log's blocks; a log not seen yet is empty."""
        found = self._logs.get(log)
        if found is None:
            found = self._logs[log] = CachedLog()
        return found

    def get(self, log: int) -> CachedLog | None:
        """The log's blocks, None if the log is unknown here."""
        return self._logs.get(log)

    @property
    def logs(self) -> dict[int, CachedLog]:
        """All logs by number."""
        return self._logs

    @property
    def bytes(self) -> int:
        """Bytes held until a flush drops them, over all logs."""
        return self._bytes

    @property
    def batch(self) -> FlushSet | None:
        """The batch for the next flush; None if there are no changes."""
        return self._batch

    def insert(self, block: StoredBlock) -> None:
        """Add a block that is durable in the WAL."""
        held = self.log(block.header.log)
        if held.insert(block):
            batch = self._batch
            assert batch is not None, "a record is noted before what it holds"
            batch.blocks.append(block)
            batch.bytes += block.wire_bytes
            self._bytes += block.wire_bytes

    def add_staged(self, size: int) -> None:
        """Count this many bytes of staged blocks or entries in memory until the next flush is
        done."""
        batch = self._batch
        assert batch is not None, "a record is noted before what it holds"
        batch.bytes += size
        batch.staged_bytes += size
        self._bytes += size

    def note(self, offset: int, logs: list[int], now_s: float) -> None:
        """Note that a WAL record changes these logs. Call it in the order of the WAL, before the
        change."""
        batch = self._batch
        if batch is None:
            batch = self._batch = FlushSet(now_s)
        assert offset > batch.offset, "records come in the order of the WAL"
        batch.offset = offset
        batch.logs.update(dict.fromkeys(logs))

    def cut(self, seals: Mapping[int, int]) -> FlushSet | None:
        """Take the batch for a flush; None if there are no changes. Later changes make the next.

        Args:
            seals: by log, the epoch that sealed it durably.
        """
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.states = {log: self.log(log).state(seals.get(log, 0)) for log in batch.logs}
        return batch

    def evict(self, batch: FlushSet) -> None:
        """A batch is durable in LogsDB: drop its blocks."""
        gone: dict[int, set[int]] = {}
        for block in batch.blocks:
            gone.setdefault(block.header.log, set()).add(id(block))
        for log, blocks in gone.items():
            self.log(log).drop(blocks)
        self._bytes -= batch.bytes
        batch.blocks.clear()
