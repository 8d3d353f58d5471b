"""Planted bugs of main storage: uploads, let-go, deletions and reads.

Source: docs/sources/s3stream.md (b), traps 10 and 11, and (f), complaints 1 and 4.
"""

from __future__ import annotations

import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from cordwood.block import Buffer, Gap, GapKind
from cordwood.client.admin.tier_positions import TierPositions
from cordwood.client.blocks import HeldBlock
from cordwood.client.find.log_info import LogInfo as FoundLog
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.tier_read import TierRead
from cordwood.client.tier_store import TierStore
from cordwood.errors import Corrupt, NoObject
from cordwood.layout.logs_db import LogState
from cordwood.layout.object_writer import FinishedObject
from cordwood.log_attributes import LogAttributes
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.main_storage import MainStorageNote
from cordwood.nodes import NodeId
from cordwood.protocol import manifest, upload_turns
from cordwood.protocol.gap_detection import Delivery, ReadBuffer
from cordwood.protocol.retention import Part
from cordwood.protocol.tier_plan import TierPolicy
from cordwood.quorum.sequencer_placement import sequencer_order
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.bug import PlantedBug, at, together
from cordwood.sim.planted.scenarios import scenario
from cordwood.sim.tier_options import tiered, with_one_left
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.logs_db.partition import Part as Reading
from cordwood.storage.push.read_streams import ReadStreams
from cordwood.storage.rebuild.donor_look import DonorLook
from cordwood.storage.rebuild.donor_pass import Doubted, Pass
from cordwood.tier import collect, history, repair
from cordwood.tier.history import HistorySpans, _Step
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import load_footer
from cordwood.tier.object_store import Etag, ObjectStore
from cordwood.tier.owner import OwnerMark
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.presence import Presence
from cordwood.tier.uploader import LogUploader
from cordwood.tiered import Entry, Head, is_lost
from cordwood.uploading import local_drops, tend, upload_role
from cordwood.uploading.local_drops import LocalDrops
from cordwood.uploading.log_source import LogSource
from cordwood.uploading.main_looks import MainLooks
from cordwood.uploading.objects_at_hand import ObjectsAtHand
from cordwood.uploading.tend import Tend
from cordwood.uploading.tiered_logs import TieredLogs
from cordwood.uploading.tiering import Tiering
from cordwood.uploading.upload_role import UploadRole


async def _lacks_nothing(self: MainLooks, log: int, first: int, last: int) -> tuple[()]:
    return ()


async def _trusts_the_first(self: DonorLook, doubted: Doubted, now: Pass) -> bool:
    return False


async def _nothing_untiered(self: Tend, found: list[int], connect: Any) -> None:
    return


def _in_main_storage(options: RunOptions, **asks: Any) -> RunOptions:
    """Logs that are tiered within a second or so."""
    made = tiered(options, random.Random(round(options.workload.pause_s * 1e6)))
    cluster = made.cluster
    quick = LogAttributes(
        tier=True, local_retention=0.5, tier_after_s=0.0, tier_after_bytes=1,
        backlog_s=0.0, backlog_bytes=0,
    )  # fmt: skip
    attributes = replace_attributes(quick, asks).over(cluster.attributes)
    storage = replace(cluster.storage, partition_age_s=1.0, retention_every_s=0.3, flush_age_s=0.3)
    tier = replace(cluster.tier, look_s=0.3, tend_s=1.0, grace_s=2.0)
    return replace(
        made, cluster=replace(cluster, attributes=attributes, storage=storage, tier=tier)
    )


def replace_attributes(asks: LogAttributes, others: dict[str, Any]) -> LogAttributes:
    """The attributes of a log, with some changes."""
    return LogAttributes(**others).over(asks)


def _seldom(options: RunOptions) -> RunOptions:
    """Also, uploaders look every second: two uploaders are as busy as one."""
    made = _in_main_storage(options)
    cluster = made.cluster
    return replace(
        made, cluster=replace(cluster, tier=replace(cluster.tier, look_s=1.0, tend_s=30.0))
    )


def _young(options: RunOptions) -> RunOptions:
    """Also, logs keep their records for longer than a run."""
    return _in_main_storage(options, backlog_s=300.0)


