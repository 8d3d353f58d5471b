"""The log cache: what is in the WAL, by log, in LSN order.

Until LogsDB lands this is all that a node serves from, so it holds exactly what
the WAL holds and is bounded by the WAL's capacity.

Blocks are indexed by last LSN, so that a read may begin inside a block. Two
copies of one range keep the one of higher precedence; a late loser is dropped.

Source: design.md §2 (precedence), §5; s3stream digest (b).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from cordwood.layout.waves import StoredBlock


class EpochEnd(NamedTuple):
    """How an epoch was recovered: by which seal, and the LNG above which only that counts."""

    seal: int
    lng: int


class CachedLog:
    """One log's blocks.

    Attributes:
        released: last LSN that readers may see, as far as this node knows.
        clean: last epoch known to be recovered.
        lngs: LNG by epoch, for epochs of which something is known.
        ends: how each clean epoch that this node was told of was recovered.
        append_time_us: the latest append time held.
        bytes: bytes of headers, envelopes and bodies held.
    """

    __slots__ = (
        "_blocks", "_closed", "_lasts", "append_time_us", "bytes", "clean", "ends", "lngs",
        "released",
    )  # fmt: skip

    def __init__(self) -> None:
        self._blocks: list[StoredBlock] = []
        self._lasts: list[int] = []
        self._closed: set[int] = set()
        self.released = 0
        self.clean = 0
        self.lngs: dict[int, int] = {}
        self.ends: dict[int, EpochEnd] = {}
        self.append_time_us = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def insert(self, block: StoredBlock) -> bool:
        """Keep a block; False if it comes too late, or a copy of the same range beats it."""
        header = block.header
        if self._is_late(block):
            return False
        self.append_time_us = max(self.append_time_us, header.append_time_us)
        self._note_lng(block.envelope.lng)
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

    def _is_late(self, block: StoredBlock) -> bool:
        """Whether a block's epoch was over here before it became durable, without it."""
        epoch, seal = block.header.first >> 32, block.envelope.seal_epoch
        end = self.ends.get(epoch)
        if end is not None:
            return block.header.last > end.lng and seal < end.seal
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
        above = self._blocks[self.index_from((self.clean + 1) << 32) :]
        held = {block.header.first >> 32 for block in above}
        return sorted(epoch for epoch in held if epoch < below and epoch not in self._closed)

    def close_epoch(self, epoch: int, end: EpochEnd | None) -> None:
        """`epoch` is over; of it only what counts is kept.

        Lower epochs of which blocks are held may still have to be purged: `clean` moves
        only as far as nothing held is left behind it.

        Args:
            end: above its LNG only what its recovery wrote counts; None where nothing
                is held that could need it.
        """
        if end is not None:
            self.ends[epoch] = end
            self._drop_what_lost(epoch, end)
        self._closed.add(epoch)
        unclean = self.unclean_epochs(1 << 31)
        reached = [each for each in self._closed if not unclean or each < unclean[0]]
        self.clean = max([self.clean, *reached])
        self._closed = {each for each in self._closed if each > self.clean}

    def _drop_what_lost(self, epoch: int, end: EpochEnd) -> None:
        keep = [
            block
            for block in self._blocks
            if block.header.first >> 32 != epoch
            or block.header.last <= end.lng
            or block.envelope.seal_epoch == end.seal
        ]
        if len(keep) < len(self._blocks):
            self._blocks = keep
            self._lasts = [block.header.last for block in keep]
            self.bytes = sum(block.wire_bytes for block in keep)

    def index_from(self, lsn: int) -> int:
        """Index of the first block that ends at or after `lsn`."""
        return bisect_left(self._lasts, lsn)

    def at(self, index: int) -> StoredBlock | None:
        """The block at an index, None past the end."""
        return self._blocks[index] if index < len(self._blocks) else None


class LogCache:
    """Every log of one storage node."""

    def __init__(self) -> None:
        self._logs: dict[int, CachedLog] = {}

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
        """Bytes held over all logs."""
        return sum(log.bytes for log in self._logs.values())
