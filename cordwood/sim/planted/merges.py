"""Planted bugs of compaction: the objects that a merge writes, replaces and deletes.

Source: docs/sources/s3stream.md (b), "Compaction", and (f), complaint 4 (reads that compaction
breaks).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cordwood.block import Buffer, Gap, GapKind
from cordwood.errors import Malformed, NoObject
from cordwood.host.seams import Host
from cordwood.layout.object_names import parse_object_name
from cordwood.lsn import Lsn
from cordwood.protocol import manifest, merging
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.bug import PlantedBug, at, together
from cordwood.sim.planted.scenarios import scenario
from cordwood.sim.planted.tier import _in_main_storage
from cordwood.tier import compact, merge
from cordwood.tier.history import HistoryBlock, HistoryReader, HistorySpans, Load
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.merge import MergeTask
from cordwood.tier.object_store import Etag, ObjectStore
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.presence import Presence
from cordwood.tiered import MERGED, Entry, Head

if TYPE_CHECKING:
    pass


def _merging(options: RunOptions) -> RunOptions:
    """Nodes merge all neighbouring objects, all the time."""
    made = _in_main_storage(options)
    tier = replace(
        made.cluster.tier, look_s=0.5, merge_objects=2, merge_s=0.5, merge_object_bytes=200_000,
        merge_shared_bytes=1, merge_turn_s=4.0,
    )  # fmt: skip
    return replace(made, cluster=replace(made.cluster, tier=tier))


def _without_grace(options: RunOptions) -> RunOptions:
    """As `_merging`, and objects are deleted as soon as nothing names them, during reads and merges."""
    made = _merging(options)
    tier = replace(made.cluster.tier, tend_s=0.3, grace_s=0.0, merge_turn_s=30.0)
    return replace(made, cluster=replace(made.cluster, tier=tier))


def _with_short_turns(options: RunOptions) -> RunOptions:
    """As `_without_grace`, and turns end before merges do."""
    made = _without_grace(options)
    tier = replace(made.cluster.tier, merge_turn_s=0.2)
    return replace(made, cluster=replace(made.cluster, tier=tier))


_MERGED = scenario("client_crash", every_s=3.0, shape=_merging, restart_s=2.0, readers=3)
_CRASHED = scenario("crash", every_s=1.0, shape=_merging, restart_s=2.0, readers=3)
_HASTY = scenario("client_crash", every_s=3.0, shape=_without_grace, restart_s=1.0, readers=3)
_OVERDUE = scenario("client_crash", every_s=3.0, shape=_with_short_turns, restart_s=1.0, readers=3)


async def _merges_all_but_one(
    right: Callable[[ObjectStore, Host, MergeTask], Awaitable[Entry]],
    store: ObjectStore,
    host: Host,
    task: MergeTask,
) -> Entry:
    """The entry claims to hold the last object, too."""
    run = task.run
    made = await right(store, host, replace(task, run=run[:-1]))
    return made._replace(
        last=run[-1].last, rows=sum(each.rows for each in run),
        bytes=sum(each.bytes for each in run), append_last_us=run[-1].append_last_us,
    )  # fmt: skip


async def _puts_no_merged_object(
    right: Callable[..., Awaitable[None]],
    self: PatientStore,
    name: str,
    content: Sequence[Buffer],
    *,
    timeout_s: float,
) -> None:
    if not _is_merged_object(name):
        await right(self, name, content, timeout_s=timeout_s)


def _is_merged_object(name: str) -> bool:
    try:
        return parse_object_name(name).fence >= MERGED
    except Malformed:
        return False


async def _takes_its_time(
    right: Callable[[ObjectStore, Entry], Awaitable[None]], store: ObjectStore, entry: Entry
) -> None:
    """Another action comes between the put and the commit."""
    await right(store, entry)
    await asyncio.sleep(1.5)


async def _reads_nothing_back(store: ObjectStore, entry: Entry) -> None:
    return None


async def _merges_without_condition(
    right: Callable[..., Awaitable[Head]],
    self: LogManifest,
    run: Sequence[Entry],
    merged: Entry,
    number: int = 0,
) -> Head:
    """A merge writes its own head over changes of others."""
    head = self.head
    assert head is not None
    etag, swap = self._etag, self._store.put_if
    await asyncio.sleep(1.0)  # uploads go on meanwhile

    async def blindly(
        name: str, content: bytes, expected: Etag | None, *, timeout_s: float
    ) -> Etag:
        _, found = await self._store.read(name, timeout_s=timeout_s)
        return await swap(name, content, found, timeout_s=timeout_s)

    async def stays() -> Head | None:
        self.head, self._etag = head, etag
        return head

    self._store.put_if, self.load = blindly, stays  # type: ignore[method-assign]
    try:
        return await right(self, run, merged, number)
    finally:
        del self._store.put_if, self.load


def _is_no_merge(fence: int) -> bool:
    return False


def _is_in_force_for_ever(head: Head, number: int) -> None:
    return None


async def _fetches_slowly(
    right: Callable[..., Awaitable[Sequence[HistoryBlock]]],
    self: HistoryReader,
    name: str,
    number: int,
    load: Load,
) -> Sequence[HistoryBlock]:
    """Objects may be deleted while they are read."""
    await asyncio.sleep(0.7)
    return await right(self, name, number, load)


async def _takes_merged_for_trimmed(
    right: Callable[[HistorySpans[Any], NoObject], Awaitable[None]],
    self: HistorySpans[Any],
    error: NoObject,
) -> None:
    """Records of a deleted object count as trimmed."""
    entry = self._steps[0].entry if self._steps else None
    await right(self, error)
    if entry is not None and not self._out and entry.last >= self.next_lsn:
        last = min(entry.last, self._until)
        self._out.append(Gap(Lsn(self.next_lsn), Lsn(last), GapKind.TRIM))


def _drops_a_neighbour(
    right: Callable[..., Head],
    head: Head,
    run: Sequence[Entry],
    merged: Entry,
    number: int,
    page_of: merging.PageOf,
    seal: manifest.Seal,
    now_us: int,
) -> Head:
    """The entry also replaces the next entry, whose records it does not hold."""
    made = right(head, run, merged, number, page_of, seal, now_us)
    entries = list(made.levels[0])
    index = next((i for i, item in enumerate(entries) if item.last == merged.last), -1)
    if not 0 <= index < len(entries) - 1:
        return made
    entries[index : index + 2] = [entries[index]._replace(last=entries[index + 1].last)]
    return made._replace(levels=(tuple(entries), *made.levels[1:]))


async def _never_the_only_one(
    self: Presence, manifest: LogManifest, head: Head, first: int, last: int, fence: int
) -> bool:
    return False


BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("merge-leaves-out-the-last", "a merged object lacks one of the objects that it "
                                            "replaces",
               at(merge.merge_run, within=compact).around(_merges_all_but_one), scenario=_MERGED),
    PlantedBug("merge-drops-a-neighbour", "a merge replaces one entry too many",
               at(merging.replace).around(_drops_a_neighbour), scenario=_MERGED),
    PlantedBug("merge-commits-first", "a merge is committed although its object was never put",
               together(at(PatientStore.put).around(_puts_no_merged_object),
                        at(merge.check_stored).instead(_reads_nothing_back)), scenario=_CRASHED),
    PlantedBug("merge-head-unconditional", "a merge replaces the head and drops other commits",
               at(LogManifest.replace).around(_merges_without_condition), scenario=_MERGED),
    PlantedBug("merge-eaten", "the collection deletes a merge's object as if it were an old "
                              "upload",
               together(at(manifest.is_merged).instead(_is_no_merge),
                        at(merge.check_stored).around(_takes_its_time)), scenario=_HASTY),
    PlantedBug("merge-zombie-commits", "a merge commits after its turn was ended and its object "
                                       "was deleted",
               together(at(merging.check_merging).instead(_is_in_force_for_ever),
                        at(merge.check_stored).around(_takes_its_time)), scenario=_OVERDUE),
    PlantedBug("merge-taken-for-trim", "a reader treats a merged object as trimmed",
               together(at(HistorySpans._begin_anew).around(_takes_merged_for_trimmed),
                        at(HistoryReader._parts).around(_fetches_slowly)), scenario=_HASTY),
    PlantedBug("tier-collects-the-only-copies", "the collection deletes merged objects although an "
               "older manifest names objects that are gone",
               at(Presence.is_only).instead(_never_the_only_one),
               scene="tests/tier/test_older_manifest.py"),
)  # fmt: skip
"""Every bug of compaction."""
