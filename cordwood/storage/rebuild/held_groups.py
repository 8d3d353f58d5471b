"""The bytes on this node, by the nodeset of the epochs: the input of a rebalance's plan.

As `copy_survey` does, each call looks at some thousand heads and says where to go on. Copies that
were set aside, and blocks that are not settled, do not count.

Source: docs/protocol/rebuilding.md ("A rebalance").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from cordwood.block import EnvelopeFlag
from cordwood.errors import Retryable
from cordwood.layout.message_rebuilding import AskHeld, HeldGroup, HeldReply
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Member, NodeId
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.partition import Part
from cordwood.storage.rebuild.donor_look import is_settled
from cordwood.storage.rebuild.epoch_nodesets import ReadRecord, asked_nodesets, told_nodesets

LOOK_BLOCKS = 4096
"""Blocks of one call: a tenth of a second of the loop, in steps of STEP_BLOCKS."""

STEP_BLOCKS = 256
STEP_BYTES = 1 << 20

ASK_BLOCKS = 64
"""The cost of a question to the metadata store, in blocks of LOOK_BLOCKS."""


class HeldGroups:
    """See the module."""

    def __init__(
        self,
        engine: StorageEngine,
        members: Callable[[], Mapping[NodeId, Member]],
        read_record: ReadRecord,
    ) -> None:
        self._engine = engine
        self._members = members
        self._read_record = read_record

    async def look(self, ask: AskHeld) -> HeldReply:
        """See `AskHeld`.

        Raises:
            Retryable: this node does not know all its blocks.
            TablesFailed, Corrupt: LogsDB cannot be read.
        """
        if self._engine.damage:
            raise Retryable(f"this node does not know what it holds: {self._engine.damage}")
        found: dict[tuple[tuple[int, ...], int], int] = {}
        looked, lsn = 0, ask.lsn
        for log in sorted(self._engine.cache.logs):
            if log < ask.log:
                continue
            held = self._engine.cache.log(log)
            epochs = told_nodesets(self._engine, log, self._members())
            at = max(lsn if log == ask.log else 0, held.trim) + 1
            while at <= LSN_MAX:
                if looked >= LOOK_BLOCKS:
                    return _reply(found, log, at - 1)
                run = await self._engine.reader.read(
                    log, at, LSN_MAX, _head, bytes_max=STEP_BYTES, blocks_max=STEP_BLOCKS
                )
                newest = max((block.header.last >> 32 for block in run.blocks), default=0)
                if newest > epochs.known:
                    looked += ASK_BLOCKS
                    asked = await asked_nodesets(self._read_record, log, self._members())
                    epochs = asked or epochs
                for block in run.blocks:
                    known = epochs.of(block.header.last >> 32)
                    is_aside = block.envelope.flags & EnvelopeFlag.DRAINED
                    if known is None or is_aside or not is_settled(held, block):
                        continue
                    group = tuple(sorted(map(int, known[0].nodes))), known[1].copies
                    found[group] = found.get(group, 0) + block.header.stored_bytes
                looked += 1 + len(run.blocks)
                at = run.next
                # Reads from the cache do not pause: give other tasks a turn here.
                await asyncio.sleep(0)
        return _reply(found, 0, 0)


def _reply(found: Mapping[tuple[tuple[int, ...], int], int], log: int, lsn: int) -> HeldReply:
    groups = tuple(HeldGroup(*group, size) for group, size in sorted(found.items()))
    return HeldReply(groups, log, lsn)


def _head(block: StoredBlock) -> Part:
    return Part.HEAD
