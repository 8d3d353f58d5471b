"""Bugs of the sequencer and of its view of stores.

Source: docs/sources/reliability.md §2, §6 (mutant list).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set
from typing import Any

from cordwood.layout.block_header import pack_header, unpack_header
from cordwood.layout.waves import Refusal, StoreRefusal, read_stored
from cordwood.metadata.epoch_store import EpochRecord, EpochStore
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.append_window import AppendWindow, Contents, InFlightRun
from cordwood.protocol.node_states import NodeStates
from cordwood.protocol.producers import ProducerTable, ProducerVerdict
from cordwood.quorum.copyset import Chance, choose_copyset
from cordwood.sequencer import appender
from cordwood.sequencer.activation import Activation
from cordwood.sequencer.appender import LogAppender, Role
from cordwood.sequencer.producer_checks import ProducerChecks
from cordwood.sequencer.role import SequencerRole
from cordwood.sequencer.run_contents import SentRun
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, at, notes_of, together
from cordwood.wire import store_channel


def _retry_renumbers(right: Any, self: LogAppender, run: SentRun, now: float) -> None:
    right(self, run, now)
    if not run.contents.bytes or notes_of(self).get("again") == run.first:
        return
    notes_of(self)["again"] = run.first
    count = run.last - run.first + 1
    if self._window.fits(count) and run.copyset:
        again = self._window.number(count, _moved(run, self._window.next - run.first))
        self._send(again, tuple(map(NodeId, run.copyset)), now)


def _moved(run: Any, by: int) -> Any:
    """A run's blocks as separate contents, `by` LSNs higher; no caller waits for them."""
    contents = type(run.contents)()
    for header, body in run.contents.blocks:
        old = unpack_header(header)
        new = dataclasses.replace(
            old,
            first=old.first + by,
            group_first=old.group_first + by,
            group_last=old.group_last + by,
        )
        contents.blocks.append((pack_header(new), body))
    return contents


def _ack_at_one_less(right: Any, self: InFlightRun[Any], node: int, wave: int) -> bool:
    before = self.stored
    right(self, node, wave)
    self.stored = len(self.waiting) <= 1
    return self.stored and not before


def _stale_waves_count(
    right: Any,
    self: LogAppender,
    run: SentRun,
    wave: int,
    node: int,
    refusals: Sequence[StoreRefusal] | None,
) -> None:
    is_stale = refusals is not None and not refusals and wave != run.wave
    if is_stale and not run.stored and not self._over and run.waiting:
        run.waiting.discard(min(run.waiting))
        if not run.waiting:
            run.stored = True
            self._retire(run)
        return
    right(self, run, wave, node, refusals)


def _acks_out_of_order(self: AppendWindow[Any]) -> list[Any]:
    done = [run for run in self._runs if run.stored]
    for run in done:
        self._runs.remove(run)
        self.lng = max(self.lng, run.last)
    return done


def _refusals_ignored(right: Any, payload: memoryview) -> Any:
    wave, _ = right(payload)
    return wave, ()


def _one_rack(
    right: Any, nodeset: Nodeset, replication: Replication, available: Set[NodeId], random: Chance
) -> Any:
    return right(nodeset, Replication(replication.copies, 1), available, random)


def _shrinks(right: Any, self: LogAppender, now: float, nodes: frozenset[NodeId]) -> Any:
    whole = right(self, now, nodes)
    if whole is not None or self.replication.copies == 1:
        return whole
    fewer = Replication(self.replication.copies - 1)
    return choose_copyset(self.nodeset, fewer, nodes, self._tools.random)


def _lost_counts(
    right: Any,
    self: LogAppender,
    run: SentRun,
    wave: int,
    node: int,
    refusals: Sequence[StoreRefusal] | None,
) -> None:
    right(self, run, wave, node, () if refusals is None else refusals)


def _one_region(
    right: Any, nodeset: Nodeset, replication: Replication, available: Set[NodeId], random: Chance
) -> Any:
    racks_alone = Replication(replication.copies, replication.racks)
    return right(nodeset, racks_alone, available, random)


async def _epoch_kept(
    right: Any, self: Activation, log: int, epoch: int, record: EpochRecord, role: Role
) -> Any:
    appender = await right(self, log, epoch, record, role)
    self._taken[log] = (epoch, record)
    return appender


def _fenced_goes_on(
    right: Any, self: LogAppender, run: SentRun, node: NodeId, refusal: StoreRefusal, now: float
) -> None:
    if refusal.reason == Refusal.SEALED:
        run.sent_at = now
        return
    right(self, run, node, refusal, now)


async def _released_early(
    right: Any, self: Activation, log: int, epoch: int, record: EpochRecord, role: Role
) -> Any:
    appender = await right(self, log, epoch, record, role)
    appender.is_recovered = True
    return appender


def _turn_taken(wrong: ProducerVerdict) -> Any:
    """Blocks with the verdict `wrong` are stored as if it were their turn."""

    def look(right: Any, self: ProducerTable, *block: int, **named: int) -> Any:
        verdict, first = right(self, *block, **named)
        return (ProducerVerdict.NEXT, 0) if verdict is wrong else (verdict, first)

    return look


