"""Answers which blocks this node would have to give if the data of some nodes were gone. It changes
nothing.

It reads the headers and envelopes of all blocks on this node, and uses the rules of rebuilding:
only the donor of a block counts it. So the answers of all nodes add up, and nothing is counted
twice. A block without any node left has no donor. Then the first node of its copyset that is up
counts it, even if the question assumes this node lost.

Each call looks at some thousand blocks and returns the place to continue. So each call is short,
however large the store is.

Source: docs/sources/logdevice.md 2.9, 3 ("Safety checker").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from cordwood.errors import BadSetting, Retryable
from cordwood.layout.log_questions import AskIfLost, IfLostReply
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Member, NodeId
from cordwood.protocol.rebuild_plan import Held, Losses, Stuck, plan_move
from cordwood.quorum.authority import rebuilt_nodes
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.partition import Part
from cordwood.storage.rebuild.epoch_nodesets import (
    EpochNodesets,
    ReadRecord,
    asked_nodesets,
    told_nodesets,
)

LOOK_BLOCKS = 4096
"""Blocks of one call: a tenth of a second of the loop, in steps of STEP_BLOCKS."""

STEP_BLOCKS = 256
STEP_BYTES = 1 << 20
"""The most blocks and bytes of one read. Between two reads other tasks get a turn."""

ASK_BLOCKS = 64
"""The cost of a question to the metadata store, in blocks of LOOK_BLOCKS."""


class _First:
    """A source of chance that always draws the first choice. The survey asks only whether there is
    a place, so any choice will do."""

    def random(self) -> float:
        """See `quorum.copyset.Chance`."""
        return 0.0


class CopySurvey:
    """See the module."""

    def __init__(
        self,
        engine: StorageEngine,
        node: NodeId,
        members: Callable[[], Mapping[NodeId, Member]],
        read_record: ReadRecord,
    ) -> None:
        """
        Args:
            read_record: a log's record in the epoch store. Storage nodes are told of nodesets,
                and some hear of them late.
        """
        self._engine = engine
        self._node = node
        self._members = members
        self._read_record = read_record

    async def look(self, ask: AskIfLost) -> IfLostReply:
        """See `AskIfLost`.

        Raises:
            BadSetting: the node does not exist.
            Retryable: this node does not know all that it holds.
            TablesFailed, Corrupt: LogsDB cannot be read.
        """
        if self._engine.damage:
            raise Retryable(f"this node does not know what it holds: {self._engine.damage}")
        members = self._members()
        unknown = sorted(set(ask.nodes) - set(members))
        if unknown:
            known = ", ".join(map(str, sorted(members)))
            raise BadSetting(f"there is no node {unknown[0]}; there are {known}")
        tally = _Tally(self._node, members, frozenset(ask.nodes))
        looked, lsn = 0, ask.lsn
        for log in sorted(self._engine.cache.logs):
            if log < ask.log:
                continue
            epochs = told_nodesets(self._engine, log, members)
            at = lsn + 1 if log == ask.log else 1
            while at <= LSN_MAX:
                if looked >= LOOK_BLOCKS:
                    return tally.reply(log, at - 1)
                run = await self._engine.reader.read(
                    log, at, LSN_MAX, _head, bytes_max=STEP_BYTES, blocks_max=STEP_BLOCKS
                )
                newest = max((block.header.last >> 32 for block in run.blocks), default=0)
                if newest > epochs.known:
                    looked += ASK_BLOCKS
                    epochs = await asked_nodesets(self._read_record, log, members) or epochs
                for block in run.blocks:
                    tally.add(block, epochs)
                tally.unknown += len(run.damaged)
                # A log without blocks costs some of the time as well.
                looked += 1 + len(run.blocks)
                at = run.next
                # Reads from the cache do not pause: give other tasks a turn here.
                await asyncio.sleep(0)
        return tally.reply(0, 0)


class _Tally:
    """Counts blocks of one call."""

    def __init__(
        self, node: NodeId, members: Mapping[NodeId, Member], lost: frozenset[int]
    ) -> None:
        away = rebuilt_nodes(members.values())
        gone = lost | away
        self.unknown = 0
        self._node = node
        self._away = away
        self._losses = Losses(0, gone, frozenset(), (), gone)
        self._available = frozenset(members) - gone
        self._blocks = self._bytes = self._stuck = self._last = self._gone = 0

    def add(self, block: StoredBlock, epochs: EpochNodesets) -> None:
        """A valid block that this node holds."""
        header, copyset = block.header, block.envelope.copyset
        held = Held(
            header.log, header.first, header.last, header.append_time_us, header.stored_bytes,
            0, copyset,
        )  # fmt: skip
        left = len(set(copyset) - self._losses.gone)
        if not left:
            up = (node for node in copyset if node not in self._away)
            self._gone += next(up, None) == self._node
            return
        if self._losses.donor(held) != self._node:
            return
        found = epochs.of(held.epoch)
        if found is None:
            self.unknown += bool(self._losses.missing(held))
            return
        nodeset, replication = found
        move = plan_move(
            held, self._node, self._losses, nodeset, replication, self._available, _First()
        )
        if move is None:
            return
        self._last += left == 1
        if isinstance(move, Stuck):
            self._stuck += 1
        else:
            self._blocks += 1
            self._bytes += header.stored_bytes * len(move.stores)

    def reply(self, log: int, lsn: int) -> IfLostReply:
        """The counts, and where to continue."""
        return IfLostReply(
            self._blocks, self._bytes, self._stuck, self._last, self._gone, self.unknown, log, lsn
        )


def _head(block: StoredBlock) -> Part:
    return Part.HEAD
