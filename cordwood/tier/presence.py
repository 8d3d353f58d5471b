"""Looks whether the objects are there that a manifest names.

A manifest may be an older copy that was put back. Then it names merged objects that are deleted,
and the objects that took their place are the only copies. An object may also be lost in the store.
So nobody deletes other copies of records by the manifest's word alone.

Source: docs/objects.md, "Deletion".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cordwood.protocol import manifest as rule
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore
from cordwood.tiered import Entry, Head, is_lost

CALL_S = 60.0
"""One call to the store, with all its tries."""

HEADS_AT_ONCE = 16
"""Calls in flight."""

SEEN_MAX = 100_000
"""The most objects that are remembered as found: some 10 MB."""


class Presence:
    """See the module. An object that was found is not looked for again."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._seen: set[str] = set()

    async def first_missing(self, manifest: LogManifest, lsn: int, last: int) -> Entry | None:
        """The first entry in a range whose object is gone, or has another size.

        Raises:
            Corrupt: the manifest cannot be read.
            CordwoodError: the store does not answer.
        """
        while lsn <= last:
            page = await manifest.entries(lsn, HEADS_AT_ONCE)
            within = [entry for entry in page if entry.first <= last]
            if not within:
                return None
            found = await asyncio.gather(*map(self.has, within))
            if not all(found):
                return within[found.index(False)]
            lsn = within[-1].last + 1
        return None

    async def is_only(
        self, manifest: LogManifest, head: Head, first: int, last: int, fence: int
    ) -> bool:
        """Whether an object that the manifest does not name may be the only one of its range.

        A merge takes the place of entries. So a manifest that ends inside or before the range of a
        merged object is older than the merge, or is repaired only in part.
        """
        if rule.is_merged(fence) and last >= head.end:
            return True
        return await self.first_missing(manifest, max(first, head.start), last) is not None

    async def covers_loss(self, manifest: LogManifest, head: Head, first: int, last: int) -> bool:
        """Whether an object has records that the manifest calls lost, as if it was put back after a
        repair. The next repair names it again.

        Args:
            first, last: the object's range.
        """
        return bool(await lost_entries(manifest, max(first, head.start), last))

    async def has_all(self, entries: Sequence[Entry]) -> bool:
        """Whether the objects of all entries are there."""
        for first in range(0, len(entries), HEADS_AT_ONCE):
            if not all(await asyncio.gather(*map(self.has, entries[first:][:HEADS_AT_ONCE]))):
                return False
        return True

    async def has(self, entry: Entry) -> bool:
        """Whether an entry's object is there. The entry of a lost range has none."""
        if is_lost(entry) or entry.name in self._seen:
            return True
        info = await self._store.head(entry.name, timeout_s=CALL_S)
        if info is None or info.size != entry.size:
            return False
        if len(self._seen) == SEEN_MAX:
            self._seen.clear()
        self._seen.add(entry.name)
        return True


async def lost_entries(manifest: LogManifest, lsn: int, last: int) -> list[Entry]:
    """The entries in a range that a repair called lost.

    Raises:
        Corrupt: the manifest cannot be read.
        CordwoodError: the store does not answer.
    """
    found: list[Entry] = []
    while lsn <= last and (page := await manifest.entries(lsn)):
        found += [entry for entry in page if entry.first <= last and is_lost(entry)]
        lsn = page[-1].last + 1
    return found
