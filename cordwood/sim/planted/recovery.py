"""Bugs of log recovery: the nodes asked, the records kept, the end of the epoch.

Source: docs/sources/reliability.md §2 (BookKeeper 2614, 2616, 2908), §6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

from cordwood.block import BlockHeader, Produced
from cordwood.errors import Fenced
from cordwood.layout.log_questions import ExtentReply
from cordwood.layout.message import Clean
from cordwood.layout.produced import pack_produced
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import ESN_MAX, LogId
from cordwood.metadata.epoch_store import EpochRecord
from cordwood.node import Node
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.protocol import digest
from cordwood.protocol.digest import Body, Copy, Digest, Mend
from cordwood.protocol.groups import whole_groups
from cordwood.protocol.producers import ProducerTable
from cordwood.protocol.seal import SealTable, SealTally
from cordwood.quorum.copyset import Chance, choose_copyset
from cordwood.quorum.f_majority import QuorumVerdict, weigh_replies
from cordwood.recovery import collect_digest, heard, recover_log, seal_epoch, trim_nodesets
from cordwood.recovery import mend_tail as mending
from cordwood.recovery.collect_digest import DigestReads
from cordwood.recovery.heard import Statuses
from cordwood.recovery.mend_tail import MendJob, mend_tail
from cordwood.recovery.recover_log import RecoveryTools
from cordwood.sequencer import role
from cordwood.sim.planted import reading_scenarios, scenarios
from cordwood.sim.planted.bug import PlantedBug, at, together, value
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog, EpochEnd


def _takes_what_comes_last(self: Node, reading: int, said: tuple[Member, ...]) -> None:
    self._said = said


async def _goes_by_the_list(log: LogId, nodes: Iterable[int], tools: RecoveryTools) -> Statuses:
    return tools.statuses(log)


def _lng_too_high(right: Any, self: SealTally, epoch: int) -> int:
    known: int = right(self, epoch)
    return known + 3 if known & 0xFFFFFFFF else known


def _all_are_sure(right: Any, self: SealTally) -> Any:
    return frozenset(self.sealed)


def _empty_nodes_count(
    right: Any, heard: Set[NodeId], nodeset: Nodeset, replication: Replication,
    statuses: Statuses, empty: Set[NodeId] = frozenset(),
) -> bool:  # fmt: skip
    return bool(right(heard, nodeset, replication, statuses))


def _drops_last(right: Any, self: Digest[Any], copies: Iterable[Copy[Body]]) -> None:
    right(self, list(copies)[:-1])


def _bridge_too_low(right: Any, self: Digest[Any], **how: Any) -> Any:
    whole = right(self, **how)
    low = max((self._epoch << 32) + 1, whole.end)
    return replace(whole, blocks=whole.blocks[:-1], bridge=low, end=low - 1)


def _hole_over_record(right: Any, self: Digest[Any], **how: Any) -> Any:
    whole = right(self, **how)
    if not whole.blocks:
        return whole
    first = whole.blocks[0].header
    holes = ((first.first, first.last), *whole.holes)
    return replace(whole, blocks=whole.blocks[1:], holes=holes)


def _one_too_few(
    right: Any,
    heard: Set[NodeId],
    nodeset: Nodeset,
    replication: Replication,
    statuses: Mapping[NodeId, Authority],
) -> QuorumVerdict:
    verdict: QuorumVerdict = right(heard, nodeset, replication, statuses)
    silent = len(set(nodeset.nodes) - set(heard))
    is_taken = verdict is QuorumVerdict.NONE and silent <= replication.copies
    return QuorumVerdict.INCOMPLETE if is_taken else verdict


def _mends_one_less(
    right: Any, nodeset: Nodeset, replication: Replication, available: Set[NodeId], random: Chance
) -> Any:
    fewer = max(1, replication.copies - 1)
    return right(nodeset, Replication(fewer, 1), available, random)


async def _clean_before_mend(
    right: Any,
    unclean: int,
    job: MendJob,
    mend: Mend[StoredBlock],
    tail: int,
    produced: bytes,
    tools: RecoveryTools,
) -> EpochRecord:
    by = job.seal, job.attempt
    await tools.epochs.set_clean(job.log, unclean, tail, job.append_time_us, by)
    record: EpochRecord = await right(unclean, job, mend, tail, produced, tools)
    return record


def _waits_for_all(
    right: Any,
    heard: Set[NodeId],
    nodeset: Nodeset,
    replication: Replication,
    statuses: Mapping[NodeId, Authority],
) -> QuorumVerdict:
    verdict: QuorumVerdict = right(heard, nodeset, replication, statuses)
    return verdict if verdict is QuorumVerdict.COMPLETE else QuorumVerdict.NONE


def _plugs_all_the_same(right: Any, self: Digest[Any], *, is_authoritative: bool = True) -> Any:
    return right(self, is_authoritative=True)


def _any_recovery_stores(
    right: Any, self: SealTable, log: int, epoch: int, seal_epoch: int
) -> bool:
    return bool(seal_epoch) or right(self, log, epoch, seal_epoch)


def _half_groups_kept(right: Any, headers: Iterable[BlockHeader]) -> Any:
    return frozenset(header.group for header in headers)


def _trimmed_early(
    right: Any, record: EpochRecord, extents: Mapping[NodeId, ExtentReply], statuses: Statuses
) -> int:
    clean = [each.since for each in record.history if each.since <= record.clean_epoch]
    return int(max(clean, default=record.history[0].since))


def _holes_remembered(
    right: Any, self: SealTally, epoch: int, lng: int, table: ProducerTable
) -> None:
    right(self, epoch, epoch << 32 | ESN_MAX, table)


def _attempts_alike(right: Any, job: MendJob, *rest: Any, **named: Any) -> Any:
    return right(replace(job, attempt=1), *rest, **named)


def _clean_as_first(right: Any, *fields: Any, **named: Any) -> Any:
    return right(*fields[:5], **named)


def _failed_attempt_counts(
    right: Any, self: CachedLog, last: int, seal_epoch: int, wave: int
) -> bool:
    return bool(right(self, last, seal_epoch, 2**32 - 1 if seal_epoch else wave))


def _end_replaced(right: Any, self: CachedLog, seal: int) -> Any:
    told = right(self, seal)
    kept = dict(told.produced)
    for block in self.blocks:
        epoch, header = block.header.first >> 32, block.header
        if header.producer and epoch in self.ends and header.first > self.ends[epoch].lng:
            place = Produced(header.producer, header.producer_epoch, (header.place,))
            kept[epoch] = pack_produced([place])
    return told._replace(produced=tuple(kept.items()))


async def _trim_is_hole(right: Any, self: DigestReads, *asked: Any, **named: Any) -> Any:
    tail = await right(self, *asked, **named)
    return replace(tail, released=0, trim=0)


async def _outdated_cleans(self: StorageEngine, log: int, epoch: int, end: EpochEnd) -> None:
    if (ruling := self.seals.of(log)) > end.seal:
        raise Fenced(f"log {log} is sealed by a higher epoch than {end.seal}", ruling)
    if not self.cache.log(log).has_ended(epoch, end):
        await self._close_epoch(log, epoch, end)


def _found_plugs_dropped(right: Any, self: Digest[Any], kept: list[Copy[Body]], end: int) -> Any:
    return (), None


BUGS = (
    PlantedBug("lng-too-high", "recovery reads the LNG three records too high",
               at(SealTally.lng).around(_lng_too_high), scenario=scenarios.RECOVERIES),
    PlantedBug("digest-drops-last", "recovery does not see each node's last block",
               at(Digest.add).around(_drops_last), scenario=scenarios.RECOVERIES),
    PlantedBug("bridge-too-low", "the bridge is put over the last record",
               at(Digest.mend).around(_bridge_too_low), scenario=scenarios.RECOVERIES),
    PlantedBug("hole-over-record", "recovery plugs the first record above the LNG",
               at(Digest.mend).around(_hole_over_record), scenario=scenarios.RECOVERIES),
    PlantedBug("one-too-few", "recovery goes on with one node less than an f-majority",
               at(weigh_replies, within=heard).around(_one_too_few), scenario=scenarios.SINGLE_COPIES),
    PlantedBug("mends-one-less", "recovery stores one copy less than the log asks for",
               at(choose_copyset, within=mending).around(_mends_one_less),
               scenario=scenarios.RECOVERIES),
    PlantedBug("half-group-kept", "recovery keeps the found part of a group even if it is not "
                                  "whole",
               at(whole_groups, within=digest).around(_half_groups_kept),
               scenario=scenarios.GROUPS),
    PlantedBug("seal-unnamed", "a recovery's stores are taken after a higher seal",
               at(SealTable.admits).around(_any_recovery_stores),
               scenario=scenarios.REPLACED, scene="tests/protocol/test_small_scope.py"),
    PlantedBug("outdated-recovery-stores", "a node that missed the end of a recovery takes what an "
                                           "earlier recovery stores late",
               at(CachedLog.is_outdated).instead(lambda self, seal_epoch: False),
               scene="tests/storage/test_engine.py"),
    PlantedBug("outdated-recovery-cleans", "a node that missed the end of a recovery takes the end "
                                           "that an earlier recovery tells late",
               at(StorageEngine.clean).instead(_outdated_cleans),
               scene="tests/storage/test_engine.py"),
    PlantedBug("producers-forgotten", "a new sequencer does not learn producers' blocks up to "
                                      "the LNG",
               at(SealTally.note_produced).instead(lambda *rest: None), scenario=scenarios.RECOVERIES),
    PlantedBug("empty-nodes-end-epochs", "recoveries count on an empty node for as long as it runs",
               at(recover_log.empty_nodes).instead(lambda statuses, attempt: frozenset()),
               scene="tests/recovery/test_drained_nodes.py"),
    PlantedBug("empty-nodes-stand-for-copies", "an empty node that runs lets a recovery end an epoch "
               "with fewer copies, although nodes that are only away have data",
               together(at(heard.is_enough, within=seal_epoch).around(_empty_nodes_count),
                        at(heard.is_enough, within=collect_digest).around(_empty_nodes_count)),
               scene="tests/recovery/test_drained_nodes.py"),
    PlantedBug("damaged-seal-counts", "nodes that lost records also tell the time of the newest "
                                      "acknowledged record",
               at(SealTally.sure).around(_all_are_sure),
               scene="tests/recovery/test_damaged_seals.py"),
    PlantedBug("recovery-by-an-older-list", "a recovery goes by a member list that was read before it "
               "asked", at(Node._take_said).instead(_takes_what_comes_last),
               scene="tests/test_late_member_list.py"),
    PlantedBug("recovery-by-a-list-of-before", "a recovery counts nodes out by a member list from "
               "before its epoch was taken: they may be back, and have acknowledged records",
               at(recover_log.statuses_now).instead(_goes_by_the_list),
               scene="tests/recovery/test_older_statuses.py"),
    PlantedBug("waits-for-all", "recovery waits until every member has sealed, dead ones too",
               at(weigh_replies, within=heard).around(_waits_for_all)),
    PlantedBug("non-authoritative-plugs", "a recovery without enough answers plugs holes all "
                                          "the same",
               at(Digest.mend).around(_plugs_all_the_same), scenario=reading_scenarios.LOST_TAILS),
    PlantedBug("history-trimmed-early", "a log's nodesets are dropped as soon as their epochs "
                                        "are recovered",
               at(trim_nodesets.trimmed_since).around(_trimmed_early),
               scenario=scenarios.NODESETS),
    PlantedBug("hole-repeated", "a producer's block that became a hole is acknowledged as a "
                                "repeat",
               at(SealTally.note_produced).around(_holes_remembered),
               scenario=scenarios.RETRIES),
    PlantedBug("clean-before-mend", "an epoch is called recovered before its end is stored",
               at(recover_log.finish_epoch).around(_clean_before_mend),
               scenario=scenarios.RECOVERIES),
    PlantedBug("attempts-alike", "stores of all attempts of one recovery have the same precedence",
               together(at(mend_tail, within=recover_log).around(_attempts_alike),
                        at(Clean, within=recover_log).around(_clean_as_first)),
               scene="tests/recovery/test_second_attempts.py"),
    PlantedBug("failed-attempt-counts", "a node keeps stores of an abandoned attempt of a "
                                        "recovery",
               at(CachedLog.counts).around(_failed_attempt_counts),
               scene="tests/recovery/test_second_attempts.py"),
    PlantedBug("second-clean-forgets", "a mended block counts as the block of every producer of "
                                       "its epoch",
               at(CachedLog.state).around(_end_replaced),
               scene="tests/recovery/test_second_attempts.py"),
    PlantedBug("digest-ignores-end", "a digest ignores the releases and trim points of members",
               at(DigestReads.read).around(_trim_is_hole),
               scene="tests/recovery/test_digest_meets_trim.py"),
    PlantedBug("own-lng-forgotten", "a node drops records that only it knows to be acknowledged",
               at(CachedLog.above_own_lng).instead(lambda self, epoch, end: end),
               scene="tests/recovery/test_non_authoritative.py"),
    PlantedBug("found-plugs-dropped", "a recovery without enough answers forgets holes that "
                                      "another recovery knew",
               at(Digest.found_plugs).around(_found_plugs_dropped),
               scene="tests/recovery/test_non_authoritative.py"),
    PlantedBug("silent-recovery", "a sequencer that recovers for some seconds answers no question for "
               "the tail: clients have another node begin anew, and recovery never ends",
               value(lambda: role.RECOVERED_S, 1e9),
               scene="tests/sequencer/test_slow_recovery.py"),
)  # fmt: skip
