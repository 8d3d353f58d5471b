"""Bugs in the rebuilding of lost nodes.

Source: docs/sources/logdevice.md 2.9; docs/sources/bookkeeper.md (d), (f); docs/protocol/rebuilding.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from cordwood.block import Envelope, EnvelopeFlag
from cordwood.layout.log_questions import AskCopies
from cordwood.layout.message_rebuilding import DonorState, TellProducers
from cordwood.layout.waves import Refusal, StoredBlock, StoreRefusal
from cordwood.metadata.membership import Membership
from cordwood.nodes import Authority, NodeId, Nodeset, Replication
from cordwood.protocol import event_log
from cordwood.protocol.event_log import Verdict
from cordwood.protocol.rebalance_plan import plan_given
from cordwood.protocol.rebuild_compare import Has, Word
from cordwood.protocol.rebuild_flow import RebuildFlow
from cordwood.protocol.rebuild_plan import (
    Held,
    Known,
    Losses,
    Move,
    after_asking,
    with_awaited,
)
from cordwood.protocol.rebuild_watch import LossWatch, Start, on_start
from cordwood.protocol.staged_plan import StagedAt
from cordwood.rebuilding import Acked, LostNode, RebuildingSet, Transfer
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, at, notes_of, together
from cordwood.sim.planted.rebuilding_scenarios import DISKS_LOST, REBALANCED, TWO_COPIES_LOST
from cordwood.storage import amends
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.logs_db.heads_read import read_entries
from cordwood.storage.logs_db.logs_read import Found
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.rebuild import admission, donor_look, moves, role
from cordwood.storage.rebuild.copy_questions import CopyQuestions, Report, is_letting_go
from cordwood.storage.rebuild.donor import Donor
from cordwood.storage.rebuild.donor_look import DonorLook, is_given_up
from cordwood.storage.rebuild.donor_pass import Doubted, Pass
from cordwood.storage.rebuild.epoch_nodesets import EpochNodesets
from cordwood.storage.rebuild.moves import Moves, _Work
from cordwood.storage.rebuild.role import RebuildRole
from cordwood.storage.rebuild.staged_moves import StagedMoves
from cordwood.storage.refusals import refusal_of
from cordwood.storage.repair.repairs import Repairs
from cordwood.storage.staging.staged_index import StagedBlock
from cordwood.uploading.local_drops import LocalDrops


async def _unawaited(
    right: Any,
    self: Moves,
    node: NodeId,
    wires: Sequence[tuple[StoredBlock, Envelope]],
    *,
    amends: bool,
) -> str:
    if amends:
        return str(await right(self, node, wires, amends=amends))
    return ""


async def _given_without_pin(right: Any, self: StagedMoves, held: StagedBlock, to: StagedAt) -> Any:
    return msgspec.structs.replace(await right(self, held, to), query="", attempt=0)


def _nobody_left_out(
    rebuilding: RebuildingSet, members: Iterable[int], donor: int, joined: Any = None
) -> None:
    return None


async def _told_once(right: Any, self: Donor) -> str:
    await right(self)
    return ""


async def _nothing_staged_moves(
    self: StagedMoves, losses: Losses, report: Report, is_old: Callable[[], bool]
) -> None:
    return


def _given_unstored(
    right: Any, block: Held, share: Transfer, nodeset: Nodeset, replication: Replication
) -> Any:
    found = right(block, share, nodeset, replication)
    return found._replace(stores=()) if found is not None else None


def _rebalance_forgotten(right: Any, self: Donor, rebuilding: RebuildingSet) -> Any:
    # The request that this donor found at its start.
    known = rebuilding.rebalancing
    first = notes_of(self).setdefault("rebalance", known.version if known is not None else 0)
    if known is not None and known.version == first:
        return bool(self.work_left(rebuilding))
    return right(self, rebuilding)


def _envelopes_refused(
    right: Any,
    engine: StorageEngine,
    wave: int,
    block: StoredBlock,
    seal_epoch: int,
    is_full: bool,
    size: int,
) -> Any:
    if engine.read_only or engine.low_space:
        return StoreRefusal(wave, block.header.log, Refusal.NO_SPACE)
    return right(engine, wave, block, seal_epoch, is_full, size)


def _drained_not_missed(
    right: Any,
    self: LossWatch,
    now: float,
    members: Iterable[int],
    dead: Collection[int],
    rebuilding: RebuildingSet,
) -> Any:
    events = right(self, now, members, dead, rebuilding)
    return [each for each in events if rebuilding.entry(each.node) is None]


def _noted_forgotten(self: Donor, rebuilding: RebuildingSet) -> bool:
    return self.has_order(rebuilding)


async def _trouble_swallowed(right: Any, self: Moves, *args: Any, **kwargs: Any) -> str:
    await right(self, *args, **kwargs)
    return ""


def _first_epoch_skipped(
    right: Any, self: DonorLook, block: StoredBlock, losses: Losses, epochs: Any
) -> bool:
    return bool(right(self, block, losses, epochs)) and block.header.first >> 32 > 1


def _end_kept_short(
    right: Any, block: Held, losses: Losses, nodeset: Nodeset, replication: Replication
) -> Held:
    return block


def _no_holder(rebuilding: RebuildingSet, short_of: Any, holder: int) -> None:
    return None


def _one_donor_is_enough(right: Any, here: RebuildingSet, entry: LostNode) -> Any:
    return bool(right(here, entry)) or bool(entry.done)


def _rank_kept(right: Any, move: Move, known: Mapping[int, Known]) -> Any:
    found, _ = right(move, known)
    return found, move.block.wave - 1


def _let_in_at_once(right: Any, entry: LostNode | None, **how: Any) -> Any:
    found = right(entry, **how)
    return Start.ANEW if found is Start.WAITS and entry is not None else found


def _acked_at_once(right: Any, here: RebuildingSet, event: Acked) -> Any:
    found = right(here, event)
    rest = tuple(each for each in here.lost if each.node != event.node)
    return replace(here, lost=rest) if found is Verdict.NOT_DONE else found


def _lost_may_give(right: Any, self: Losses, block: Held) -> Any:
    return block.copyset[0]


def _stale_is_anew(right: Any, entry: LostNode | None, **how: Any) -> Any:
    found = right(entry, **how)
    return Start.ANEW if found is Start.STALE else found


def _old_work_forgotten(right: Any, self: Donor, rebuilding: RebuildingSet) -> Any:
    # The request that this donor found at its start.
    first = notes_of(self).setdefault("first", rebuilding.version)
    return () if rebuilding.version == first else right(self, rebuilding)


def _unsettled_forgotten(right: Any, self: Pass) -> bool:
    return bool(self.report.is_clean)


async def _lacking_is_having(
    right: Any, self: CopyQuestions, node: NodeId, question: AskCopies
) -> Any:
    words = await right(self, node, question)
    if words is None:
        return None
    return [each._replace(has=Has.YES) if each.has is Has.NO else each for each in words]


async def _word_kept(
    right: Any, self: Membership, node_id: NodeId, *args: Any, **named: Any
) -> Any:
    before = {member.node: member.authority for member in await self.members()}
    found = await right(self, node_id, *args, **named)
    said = before.get(node_id, Authority.FULLY_AUTHORITATIVE)
    return found if said is found.authority else await self.set_authority(node_id, said)


async def _nobody_comes_back(right: Any, self: Membership, node_id: NodeId) -> Any:
    return next(member for member in await self.members() if member.node == node_id)


async def _nothing_owed(self: Membership, node_id: NodeId) -> None:
    return


async def _counted_on_anyway(self: RebuildRole) -> bool:
    return True


async def _unasked(self: Moves, works: Sequence[_Work], flow: RebuildFlow, report: Report) -> None:
    return


async def _no_stir(self: Repairs, log: int) -> None:
    """No sequencer is asked."""


async def _entries_of_before(self: LogsStore, logs: Sequence[int]) -> dict[int, list[Found]]:
    """No look whether there was a flush meanwhile."""
    partitions = {each.number: each for each in self.partitions}
    return await read_entries(self.tables, partitions, logs) or {}


async def _rot_unstirred(right: Any, self: DonorLook, now: Pass, is_old: Any) -> None:
    await right(self, now, is_old)
    now.rotten.clear()


async def _no_rot_waited_for(
    self: DonorLook, log: int, unread: Any, rotten: Any, now: Pass, epochs: EpochNodesets
) -> bool:
    return False


def _nobody_given_up(entry: LostNode) -> bool:
    return False


def _no_producers(self: Donor, log: int, held: CachedLog) -> list[TellProducers]:
    return []


_UNCONFIRMED = at(Moves._confirm).instead(_unasked)


def _of_this_pass(right: Any, self: Donor) -> DonorState:
    state: DonorState = right(self)
    return msgspec.structs.replace(
        state, blocked=self._pass.blocked if self._pass is not None else ""
    )


async def _counts_on_no(
    right: Any,
    self: CopyQuestions,
    log: int,
    blocks: Sequence[Held],
    losses: Losses,
    report: Report,
) -> list[Losses | None]:
    found: list[Losses | None] = await right(self, log, blocks, losses, report)
    return [
        e and dataclasses.replace(e, lacking=e.lacking - e.absent, absent=frozenset())
        for e in found
    ]


def _used_by_now(self: LocalDrops) -> bool:
    return bool(self._logs.tiered)


def _follows_none(rebuilding: RebuildingSet, entry: LostNode) -> bool:
    return False


async def _no_is_no_doubt(right: Any, self: DonorLook, doubted: Doubted, now: Pass) -> bool:
    ask = self._ask

    async def without_no(node: int, blocks: Sequence[Held]) -> Sequence[Word] | None:
        words = await ask(node, blocks)
        return words and [
            each._replace(has=Has.YES) if each.has is Has.NO else each for each in words
        ]

    self._ask = without_no
    try:
        return bool(await right(self, doubted, now))
    finally:
        self._ask = ask


async def _keeps_its_looks(right: Any, self: LocalDrops, *, anew: bool) -> None:
    await right(self, anew=False)


async def _waits_for_all(
    self: Moves, log: int, waiting: Sequence[tuple[Held, bool]], losses: Losses, report: Report
) -> None:
    report.stuck += sum(is_stuck for _, is_stuck in waiting)
    report.elsewhere += sum(not is_stuck for _, is_stuck in waiting)


async def _notes_are_known(
    right: Any, /, self: Moves, blocks: Sequence[StoredBlock], *args: Any, **named: Any
) -> None:
    noted = notes_of(self).setdefault("noted", set())
    noted |= {
        (each.header.log, each.header.first)
        for each in blocks
        if each.envelope.flags & EnvelopeFlag.MOVING
    }
    await right(self, blocks, *args, **named)


async def _waits_for_noted(
    right: Any,
    self: Moves,
    log: int,
    waiting: Sequence[tuple[Held, bool]],
    losses: Losses,
    report: Report,
) -> None:
    noted = notes_of(self)["noted"]
    some = [each for each in waiting if (log, each[0].first) not in noted]
    report.stuck += len(waiting) - len(some)
    await right(self, log, some, losses, report)


async def _believes_an_old_tree(right: Any, self: LocalDrops, *, anew: bool) -> None:
    await right(self, anew=anew)
    self._is_unread = False


async def _takes_copies_meanwhile(self: LocalDrops, log: int, first: int, last: int) -> bool:
    return not await self._holds(log, first, last)


async def _notes_nothing(self: LocalDrops, log: int, last: int) -> None:
    """Donors give it copies while it looks."""


BUGS = (
    PlantedBug("donor-reason-of-pass", "a donor tells why it waits only between two passes, and a "
                                       "pass may take minutes",
               at(Donor.state).around(_of_this_pass),
               scene="tests/storage/test_donor_reasons.py"),
    PlantedBug("seals-not-owed", "a node reports that it is back although no start has sealed "
                                 "the epochs that it missed",
               at(Membership.owe_seals).instead(_nothing_owed),
               scene="tests/storage/test_rebuilding_races.py"),
    PlantedBug("owed-seals-forgotten", "a node clears the note that it owes seals while recoveries "
                                       "still do without it",
               at(RebuildRole.is_counted_on).instead(_counted_on_anyway),
               scene="tests/storage/test_owed_seals.py"),
    PlantedBug("staged-left-behind", "staged blocks of a lost node are not rebuilt: a committed "
                                     "batch can lose all its copies, one after the other",
               at(StagedMoves.carry_out).instead(_nothing_staged_moves),
               scene="tests/storage/test_lost_staging.py"),
    PlantedBug("moved-without-pin", "a donor copies a staged block without its pin: it expires "
                                    "although its batch is committed",
               at(StagedMoves._call).around(_given_without_pin),
               scene="tests/storage/test_lost_staging.py"),
    PlantedBug("given-unstored", "a rebalance names a node that never got the block",
               at(plan_given, within=moves).around(_given_unstored), scenario=REBALANCED),
    PlantedBug("rebalance-forgotten", "a restarted donor forgets the blocks that it should give "
                                      "to emptier nodes",
               at(Donor.has_work).around(_rebalance_forgotten), scenario=REBALANCED),
    PlantedBug("read-only-keeps-envelopes", "a node that takes no records refuses the envelopes of "
                                            "donors, its own too",
               at(refusal_of, within=amends).around(_envelopes_refused),
               scene="tests/storage/test_rebuilding_nodes.py"),
    PlantedBug("short-ends-forgotten", "a lost node is let in although an end of an epoch was stored "
                                       "on fewer nodes while it was lost",
               at(with_awaited, within=donor_look).around(_end_kept_short),
               scene="tests/storage/test_rebuilding_short_ends.py"),
    PlantedBug("short-ends-undonated", "no node with an end of an epoch that has too few copies is a "
                                       "donor of the lost node, because they joined after its loss",
               at(event_log.with_holder, within=role).instead(_no_holder),
               scene="tests/storage/test_rebuilding_short_ends.py"),
    PlantedBug("drained-never-lost", "a node that dies while it is drained is never reported as "
                                     "lost: its drain and all rebuildings wait for it",
               at(LossWatch.due).around(_drained_not_missed),
               scene="tests/protocol/test_rebuild_watch.py"),
    PlantedBug("noted-move-left", "a donor whose drain was taken back leaves the moves that it "
                                  "noted unfinished",
               at(Donor.has_work).instead(_noted_forgotten),
               scene="tests/storage/test_rebalance.py"),
    PlantedBug("rebuilt-unstored", "envelopes name new copies that were never stored",
               together(at(Moves._send).around(_unawaited), _UNCONFIRMED), scenario=DISKS_LOST),
    PlantedBug("rebuild-refusal-ignored", "a donor skips a block if the new node refused it or "
                                          "went away",
               together(at(Moves._send).around(_trouble_swallowed), _UNCONFIRMED),
               scenario=DISKS_LOST),
    PlantedBug("moves-unconfirmed", "a donor does not ask again for new copies after it has "
                                    "noted them",
               _UNCONFIRMED, scene="tests/storage/test_moves_confirmed.py"),
    PlantedBug("producers-untold", "a donor does not pass on a log's memory of producers before "
                                   "its own disk is lost",
               at(Donor._producers_of).instead(_no_producers),
               scene="tests/storage/test_rebuilding_producers.py"),
    PlantedBug("refused-not-told-again", "a donor is done though no node took a log's memory of "
                                         "producers, because all were busy",
               at(Donor._tell_known).around(_told_once),
               scene="tests/storage/test_rebuilding_producers.py"),
    PlantedBug("left-out-unasked", "a donor does not look for members that an event leaves out, as "
                                   "its writer did not know them: a lost node is called empty while "
                                   "its blocks have too few copies",
               at(event_log.left_out, within=role).instead(_nobody_left_out),
               scene="tests/storage/test_rebuilding_races.py"),
    PlantedBug("rot-not-waited-for", "a donor is done though a block that it has to move has rotted",
               at(DonorLook.waits_for_rot).instead(_no_rot_waited_for),
               scene="tests/storage/test_repairs.py"),
    PlantedBug("last-rot-waited-for", "a donor waits for the repair of a block whose other nodes an "
               "operator gave up: the rebuilding of these nodes never ends",
               at(is_given_up).instead(_nobody_given_up),
               scene="tests/storage/test_rotten_last_copies.py"),
    PlantedBug("heads-of-before", "a donor leaves out blocks that were flushed while it read the "
               "heads of their logs",
               at(LogsStore.entries).instead(_entries_of_before),
               scene="tests/storage/logs_db/test_heads_read.py"),
    PlantedBug("rotten-end-unstirred", "a donor with a copy that rotted before its release waits "
               "until a client uses the log",
               together(at(DonorLook.look_at_all).around(_rot_unstirred), at(Repairs._stir).instead(_no_stir)),
               scene="tests/storage/test_repairs.py"),
    PlantedBug("repair-unstirred", "a copy that rotted on a log that nobody uses is not repaired "
               "while a node has missed the release of its block",
               at(Repairs._stir).instead(_no_stir),
               scene="tests/storage/test_repairs.py"),
    PlantedBug("donor-done-early", "a donor reports that it is done after its first pass",
               at(Pass.is_done).instead(lambda self: True),
               scenario=DISKS_LOST),
    PlantedBug("donor-skips-epoch", "a donor leaves out the first epoch of each log",
               at(DonorLook.is_mine).around(_first_epoch_skipped), scenario=DISKS_LOST),
    PlantedBug("empty-too-soon", "a node is reported empty when one donor is done",
               at(event_log._is_over).around(_one_donor_is_enough), scenario=DISKS_LOST),
    PlantedBug("rebuilt-rank-kept", "a move writes envelopes that do not override the present "
                                    "ones",
               at(after_asking, within=moves).around(_rank_kept), scenario=DISKS_LOST),
    PlantedBug("empty-disk-let-in", "a node with an empty disk joins before its data is rebuilt",
               together(at(on_start, within=admission).around(_let_in_at_once),
                        at(event_log._acked).around(_acked_at_once)), scenario=DISKS_LOST),
    PlantedBug("stale-disk-let-in", "a node serves its old copies, which were rebuilt elsewhere",
               at(on_start, within=admission).around(_stale_is_anew), scenario=DISKS_LOST),
    PlantedBug("rebuilding-forgotten", "a restarted donor forgets the blocks that it had to copy",
               at(Donor.work_left).around(_old_work_forgotten), scenario=DISKS_LOST),
    PlantedBug("unsettled-forgotten", "a donor is done although blocks in flight name a lost node",
               at(Pass.is_done).around(_unsettled_forgotten), scenario=DISKS_LOST),
    PlantedBug("lacking-is-having", "a donor regards a node without the block as a holder",
               at(CopyQuestions.ask_one).around(_lacking_is_having), scenario=DISKS_LOST),
    PlantedBug("old-word-counts", "a report about a node's data still counts for its next "
                                  "incarnation",
               together(at(Membership.register).around(_word_kept),
                        at(Membership.come_back).around(_nobody_comes_back)),
               scenario=scenarios.GIVEN_UP),
    PlantedBug("lost-node-gives", "the first node of a copyset is its donor even if it is lost",
               at(Losses.donor).around(_lost_may_give),
               scenario=TWO_COPIES_LOST),
    PlantedBug("rebuild-counts-on-no", "a donor leaves what main storage lost to a member that says that "
               "it has no copy", at(CopyQuestions.told_losses).around(_counts_on_no),
               scene="tests/storage/test_drained_losses.py"),
    PlantedBug("rebuild-no-is-no-doubt", "a donor trusts a member before it that began anew and lacks "
               "a block", at(DonorLook._is_past).around(_no_is_no_doubt),
               scene="tests/storage/test_drained_losses.py"),
    PlantedBug("rebuild-by-old-looks", "a donor believes that main storage has a block, by a look from "
               "before its order", at(LocalDrops.refresh).around(_keeps_its_looks),
               scene="tests/storage/test_drained_losses.py"),
    PlantedBug("rebuild-by-an-old-tree", "a donor that does not reach the metadata store believes that "
               "a log is not in main storage", at(LocalDrops.refresh).around(_believes_an_old_tree),
               scene="tests/storage/test_drained_losses.py"),
    PlantedBug("rebuild-waits-for-let-go", "a donor waits for copies of a block that main storage has, "
               "by a node that let go of it", at(Moves._wait_with).instead(_waits_for_all),
               scene="tests/storage/test_rebuilding_short_ends.py"),
    PlantedBug("rebuild-waits-for-noted", "a donor waits for nodes for a move that it noted, though main "
               "storage has the block, and another node let go of it",
               together(at(Moves.carry_out).around(_notes_are_known),
                        at(Moves._wait_with).around(_waits_for_noted)),
               scene="tests/storage/test_rebuilding_short_ends.py"),
    PlantedBug("drained-node-looks-once", "a drained node says that it is done, and does not look again "
               "when the other donors are", at(Pass.looks_again).instead(lambda self, me: False),
               scene="tests/storage/test_drained_losses.py"),
    PlantedBug("drained-node-has-no-tier-yet", "a drained node looks again only if a log was in main "
               "storage at its first look", at(LocalDrops.is_used).instead(_used_by_now),
               scene="tests/storage/test_drained_losses.py"),
    PlantedBug("drained-node-waits-after-look", "a drained node waits for silent nodes after its last "
               "look, and does not look again", at(Pass.is_look_old).instead(lambda self, me: False),
               scene="tests/storage/test_drained_losses.py"),
    PlantedBug("drains-end-in-any-order", "a drained node leaves blocks to another one that is drained, "
               "and neither waits for the other", at(event_log._follows_a_drain).instead(_follows_none),
               scene="tests/storage/test_drained_losses.py"),
    PlantedBug("tier-lets-go-of-new-copies", "a node takes a donor's copy of lost records after it "
               "has seen that it has none, and lets go of it",
               together(at(LocalDrops._stays_without).instead(_takes_copies_meanwhile),
                        at(LocalDrops._take_no_more).instead(_notes_nothing)),
               scene="tests/storage/test_lost_in_main_storage.py"),
    PlantedBug("rebuild-trusts-who-lets-go", "a donor sets its copies aside because of a node that is "
               "about to let go of its own",
               at(is_letting_go, within=moves).instead(lambda told: False),
               scene="tests/storage/test_lost_in_main_storage.py"),
    PlantedBug("tier-looks-before-it-notes", "a node takes a donor's copies after it has looked for "
               "their object, and lets go of them",
               at(LocalDrops._take_no_more).instead(_notes_nothing),
               scene="tests/storage/test_lost_in_main_storage.py"),
)  # fmt: skip
