"""Collects objects that no manifest names: never committed uploads, trimmed and merged objects.

Uploaders may run meanwhile. `protocol.manifest.is_dead_object` finds objects that are not committed
and never will be. Names are never used twice, so a late deletion deletes no new object. The grace
protects readers, which may hold a head from before a trim or a merge, and operators.

A manifest may be an older copy that was put back. Then it names merged objects that are deleted,
and the objects that took their place are the only copies. So an unnamed object stays while an entry
for a part of its range has no object (`tier.presence`). It also stays if it has records that a
repair called lost: somebody has put it back, and the next repair names it again.

A log without a head is left alone: `repair` rebuilds a lost head from the objects. A deleted log
keeps its head, which says that all of it is trimmed (`retire_log`).

Source: docs/objects.md, "Deletion".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from cordwood.errors import Corrupt, Malformed, NoObject
from cordwood.layout.manifest import page_name, parse_page_name
from cordwood.layout.object_file import ObjectRun
from cordwood.layout.object_names import (
    SHARED,
    objects_prefix,
    pages_prefix,
    parse_object_name,
)
from cordwood.protocol import manifest as rule
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import load_footer
from cordwood.tier.object_store import DELETE_MAX, LIST_MAX, ObjectInfo, ObjectStore
from cordwood.tier.presence import Presence
from cordwood.tier.table_notes import Tabled, load_tabled
from cordwood.tiered import Entry, Head, PageRef

CALL_S = 60.0
"""One call to the store, with all its tries."""

HEADS_KEPT = 512
"""The most manifests that a look at shared objects keeps: with 4 pages each, some 70 MB at most."""

PAGES_KEPT = 4
"""The pages that each of these manifests keeps."""

HELD_MAX = 100_000
"""The most names that one collection gathers: some 10 MB."""

SOUND_TRIES_MAX = 3
SOUND_PAUSE_S = 1.0
"""The reads after which an object counts as damaged that has records which a repair called lost,
and the pause between them. A bad disk or cache of the store may answer once."""


@dataclass(slots=True)
class Collected:
    """The result of a collection.

    Attributes:
        seen: objects and pages that were checked.
        deleted, deleted_bytes: those that were dead for long enough.
        waiting: dead, but still in their grace, named by a table, leased, or too many.
        kept: no manifest names them, and what it names in their place is gone or lost.
        strangers: foreign names below Cordwood's prefix; they are left alone.
        damaged: objects of several logs that do not tell their logs; they stay.
    """

    seen: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    waiting: int = 0
    kept: int = 0
    strangers: int = 0
    damaged: int = 0


async def retire_log(manifest: LogManifest) -> None:
    """Retire a deleted log: no upload of it is committed any more, and all of it is trimmed."""
    head = await manifest.load()
    if head is None:
        return
    if head.fence < rule.FENCE_MAX:
        head = await manifest.take_turn(head.start, rule.FENCE_MAX)
    await manifest.trim(head.end)


async def collect_log(
    store: ObjectStore,
    manifest: LogManifest,
    log: int,
    now_us: int,
    grace_s: float,
    tabled: Tabled | None = None,
) -> Collected:
    """Delete the dead objects and pages of one log.

    Args:
        tabled: what tables name and leases keep; None to look.
    Raises:
        Corrupt: its manifest cannot be read as a whole. Nothing was deleted: its repair may need
            objects that the rest of the manifest does not name.
    """
    done = Collected()
    head = await manifest.load()
    if head is None:
        return done
    # An object that a merge put and never committed is dead once its turn is over.
    await manifest.end_overdue_merging()
    head = manifest.head or head
    pruner = _Pruner(store, done, tabled or await load_tabled(store, now_us))
    presence = Presence(store)
    async for info in list_all(store, objects_prefix(log)):
        try:
            name = parse_object_name(info.name)
        except Malformed:
            done.strangers += 1
            continue
        found = await manifest.find(name.last)
        head = manifest.head or head
        is_dead = rule.is_dead_object(head, found, info.name, name.last, name.fence)
        by = await _let_go_by(manifest, head, found, name.last)
        since_us = _since_us(head, by, name.last, info)
        if pruner.is_due(info, is_dead, since_us, now_us, grace_s):
            is_only = await presence.is_only(manifest, head, name.first, name.last, name.fence)
            if not is_only and await presence.covers_loss(manifest, head, name.first, name.last):
                # A repair leaves out a damaged object, so nothing is left to wait for.
                is_only = await _is_sound(store, info.name, name.footer_crc)
            pruner.gather(info, is_only=is_only)
    async for info in list_all(store, pages_prefix(log)):
        try:
            _, ref = parse_page_name(info.name)
        except Malformed:
            done.strangers += 1
            continue
        page = await manifest.find_page(ref.level, ref.last)
        head = manifest.head or head
        is_dead = rule.is_dead_page(head, page, ref)
        # The object in the page's place was put at the time when it took that place.
        newer = await _info_of(store, log, page) if is_dead and page is not None else None
        by = await _let_go_by(manifest, head, None, ref.last)
        since_us = max(_since_us(head, by, ref.last, info), newer.modified_us if newer else 0)
        if pruner.is_due(info, is_dead, since_us, now_us, grace_s):
            pruner.gather(info)
    if done.deleted:
        await _check_whole(manifest)
    await pruner.flush()
    return done


async def _is_sound(store: ObjectStore, name: str, crc: int) -> bool:
    """Whether a repair can take an object, as far as its footer tells.

    Trap: it may be the only copy of its records. One bad answer of the store, or the size in a
    listing from before it was put back, proves no damage. So its size is asked for, and it counts
    as damaged only if it is so each time.
    """
    for tries in range(1, SOUND_TRIES_MAX + 1):
        try:
            if (info := await store.head(name, timeout_s=CALL_S)) is None:
                return False
            await load_footer(store, name, info.size, crc, timeout_s=CALL_S)
        except NoObject:
            return False
        except Corrupt:
            if tries < SOUND_TRIES_MAX:
                await asyncio.sleep(SOUND_PAUSE_S)
            continue
        return True
    return False


async def _check_whole(manifest: LogManifest) -> None:
    """Read all pages of a manifest.

    Raises:
        Corrupt: a page is missing or damaged.
    """
    lsn = 0
    while page := await manifest.entries(lsn):
        lsn = page[-1].last + 1


async def collect_shared(
    store: ObjectStore,
    manifest_of: Callable[[int], LogManifest],
    now_us: int,
    grace_s: float,
    tabled: Tabled | None = None,
) -> Collected:
    """Delete shared objects that none of their logs needs.

    Args:
        manifest_of: a log's manifest.
        tabled: what tables name and leases keep; None to look.
    """
    done = Collected()
    pruner = _Pruner(store, done, tabled or await load_tabled(store, now_us))
    manifests = _Manifests(manifest_of)
    presence = Presence(store)
    async for info in list_all(store, SHARED):
        try:
            crc = parse_object_name(info.name).footer_crc
        except Malformed:
            done.strangers += 1
            continue
        try:
            footer = await load_footer(store, info.name, info.size, crc, timeout_s=CALL_S)
        except NoObject:
            continue  # deleted since it was listed, or the listing is stale
        except Corrupt:
            # The logs of its records are not known. Other objects are collected all the same.
            done.damaged += 1
            continue
        since_us = await _dead_since_us(manifests, footer.index.runs, info)
        if pruner.is_due(info, since_us is not None, since_us or 0, now_us, grace_s):
            is_only = await _is_only(manifests, presence, footer.index.runs)
            pruner.gather(info, is_only=is_only)
    await pruner.flush()
    return done


async def _dead_since_us(
    manifests: _Manifests, runs: Sequence[ObjectRun], info: ObjectInfo
) -> int | None:
    """The time since which no log needs its share of an object; None while a log needs it."""
    since_us = 0
    for run in runs:
        try:
            manifest = await manifests.of(run.log)
            found = await manifest.find(run.last) if manifest.head is not None else None
        except Corrupt:
            return None  # its repair may need the object
        head = manifest.head
        if head is None or not rule.is_dead_object(head, found, info.name, run.last, run.fence):
            return None
        by = await _let_go_by(manifest, head, found, run.last)
        since_us = max(since_us, _since_us(head, by, run.last, info))
    return since_us


async def _is_only(manifests: _Manifests, presence: Presence, runs: Sequence[ObjectRun]) -> bool:
    """Whether a log's manifest names missing objects, or none, in the place of a shared one."""
    for run in runs:
        manifest = await manifests.of(run.log)
        if (head := manifest.head) is None:
            return True
        try:
            if await presence.is_only(manifest, head, run.first, run.last, run.fence):
                return True
            if await presence.covers_loss(manifest, head, run.first, run.last):
                return True
        except Corrupt:
            return True  # its repair may need the object
    return False


