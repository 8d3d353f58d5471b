"""Collects objects that no manifest names: never committed uploads, trimmed and merged objects.

Uploaders may run meanwhile. `protocol.manifest.is_dead_object` finds objects that are not committed
and never will be. Names are never used twice, so a late deletion deletes no new object. The grace
protects readers, which may hold a head from before a trim or a merge, and operators.

A log without a head is left alone: `repair` rebuilds a lost head from the objects. A deleted log
keeps its head, which says that all of it is trimmed (`retire_log`).

Source: docs/objects.md, "Deletion".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from cordwood.errors import Corrupt, Malformed, NoObject
from cordwood.layout.manifest import page_name, parse_page_name
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
from cordwood.tier.table_notes import Tabled, load_tabled
from cordwood.tiered import Entry, Head, PageRef

CALL_S = 60.0
"""One call to the store, with all its tries."""


@dataclass(slots=True)
class Collected:
    """The result of a collection.

    Attributes:
        seen: objects and pages that were checked. deleted, deleted_bytes: those that were dead for
            long enough. waiting: dead, but still in their grace, named by a table, or leased.
            strangers: foreign names below Cordwood's prefix; they are left alone. damaged: objects
            of several logs that do not say of which; they stay.
    """

    seen: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    waiting: int = 0
    strangers: int = 0
    damaged: int = 0


async def retire_log(manifest: LogManifest) -> None:
    """Let go of a deleted log: no upload of it is committed any more, and all of it is trimmed."""
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
    """
    done = Collected()
    head = await manifest.load()
    if head is None:
        return done
    # An object that a merge put and never committed is dead once its turn is over.
    await manifest.end_overdue_merging()
    head = manifest.head or head
    pruner = _Pruner(store, done, tabled or await load_tabled(store, now_us))
    async for info in list_all(store, objects_prefix(log)):
        try:
            name = parse_object_name(info.name)
        except Malformed:
            done.strangers += 1
            continue
        found = await manifest.find(name.last)
        head = manifest.head or head
        is_dead = rule.is_dead_object(head, found, info.name, name.last, name.fence)
        since_us = _since_us(head, found, name.last, info)
        await pruner.judge(info, is_dead, since_us, now_us, grace_s)
    async for info in list_all(store, pages_prefix(log)):
        try:
            _, ref = parse_page_name(info.name)
        except Malformed:
            done.strangers += 1
            continue
        page = await manifest.find_page(ref.level, ref.last)
        head = manifest.head or head
        is_dead = rule.is_dead_page(head, page, ref)
        # What took the page's place was put when it did.
        newer = await _info_of(store, log, page) if is_dead and page is not None else None
        since_us = max(_since_us(head, None, ref.last, info), newer.modified_us if newer else 0)
        await pruner.judge(info, is_dead, since_us, now_us, grace_s)
    await pruner.flush()
    return done


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
        is_dead, since_us = True, 0
        for run in footer.index.runs:
            manifest = manifest_of(run.log)
            head = await manifest.load()
            if head is None:
                is_dead = False
                break
            found = await manifest.find(run.last)
            head = manifest.head or head
            is_dead = is_dead and rule.is_dead_object(head, found, info.name, run.last, run.fence)
            since_us = max(since_us, _since_us(head, found, run.last, info))
        await pruner.judge(info, is_dead, since_us, now_us, grace_s)
    await pruner.flush()
    return done


def _since_us(head: Head, found: Entry | None, last: int, info: ObjectInfo) -> int:
    """From when on its grace counts: its trim, when a merge or a repair left it out, or its upload.

    Args:
        found: the manifest's entry at its last LSN.
    """
    trimmed_us = rule.trimmed_at_us(head, last) or 0
    if found is None and last >= head.end:
        # A repair may have ended the manifest before it.
        newest = rule.in_order(head)[-1:]
        found = next((item for item in newest if isinstance(item, Entry)), None)
    replaced_us = found.replaced_us if found is not None else 0
    return max(trimmed_us, replaced_us, info.modified_us)


async def _info_of(store: ObjectStore, log: int, page: PageRef) -> ObjectInfo | None:
    return await store.head(page_name(log, page), timeout_s=CALL_S)


class _Pruner:
    """Deletes dead objects, many at a time."""

    def __init__(self, store: ObjectStore, done: Collected, tabled: Tabled) -> None:
        self._store = store
        self._done = done
        self._tabled = tabled
        self._names: list[str] = []

    async def judge(
        self, info: ObjectInfo, is_dead: bool, since_us: int, now_us: int, grace_s: float
    ) -> None:
        """Delete it if it is dead for longer than its grace."""
        self._done.seen += 1
        if not is_dead:
            return
        since_us = max(since_us, self._tabled.left.get(info.name, 0))
        if info.name in self._tabled.named or now_us - since_us < grace_s * 1e6:
            self._done.waiting += 1
            return
        self._names.append(info.name)
        self._done.deleted += 1
        self._done.deleted_bytes += info.size
        if len(self._names) == DELETE_MAX:
            await self.flush()

    async def flush(self) -> None:
        """Delete the objects that wait for deletion."""
        names, self._names = self._names, []
        await self._store.delete(names, timeout_s=CALL_S)


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
