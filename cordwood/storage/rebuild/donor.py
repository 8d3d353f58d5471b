"""A donor: goes through this node's blocks, and moves blocks of lost nodes, until none is left.

A *pass* uses one version of the rebuilding set. It first looks at the heads of all blocks, to know
the amount of work, and then moves blocks, some logs side by side. If all moves ended, the node
reports that it is done; otherwise the next pass looks again.

Only settled blocks are moved: blocks that readers may see, and blocks of epochs whose end is known.
Other blocks that name a lost node are in flight, or their sequencer was lost. They are settled
soon, or become holes, and the donor is not done before that. If a log has no sequencer, the donor
asks for the tail, which starts one. The end of a deleted log is never settled, and needs no copies.

All stores that this node took before it knew of the set are durable before a pass begins, so the
pass sees them. Later stores that name a lost node are refused (`storage.refusals`).

Source: docs/protocol/rebuilding.md; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from cordwood.block import EnvelopeFlag
from cordwood.errors import (
    CordwoodError,
    Corrupt,
    NoSequencer,
    Overloaded,
    UnknownLog,
    Unreachable,
)
from cordwood.layout.log_questions import Trim
from cordwood.layout.message import AskTail, Call
from cordwood.layout.message_impact import AskFitness, FitnessReply
from cordwood.layout.message_rebuilding import DonorState, TellProducers
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import StoredBlock, StoreRefusal, store_head
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Member, NodeId
from cordwood.protocol import event_log
from cordwood.protocol.event_log import work_of
from cordwood.protocol.rebalance_plan import gives, plan_given
from cordwood.protocol.rebuild_flow import FlowLimits, RebuildFlow
from cordwood.protocol.rebuild_plan import Losses, is_certain
from cordwood.rebuilding import RebuildingSet
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.logs_db.partition import Part
from cordwood.storage.logs_db.tables import TablesFailed
from cordwood.storage.rebuild.donor_pace import DonorPace
from cordwood.storage.rebuild.epoch_nodesets import (
    EpochNodesets,
    ReadRecord,
    asked_nodesets,
    heard_nodesets,
    told_nodesets,
)
from cordwood.storage.rebuild.moves import Moves, Report, held_of
from cordwood.storage.rebuild.staged_moves import StagedMoves
from cordwood.storage.scrub.rotten_heads import rotten_heads
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

STEP_BLOCKS = 256
STEP_BYTES = 1 << 20

RUN_BLOCKS = 64
"""Number of blocks in one run of moves; a window has a few runs."""

LANES = 4
"""Number of logs that are moved side by side, each with one run in flight."""

SETTLE_TIMEOUT_S = 10.0
TAIL_TIMEOUT_S = 10.0
TELL_TIMEOUT_S = 5.0
LOST_TIMEOUT_S = 2.0
LOST_PAUSE_S = 1.0
"""Pause between two calls that ask whether an absent node lost records."""

STIRRED_MAX = 64
"""Most logs whose tail is asked for after one pass."""

FULL_PAUSE_S = 0.1


@dataclass(slots=True)
class _ToDo:
    """The work that a pass found in one log: the first block to move, and the amount."""

    log: int
    first: int
    blocks: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Pass:
    """One pass: the work that it found, and the results.

    Attributes:
        unsettled: logs with blocks that name a lost node and are not settled yet.
        rotten: logs with copies that have rotted here. Nothing is repaired before it is released.
        is_uncertain: some lost nodes together may have held a block that no other node has.
    """

    rebuilding: RebuildingSet
    losses: Losses
    report: Report = field(default_factory=Report)
    todo: list[_ToDo] = field(default_factory=list)
    unsettled: list[int] = field(default_factory=list)
    rotten: list[int] = field(default_factory=list)
    is_uncertain: bool = False
    is_looking: bool = True
    began_s: float = 0.0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to this donor."""
        return self.report.is_clean and not self.unsettled

    @property
    def blocked(self) -> str:
        """The reasons why the pass is not done, as text; "" if it waits for nothing."""
        report, found = self.report, []
        if report.waits:
            found.append(f"nodes {sorted(report.waits)} do not say what they have")
        if report.stuck:
            found.append(f"{report.stuck} blocks have no place: too few nodes, or in too few racks")
        if self.unsettled:
            found.append(f"the ends of {len(self.unsettled)} logs are not settled yet")
        if report.trouble:
            found.append(report.trouble)
        return "; ".join(found)