def _bounded(options: RunOptions) -> RunOptions:
    """Also, logs keep a part of a run's bytes: a run writes that many before its middle, so a wrong
    count deletes records by then."""
    return _in_main_storage(options, backlog_bytes=40_000)


def _left_to_one(options: RunOptions) -> RunOptions:
    """Also, one node alone reaches main storage."""
    return with_one_left(_in_main_storage(options))


_TIERED = scenario("client_crash", every_s=3.0, shape=_in_main_storage, restart_s=2.0, readers=3)
_CRASHED = scenario(
    "crash", "power_cut", every_s=1.0, shape=_in_main_storage, restart_s=2.0, readers=3
)
_ONE_LEFT = scenario("client_crash", every_s=3.0, length_s=10.0, shape=_left_to_one)
_TWO = scenario("client_crash", every_s=3.0, shape=_seldom, restart_s=2.0, readers=3)
_KEPT = scenario("client_crash", every_s=3.0, shape=_young, restart_s=2.0, readers=3)
_BOUNDED = scenario("client_crash", every_s=3.0, shape=_bounded, restart_s=2.0, readers=3)


async def _takes_uploads_for_granted(
    self: LocalDrops, log: int, info: LogInfo, manifest: LogManifest, gone: int, last: int
) -> int:
    return self._engine.cache.log(log).readable + 1


async def _trims_what_is_tiered(self: StorageEngine, log: int, lsn: int, released: int) -> int:
    return await self.trim(log, lsn, released)


def _passes_one_more(
    right: Callable[[ReadBuffer[Any], int], None], self: ReadBuffer[Any], upto: int
) -> None:
    right(self, upto + 1 if upto == self._tier + 1 else upto)


def _takes_tier_for_trim(self: ReadBuffer[Any], last: int) -> None:
    self.on_trim(last)


def _forgets_its_tier_point(
    right: Callable[[CachedLog, int], LogState], self: CachedLog, seal: int
) -> LogState:
    return right(self, seal)._replace(tier=0)


async def _commits_before_it_puts(
    right: Callable[[LogUploader, FinishedObject, str], Awaitable[None]],
    self: LogUploader,
    done: FinishedObject,
    name: str,
) -> None:
    await right(self, done, name)
    store = self._store
    assert isinstance(store, PatientStore)
    await store._store.put(name, [done.content], timeout_s=600.0)


async def _puts_no_object(
    right: Callable[..., Awaitable[None]],
    self: PatientStore,
    name: str,
    content: Sequence[Buffer],
    *,
    timeout_s: float,
) -> None:
    if not name.startswith("logs/") or "/objects/" not in name:
        await right(self, name, content, timeout_s=timeout_s)


def _eats_what_is_committed(
    head: Head, found: Entry | None, name: str, last: int, fence: int
) -> bool:
    return fence < head.fence or last < head.end


def _leaves_out_the_last(
    right: Callable[[list[Any], int, int], list[Any]],
    items: list[Any],
    start: int,
    until: int,
) -> list[Any]:
    kept = right(items, start, until)
    return kept[:-1] if len(kept) > 1 and not isinstance(kept[-1], Gap) else kept


async def _swaps_without_condition(
    right: Callable[..., Awaitable[Etag]],
    self: PatientStore,
    name: str,
    content: bytes,
    expected: Etag | None,
    *,
    timeout_s: float,
) -> Etag:
    try:
        _, found = await self.read(name, timeout_s=timeout_s)
    except NoObject:
        return await right(self, name, content, None, timeout_s=timeout_s)
    return await right(self, name, content, found, timeout_s=timeout_s)


async def _uploads_for_its_neighbour(self: UploadRole) -> dict[int, LogInfo]:
    """Two nodes regard each log as their own, as when they see different members."""
    await self._logs.refresh()
    members, dead = self._members().values(), self._dead()
    return {
        log: info
        for log, info in self._logs.tiered.items()
        if self._me in sequencer_order(log, members, dead)[:2]
    }


@asynccontextmanager
async def _holds_every_lease(self: UploadRole, log: int) -> AsyncIterator[bool]:
    yield True


def _takes_a_fence_for_advice(head: Head, entry: Entry, fence: int, seal: manifest.Seal) -> Head:
    # The commit begins where the ended turn believes that the last one ended.
    entry = entry._replace(first=head.end, last=max(entry.last, head.end))
    return manifest._added(head, entry, seal)


