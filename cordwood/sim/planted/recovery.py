"""Bugs of log recovery: who is asked, what is kept, where the epoch ends.

Source: docs/sources/reliability.md §2 (BookKeeper 2614, 2616, 2908), §6.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cordwood.block import Produced
from cordwood.layout.produced import pack_produced
from cordwood.lsn import ESN_MAX
from cordwood.nodes import Replication
from cordwood.quorum.f_majority import QuorumVerdict
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, changed, instead

_DIGEST = "protocol.digest:Digest"


def _lng_too_high(right: Any) -> Any:
    def lng(self: Any, epoch: int) -> int:
        known: int = right(self, epoch)
        return known + 3 if known & 0xFFFFFFFF else known

    return lng


def _all_are_sure(right: Any) -> Any:
    return property(lambda self: frozenset(self.sealed))


def _drops_last(right: Any) -> Any:
    def add(self: Any, copies: Any) -> None:
        right(self, list(copies)[:-1])

    return add


def _bridge_too_low(right: Any) -> Any:
    def mend(self: Any, **how: Any) -> Any:
        whole = right(self, **how)
        low = max((self._epoch << 32) + 1, whole.end)
        return replace(whole, blocks=whole.blocks[:-1], bridge=low, end=low - 1)

    return mend


def _hole_over_record(right: Any) -> Any:
    def mend(self: Any, **how: Any) -> Any:
        whole = right(self, **how)
        if not whole.blocks:
            return whole
        first = whole.blocks[0].header
        holes = ((first.first, first.last), *whole.holes)
        return replace(whole, blocks=whole.blocks[1:], holes=holes)

    return mend


def _one_too_few(right: Any) -> Any:
    def weigh_replies(heard: Any, nodeset: Any, replication: Any, statuses: Any) -> QuorumVerdict:
        verdict: QuorumVerdict = right(heard, nodeset, replication, statuses)
        silent = len(set(nodeset.nodes) - set(heard))
        is_taken = verdict is QuorumVerdict.NONE and silent <= replication.copies
        return QuorumVerdict.INCOMPLETE if is_taken else verdict

    return weigh_replies


def _mends_one_less(right: Any) -> Any:
    def choose_copyset(nodeset: Any, replication: Any, available: Any, chance: Any) -> Any:
        fewer = max(1, replication.copies - 1)
        return right(nodeset, Replication(fewer, 1), available, chance)

    return choose_copyset


def _clean_before_mend(right: Any) -> Any:
    async def finish(
        unclean: int, job: Any, mend: Any, tail: int, produced: bytes, tools: Any
    ) -> None:
        by = job.seal, job.attempt
        await tools.epochs.set_clean(job.log, unclean, tail, job.append_time_us, by)
        await right(unclean, job, mend, tail, produced, tools)

    return finish


def _waits_for_all(right: Any) -> Any:
    def weigh_replies(heard: Any, nodeset: Any, replication: Any, statuses: Any) -> QuorumVerdict:
        verdict: QuorumVerdict = right(heard, nodeset, replication, statuses)
        return verdict if verdict is QuorumVerdict.COMPLETE else QuorumVerdict.NONE

    return weigh_replies


def _plugs_all_the_same(right: Any) -> Any:
    def mend(self: Any, *, is_authoritative: bool) -> Any:
        return right(self, is_authoritative=True)

    return mend


def _any_recovery_stores(right: Any) -> Any:
    def admits(self: Any, log: int, epoch: int, seal_epoch: int) -> bool:
        return bool(seal_epoch) or right(self, log, epoch, seal_epoch)

    return admits


def _half_groups_kept(right: Any) -> Any:
    def whole_groups(headers: Any) -> Any:
        return frozenset(header.group for header in headers)

    return whole_groups


def _trimmed_early(right: Any) -> Any:
    def trimmed_since(record: Any, extents: Any, statuses: Any) -> int:
        clean = [each.since for each in record.history if each.since <= record.clean_epoch]
        return int(max(clean, default=record.history[0].since))

    return trimmed_since


def _holes_remembered(right: Any) -> Any:
    def note_produced(self: Any, epoch: int, lng: int, table: Any) -> None:
        right(self, epoch, epoch << 32 | ESN_MAX, table)

    return note_produced


def _attempts_alike(right: Any) -> Any:
    def mend_tail(job: Any, *rest: Any) -> Any:
        return right(replace(job, attempt=1), *rest)

    return mend_tail


def _clean_as_first(right: Any) -> Any:
    def clean(*fields: Any) -> Any:
        return right(*fields[:5])

    return clean


def _failed_attempt_counts(right: Any) -> Any:
    def counts(self: Any, last: int, seal_epoch: int, wave: int) -> bool:
        return bool(right(self, last, seal_epoch, 2**32 - 1 if seal_epoch else wave))

    return counts


def _end_replaced(right: Any) -> Any:
    def state(self: Any, seal: int) -> Any:
        told = right(self, seal)
        kept = dict(told.produced)
        for block in self.blocks:
            epoch, header = block.header.first >> 32, block.header
            if header.producer and epoch in self.ends and header.first > self.ends[epoch].lng:
                place = Produced(header.producer, header.producer_epoch, (header.place,))
                kept[epoch] = pack_produced([place])
        return told._replace(produced=tuple(kept.items()))

    return state


def _trim_is_hole(right: Any) -> Any:
    async def read(self: Any, *asked: Any) -> Any:
        tail = await right(self, *asked)
        return replace(tail, released=0, trim=0)

    return read


def _found_plugs_dropped(right: Any) -> Any:
    def found(self: Any, kept: Any, end: int) -> Any:
        return (), None

    return found


BUGS = (
    PlantedBug("lng-too-high", "recovery takes the LNG three records too high",
               changed({"protocol.seal:SealTally.lng": _lng_too_high}), scenario=scenarios.RECOVERIES),
    PlantedBug("digest-drops-last", "recovery does not see each node's last block",
               changed({f"{_DIGEST}.add": _drops_last}), scenario=scenarios.RECOVERIES),
    PlantedBug("bridge-too-low", "the bridge is put over the last record",
               changed({f"{_DIGEST}.mend": _bridge_too_low}), scenario=scenarios.RECOVERIES),
    PlantedBug("hole-over-record", "recovery plugs the first record above the LNG",
               changed({f"{_DIGEST}.mend": _hole_over_record}), scenario=scenarios.RECOVERIES),
    PlantedBug("one-too-few", "recovery hears one node less than an f-majority",
               changed({"recovery.heard:weigh_replies": _one_too_few}), scenario=scenarios.SINGLE_COPIES),
    PlantedBug("mends-one-less", "recovery stores one copy less than the log asks for",
               changed({"recovery.mend_tail:choose_copyset": _mends_one_less}),
               scenario=scenarios.RECOVERIES),
    PlantedBug("half-group-kept", "recovery keeps what it found of a group, whole or not",
               changed({"protocol.digest:whole_groups": _half_groups_kept}),
               scenario=scenarios.GROUPS),
    PlantedBug("seal-unnamed", "a recovery's stores are taken whatever higher seal has come",
               changed({"protocol.seal:SealTable.admits": _any_recovery_stores}),
               scenario=scenarios.REPLACED, scene="tests/protocol/test_small_scope.py"),
    PlantedBug("producers-forgotten", "who takes over knows no block of a producer up to the LNG",
               changed({"protocol.seal:SealTally.note_produced":
                        instead(lambda *rest: None)}), scenario=scenarios.RECOVERIES),
    PlantedBug("damaged-seal-counts", "who lost records tells how young an acknowledged one can be",
               changed({"protocol.seal:SealTally.sure": _all_are_sure}),
               scene="tests/recovery/test_damaged_seals.py"),
    PlantedBug("waits-for-all", "recovery waits until every member has sealed, dead ones too",
               changed({"recovery.heard:weigh_replies": _waits_for_all})),
    PlantedBug("non-authoritative-plugs", "a recovery that cannot know plugs holes all the same",
               changed({f"{_DIGEST}.mend": _plugs_all_the_same}), scenario=scenarios.LOST_TAILS),
    PlantedBug("history-trimmed-early", "a log's nodesets go once their epochs are recovered",
               changed({"recovery.trim_nodesets:trimmed_since": _trimmed_early}),
               scenario=scenarios.NODESETS),
    PlantedBug("hole-repeated", "a producer's block that became a hole is answered as a repeat",
               changed({"protocol.seal:SealTally.note_produced": _holes_remembered}),
               scenario=scenarios.RETRIES),
    PlantedBug("clean-before-mend", "an epoch is called recovered before its end is stored",
               changed({"recovery.recover_log:_finish_epoch": _clean_before_mend}),
               scenario=scenarios.RECOVERIES),
    PlantedBug("attempts-alike", "what attempts of one recovery store and tell counts alike",
               changed({"recovery.recover_log:mend_tail": _attempts_alike,
                        "recovery.recover_log:Clean": _clean_as_first}),
               scene="tests/recovery/test_second_attempts.py"),
    PlantedBug("failed-attempt-counts", "a node keeps what an attempt left that was given up",
               changed({"storage.log_cache:CachedLog.counts": _failed_attempt_counts}),
               scene="tests/recovery/test_second_attempts.py"),
    PlantedBug("second-clean-forgets", "a mended block stands for all producers of its epoch",
               changed({"storage.log_cache:CachedLog.state": _end_replaced}),
               scene="tests/recovery/test_second_attempts.py"),
    PlantedBug("digest-ignores-end", "a digest passes over what members say of releases and trims",
               changed({"recovery.collect_digest:DigestReads.read": _trim_is_hole}),
               scene="tests/recovery/test_digest_meets_trim.py"),
    PlantedBug("own-lng-forgotten", "a node drops what it alone knows to be acknowledged",
               changed({"storage.log_cache:CachedLog.above_own_lng":
                        instead(lambda self, epoch, end: end)}),
               scene="tests/recovery/test_non_authoritative.py"),
    PlantedBug("found-plugs-dropped", "a recovery that cannot know forgets holes that another knew",
               changed({f"{_DIGEST}._found_plugs": _found_plugs_dropped}),
               scene="tests/recovery/test_non_authoritative.py"),
)  # fmt: skip