class _Manifests:
    """Manifests for one pass, each with its head read once, as far as they fit.

    An older head is enough: it may name an object that was let go of since then, but no object that
    is dead by it is ever committed.
    """

    def __init__(self, manifest_of: Callable[[int], LogManifest]) -> None:
        self._manifest_of = manifest_of
        self._kept: OrderedDict[int, LogManifest] = OrderedDict()

    async def of(self, log: int) -> LogManifest:
        """A log's manifest; without a head if the head is missing or cannot be read."""
        manifest = self._kept.get(log)
        if manifest is None:
            manifest = self._manifest_of(log)
            manifest.pages_kept = PAGES_KEPT
            with contextlib.suppress(Corrupt):
                await manifest.load()
            self._kept[log] = manifest
            if len(self._kept) > HEADS_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(log)
        return manifest


async def _let_go_by(
    manifest: LogManifest, head: Head, found: Entry | None, last: int
) -> Entry | None:
    """The entry that tells when a merge or a repair left an object out; None if none did.

    Args:
        found: the manifest's entry at the object's last LSN.
    """
    if found is None and last >= head.end:
        # A repair may have ended the manifest before it.
        return await manifest.find(head.end - 1)
    return found


def _since_us(head: Head, by: Entry | None, last: int, info: ObjectInfo) -> int:
    """The time at which an object's grace begins: that of its trim, of the merge or repair that
    left it out, or of its upload.

    Args:
        by: see `_let_go_by`.
    """
    trimmed_us = rule.trimmed_at_us(head, last) or 0
    replaced_us = by.replaced_us if by is not None else 0
    return max(trimmed_us, replaced_us, info.modified_us)