def _lets_go_of_one_more(
    right: Callable[[LocalDrops, int, list[Part], TierPolicy, int], int],
    self: LocalDrops,
    log: int,
    parts: list[Part],
    policy: TierPolicy,
    end: int,
) -> int:
    through = right(self, log, parts, policy, end)
    lasts = [part.last for part in parts if part.last > through]
    return lasts[0] if through and lasts else through


async def _retains_nothing(self: Tend, manifest: LogManifest, head: Head, backlog_s: float) -> int:
    return head.end - 1 if backlog_s else 0


def _counts_four_times(
    right: Callable[..., int], self: Tend, head: Head, backlog_bytes: int
) -> int:
    return right(self, head, backlog_bytes // 4)


async def _finds_too_late(
    right: Callable[..., Awaitable[int | None]],
    self: TierPositions,
    time_us: int,
    trim: int,
    *,
    is_exact: bool,
) -> int | None:
    found = await right(self, time_us, trim, is_exact=is_exact)
    return None if found is None else found + 3


async def _as_it_was_opened(self: ObjectsAtHand) -> bool:
    await self.store()
    return bool(self._is_ours)


async def _takes_any_store(self: Tiering, store: ObjectStore, has_named_us: bool) -> bool:
    return True


async def _marks_anew(
    right: Callable[[OwnerMark, ObjectStore, bool], Awaitable[bool]],
    self: OwnerMark,
    store: ObjectStore,
    has_named_us: bool,
) -> bool:
    return await right(self, store, False)


def _forgets_the_mark(self: OwnerMark, note: MainStorageNote | None) -> None:
    """A store that names nobody is marked, whatever the note says."""


async def _believes_the_end(self: LogSource, read_end: Callable[[], Awaitable[int]]) -> None:
    """The manifest may end before what nodes let go of."""


async def _believes_the_start(self: LocalDrops, log: int, lsn: int, last: int) -> bool:
    return True


async def _asks_nobody(self: ObjectsAtHand) -> None:
    """The store is not asked whose it is."""


async def _begins_anew(
    right: Callable[[LogManifest, int, int], Awaitable[Head]],
    self: LogManifest,
    first: int,
    fence: int = 0,
) -> Head:
    self._was_there = False
    return await right(self, first, fence)


def _takes_any_head(head: Head, first: int) -> None:
    """It may end before what the upload has seen."""


async def _believes_any_store(
    right: Callable[..., Awaitable[LogManifest]], self: TierStore, info: FoundLog
) -> LogManifest:
    return await right(self, replace(info, created_us=0))


_TWO_UPLOADERS = together(
    at(UploadRole.mine).instead(_uploads_for_its_neighbour),
    at(UploadRole._leased).instead(_holds_every_lease),
)


def _always_the_first(order: Sequence[NodeId], now_us: int, look_s: float) -> NodeId | None:
    return order[0] if order else None


_OTHERS = "tests/tier/test_tier_cluster.py"


async def _wanted_as_before(self: UploadRole, log: int) -> None:
    """Nothing is asked again."""


async def _begins_where_it_begins_now(
    right: Callable[[HistorySpans[Any]], AsyncGenerator[_Step[Any], None]], self: HistorySpans[Any]
) -> AsyncGenerator[_Step[Any], None]:
    """Report only a trim that shows in the first look at the manifest."""
    is_first = True
    async for step in right(self):
        if is_first or step.entry.name:
            yield step
        is_first = False


async def _end_of_the_manifest(manifest: LogManifest) -> int:
    head = await manifest.load()
    return head.end if head is not None else 0


async def _misses_nothing(
    self: LocalDrops, manifest: LogManifest, gone: int, through: int
) -> Entry | None:
    return None


async def _settles_at_once(self: LocalDrops) -> None:
    for log in self._unsettled:
        self._take_again(log)
    self._unsettled.clear()


async def _asks_by_a_newer_head(
    right: Callable[[LocalDrops, LogManifest, int, int], Awaitable[Entry | None]],
    self: LocalDrops,
    manifest: LogManifest,
    gone: int,
    through: int,
) -> Entry | None:
    return await right(self, await self._objects.manifest(manifest._log), gone, through)


async def _holds_nothing_of_a_lost_head(
    right: Callable[[LocalDrops, int, LogInfo], Awaitable[int]],
    self: LocalDrops,
    log: int,
    info: LogInfo,
) -> int:
    try:
        return await right(self, log, info)
    except Corrupt:
        return 0


async def _looks_at_one_copy(self: LocalDrops, log: int, first: int, last: int) -> bool:
    run = await self._engine.reader.read(
        log, first, last, lambda block: Reading.HEAD, bytes_max=1 << 20, blocks_max=1
    )
    return bool(run.blocks or run.damaged)


def _loses_over_epochs(self: ReadBuffer[Any], last: int, heard: Iterable[NodeId]) -> int:
    return min(last, min([self.first_here, *map(self.marker, heard)]) - 1)


def _takes_all_for_new(self: ReadStream, read: TierRead) -> bool:
    read.looked_at = self._loop.time()
    return False


def _counts_rotten_copies(self: ReadBuffer[Any], node: NodeId) -> int:
    return self.marker(node)


def _reads_objects_at_once(
    right: Callable[[ReadStream], Delivery[HeldBlock] | Gap | None], self: ReadStream
) -> Delivery[HeldBlock] | Gap | None:
    is_held, self._buffer.is_held = self._buffer.is_held, False
    try:
        return right(self)
    finally:
        self._buffer.is_held = is_held


def _takes_nothing_back(found: repair.Found, losses: Sequence[Entry]) -> bool:
    return False


async def _as_it_is_listed(self: TieredLogs, log: int) -> LogInfo | None:
    return self.all.get(log)


async def _is_sound_by_one_read(store: ObjectStore, name: str, crc: int) -> bool:
    page = await store.list_page(name[: name.rindex("/") + 1], timeout_s=60.0)
    try:
        (size,) = (info.size for info in page if info.name == name)
        await load_footer(store, name, size, crc, timeout_s=60.0)
    except Corrupt:
        return False
    return True


async def _looks_for_none(self: repair._Survey, names: Iterable[str]) -> None:
    """The listing tells all."""


async def _covers_no_loss(
    self: Presence, manifest: LogManifest, head: Head, first: int, last: int
) -> bool:
    return False


BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("tier-drops-unread", "a node lets go of blocks that no manifest names yet",
               at(LocalDrops._end_of).instead(_takes_uploads_for_granted), scenario=_TIERED),
    PlantedBug("tier-drops-one-more", "a node lets go of one partition more than is committed",
               at(LocalDrops._would_drop).around(_lets_go_of_one_more), scenario=_TIERED),
    PlantedBug("tier-point-is-trim", "a node trims blocks that it should let go of",
               at(StorageEngine.tier).instead(_trims_what_is_tiered), scenario=_TIERED),
    PlantedBug("tier-taken-for-trim", "a reader treats TIERED as TRIM",
               at(ReadBuffer.on_tiered).instead(_takes_tier_for_trim), scenario=_TIERED),
    PlantedBug("tier-not-told", "a node skips blocks that it let go of without reporting them",
               at(ReadStreams._tell_tiered).instead(lambda self, stream: None),
               scenario=_TIERED),
    PlantedBug("tier-point-forgotten", "a node starts without its tier point",
               at(CachedLog.state).around(_forgets_its_tier_point), scenario=_CRASHED),
    PlantedBug("tier-hand-over-one-off", "a reader leaves main storage one LSN too late",
               at(ReadBuffer.pass_to).around(_passes_one_more), scenario=_TIERED),
    PlantedBug("tier-last-left-out", "a reader leaves out the last block of a row group",
               at(history.clipped).around(_leaves_out_the_last), scenario=_TIERED),
    PlantedBug("tier-commits-first", "an uploader commits an object before it is put",
               together(at(LogUploader._commit).around(_commits_before_it_puts),
                        at(PatientStore.put).around(_puts_no_object)), scenario=_CRASHED),
    PlantedBug("tier-collects-committed", "the collection deletes objects that a manifest names",
               at(manifest.is_dead_object).instead(_eats_what_is_committed), scenario=_TIERED),
    PlantedBug("tier-head-unconditional", "two uploaders, and a head is replaced without a "
                                          "condition",
               together(_TWO_UPLOADERS, at(PatientStore.put_if).around(_swaps_without_condition)),
               scenario=_TWO),
    PlantedBug("tier-zombie-commits", "two uploaders, and an ended turn commits",
               together(_TWO_UPLOADERS,
                        at(manifest.check_turn).instead(lambda head, fence: None),
                        at(manifest.append).instead(_takes_a_fence_for_advice)), scenario=_TWO),
    PlantedBug("tier-no-stand-in", "a log waits for its first node, which does not reach main "
                                   "storage",
               at(upload_turns.uploader_of, within=upload_role).instead(_always_the_first),
               scenario=_ONE_LEFT),
    PlantedBug("tier-retains-nothing", "retention deletes all of main storage",
               at(Tend._too_old).instead(_retains_nothing), scenario=_KEPT),
    PlantedBug("tier-point-of-losses", "a node that is let in empty takes an accepted loss for what "
               "main storage holds",
               at(repair.end_of_objects, within=local_drops).instead(_end_of_the_manifest),
               scene="tests/tier/test_accepted_loss.py"),
    PlantedBug("tier-believes-the-start", "a node lets go of records before the manifest's start, "
               "which nobody trimmed", at(LocalDrops._is_trimmed).instead(_believes_the_start),
               scene="tests/tier/test_accepted_loss.py"),
    PlantedBug("tier-looks-at-one-copy", "a node lets go of lost records that stand behind copies "
               "that do not count", at(LocalDrops._holds).instead(_looks_at_one_copy),
               scene="tests/tier/test_accepted_loss.py"),
    PlantedBug("tier-loss-over-epochs", "a reader tells a loss in two epochs by the nodes of the "
               "first one", at(ReadBuffer.lost_up_to).instead(_loses_over_epochs),
               scene="tests/tier/test_told_losses.py"),
    PlantedBug("tier-tells-old-losses", "a reader tells a loss that was taken back while it waited "
               "behind records", at(ReadStream._is_old).instead(_takes_all_for_new),
               scene="tests/tier/test_told_losses.py"),
    PlantedBug("tier-refuses-what-is-put-back", "a repair does not name an object that was put back "
               "after its loss was accepted", at(repair._takes_back).instead(_takes_nothing_back),
               scene="tests/tier/test_put_back_objects.py"),
    PlantedBug("tier-collects-what-is-put-back", "the collection deletes an object that was put back "
               "after its loss was accepted", at(Presence.covers_loss).instead(_covers_no_loss),
               scene="tests/tier/test_put_back_objects.py"),
    PlantedBug("tier-damaged-by-one-read", "the collection deletes an object that was put back, because "
               "the store once gave a bad answer for it",
               at(collect._is_sound).instead(_is_sound_by_one_read),
               scene="tests/tier/test_put_back_objects.py"),
    PlantedBug("tier-repairs-by-the-listing", "a repair calls objects lost that the manifest names and "
               "a listing does not have yet", at(repair._Survey.look_for).instead(_looks_for_none),
               scene="tests/tier/test_stale_listings.py"),
    PlantedBug("tier-tells-the-start", "a reader tells a trim by the manifest's start alone",
               at(ReadStream._needs_nodes).instead(
                   lambda self, gap: gap.kind is GapKind.DATA_LOSS),
               scene="tests/tier/test_told_losses.py"),
    PlantedBug("tier-counts-rotten-copies", "a rotten copy counts as none where main storage lost "
               "records", at(ReadBuffer.knows_upto).instead(_counts_rotten_copies),
               scene="tests/tier/test_told_losses.py"),
    PlantedBug("tier-before-trims", "a reader gives records of objects before nodes have told their "
               "trim points", at(ReadStream._take_tiered).around(_reads_objects_at_once),
               scene="tests/tier/test_trims_before_objects.py"),
    PlantedBug("tier-lost-head-passed", "a node that is let in empty passes over a log whose manifest "
               "or origin is gone",
               at(LocalDrops._held_of).around(_holds_nothing_of_a_lost_head),
               scene="tests/tier/test_lost_heads.py"),
    PlantedBug("tier-drops-without-an-object", "a node lets go of records whose object is gone",
               at(LocalDrops._missing).instead(_misses_nothing),
               scene="tests/tier/test_drops_without_objects.py"),
    PlantedBug("tier-drops-by-two-heads", "a node looks for losses in one head of a manifest, and for "
               "objects by a newer one", at(LocalDrops._missing).around(_asks_by_a_newer_head),
               scene="tests/tier/test_drops_without_objects.py"),
    PlantedBug("tier-drops-unsettled", "a node whose WAL gave no answer to a tier record takes copies "
               "again before the record is in force", at(LocalDrops._settle).instead(_settles_at_once),
               scene="tests/tier/test_drops_without_objects.py"),
    PlantedBug("tier-dates-losses", "retention believes the time of a range that a repair called lost",
               at(is_lost, within=tend).instead(lambda entry: False),
               scene="tests/tier/test_accepted_loss.py"),
    PlantedBug("tier-keeps-too-little", "retention by size counts main storage's bytes four times",
               at(Tend._too_much).around(_counts_four_times), scenario=_BOUNDED),
    PlantedBug("tier-finds-too-late", "find_time gives a place behind the right one in main "
                                      "storage",
               at(TierPositions.find_time).around(_finds_too_late), scenario=_TIERED),
    PlantedBug("tier-any-owner", "a node uses another cluster's store as its own",
               at(Tiering._keep_owner).instead(_takes_any_store), scene=_OTHERS),
    PlantedBug("tier-owner-asked-once", "a node asks once whose the store is, when it opens it",
               at(ObjectsAtHand.is_ours).instead(_as_it_was_opened), scene=_OTHERS),
    PlantedBug("tier-marks-anew", "a node marks a store as its cluster's that was emptied or unmounted",
               together(at(OwnerMark.keep).around(_marks_anew),
                        at(OwnerMark._check_free).instead(_forgets_the_mark)), scene=_OTHERS),
    PlantedBug("tier-mark-not-noted", "a node that starts while main storage is unmounted marks the "
               "empty directory", at(OwnerMark._check_free).instead(_forgets_the_mark),
               scene=_OTHERS),
    PlantedBug("tier-turn-at-an-older-head", "an upload takes a turn at a manifest that ends before "
               "what nodes let go of", at(LogSource._check_end).instead(_believes_the_end),
               scene=_OTHERS),
    PlantedBug("tier-turn-at-what-it-finds", "an upload takes a turn at an older head that was put back "
               "after it had read the manifest", at(manifest.check_reaches).instead(_takes_any_head),
               scene="tests/tier/test_older_manifest.py"),
    PlantedBug("tier-drops-by-any-owner", "a node lets go of records by another cluster's objects",
               at(ObjectsAtHand.check).instead(_asks_nobody), scene=_OTHERS),
    PlantedBug("tier-manifest-begun-anew", "an uploader replaces a lost manifest by one that begins "
               "at its end", at(LogManifest.take_turn).around(_begins_anew),
               scene="tests/tier/test_uploader.py"),
    PlantedBug("tier-any-origin", "a reader reads another cluster's log as its own",
               at(TierStore._opened).around(_believes_any_store), scene=_OTHERS),
    PlantedBug("tier-uploads-by-old-rights", "an upload that waited for its turn uses the log's "
                                             "old attributes", at(UploadRole._check_wanted).instead(_wanted_as_before),
               scene="tests/tier/test_tier_guarded.py"),
    PlantedBug("tier-off-is-forgotten", "a log with tier=off is not trimmed in main storage",
               at(Tend._follow_untiered).instead(_nothing_untiered),
               scene="tests/tier/test_tier_switched_off.py"),
    PlantedBug("tier-hole-behind-a-page", "a reader goes on at the manifest's present beginning "
                                          "without a gap", at(HistorySpans._planned).around(_begins_where_it_begins_now),
               scene="tests/tier/test_tier_history.py"),
    PlantedBug("tier-nameless-is-deleted", "a log that the tree does not list counts as deleted for "
               "donors, and for nodes that are let in empty",
               at(TieredLogs.of).instead(_as_it_is_listed),
               scene="tests/tier/test_unread_entries.py"),
    PlantedBug("rebuild-believes-let-go", "a donor takes a block for one in main storage because "
                                          "another node let go of it", at(MainLooks.lacks).instead(_lacks_nothing),
               scene="tests/storage/test_lost_in_main_storage.py"),
    PlantedBug("rebuild-trusts-the-first", "a donor leaves a block to a member before it, which let "
                                           "go of it", at(DonorLook._is_past).instead(_trusts_the_first),
               scene="tests/storage/test_lost_in_main_storage.py"),
)  # fmt: skip
"""Every bug of main storage."""
