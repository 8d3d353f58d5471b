"""How many bytes of a log a node answers for, so that nodes' sums never count a block twice.

Retention by size must know what a whole log has above an LSN, and copies of a block lie on many
nodes, not always as many. A block goes out in its first wave once, to one copyset. So each member
of that copyset answers for its share of the body, and the shares add up to the body at most. A node
does not count a copy of a later wave, of a recovery or of a repair. It also does not count a block
that no LNG covers, because a recovery may plug it. An uncounted block is kept longer; a block
counted twice would be deleted too early.

A flush takes its newest blocks before their LNG is known. These blocks wait here, in memory. The
first flush after their LNG is known adds them to their part of the directory.

Source: docs/sources/logdevice.md 1 ("backlog"); docs/protocol/retention-and-trim.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.block import BlockKind, EnvelopeFlag
from cordwood.layout.body import payload_bytes
from cordwood.layout.logs_db import DirectoryEntry, LogState
from cordwood.layout.waves import AmendedBlock, StoredBlock
from cordwood.storage.logs_db.partition import Added, Partition, PartitionBlocks

UNSURE_MAX = 4096
"""Blocks of one log that wait for an LNG: more than a sequencer has in flight."""


class Unsure(NamedTuple):
    """A block that no LNG covers yet, so a recovery may still plug it. `partition` is the number of
    its partition."""

    partition: int
    first: int
    last: int
    time_us: int
    bytes: int

    def entry(self) -> DirectoryEntry:
        """The addition to its part of the directory."""
        return DirectoryEntry(
            self.first, self.last, 0, 0, self.time_us, self.time_us, payload=self.bytes
        )


Waiting = dict[int, list[Unsure]]
"""By log."""


def answered_bytes(block: StoredBlock) -> int:
    """This node's share of a block, as one of the copyset of its first wave; 0 for no share."""
    envelope, header = block.envelope, block.header
    if envelope.wave != 1 or envelope.seal_epoch or header.kind is not BlockKind.DATA:
        return 0
    # A block that a repair stored again was counted at its rotten copy, in a partition that still
    # exists.
    if type(block) is AmendedBlock or envelope.flags & EnvelopeFlag.REBUILT:
        return 0
    return payload_bytes(header) // max(1, len(envelope.copyset))


class PayloadCount:
    """See the module. `of_flush` decides, `keep` takes it once the flush is durable."""

    def __init__(self) -> None:
        self._waiting: Waiting = {}

    def of_flush(
        self,
        shares: Sequence[PartitionBlocks],
        states: Mapping[int, LogState],
        partitions: Sequence[Partition],
    ) -> tuple[list[Added], Waiting]:
        """A flush's additions to the directory, and those that wait for a later flush.

        Args:
            shares: the flush's blocks.
            states: of changed logs, as of this flush.
            partitions: all that exist.
        """
        numbers = {partition.number for partition in partitions}
        waiting = {log: list(self._waiting[log]) for log in states if log in self._waiting}
        for share in shares:
            number = share.partition.number
            for block in share.blocks:
                size = answered_bytes(block)
                if size:
                    header = block.header
                    unsure = Unsure(number, header.first, header.last, header.append_time_us, size)
                    waiting.setdefault(header.log, []).append(unsure)
        sure: dict[int, dict[int, DirectoryEntry]] = {}
        left: Waiting = {}
        for log, blocks_of in waiting.items():
            state = states.get(log) or LogState()
            lngs = dict(state.lngs)
            newest = max(lngs, default=0)
            left[log] = []
            for each in blocks_of:
                epoch = each.last >> 32
                if each.last <= max(state.trim, state.tier) or each.partition not in numbers:
                    continue
                if each.last <= lngs.get(epoch, 0):
                    entries = sure.setdefault(each.partition, {})
                    before, entry = entries.get(log), each.entry()
                    entries[log] = entry if before is None else before.joined(entry)
                elif epoch >= newest:
                    left[log].append(each)
                # Else its epoch is over: the recovery may have made it a hole.
            del left[log][:-UNSURE_MAX]
        return sorted(sure.items()), left

    def keep(self, left: Waiting) -> None:
        """A flush is durable: `left` waits from now on, of the logs that it names."""
        for log, blocks in left.items():
            if blocks:
                self._waiting[log] = blocks
            else:
                self._waiting.pop(log, None)