class Donor:
    """See the module; `work` makes one pass."""

    def __init__(
        self,
        me: NodeId,
        engine: StorageEngine,
        members: Callable[[], Mapping[NodeId, Member]],
        read_record: ReadRecord,
        peers: Peers,
        moves: Moves,
        staged: StagedMoves,
        pace: DonorPace,
        run_bytes: Callable[[], int],
    ) -> None:
        self._me = me
        self._engine = engine
        self._members = members
        self._read_record = read_record
        self._peers = peers
        self._moves = moves
        self._staged = staged
        self._pace = pace
        self._run_bytes = run_bytes
        self._pass: Pass | None = None
        self._deleted: set[int] = set()

    def state(self) -> DonorState:
        """How far it is."""
        now = self._pass
        if now is None:
            return DonorState()
        blocks, size = (sum(each.blocks for each in now.todo), sum(each.bytes for each in now.todo))
        took_s = asyncio.get_running_loop().time() - now.began_s
        report = now.report
        return DonorState(
            now.rebuilding.version, report.blocks, report.bytes,
            max(0, blocks - report.blocks), max(0, size - report.bytes),
            report.bytes / took_s if took_s > 0 else 0.0, now.blocked[:4096], now.is_looking,
        )  # fmt: skip

    def rest(self) -> None:
        """There is nothing to do."""
        self._pass = None

    async def work(self, rebuilding: RebuildingSet, is_old: Callable[[], bool]) -> Pass:
        """One pass by a set; it ends early once `is_old`."""
        loop = asyncio.get_running_loop()
        donors = {NodeId(node) for each in rebuilding.lost for node in each.donors} - {self._me}
        unsure, silent = await self._ask_who_lost(donors)
        losses = replace(Losses.of(rebuilding), unsure=unsure)
        now = Pass(rebuilding, losses, began_s=loop.time())
        self._pass = now
        try:
            # Race: a store that was submitted before this pass may name the lost node, and the look
            # would not see it.
            await self._settle_stores()
            for log in sorted(self._engine.cache.logs):
                if is_old():
                    break
                await self._look(log, now)
            now.is_looking = False
            if self._engine.damage:
                now.report.trouble = f"this node lost records: {self._engine.damage}"
            await self._move_all(now, is_old)
            await self._staged.carry_out(losses, now.report, is_old)
            if self._me in now.losses.leaving and self._engine.staged.blocks:
                staged = len(self._engine.staged.blocks)
                now.report.trouble = (
                    f"{staged} staged blocks here wait to be published, or to expire"
                )
        except (TablesFailed, Corrupt, Overloaded, TimeoutError) as error:
            now.report.trouble = str(error) or "the WAL takes too long"
        if now.is_done:
            # Trap: if the first member is known to have lost records, the next member is the
            # donor. If the first lost the block and no other node knew, no donor would give it.
            await self._hear_who_lost(silent, now, is_old)
        if is_old():
            now.report.again += 1
        if now.is_done:
            # Only at the end: the others then know all that this node knew as it gave its last
            # block.
            await self._tell_known()
        for log in [*now.unsettled, *now.rotten][:STIRRED_MAX]:
            await self._stir(log)
        return now

    async def _ask_who_lost(self, nodes: Set[NodeId]) -> tuple[frozenset[int], frozenset[NodeId]]:
        """The nodes that lost records and go on without them, and the nodes that do not answer.

        A node that lost records may be the first of the copyset of a block that it lacks; then the
        next node is the donor.
        """

        async def ask(node: NodeId) -> bool | None:
            try:
                reply = await self._peers.call(node, AskFitness(), timeout_s=LOST_TIMEOUT_S)
            except CordwoodError as error:
                logger.debug("node %d does not say whether it lost records: %s", node, error)
                return None
            return isinstance(reply, FitnessReply) and reply.has_lost

        some = sorted(nodes)
        told = dict(zip(some, await asyncio.gather(*map(ask, some)), strict=True))
        lost = frozenset(int(node) for node, has_lost in told.items() if has_lost)
        return lost, frozenset(node for node, has_lost in told.items() if has_lost is None)

    async def _hear_who_lost(
        self, silent: frozenset[NodeId], now: Pass, is_old: Callable[[], bool]
    ) -> None:
        """Wait for donors that did not say whether they lost records: they must be done too. If one
        of them lost records, another pass follows."""
        while silent and not is_old():
            now.report.waits = set(map(int, silent))
            await asyncio.sleep(LOST_PAUSE_S)
            lost, silent = await self._ask_who_lost(silent)
            if lost:
                now.report.again += 1
                break
        now.report.waits = set()

    async def _tell_known(self) -> None:
        """Tell the others up to where logs are trimmed, and of producers, before this node may be
        lost itself.

        No block tells this any more once it is trimmed or in main storage. A node that began anew
        does not know it, and takes it from the donors of the next node. A node that does not answer
        has its disk, or hears of it then.
        """
        others = {node for node in self._peers.up if node != self._me}
        for log in sorted(self._engine.cache.logs):
            calls = self._known_of(log)
            if not calls:
                continue
            nodesets = told_nodesets(self._engine, log, self._members()).history
            of_log = {node for _, nodeset, _ in nodesets for node in nodeset.nodes} or others
            some = sorted(others & of_log)
            told = await asyncio.gather(*(self._tell_to(node, calls) for node in some))
            others -= {node for node, goes_on in zip(some, told, strict=True) if not goes_on}

    async def _tell_to(self, node: NodeId, calls: Sequence[Call]) -> bool:
        """Whether a node can be told more: it may refuse data of one log and take data of
        others."""
        for call in calls:
            try:
                await self._peers.call(node, call, timeout_s=TELL_TIMEOUT_S)
            except CordwoodError as error:
                logger.info("node %d did not take the ends and producers of a log: %s", node, error)
                if isinstance(error, Unreachable):
                    return False
        return True

    def _known_of(self, log: int) -> list[Call]:
        held = self._engine.cache.log(log)
        # Both together: a trim point may lie inside an atomic group, and a release never does.
        trims = [Trim(log, held.trim, max(held.trim, held.released))] if held.trim else []
        return [*trims, *self._producers_of(log, held)]

    def _producers_of(self, log: int, held: CachedLog) -> list[TellProducers]:
        return [
            TellProducers(
                log, epoch, end.produced, end.seal, end.lng, end.attempt, held.append_time_us
            )
            for epoch, end in held.produced_to_tell()
        ]

    async def _settle_stores(self) -> None:
        """Wait until all earlier submissions to the WAL are durable.

        Raises:
            TimeoutError: it takes too long.
        """
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while await self._store_nothing():  # noqa: ASYNC110 - a flush makes free space
                await asyncio.sleep(FULL_PAUSE_S)

    async def _store_nothing(self) -> Sequence[StoreRefusal]:
        """Make an empty store durable after all others. Returns the refusals."""
        answer: asyncio.Future[Sequence[StoreRefusal]] = asyncio.get_running_loop().create_future()

        def settled(refusals: Sequence[StoreRefusal]) -> None:
            if not answer.done():
                answer.set_result(refusals)

        self._engine.store(0, memoryview(store_head(0)), settled)
        return await answer

    async def _look(self, log: int, now: Pass) -> None:
        """The blocks to move in a log."""
        held = self._engine.cache.log(log)
        found = _ToDo(log, 0)
        epochs = told_nodesets(self._engine, log, self._members())
        is_unsettled = False
        unread = self._unmended(log)
        rotten: list[tuple[int, int]] = []
        at = held.trim + 1
        while at <= LSN_MAX:
            run = await self._engine.reader.read(
                log, at, LSN_MAX, _head, bytes_max=STEP_BYTES, blocks_max=STEP_BLOCKS
            )
            rotten += run.damaged
            for block in run.blocks:
                is_mine = self._is_mine(block, now.losses)
                if not is_mine and not self._gives(block, now, epochs):
                    continue
                # Trap: recovery may still drop the block, or make a hole of it. A copy that was
                # moved before would come back later.
                if not is_settled(held, block):
                    # A rebalance leaves it where it is.
                    is_unsettled = is_unsettled or is_mine
                    continue
                found.first = found.first or block.header.first
                found.blocks += 1
                found.bytes += block.header.stored_bytes
            at = run.next
            # Reads from the cache do not pause: give other tasks a turn here.
            await self._pace.breathe(len(run.blocks))
        if log not in self._deleted:
            if is_unsettled:
                now.unsettled.append(log)
            if rotten and await self._waits_for_rot(log, unread, rotten, now.losses, epochs):
                now.rotten.append(log)
                now.report.trouble = f"log {log}: copies have rotted here"
        if found.blocks:
            now.todo.append(found)
        now.is_uncertain = now.is_uncertain or not self._is_certain(log, now.rebuilding)

    def _unmended(self, log: int) -> list[DamagedRange]:
        book, gone = self._engine.logs.damages, self._engine.gone_of(log)
        return [each for each in book.of_log(log) if each.last > gone and not book.is_mended(each)]

    async def _waits_for_rot(
        self,
        log: int,
        unread: Iterable[DamagedRange],
        rotten: Iterable[tuple[int, int]],
        losses: Losses,
        epochs: EpochNodesets,
    ) -> bool:
        """Whether this node may have to move a rotten copy, so that the pass has to wait for its
        repair. Other rotten copies delay no pass: a rotten block of a log with one copy is never
        repaired.

        Args:
            unread: the ranges that were known as rotten before the log was read.
            rotten: the ranges that this read could not read; the book may not have them all yet.
        """
        gone, known = self._engine.gone_of(log), self._unmended(log)
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
            if any(self._is_mine(head, losses) for head in latest.values()):
                return True
        return False

    def _is_mine(self, block: StoredBlock, losses: Losses) -> bool:
        """Whether a block is this node's to move."""
        flags = block.envelope.flags
        # It was given away already.
        if flags & EnvelopeFlag.DRAINED:
            return False
        # This node began to move it, and no other node knows the new copyset.
        if flags & EnvelopeFlag.MOVING:
            return True
        held = held_of(block)
        return bool(losses.missing(held)) and losses.may_give(held, self._me)

    def _gives(self, block: StoredBlock, now: Pass, epochs: EpochNodesets) -> bool:
        """Whether a rebalance moves a block from here; blocks that must stay are counted."""
        if not now.losses.shares:
            return False
        held = held_of(block)
        share = gives(now.losses, held, self._me)
        # Without the nodeset of the block's epoch nothing can be said of its failure domains.
        known = epochs.of(held.epoch) if share is not None else None
        if share is None or known is None or plan_given(held, share, *known) is not None:
            return share is not None
        if now.is_looking:
            now.report.kept += 1
            now.report.kept_bytes += held.stored_bytes
        return False

    def _is_certain(self, log: int, rebuilding: RebuildingSet) -> bool:
        told = told_nodesets(self._engine, log, self._members())
        return all(is_certain(rebuilding, *each[1:]) for each in told.history)

    async def _move_all(self, now: Pass, is_old: Callable[[], bool]) -> None:
        flow = RebuildFlow(FlowLimits(), asyncio.get_running_loop().time())
        self._pace.follow(flow.turn)
        waiting = iter(now.todo)

        async def lane() -> None:
            for each in waiting:
                await self._move_log(each, now, flow, is_old)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(LANES):
                tasks.create_task(lane())

    async def _move_log(
        self, todo: _ToDo, now: Pass, flow: RebuildFlow, is_old: Callable[[], bool]
    ) -> None:
        log, held = todo.log, self._engine.cache.log(todo.log)
        members = self._members()
        epochs = told_nodesets(self._engine, log, members)

        def wanted(block: StoredBlock) -> Part:
            is_wanted = is_settled(held, block) and (
                self._is_mine(block, now.losses) or self._gives(block, now, epochs)
            )
            return Part.WHOLE if is_wanted else Part.NOTHING

        unread = self._unmended(log)
        rotten: list[tuple[int, int]] = []
        at = max(todo.first, held.trim + 1)
        try:
            while at <= LSN_MAX and not is_old():
                run = await self._engine.reader.read(
                    log, at, LSN_MAX, wanted,
                    bytes_max=self._pace.run_bytes(self._run_bytes()), blocks_max=RUN_BLOCKS,
                )  # fmt: skip
                if run.blocks:
                    epochs = await self._complete(epochs, log, run.blocks[-1].header.last >> 32)
                    with self._engine.amends.having_read(run.blocks):
                        await self._moves.carry_out(
                            run.blocks, now.losses, epochs, held.released, flow, now.report
                        )
                rotten += run.damaged
                at = run.next
                await asyncio.sleep(0)
            # The look before read no bodies: what only this read found is looked at once more.
            is_kept = log not in self._deleted
            if (
                is_kept
                and rotten
                and await self._waits_for_rot(log, unread, rotten, now.losses, epochs)
            ):
                now.report.trouble = f"log {log}: copies have rotted here"
        except (TablesFailed, Corrupt, Overloaded) as error:
            now.report.trouble = f"log {log}: {error}"

    async def _complete(self, epochs: EpochNodesets, log: int, epoch: int) -> EpochNodesets:
        """The nodesets up to an epoch: known to this node, from the epoch store, or from other
        nodes while that is away."""
        if epoch <= epochs.known and epochs.history:
            return epochs
        asked = await asked_nodesets(self._read_record, log, self._members())
        if asked is not None:
            return asked
        heard = await heard_nodesets(self._peers, log, self._members())
        return epochs if heard is None or heard.known < epoch else heard

    async def _stir(self, log: int) -> None:
        """Start a log's sequencer, if there is none: it settles the remaining blocks."""
        node, is_stand_in = self._me, False
        for _ in range(3):
            try:
                await self._peers.call(node, AskTail(log, is_stand_in), timeout_s=TAIL_TIMEOUT_S)
            except NoSequencer as error:
                if not error.node or error.node == node:
                    return
                node = NodeId(error.node)
            except UnknownLog:
                # No sequencer ever settles the end of a deleted log, and no reader asks for it. So
                # its end may never be repaired.
                self._deleted.add(log)
                return
            except CordwoodError as error:
                logger.info("log %d: its end is not settled, and: %s", log, error)
                return
            else:
                return

    def work_left(self, rebuilding: RebuildingSet) -> tuple[int, ...]:
        """The lost nodes whose blocks this node has to give."""
        return work_of(rebuilding, self._me)

    def has_work(self, rebuilding: RebuildingSet) -> bool:
        """Whether this node has to give blocks, for a lost node or for a rebalance."""
        return bool(self.work_left(rebuilding)) or event_log.gives(rebuilding, self._me)


def _has_one_copy(damaged: DamagedRange, epochs: EpochNodesets) -> bool:
    """Whether all epochs of a range store one copy of each block."""
    first, last = damaged.first >> 32, damaged.last >> 32
    starts = [since for since, _, _ in epochs.history if first < since <= last]
    found = [epochs.of(epoch) for epoch in (first, *starts, last)]
    return all(each is not None and each[1].copies == 1 for each in found)


def is_settled(held: CachedLog, block: StoredBlock) -> bool:
    """Whether a block is settled: released, or of an epoch whose end is known here."""
    last = block.header.last
    return last <= held.readable or last >> 32 in held.ends or last >> 32 <= held.clean


def _head(block: StoredBlock) -> Part:
    return Part.HEAD