def _lng_inside_groups(
    right: Any, self: AppendWindow[Any], count: int, contents: Contents, *, ends_group: bool = True
) -> Any:
    return right(self, count, contents, ends_group=True)


async def _token_forgotten(
    right: Any, self: Activation, log: int, epoch: int, record: EpochRecord, role: Role
) -> Any:
    appender = await right(self, log, epoch, record, role)
    appender.token = 0
    return appender


async def _token_without_epoch(
    right: Any, self: EpochStore, log_id: int, token: int, holder: str
) -> Any:
    return await self.read(log_id)


async def _gives_nothing_up(self: SequencerRole, log: int, epoch: int, successor: int) -> None:
    return


async def _always_newest(self: Activation, log: int, epoch: int) -> bool:
    return True


def _newest_nodeset(self: EpochRecord, epoch: int) -> Any:
    return self.history[-1]


BUGS = (
    PlantedBug("retry-renumbers", "a retried store is stored a second time under new LSNs",
               at(LogAppender.send_again).around(_retry_renumbers)),
    PlantedBug("ack-at-one-less", "a run counts as stored when one copy is still missing",
               at(InFlightRun.on_stored).around(_ack_at_one_less)),
    PlantedBug("stale-waves-count", "an answer to an earlier wave counts for the present one",
               at(LogAppender.on_store_settled).around(_stale_waves_count)),
    PlantedBug("acks-out-of-order", "a run is acknowledged before those ahead of it are stored",
               at(AppendWindow.retire).instead(_acks_out_of_order)),
    PlantedBug("refusals-ignored", "a store that a node refused counts as stored",
               at(read_stored, within=store_channel).around(_refusals_ignored)),
    PlantedBug("one-rack", "copysets do not look at racks",
               at(choose_copyset, within=appender).around(_one_rack)),
    PlantedBug("shrinks", "copysets have a copy less when too few nodes are up",
               at(LogAppender.choose_nodes).around(_shrinks), scenario=scenarios.FEW_NODES),
    PlantedBug("lost-counts", "a store counts as stored although its answer was lost with its "
                              "connection",
               at(LogAppender.on_store_settled).around(_lost_counts), scenario=scenarios.FAR_NODES),
    PlantedBug("one-region", "copysets look at racks and at no wider scope",
               at(choose_copyset, within=appender).around(_one_region)),
    PlantedBug("epoch-kept", "a node that starts to sequence again takes its old epoch",
               at(Activation.begin_epoch).around(_epoch_kept)),
    PlantedBug("fenced-goes-on", "a fenced sequencer goes on",
               together(at(LogAppender.on_refused).around(_fenced_goes_on),
                        at(SequencerRole.on_released).instead(lambda *_: None),
                        at(SequencerRole.give_up).instead(_gives_nothing_up),
                        at(Activation.is_newest).instead(_always_newest)),
               scenario=scenarios.REPLACED),
    PlantedBug("released-early", "an epoch is released before those below it are recovered",
               at(Activation.begin_epoch).around(_released_early)),
    PlantedBug("repeat-unseen", "a repeat of a producer's block is stored again",
               at(ProducerTable.look).around(_turn_taken(ProducerVerdict.REPEAT))),
    PlantedBug("old-producer-heard", "appends of a producer's lower epoch are taken after its "
                                     "higher epoch",
               at(ProducerTable.look).around(_turn_taken(ProducerVerdict.FENCED))),
    PlantedBug("condition-unseen", "a conditional append is stored whatever the tail is",
               at(ProducerChecks.check_tail).instead(lambda *rest: None)),
    PlantedBug("lng-in-group", "the LNG moves into a group run by run",
               at(AppendWindow.number).around(_lng_inside_groups)),
    PlantedBug("token-ignored", "a sequencer does not know of its log's fencing token",
               at(Activation.begin_epoch).around(_token_forgotten),
               scenario=scenarios.TOKENS),
    PlantedBug("token-without-epoch", "a fencing token is granted without a new epoch",
               at(EpochStore.raise_token).around(_token_without_epoch),
               scenario=scenarios.TOKENS),
    PlantedBug("slow-node-kept", "a node that lets waves time out is still picked for copysets",
               at(NodeStates.on_slow).instead(lambda *_: None),
               scenario=scenarios.PACED),
    PlantedBug("stale-tail", "a replaced sequencer that does not know of it answers with its tail",
               at(Activation.is_newest).instead(_always_newest),
               scenario=scenarios.APART),
)  # fmt: skip

NEWEST_NODESET = PlantedBug(
    "newest-nodeset",
    "recovery asks the present nodeset for records of an earlier nodeset",
    at(EpochRecord.entry).instead(_newest_nodeset),
)
"""This bug needs an acknowledgement that no other node heard of, and a nodeset that changes just
then. A special scenario has both (tests/sim/test_fewer_nodes.py); one seed in hundreds has them."""
