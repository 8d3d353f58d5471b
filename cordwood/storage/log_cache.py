"""The log cache: what is in the WAL and not yet in LogsDB, by log, in LSN order.

It also keeps what is known of each log beside its blocks (seals apart), for as long as
the node runs. What changes is gathered in the order of the WAL, as a *batch* that a flush
takes to LogsDB; its blocks leave the cache when that is durable. So a batch is a prefix of
the WAL over all logs, and what is behind it is here.

Blocks are indexed by last LSN, so that a read may begin inside a block. Two
copies of one range keep the one of higher precedence; a late loser is dropped.

How much it holds at most is `StorageEngine.cache_bytes_max`: the storage engine refuses what would
not fit.

Source: docs/design.md §2 (precedence), §5; docs/sources/s3stream.md (b) and trap 10 (cache order
must be WAL order).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cordwood.block import BlockHeader, Produced
from cordwood.layout.logs_db import LogState
from cordwood.layout.produced import pack_produced, read_produced
from cordwood.layout.waves import StoredBlock
from cordwood.storage.logs_db.tables import Row
from cordwood.storage.produced_index import ProducedIndex

ENDS_KNOWING_PRODUCERS = 64
"""Of older epochs nobody asks what was known of producers then: only recovery does, of the
last clean one."""


class EpochEnd(NamedTuple):
    """How an epoch was recovered: by which attempt under which seal, and the LNG above which only
    what that attempt wrote counts.

    `produced` is what is known of the log's producers as of its end, packed.
    """

    seal: int
    lng: int
    produced: bytes = b""
    attempt: int = 1

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the order of recoveries: attempts under one seal may decide otherwise."""
        return self.seal, self.attempt


