"""A donor: goes through this node's blocks, and moves blocks of lost nodes, until none is left.

A *pass* uses one version of the rebuilding set. It first looks at the heads of all blocks, to know
the amount of work, and then moves blocks, some logs side by side. If all moves ended, the node
reports that it is done; otherwise the next pass looks again.

Only settled blocks are moved: blocks that readers may see, and blocks of epochs whose end is known.
Other blocks that name a lost node are in flight, or their sequencer was lost. They are settled
soon, or become holes, and the donor is not done before that. If a log has no sequencer, the donor
asks for the tail, which starts one. The end of a deleted log is never settled, and needs no copies.

A pass finishes the moves that an earlier pass noted, also where the set has no work for this node
any more: its drain was taken back, or it was lost and came back with its data. A node that starts
does not know of such moves, so it makes a pass if the cluster ever had work for donors.

All stores that this node took before it knew of the set are durable before a pass begins, so the
pass sees them. Later stores that name a lost node are refused (`storage.refusals`).

Source: docs/protocol/rebuilding.md; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from cordwood.errors import (
    CordwoodError,
    Corrupt,
    NoSequencer,
    Overloaded,
    Retryable,
    UnknownLog,
    Unreachable,
)
from cordwood.layout.log_questions import Trim
from cordwood.layout.message import AskTail, Call
from cordwood.layout.message_impact import AskFitness, FitnessReply
from cordwood.layout.message_rebuilding import DonorState, TellProducers
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Member, NodeId
from cordwood.protocol import event_log
from cordwood.protocol.event_log import work_of
from cordwood.protocol.rebuild_flow import FlowLimits, RebuildFlow
from cordwood.protocol.rebuild_plan import Losses
from cordwood.rebuilding import RebuildingSet
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.logs_db.partition import Part
from cordwood.storage.logs_db.tables import TablesFailed
from cordwood.storage.rebuild.donor_look import DonorLook, is_settled
from cordwood.storage.rebuild.donor_pace import DonorPace
from cordwood.storage.rebuild.donor_pass import LogWork, Pass
from cordwood.storage.rebuild.epoch_nodesets import (
    EpochNodesets,
    ReadRecord,
    asked_nodesets,
    heard_nodesets,
    told_nodesets,
)
from cordwood.storage.rebuild.main_copies import FindMain
from cordwood.storage.rebuild.moves import Moves
from cordwood.storage.rebuild.staged_moves import StagedMoves
from cordwood.storage.repair.sequencer_question import next_logs
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

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
"""Most logs whose tail is asked for after one pass. The next pass goes on with the logs behind
them."""

FULL_PAUSE_S = 0.1
"""Pause before an empty store is tried again on a full WAL, which has free space after a flush."""


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
        main: FindMain,
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
        # Why the pass before did not end the work: a pass may take minutes to find the same reason.
        self._waited = ""
        self._look = DonorLook(me, engine, members, pace, main, moves.ask)
        self._stirred = 0  # the log whose tail was asked for last
        # Whether moves may be noted here that no pass has finished.
        self._may_have_noted = True

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
            report.bytes / took_s if took_s > 0 else 0.0,
            (now.blocked or self._waited)[:4096], now.is_looking,
        )  # fmt: skip

    def rest(self) -> None:
        """Note that the donor has nothing to do."""
        self._pass = None
        self._waited = ""

    async def work(self, rebuilding: RebuildingSet, is_old: Callable[[], bool]) -> Pass:
        """One pass by a set; it ends early once `is_old`."""
        loop = asyncio.get_running_loop()
        donors = {NodeId(node) for each in rebuilding.lost for node in each.donors} - {self._me}
        unsure, silent = await self._ask_who_lost(donors)
        losses = replace(Losses.of(rebuilding), unsure=unsure)
        now = Pass(rebuilding, losses, began_s=loop.time())
        self._waited = self._pass.blocked if self._pass is not None else ""
        self._pass = now
        has_order = self.has_order(rebuilding)
        self._may_have_noted = self._may_have_noted or has_order
        try:
            # Race: a store that was submitted before this pass may name the lost node, and the look
            # would not see it.
            await self._settle_stores()
            await self._look.look_at_all(now, is_old)
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
        if now.is_done and has_order:
            # Trap: if the first member is known to have lost records, the next member is the
            # donor. If the first lost the block and no other node knew, no donor would give it.
            await self._hear_who_lost(silent, now, is_old)
            if now.is_look_old(self._me):
                now.is_cut = True
                self._look.forget()
        now.is_cut = now.is_cut or is_old()
        if now.is_done and has_order:
            # Only at the end: the others then know all that this node knew as it gave its last
            # block.
            now.report.trouble = await self._tell_known()
        if now.is_done or not (has_order or now.noted or now.is_looking or is_old()):
            self._may_have_noted = False
        # Logs that cannot be settled for now must not take the turns of the others.
        for log in next_logs({*now.unsettled, *now.rotten}, self._stirred, STIRRED_MAX):
            self._stirred = log
            await self._stir(log)
        self._waited = ""
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
        """Wait for nodes that did not say whether they lost records. They are donors too. If one of
        them lost records, another pass follows."""
        while silent and not is_old():
            now.has_waited = True
            now.report.waits = set(map(int, silent))
            await asyncio.sleep(LOST_PAUSE_S)
            lost, silent = await self._ask_who_lost(silent)
            if lost:
                now.is_cut = True
                break
        now.report.waits = set()

    async def _tell_known(self) -> str:
        """Tell the others up to where logs are trimmed, and of producers, before this node may be
        lost itself.

        No block tells this any more once it is trimmed or in main storage. A node that began anew
        does not know it, and takes it from the donors of the next node. A node that does not answer
        has its disk, or hears of it then.

        Returns:
            Why it has to be told again, "" if it need not: no other node took the data of a log,
            and one of them may take it later. If this disk were lost next, nobody would know.
        """
        untold = ""
        others = {node for node in self._peers.up if node != self._me}
        for log in sorted(self._engine.cache.logs):
            calls = self._known_of(log)
            if not calls:
                continue
            nodesets = told_nodesets(self._engine, log, self._members()).history
            of_log = {node for _, nodeset, _ in nodesets for node in nodeset.nodes} or others
            some = sorted(others & of_log)
            told = await asyncio.gather(*(self._tell_to(node, calls) for node in some))
            # A node may refuse data of one log and take data of others.
            others -= {node for node, e in zip(some, told, strict=True) if _is_away(e)}
            later = [e for e in told if isinstance(e, Retryable) and not _is_away(e)]
            if later and None not in told:
                untold = f"log {log}: no node takes its ends and producers: {later[0]}"
        return untold

    async def _tell_to(self, node: NodeId, calls: Sequence[Call]) -> CordwoodError | None:
        """Tell a node the data of a log. Returns None if it took all of it; an error that may pass
        comes before an error that stays."""
        refused: CordwoodError | None = None
        for call in calls:
            try:
                await self._peers.call(node, call, timeout_s=TELL_TIMEOUT_S)
            except CordwoodError as error:
                logger.info("node %d did not take the ends and producers of a log: %s", node, error)
                if _is_away(error):
                    return error
                refused = refused if isinstance(refused, Retryable) else error
        return refused

    def _known_of(self, log: int) -> list[Call]:
        held = self._engine.cache.log(log)
        # Tell trim point and release together: a trim point may be inside an atomic group, and a
        # release never is.
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
            while True:
                try:
                    return await self._engine.settle_stores()
                except Retryable:
                    await asyncio.sleep(FULL_PAUSE_S)  # a flush makes free space

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
        self, todo: LogWork, now: Pass, flow: RebuildFlow, is_old: Callable[[], bool]
    ) -> None:
        look, log, held = self._look, todo.log, self._engine.cache.log(todo.log)
        members = self._members()
        epochs = told_nodesets(self._engine, log, members)

        def wanted(block: StoredBlock) -> Part:
            is_wanted = is_settled(held, block) and (
                look.is_mine(block, now.losses, lambda: epochs)
                or look.gives_away(block, now, lambda: epochs)
            )
            return Part.WHOLE if is_wanted else Part.NOTHING

        unread = self._look.unmended(log)
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
            # The first look read no bodies. Damage that only this read found is looked at once
            # more.
            is_kept = log not in self._look.deleted
            if (
                is_kept
                and rotten
                and await self._look.waits_for_rot(log, unread, rotten, now, epochs)
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
                self._look.deleted.add(log)
                return
            except CordwoodError as error:
                logger.info("log %d: its end is not settled, and: %s", log, error)
                return
            else:
                return

    def work_left(self, rebuilding: RebuildingSet) -> tuple[int, ...]:
        """The lost nodes whose blocks this node has to give."""
        return work_of(rebuilding, self._me)

    def has_order(self, rebuilding: RebuildingSet) -> bool:
        """Whether this node has to give blocks, for a lost node or for a rebalance."""
        return bool(self.work_left(rebuilding)) or event_log.gives(rebuilding, self._me)

    def has_work(self, rebuilding: RebuildingSet) -> bool:
        """Whether a pass is due: blocks to give, or moves that may be noted here and unfinished.
        None is noted before the first order to donors."""
        may_have_noted = self._may_have_noted and rebuilding.version > 0
        # An unsure node may have an old disk, whose moves others have overtaken.
        return self.has_order(rebuilding) or (may_have_noted and not self._engine.unsure)


def _is_away(error: CordwoodError | None) -> bool:
    return isinstance(error, Unreachable)
