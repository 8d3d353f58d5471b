"""A donor's look at all blocks of its node: which of them it has to move.

Logs with few blocks are read together, see `logs_db.heads_read`.

A member that comes first in a copyset may have let go of a block because main storage had it, and
main storage may have lost it since. So the look asks the members before this node, for each log
that may be in main storage.

Source: docs/protocol/rebuilding.md ("Donors"), rule 9.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from cordwood.block import EnvelopeFlag
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Member, NodeId
from cordwood.protocol.event_log import gives_last
from cordwood.protocol.rebalance_plan import gives, plan_given
from cordwood.protocol.rebuild_compare import Has, Word
from cordwood.protocol.rebuild_plan import Held, Losses, is_certain, lacking, with_awaited
from cordwood.rebuilding import LostNode, RebuildingSet
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.logs_db.partition import Part
from cordwood.storage.rebuild.copy_questions import held_of
from cordwood.storage.rebuild.donor_pace import DonorPace
from cordwood.storage.rebuild.donor_pass import Doubted, LogWork, Pass
from cordwood.storage.rebuild.epoch_nodesets import EpochNodesets, told_nodesets
from cordwood.storage.rebuild.main_copies import FindMain
from cordwood.storage.scrub.rotten_heads import rotten_heads

STEP_BLOCKS = 256
STEP_BYTES = 1 << 20
"""The most blocks and bytes of one read. Between two reads other tasks get a turn."""

TURN_BLOCKS = 64
"""Number of heads and logs that are looked at before other tasks get a turn: some 4 ms."""

DOUBTS_TOGETHER = 16
"""Number of logs in doubt whose members are asked side by side."""

Ask = Callable[[int, Sequence[Held]], Awaitable[Sequence[Word] | None]]


class DonorLook:
    """See the module.

    Attributes:
        deleted: logs that are known as deleted. Their ends are never settled.
    """

    def __init__(
        self,
        me: NodeId,
        engine: StorageEngine,
        members: Callable[[], Mapping[NodeId, Member]],
        pace: DonorPace,
        main: FindMain,
        ask: Ask,
    ) -> None:
        """
        Args:
            ask: asks a node for its copies of some blocks of one log; None if it does not answer.
        """
        self.deleted: set[int] = set()
        self._me = me
        self._engine = engine
        self._members = members
        self._pace = pace
        self._main = main
        self._ask = ask
        # The version of the set by which it looked last, and whether this node was the last donor.
        self._looked_by = 0, True

    def forget(self) -> None:
        """Forget what main storage had: it may have lost something since."""
        self._looked_by = 0, True

    async def look_at_all(self, now: Pass, is_old: Callable[[], bool]) -> None:
        """The blocks to move in all logs."""
        # Trap: main storage may have lost something between the looks for an earlier order and this
        # order, or since a drained node left blocks to it.
        by = now.rebuilding.version, gives_last(now.rebuilding, self._me)
        await self._main().refresh(anew=self._looked_by != by)
        now.has_main = self._main().is_used
        self._looked_by = by
        reader, since_turn = self._engine.reader, 0
        past: set[int] = set()
        now.losses = replace(now.losses, past=past)  # it grows with the look
        for logs in reader.batches(sorted(self._engine.cache.logs)):
            heads = await reader.heads(logs) if len(logs) > 1 else {}
            in_doubt: list[tuple[LogWork, Doubted]] = []
            for log in logs:
                if is_old():
                    return
                blocks = heads.get(log)
                if blocks is None:
                    await self._look_at(log, now, past)
                    continue
                found, doubted = self._found(log, blocks, now)
                if doubted.lowest:
                    in_doubt.append((found, doubted))
                else:
                    self._note_found(log, found, now)
                since_turn += 1 + len(blocks)
                if since_turn >= TURN_BLOCKS:
                    await self._pace.breathe(since_turn)
                    since_turn = 0
            for at in range(0, len(in_doubt), DOUBTS_TOGETHER):
                if is_old():
                    return
                some = in_doubt[at : at + DOUBTS_TOGETHER]
                await asyncio.gather(*(self._resolve(*each, now, past) for each in some))

    async def _resolve(self, found: LogWork, doubted: Doubted, now: Pass, past: set[int]) -> None:
        """Note the work in a log: the blocks in doubt too, if a member let go of some of them."""
        if await self._is_past(doubted, now):
            past.add(found.log)
            found.add(doubted.work)
        self._note_found(found.log, found, now)

    async def _is_past(self, doubted: Doubted, now: Pass) -> bool:
        """Whether a member before this node let go of blocks in doubt, or lacks them. A member that
        does not answer is waited for: the next pass asks it again."""
        members = self._members()
        for node, held in sorted(doubted.lowest.items()):
            # Trap: an old envelope may name a node that was emptied and removed since.
            if members and node not in members:
                continue
            words = await self._ask(node, [held])
            if words is None:
                now.report.waits.add(node)
            # Trap: a trim hides whether the node let go of what follows. And a node that began anew
            # says NO of blocks that main storage had then.
            elif any(word.has in (Has.LET_GO, Has.TRIMMED, Has.NO) for word in words):
                return True
        return False

    async def _look_at(self, log: int, now: Pass, past: set[int]) -> None:
        """The blocks to move in a log that is read by itself."""
        held = self._engine.cache.log(log)
        found, doubted = LogWork(log, 0), Doubted(LogWork(log, 0))
        unread = self.unmended(log)
        rotten: list[tuple[int, int]] = []
        at = held.trim + 1
        while at <= LSN_MAX:
            run = await self._engine.reader.read(
                log, at, LSN_MAX, _head, bytes_max=STEP_BYTES, blocks_max=STEP_BLOCKS
            )
            rotten += run.damaged
            here = self._found(log, run.blocks, now)
            found.add(here[0])
            doubted.add(here[1])
            at = run.next
            # Reads from the cache do not pause: give other tasks a turn here.
            await self._pace.breathe(len(run.blocks))
        await self._resolve(found, doubted, now, past)
        if log not in self.deleted and rotten:
            epochs = told_nodesets(self._engine, log, self._members())
            if await self.waits_for_rot(log, unread, rotten, now, epochs):
                now.rotten.append(log)
                now.report.trouble = f"log {log}: copies have rotted here"

    def _found(self, log: int, blocks: Iterable[StoredBlock], now: Pass) -> tuple[LogWork, Doubted]:
        """The work in some blocks of a log, and the blocks in doubt."""
        held, found = self._engine.cache.log(log), LogWork(log, 0)
        doubted = Doubted(LogWork(log, 0))
        may_be_past = self._main().may_have(log)

        @functools.cache
        def epochs() -> EpochNodesets:
            return told_nodesets(self._engine, log, self._members())

        for block in blocks:
            now.noted += bool(block.envelope.flags & EnvelopeFlag.MOVING)
            is_mine = self.is_mine(block, now.losses, epochs)
            if may_be_past and not is_mine and self._doubt(block, now.losses, doubted):
                _add(doubted.work, block, is_settled(held, block))
            if not is_mine and not self.gives_away(block, now, epochs):
                continue
            if is_mine and now.losses.awaited:
                now.short_of |= self._short_of(block, now.losses, epochs())
            # Trap: recovery may still drop the block, or make a hole of it. A copy that was moved
            # before would come back later.
            if is_mine or is_settled(held, block):  # otherwise a rebalance leaves it where it is
                _add(found, block, is_settled(held, block))
        return found, doubted

    def _doubt(self, block: StoredBlock, losses: Losses, doubted: Doubted) -> bool:
        """Whether a block is this node's to move if a member before it let go of it; notes these
        members."""
        if block.envelope.flags & EnvelopeFlag.DRAINED:
            return False
        held = held_of(block)
        before = losses.in_doubt(held, self._me)
        for node in before:
            lowest = doubted.lowest.setdefault(node, held)
            if held.last < lowest.last:
                doubted.lowest[node] = held
        return bool(before)

    def _note_found(self, log: int, found: LogWork, now: Pass) -> None:
        if found.is_unsettled and log not in self.deleted:
            now.unsettled.append(log)
        if found.blocks:
            now.todo.append(found)
        now.is_uncertain = now.is_uncertain or not self._is_certain(log, now.rebuilding)

    def unmended(self, log: int) -> list[DamagedRange]:
        book, gone = self._engine.logs.damages, self._engine.gone_of(log)
        return [each for each in book.of_log(log) if each.last > gone and not book.is_mended(each)]

    async def waits_for_rot(
        self,
        log: int,
        unread: Iterable[DamagedRange],
        rotten: Iterable[tuple[int, int]],
        now: Pass,
        epochs: EpochNodesets,
    ) -> bool:
        """Whether this node may have to move a rotten copy, so that the pass has to wait for its
        repair. Other rotten copies delay no pass: a rotten block of a log with one copy is never
        repaired. Nor is a block that no other node has (`_are_last`). The pass goes on
        without it, and the range stays damaged here.

        Args:
            unread: the ranges that were known as rotten before the log was read.
            rotten: the ranges that this read could not read; the book may not have them all yet.
        """
        losses, gone, known = now.losses, self._engine.gone_of(log), self.unmended(log)
        # Race: a range that was mended since may have been mended after the read, which missed it.
        if any(each.last > gone and each not in known for each in unread):
            return True
        for first, last in rotten:
            if not any(each.first <= first and last <= each.last for each in known):
                return True
        held = self._engine.cache.log(log)
        for each in known:
            heads = await rotten_heads(self._engine.logs, each)
            if heads is None:
                # The only copy of a block was never moved, and names no other node.
                if self._me in losses.leaving or not _has_one_copy(each, epochs):
                    return True
                continue
            latest: dict[tuple[int, int, int], StoredBlock] = {}
            for head in filter(held.counts_block, heads):
                place = (head.header.first, head.header.last, head.header.kind)
                best = latest.setdefault(place, head)
                if best.envelope.precedence < head.envelope.precedence:
                    latest[place] = head
            mine = [head for head in latest.values() if self.is_mine(head, losses, lambda: epochs)]
            if self._main().may_have(log):
                doubted = Doubted(LogWork(log, 0))
                some = [head for head in latest.values() if self._doubt(head, losses, doubted)]
                if await self._is_past(doubted, now):
                    mine += some
            if mine and not await self._are_last(mine, now.rebuilding):
                return True
            now.is_uncertain = now.is_uncertain or bool(mine)
        return False

    async def _are_last(self, heads: Iterable[StoredBlock], rebuilding: RebuildingSet) -> bool:
        """Whether no other node has these blocks of one log: an operator has given it up, or it
        says that it has no copy, as a node that was given up earlier and joined empty.

        A node that is to give its copies away is not done with such a block: once it is empty,
        readers do without it.
        """
        if rebuilding.entry(self._me) is not None:
            return False
        asked: dict[int, list[Held]] = {}
        for head in heads:
            if head.envelope.flags & EnvelopeFlag.MOVING:
                return False
            held = held_of(head)
            for node in held.copyset:
                entry = rebuilding.entry(node)
                if node != self._me and (entry is None or not is_given_up(entry)):
                    asked.setdefault(node, []).append(held)
        for node, blocks in sorted(asked.items()):
            for at in range(0, len(blocks), STEP_BLOCKS):
                some = blocks[at : at + STEP_BLOCKS]
                words = await self._ask(node, some)
                # A node that does not answer, or is not sure, may have it.
                if words is None or any(word.has is not Has.NO for word in words):
                    return False
        return True

    def is_mine(
        self, block: StoredBlock, losses: Losses, epochs: Callable[[], EpochNodesets]
    ) -> bool:
        """Whether a block is this node's to move, or has too few copies here and elsewhere."""
        flags = block.envelope.flags
        # It was given away already.
        if flags & EnvelopeFlag.DRAINED:
            return False
        # This node began to move it, and no other node knows the new copyset.
        if flags & EnvelopeFlag.MOVING:
            return True
        held = held_of(block)
        is_past = held.log in losses.past
        if losses.missing(held) and losses.doubting(held, is_past).may_give(held, self._me):
            return True
        return self._is_short(block, losses, epochs)

    def _is_short(
        self, block: StoredBlock, losses: Losses, epochs: Callable[[], EpochNodesets]
    ) -> bool:
        """Whether a block may have fewer copies than its epoch asks for, because a recovery ended
        the epoch without the lost nodes. Every holder waits for its copies: the donor may have
        been another node before the recovery, and may be done."""
        # Only a recovery stores fewer copies.
        if not losses.awaited or not block.envelope.flags & EnvelopeFlag.BY_RECOVERY:
            return False
        log, epoch = block.header.log, block.header.last >> 32
        known, history = self._engine.nodesets(log)
        # The usual case, without the domains of all members: this is asked of each log.
        if epoch <= known and all(
            len(block.envelope.copyset) >= each.copies and not each.replication.spans
            for each in history
        ):
            return False
        found = epochs().of(epoch)
        if found is None:
            # The move asks the other nodes for the nodeset.
            return log not in self.deleted and not losses.awaited <= {*block.envelope.copyset}
        held = held_of(block)
        return with_awaited(held, losses, *found) != held

    def _short_of(self, block: StoredBlock, losses: Losses, epochs: EpochNodesets) -> set[int]:
        """The lost nodes that a block names only because it has too few copies."""
        held, flags = held_of(block), block.envelope.flags
        found = epochs.of(held.epoch)
        if found is None or flags & EnvelopeFlag.MOVING or not flags & EnvelopeFlag.BY_RECOVERY:
            return set()
        return {*with_awaited(held, losses, *found).copyset} - {*held.copyset}

    def gives_away(
        self, block: StoredBlock, now: Pass, epochs: Callable[[], EpochNodesets]
    ) -> bool:
        """Whether a rebalance moves a block from here; blocks that must stay are counted."""
        if not now.losses.shares:
            return False
        held = held_of(block)
        share = gives(now.losses, held, self._me)
        # Without the nodeset of the block's epoch nothing can be said of its failure domains.
        known = epochs().of(held.epoch) if share is not None else None
        if share is None or known is None or plan_given(held, share, *known) is not None:
            return share is not None
        if now.is_looking:
            now.report.kept += 1
            now.report.kept_bytes += held.stored_bytes
        return False

    def _is_certain(self, log: int, rebuilding: RebuildingSet) -> bool:
        _, history = self._engine.nodesets(log)
        lacks = lacking(rebuilding)
        # The usual case, without the domains of all members: this is asked of each log.
        if all(len(lacks.intersection(each.nodes)) < each.copies for each in history):
            return True
        told = told_nodesets(self._engine, log, self._members())
        return all(is_certain(rebuilding, *each[1:]) for each in told.history)


def _add(work: LogWork, block: StoredBlock, is_settled: bool) -> None:
    """Count a block that is to be moved, or is waited for."""
    if not is_settled:
        work.is_unsettled = True
        return
    work.first = work.first or block.header.first
    work.blocks += 1
    work.bytes += block.header.stored_bytes


def is_settled(held: CachedLog, block: StoredBlock) -> bool:
    """Whether a block is settled: released, or of an epoch whose end is known here."""
    last = block.header.last
    return last <= held.readable or last >> 32 in held.ends or last >> 32 <= held.clean


def is_given_up(entry: LostNode) -> bool:
    """Whether an operator said that the data of a lost node never comes back."""
    return not entry.relocates and not entry.ranges and not entry.is_recoverable


def _head(block: StoredBlock) -> Part:
    return Part.HEAD


def _has_one_copy(damaged: DamagedRange, epochs: EpochNodesets) -> bool:
    """Whether all epochs of a range store one copy of each block."""
    first, last = damaged.first >> 32, damaged.last >> 32
    starts = [since for since, _, _ in epochs.history if first < since <= last]
    found = [epochs.of(epoch) for epoch in (first, *starts, last)]
    return all(each is not None and each[1].copies == 1 for each in found)