class CachedLog:
    """One log's blocks.

    Attributes:
        released: last LSN that readers may see, as far as this node knows.
        clean: last epoch known to be recovered.
        lngs: LNG by epoch, for epochs of which something is known.
        ends: how each clean epoch that this node was told of was recovered.
        append_time_us: the latest append time seen.
        trim: all up to this LSN was trimmed; 0 for none. It only rises.
        bytes: bytes of headers, envelopes and bodies held here.
        produced: what producers wrote into epochs that are not clean yet.
        nodesets: which nodes may hold what (`layout.nodesets`), and the epoch up to which
            that is complete.
    """

    __slots__ = (
        "_blocks", "_closed", "_held", "_lasts", "append_time_us", "bytes", "clean", "ends",
        "lngs", "nodesets", "produced", "released", "trim",
    )  # fmt: skip

    def __init__(self, state: LogState | None = None) -> None:
        known = state or LogState()
        self._blocks: list[StoredBlock] = []
        self._lasts: list[int] = []
        self._closed = set(known.closed)
        # Epochs above `clean` of which blocks came, here or in LogsDB.
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
        self.trim = known.trim
        self.nodesets = known.nodesets
        self.bytes = 0
        self.produced = ProducedIndex(
            {epoch: read_produced(packed) for epoch, packed in produced.items()}
        )

    def state(self, seal: int) -> LogState:
        """All but the blocks, as of now; `seal` is the epoch that sealed the log durably."""
        return LogState(
            seal=seal,
            clean=self.clean,
            released=self.released,
            trim=self.trim,
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
        """Which nodes may hold what, complete up to `epoch`; what is of later epochs stays."""
        if epoch > self.nodesets[0]:
            self.nodesets = epoch, packed

    def __len__(self) -> int:
        return len(self._blocks)

    def insert(self, block: StoredBlock) -> bool:
        """Keep a block; False if it comes too late, or a copy of the same range beats it."""
        header = block.header
        if self._is_late(block):
            return False
        self.append_time_us = max(self.append_time_us, header.append_time_us)
        self._note_lng(block.envelope.lng)
        if header.first >> 32 > self.clean:
            self._held.add(header.first >> 32)
        if header.producer and header.first >> 32 not in self.ends:
            # The end of an epoch tells its producers: beside it an index of what a recovery
            # that was tried again stored would hide all the others.
            self.produced.note(header, self.lngs.get(header.first >> 32, 0))
        if not self._lasts or header.last > self._lasts[-1]:
            self._lasts.append(header.last)
            self._blocks.append(block)
            self.bytes += block.wire_bytes
            return True
        at = bisect_left(self._lasts, header.last)
        while at < len(self._lasts) and self._lasts[at] == header.last:
            held = self._blocks[at]
            if held.header.first == header.first and held.header.kind == header.kind:
                return self._replace(at, block)
            at += 1
        self._lasts.insert(at, header.last)
        self._blocks.insert(at, block)
        self.bytes += block.wire_bytes
        return True

    def copy_of(self, header: BlockHeader) -> StoredBlock | None:
        """The copy that is held here of exactly this block, None for none."""
        for at in range(self.index_from(header.last), len(self._blocks)):
            if self._lasts[at] != header.last:
                break
            if self._blocks[at].header == header:
                return self._blocks[at]
        return None

    def _is_late(self, block: StoredBlock) -> bool:
        """Whether it was trimmed, or its epoch was over here, before it became durable."""
        if block.header.last <= self.trim:
            return True
        epoch, seal = block.header.first >> 32, block.envelope.seal_epoch
        end = self.ends.get(epoch)
        if end is not None:
            return block.header.last > end.lng and (seal, block.envelope.wave) < end.place
        return not seal and (epoch <= self.clean or epoch in self._closed)

    def _replace(self, at: int, block: StoredBlock) -> bool:
        held = self._blocks[at]
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
            # A sequencer starts only when every lower epoch is recovered, so its
            # LNG releases all below it too.
            self.released = lng

    def release(self, lsn: int) -> bool:
        """A sequencer released up to `lsn`; False if that is no news."""
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

        What is released is readable up to the first epoch that this node does not know
        to be clean; of that one, up to its LNG: above it this node may hold blocks that
        a recovery without it has turned into holes.
        """
        if self.clean >= (self.released >> 32) - 1:
            return self.released
        unclean = self.clean + 1
        return self.lngs.get(unclean, unclean << 32)

    @property
    def is_behind(self) -> bool:
        """Whether epochs that are over have to be purged before they may be read here."""
        return self.clean < (self.released >> 32) - 1

    def unclean_epochs(self, below: int) -> list[int]:
        """Epochs under `below` that are not known to be clean, and of which blocks are held."""
        return sorted(epoch for epoch in self._held if epoch < below and epoch not in self._closed)

    def close_epoch(self, epoch: int, end: EpochEnd | None) -> None:
        """`epoch` is over; of it only what counts is kept, see `counts`.

        Lower epochs of which blocks are held may still have to be purged: `clean` moves
        only as far as nothing held is left behind it.

        Args:
            end: above its LNG only what its recovery wrote counts; None where nothing
                was held that could need it. If something came since, the epoch stays open:
                how it ended has to be asked.
        """
        if end is None and epoch in self._held:
            return
        known = self.ends.get(epoch)
        if known is not None and end is not None and known.place > end.place:
            return  # told late, by an attempt or a recovery that another one overtook
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
        """How an epoch ended, with the LNG that this node knows where that is higher.

        A recovery that could not hear enough may end an epoch below it. All up to an LNG was
        acknowledged, so what is held here of that is never what such a recovery left out rightly.
        """
        return end._replace(lng=max(end.lng, self.lngs.get(epoch, 0)))

    def has_ended(self, epoch: int, end: EpochEnd) -> bool:
        """Whether this node was told just that."""
        return self.ends.get(epoch) == self.above_own_lng(epoch, end)

    def wrote_in(self, epoch: int) -> list[Produced]:
        """What producers wrote in `epoch`, as far as this node knows.

        Where a recovery said here how the epoch ended, and came no further, that is all there
        is to tell the next one.
        """
        end = self.ends.get(epoch)
        told = [] if end is None else read_produced(end.produced)
        ended = [
            replace(each, places=places)
            for each in told
            if (places := tuple(place for place in each.places if place.first >> 32 == epoch))
        ]
        return [*self.produced.of(epoch), *ended]

    def known_between(self, above: int, below: int) -> tuple[dict[int, int], dict[int, bytes]]:
        """LNGs, and what producers wrote, packed, by epoch: of epochs of which any is known.

        However far apart the two are, it goes over what is held here and no further.
        """
        lngs = {epoch: lng for epoch, lng in self.lngs.items() if above < epoch < below}
        written = {epoch for epoch in (*self.produced.epochs, *self.ends) if above < epoch < below}
        wrote = {epoch: pack_produced(self.wrote_in(epoch)) for epoch in sorted(written)}
        return lngs, {epoch: packed for epoch, packed in wrote.items() if packed}

    def trim_to(self, lsn: int) -> None:
        """Let go of every block that ends at or below `lsn`, and take none any more."""
        if lsn <= self.trim:
            return
        self.trim = lsn
        at = self.index_from(lsn + 1)
        if at:
            self._keep(self._blocks[at:])
        # Nothing is held of epochs below, so nothing of them has to be purged. Their ends are
        # kept: a node that has not heard of the trim yet may ask for them.
        self._held = {epoch for epoch in self._held if epoch >= lsn >> 32}

    def counts(self, last: int, seal_epoch: int, wave: int) -> bool:
        """Whether a copy counts that ends at `last`, as far as its epoch's end is known.

        What a recovery above the one that ended the epoch wrote counts too: it kept what
        it found of that one. So does a later attempt of the same one. An earlier attempt that
        was given up may have decided otherwise, and nothing that it left counts.
        """
        end = self.ends.get(last >> 32)
        return end is None or last <= end.lng or (seal_epoch, wave) >= end.place

    def counts_block(self, block: StoredBlock) -> bool:
        """See `counts`."""
        envelope = block.envelope
        return self.counts(block.header.last, envelope.seal_epoch, envelope.wave)

    def drop(self, gone: set[int]) -> None:
        """Let go of the blocks whose `id` is in `gone`: LogsDB has them."""
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
    """What one flush takes: all that the WAL's records up to `offset` changed since the last.

    Attributes:
        since_s: the loop's time at which the first of it came.
        offset: of the last record.
        blocks: in the order in which they came; some may have been replaced since.
        bytes: of them.
        logs: those that changed.
        states: of these, as of `offset`; made when it is cut.
        staged: rows of staged blocks, likewise.
        staged_bytes: of their bodies.
    """

    since_s: float
    offset: int = -1
    blocks: list[StoredBlock] = field(default_factory=list)
    bytes: int = 0
    logs: dict[int, None] = field(default_factory=dict)
    states: dict[int, LogState] = field(default_factory=dict)
    staged: list[Row] = field(default_factory=list)
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
        """The log's blocks, None if nothing is known of it."""
        return self._logs.get(log)

    @property
    def logs(self) -> dict[int, CachedLog]:
        """All logs by number."""
        return self._logs

    @property
    def bytes(self) -> int:
        """Bytes that no flush has let go of yet, over all logs."""
        return self._bytes

    @property
    def batch(self) -> FlushSet | None:
        """What the next flush would take; None for nothing."""
        return self._batch

    def insert(self, block: StoredBlock) -> None:
        """A block is durable in the WAL."""
        held = self.log(block.header.log)
        if held.insert(block):
            batch = self._batch
            assert batch is not None, "a record is noted before what it holds"
            batch.blocks.append(block)
            batch.bytes += block.wire_bytes
            self._bytes += block.wire_bytes

    def add_staged(self, size: int) -> None:
        """A staged body of so many bytes is in memory until the next flush is done."""
        batch = self._batch
        assert batch is not None, "a record is noted before what it holds"
        batch.bytes += size
        batch.staged_bytes += size
        self._bytes += size

    def note(self, offset: int, logs: list[int], now_s: float) -> None:
        """A WAL record changes these logs; call it in the order of the WAL, before they change."""
        batch = self._batch
        if batch is None:
            batch = self._batch = FlushSet(now_s)
        assert offset > batch.offset, "records come in the order of the WAL"
        batch.offset = offset
        batch.logs.update(dict.fromkeys(logs))

    def cut(self, seals: Mapping[int, int]) -> FlushSet | None:
        """Take what gathered, for a flush; None for nothing. What comes now is the next one's.

        Args:
            seals: by log, the epoch that sealed it durably.
        """
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.states = {log: self.log(log).state(seals.get(log, 0)) for log in batch.logs}
        return batch

    def evict(self, batch: FlushSet) -> None:
        """A batch is durable in LogsDB: let go of its blocks."""
        gone: dict[int, set[int]] = {}
        for block in batch.blocks:
            gone.setdefault(block.header.log, set()).add(id(block))
        for log, blocks in gone.items():
            self.log(log).drop(blocks)
        self._bytes -= batch.bytes
        batch.blocks.clear()
