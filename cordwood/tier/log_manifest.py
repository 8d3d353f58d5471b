"""One log's manifest in an object store: commit, replace, find, list, trim.

The rule is `protocol.manifest`, the bytes are `layout.manifest`. Pages are put before the head that
names them. The head is replaced on condition that it is still the head that was read. If the store
does not answer, the head is read until the outcome is known. Heads never repeat, so an uploader
recognises its own, and may try the same condition again.

A holder's name has 64 random bits: otherwise two uploaders of the same name would take each other's
turn for their own.

Source: docs/objects.md, "The manifest".
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from crc32c import crc32c

from cordwood.errors import (
    BadSetting,
    Corrupt,
    Malformed,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Overloaded,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.layout.manifest import pack_head, pack_page, page_name, unpack_head, unpack_page
from cordwood.layout.object_names import head_name
from cordwood.protocol import manifest as rule
from cordwood.protocol import merging
from cordwood.tier.object_store import Etag, ObjectStore
from cordwood.tier.patient_store import PAUSE_S
from cordwood.tiered import Entry, Head, Item, Merging, Page, PageRef

Result = TypeVar("Result")

PAGES_KEPT = 128
"""In memory: 64 entries of 300 bytes each are 20 KB a page."""

SWAPS_MAX = 20
"""The most tries to replace a head that others replace at the same time: trims and turns do so."""


class LogManifest:
    """See the module.

    Args:
        store: patient, where its answers may be lost.
        timeout_s: for each call of ours, over all that it asks of the store.
    Attributes:
        head: the head that was read or written last; None if the log has none.
        pages_kept: how many pages stay in memory.
    """

    def __init__(
        self, store: ObjectStore, log: int, host: Host, name: str, *, timeout_s: float = 120.0
    ) -> None:
        self.head: Head | None = None
        self._store = store
        self._log = log
        self._host = host
        self._timeout_s = timeout_s
        self._holder = f"{name}/{host.random.getrandbits(64):016x}"
        self._etag: Etag | None = None
        self._was_there = False
        self.pages_kept = PAGES_KEPT
        self._pages: OrderedDict[str, Page] = OrderedDict()
        self._fence = 0
        self._merge = 0

    async def load(self) -> Head | None:
        """Read the head anew.

        Raises:
            Corrupt: the stored object is not a head of this log.
        """
        async with self._bounded(Unreachable):
            return await self._load()

    async def take_turn(self, first: int, fence: int = 0) -> Head:
        """Begin a turn at this log: no earlier turn can commit any more.

        Args:
            first: the head's end, as it was read. The log's first LSN, if it has no head yet.
            fence: the turn's number; 0 takes the next one.
        Raises:
            Fenced: a turn as high has begun.
            Malformed: the head that this object read before is gone, or one ends before `first`.
        """

        def change(head: Head | None) -> Head:
            if head is None and self._was_there:
                # Trap: the caller begins where that head ended. A new manifest would leave out all
                # records below, and nodes let go of them long ago.
                raise Malformed(f"the manifest of log {self._log} is gone: repair it")
            if head is None:
                return rule.first_head(self._log, int(first), fence or 1, self._holder)
            rule.check_reaches(head, int(first))
            return rule.take_turn(head, fence or head.fence + 1, self._holder)

        head = await self._change(change)
        assert head is not None
        self._fence = head.fence
        return head

    async def commit(self, entry: Entry) -> Head:
        """Add an entry; an entry that was added already stays as it is.

        Raises:
            Fenced: the turn is over.
            OutcomeUnknown: the store does not answer; commit it again, or read.
        """
        pages: list[tuple[str, bytes]] = []
        seal = self._sealer(pages, self._fence)

        def change(head: Head | None) -> Head | None:
            pages.clear()
            if head is None:
                raise Malformed(f"the manifest of log {self._log} is gone: repair it")
            rule.check_turn(head, self._fence)
            return rule.append(head, entry, self._fence, seal)

        async def is_done(head: Head | None) -> bool:
            # Another turn has begun, or the entry is not there: the rule decides what to do.
            if head is None or head.fence != self._fence or entry.last >= head.end:
                return False
            found = await self._find(head, entry.last)
            # This turn alone commits at the end, so what a merge put there is this entry's, or
            # a trim took it.
            return found is None or found == entry or rule.is_merged(found.fence)

        head = await self._change(change, pages, is_done)
        assert head is not None
        return head

    async def trim(self, start: int) -> Head | None:
        """Trim the log below an LSN. Returns None if the log has no manifest."""

        def change(head: Head | None) -> Head | None:
            if head is None:
                return None
            changed = rule.trim(head, int(start), self._host.clock.now_us())
            return None if changed is head else changed

        return await self._change(change)

    # ---- merging ----

    async def take_merging(self, until_us: int, *, waits: bool = False) -> Head:
        """Begin a turn at merging objects: no earlier turn can replace entries any more.

        Args:
            until_us: the time from which other processes may end this turn.
            waits: do not end the turn of another process before its time is over.
        Raises:
            Fenced: another process has the turn, and `waits` is set.
            BadSetting: the log has no manifest.
        """

        def change(head: Head | None) -> Head:
            if head is None:
                raise BadSetting(f"log {self._log} has no manifest: there is nothing to merge")
            waits_us = self._host.clock.now_us() if waits else 0
            return merging.take_merging(head, self._holder, until_us, waits_us)

        await self.load()
        head = await self._change(change)
        assert head is not None
        self._merge = head.merging.number
        return head

    async def replace(self, run: Sequence[Entry], merged: Entry, number: int = 0) -> Head:
        """Put an entry in the place of the merged entries; a repeated call changes nothing.

        Args:
            run: the merged entries, as they were read.
            number: of the turn at merging; 0 for the turn that was taken here.
        Raises:
            Fenced: the turn is over.
            ObjectChanged: the manifest holds others there by now.
            OutcomeUnknown: the store does not answer; ask again.
        """
        pages: list[tuple[str, bytes]] = []
        held: dict[PageRef, Page] = {}
        number = number or self._merge
        seal = self._sealer(pages, merged.fence)

        def change(head: Head | None) -> Head:
            pages.clear()
            if head is None:
                raise ObjectChanged(f"the manifest of log {self._log} is gone")
            now_us = self._host.clock.now_us()
            return merging.replace(head, run, merged, number, held.__getitem__, seal, now_us)

        async def is_done(head: Head | None) -> bool:
            held.clear()
            if head is None:
                return False
            await self._hold(rule.in_order(head), merged.first, merged.last, held)
            found = await self._find(head, merged.last)
            return found is not None and found.name == merged.name

        await self.load()
        head = await self._change(change, pages, is_done)
        assert head is not None
        return head

    async def end_merging(self, number: int = 0) -> None:
        """End a turn at merging; a turn that has ended stays ended."""
        await self._end(lambda head: merging.end_merging(head, number or self._merge))

    async def end_overdue_merging(self) -> None:
        """End the turn at merging if its holder did not end it in time."""
        await self._end(lambda head: merging.end_overdue(head, self._host.clock.now_us()))

    async def _end(self, end: Callable[[Head], Head]) -> None:
        def change(head: Head | None) -> Head | None:
            changed = end(head) if head is not None else None
            return None if changed is head else changed

        await self._change(change)

    async def _hold(
        self, items: Sequence[Item], first: int, last: int, held: dict[PageRef, Page]
    ) -> None:
        """Read the pages that a replacement looks into."""
        for ref in merging.touched(items, first, last):
            held[ref] = page = await self._page(ref)
            await self._hold(page.items, first, last, held)

    async def write_anew(
        self, entries: Sequence[Entry], fence: int, merges: int = 0, before: Head | None = None
    ) -> Head:
        """Replace a missing or unreadable manifest by a manifest of these entries.

        Args:
            entries: in order, without a hole; see `protocol.manifest.build`.
            merges: above the numbers of all turns at merging.
            before: a readable head that this object read last: it names objects that are gone.
        Raises:
            BadSetting, ObjectChanged: the present manifest can be read, or is not `before`.
        """
        async with self._bounded(OutcomeUnknown):
            if before is None:
                self._etag = await self._damaged_etag()
            elif self.head is not before:
                raise ObjectChanged(f"the manifest of log {self._log} changed meanwhile")
            pages: list[tuple[str, bytes]] = []
            seal = self._sealer(pages, fence)
            head = rule.build(self._log, self._dated(entries), fence, self._holder, seal)
            version = head.version if before is None else before.version + 1
            head = head._replace(version=version, merging=Merging(merges))
            for name, data in pages:
                await self._store.put(name, [data], timeout_s=self._timeout_s)
            self._fence = fence
            return await self._swap(head)

    async def extend(self, entries: Sequence[Entry], fence: int, merges: int) -> Head:
        """Add entries, of any turns, after the last entry, as a repair does.

        Args:
            entries: in order, from the manifest's end on, without a hole.
            fence, merges: above those of all turns; earlier uploads and merges commit no more.
        Raises:
            ObjectChanged: the manifest ends elsewhere by now.
            OutcomeUnknown: the store does not answer; look again.
        """
        pages: list[tuple[str, bytes]] = []
        seal = self._sealer(pages, fence)
        dated = self._dated(entries)

        def change(head: Head | None) -> Head:
            pages.clear()
            if head is None or head.end != entries[0].first:
                raise ObjectChanged(f"the manifest of log {self._log} changed meanwhile")
            made = rule.extend(head, dated, fence, self._holder, seal)
            return made._replace(merging=Merging(merges))

        async def is_done(head: Head | None) -> bool:
            return head is not None and (head.fence, head.holder) == (fence, self._holder)

        head = await self._change(change, pages, is_done)
        assert head is not None
        self._fence = fence
        return head

    async def shorten(self, end: int, before: Head, fence: int, merges: int) -> Head:
        """Remove all entries behind an LSN from the manifest, as a repair does.

        Args:
            end: the last LSN that stays.
            before: the head as it was read for this decision.
            fence, merges: as of `extend`.
        Raises:
            ObjectChanged: the manifest ends elsewhere by now.
            OutcomeUnknown: the store does not answer; look again.
        """
        pages: list[tuple[str, bytes]] = []
        held: dict[PageRef, Page] = {}
        seal = self._sealer(pages, fence)

        def change(head: Head | None) -> Head:
            pages.clear()
            if head is None or (head.start, head.end) != (before.start, before.end):
                raise ObjectChanged(f"the manifest of log {self._log} changed meanwhile")
            made = rule.shorten(head, end, fence, self._holder, held.__getitem__, seal)
            return made._replace(merging=Merging(merges))

        async def is_done(head: Head | None) -> bool:
            held.clear()
            if head is None:
                return False
            if (head.fence, head.holder) == (fence, self._holder):
                return True
            await self._hold(rule.in_order(head), end, head.end - 1, held)
            return False

        head = await self._change(change, pages, is_done)
        assert head is not None
        self._fence = fence
        return head

    def _dated(self, entries: Sequence[Entry]) -> list[Entry]:
        """Entries with the present time as the time of the change. So objects that a repair leaves
        out keep their grace, and damaged objects too, because some of their records may still be
        readable."""
        now_us = self._host.clock.now_us()
        return [entry._replace(replaced_us=now_us) for entry in entries]

    async def load_whole(self) -> Head | None:
        """The head, where it and all its pages can be read; else None."""
        try:
            await self.load()
            lsn = 0
            while page := await self.entries(lsn):
                lsn = page[-1].last + 1
        except Corrupt:
            return None
        return self.head

    async def _damaged_etag(self) -> Etag | None:
        """The etag of a head that cannot be read as a whole; None without one.

        Raises:
            BadSetting: it can.
        """
        try:
            _, etag = await self._store.read(head_name(self._log), timeout_s=self._timeout_s)
        except NoObject:
            return None
        if await self.load_whole() is None:
            return etag
        raise BadSetting(f"the manifest of log {self._log} is readable: there is nothing to repair")

    async def find(self, lsn: int) -> Entry | None:
        """The entry that holds an LSN, None if it is trimmed or not uploaded yet.

        It searches from the head that was loaded last: call `load` to see later commits.
        """
        async with self._bounded(Unreachable):
            return await self._again(lambda head: self._find(head, lsn))

    async def find_append_time(self, time_us: int) -> Entry | None:
        """The first entry with a block that was appended at a time or later."""

        async def search(head: Head) -> Entry | None:
            items: Sequence[Item] = rule.in_order(head)
            while True:
                item = rule.find_append_time(items, time_us)
                if item is None or isinstance(item, Entry):
                    return item
                items = (await self._page(item)).items

        async with self._bounded(Unreachable):
            return await self._again(search)

    async def kept(self) -> list[Item]:
        """The items that the manifest names from its start on, by LSN. The first entry may begin
        before the start.

        A page of which a trim took a part stays in the head as a whole, with the sums of all its
        entries, which may be thousands. Its items stand here in its place.
        """

        async def look(head: Head) -> list[Item]:
            items: list[Item] = [*rule.in_order(head)]
            while items and isinstance(first := items[0], PageRef) and first.first < head.start:
                page = await self._page(first)
                items[:1] = [item for item in page.items if item.last >= head.start]
            return items

        async with self._bounded(Unreachable):
            return await self._again(look) or []

    async def find_page(self, level: int, lsn: int) -> PageRef | None:
        """The page of a level that holds an LSN."""

        async def search(head: Head) -> PageRef | None:
            items: Sequence[Item] = rule.in_order(head)
            while True:
                item = rule.find(items, lsn)
                if not isinstance(item, PageRef) or item.level < level:
                    return None
                if item.level == level:
                    return item
                items = (await self._page(item)).items

        async with self._bounded(Unreachable):
            return await self._again(search)

    async def page_entries(self, ref: PageRef) -> list[Entry]:
        """The entries of a page; empty if the page is gone."""
        async with self._bounded(Unreachable):
            try:
                page = await self._page(ref)
            except NoObject:
                return []
        return [item for item in page.items if isinstance(item, Entry)]

    async def entries(self, lsn: int, limit: int = rule.FANOUT) -> list[Entry]:
        """Entries that reach an LSN, in order; fewer than `limit` only at the end.

        The next page begins after the last one's `last`.
        """
        async with self._bounded(Unreachable):
            return await self._again(lambda head: self._all_from(head, lsn, limit)) or []

    @asynccontextmanager
    async def _bounded(self, late: type[Unreachable | OutcomeUnknown]) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as error:
            why = f"the manifest of log {self._log}: no end within {self._timeout_s} s"
            raise late(why) from error

    # ---- reading ----

    async def _load(self) -> Head | None:
        try:
            data, etag = await self._store.read(head_name(self._log), timeout_s=self._timeout_s)
        except NoObject:
            self.head = self._etag = None
            return None
        head = unpack_head(data)
        rule.check_head(head)
        if head.log != self._log:
            raise Malformed(f"{head_name(self._log)} is the manifest of log {head.log}")
        self.head, self._etag, self._was_there = head, etag, True
        return head

    async def _find(self, head: Head, lsn: int) -> Entry | None:
        if not head.start <= lsn < head.end:
            return None
        items: Sequence[Item] = rule.in_order(head)
        while True:
            item = rule.find(items, lsn)
            if item is None or isinstance(item, Entry):
                return item
            items = (await self._page(item)).items

    async def _all_from(self, head: Head, lsn: int, limit: int = rule.FANOUT) -> list[Entry]:
        found: list[Entry] = []
        await self._collect(rule.in_order(head), max(lsn, head.start), limit, found)
        return found

    async def _collect(
        self, items: Sequence[Item], lsn: int, limit: int, found: list[Entry]
    ) -> None:
        for item in items[rule.find_from(items, lsn) :]:
            if isinstance(item, Entry):
                found.append(item)
            else:
                await self._collect((await self._page(item)).items, lsn, limit, found)
            if len(found) >= limit:
                return

    async def _page(self, ref: PageRef) -> Page:
        name = page_name(self._log, ref)
        page = self._pages.get(name)
        if page is None:
            data = await self._store.get(name, 0, ref.size, timeout_s=self._timeout_s)
            page = unpack_page(self._log, data, ref)
            # A page of another size or order would lead a reader past entries, without an error.
            rule.check_page(page, ref)
            self._pages[name] = page
            if len(self._pages) > self.pages_kept:
                self._pages.popitem(last=False)
        self._pages.move_to_end(name)
        return page

    async def _again(self, search: Callable[[Head], Awaitable[Result]]) -> Result | None:
        """Search from the loaded head, or from a newer head if a trim has deleted a page of it.

        Returns:
            The result of the search; None if the log has no manifest.
        """
        head = self.head if self.head is not None else await self._load()
        while head is not None:
            try:
                return await search(head)
            except NoObject as error:
                newer = await self._load()
                # The page is missing, and no trim has taken it.
                if newer is not None and newer.version == head.version:
                    why = f"the manifest of log {self._log}: {error}: repair it"
                    raise Malformed(why) from error
                head = newer
        return None

    # ---- writing ----

    async def _change(
        self,
        change: Callable[[Head | None], Head | None],
        pages: Sequence[tuple[str, bytes]] = (),
        is_done: Callable[[Head | None], Awaitable[bool]] | None = None,
    ) -> Head | None:
        """Replace the head by a rule's result, and try again after another writer's change.

        Args:
            change: None for no change.
            pages: what `change` sealed; they are put first.
            is_done: whether the head that was read has the change already.
        Raises:
            OutcomeUnknown: the head may have been replaced or not; `head` is the one before it.
        """
        async with self._bounded(OutcomeUnknown):
            if self.head is None:
                await self._load()
            for _ in range(SWAPS_MAX):
                if is_done is not None and await is_done(self.head):
                    return self.head
                changed = change(self.head)
                if changed is None:
                    return self.head
                for name, data in pages:
                    # Order matters: pages are durable before the head that names them. A crash
                    # between leaves orphans.
                    await self._store.put(name, [data], timeout_s=self._timeout_s)
                try:
                    return await self._swap(changed)
                except ObjectChanged:
                    await self._load()
        raise Overloaded(f"the manifest of log {self._log} changes too often: try again")

    def _sealer(self, pages: list[tuple[str, bytes]], fence: int) -> rule.Seal:
        """Gives pages their references, and gathers the pages to put."""

        def seal(page: Page) -> PageRef:
            data = pack_page(self._log, page)
            ref = rule.ref_of(page, fence, crc32c(data), len(data))
            pages.append((page_name(self._log, ref), data))
            return ref

        return seal

    async def _swap(self, head: Head) -> Head:
        """Replace the head that was read last.

        Raises:
            ObjectChanged: another stands there.
            OutcomeUnknown: the store does not say.
        """
        data, name, before = pack_head(head), head_name(self._log), self._etag
        is_under_way = False
        while True:
            try:
                etag = await self._store.put_if(name, data, before, timeout_s=self._timeout_s)
            except (OutcomeUnknown, ObjectChanged) as error:
                if isinstance(error, ObjectChanged) and not is_under_way:
                    raise
                is_under_way = True  # the earlier write may also have changed it just now
                try:
                    found, etag = await self._store.read(name, timeout_s=self._timeout_s)
                except NoObject:
                    if before is not None:
                        raise ObjectChanged(f"{name} is gone") from None
                    # The store says that there is no head. Ours may still arrive, if none was
                    # expected.
                    found, etag = b"", None
                except Unreachable as error:
                    raise OutcomeUnknown(f"{name}: {error}") from error
                if found != data:
                    if etag == before:
                        # The earlier write may still arrive. It would then find the head replaced,
                        # and change nothing.
                        await asyncio.sleep(PAUSE_S * (0.5 + self._host.random.random()))
                        continue
                    raise ObjectChanged(f"{name} was replaced") from None
            self.head, self._etag, self._was_there = head, etag, True
            return head