async def _info_of(store: ObjectStore, log: int, page: PageRef) -> ObjectInfo | None:
    return await store.head(page_name(log, page), timeout_s=CALL_S)


class _Pruner:
    """Gathers dead objects, and deletes them at the end: a missing page may be noticed last."""

    def __init__(self, store: ObjectStore, done: Collected, tabled: Tabled) -> None:
        self._store = store
        self._done = done
        self._tabled = tabled
        self._names: list[str] = []

    def is_due(
        self, info: ObjectInfo, is_dead: bool, since_us: int, now_us: int, grace_s: float
    ) -> bool:
        """Whether an object is dead for longer than its grace, and nothing keeps it."""
        self._done.seen += 1
        if not is_dead:
            return False
        since_us = max(since_us, self._tabled.left.get(info.name, 0))
        is_kept = info.name in self._tabled.named or now_us - since_us < grace_s * 1e6
        if is_kept or len(self._names) == HELD_MAX:  # too many: the next collection deletes it
            self._done.waiting += 1
            return False
        return True

    def gather(self, info: ObjectInfo, *, is_only: bool = False) -> None:
        """Delete it at the end, unless what the manifest names in its place is gone."""
        if is_only:
            self._done.kept += 1
            return
        self._names.append(info.name)
        self._done.deleted += 1
        self._done.deleted_bytes += info.size

    async def flush(self) -> None:
        """Delete the gathered objects."""
        names, self._names = self._names, []
        for first in range(0, len(names), DELETE_MAX):
            await self._store.delete(names[first : first + DELETE_MAX], timeout_s=CALL_S)


async def list_all(store: ObjectStore, prefix: str) -> AsyncIterator[ObjectInfo]:
    """All objects below a prefix, a page at a time."""
    after = ""
    while True:
        page = await store.list_page(prefix, after=after, timeout_s=CALL_S)
        for info in page:
            yield info
        if len(page) < LIST_MAX:
            return
        after = page[-1].name
