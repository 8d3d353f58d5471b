"""Reads the entries of a tiered ledger from its objects.

The ledger's metadata names the manifest in force, and the manifest lists the objects. Neither ever
changes, so both are read once. Row groups are fetched by ranged gets, and the last few stay in
memory: a reader in order fetches each row group once.

Source: docs/objects.md, "Ledgers".
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from cordwood.errors import BadSetting, CordwoodError, Malformed, NoObject, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.ledger_object import LedgerFooter, read_ledger_footer, read_ledger_group
from cordwood.layout.manifest import LedgerManifest, LedgerPart, unpack_ledger_manifest
from cordwood.layout.message_ledgers import EntryItem
from cordwood.layout.object_names import ledger_manifest_name, ledger_object_name
from cordwood.ledger import LedgerMetadata
from cordwood.tier.object_store import ObjectStore

GROUPS_KEPT = 2
"""Row groups in memory, of 4 MiB of bodies each: one for a reader, and one for a second reader."""

FOOTERS_KEPT = 16
"""The number of footers in memory, of objects of 64 MiB. A footer has about 2 KiB."""

READ_S = 60.0
"""Decoding a row group in a thread, at most."""


class LedgerHistory:
    """See the module; of one ledger.

    Args:
        store: patient.
        metadata: of a ledger that is in main storage.
    """

    def __init__(self, store: ObjectStore, host: Host, metadata: LedgerMetadata) -> None:
        assert metadata.tier is not None, "the metadata names a manifest"
        self._attempt = metadata.tier.attempt
        self._manifest_crc = metadata.tier.manifest_crc
        self._store = store
        self._host = host
        self._metadata = metadata
        self._manifest: LedgerManifest | None = None
        self._footers: OrderedDict[int, LedgerFooter] = OrderedDict()
        self._groups: OrderedDict[tuple[int, int], list[EntryItem]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def entries(
        self, wanted: Sequence[int], bytes_max: int, *, timeout_s: float
    ) -> list[EntryItem]:
        """Entries as nodes kept them: all, or the first of them, of about `bytes_max`.

        Args:
            wanted: rising, none after the last entry.
            timeout_s: of each call to the store.
        Raises:
            Corrupt: an object differs from what was written.
            NoObject: an object is gone: the ledger was deleted.
            BadSetting: this is not the store that the nodes use.
            Retryable: the store does not answer.
        """
        found: list[EntryItem] = []
        size = 0
        for entry in wanted:
            try:
                item = await self._entry(entry, timeout_s)
            except CordwoodError:
                if found:
                    break  # the call that asks for the rest gets the error
                raise
            size += len(item.body)
            if found and size > bytes_max:
                break
            found.append(item)
        return found

    async def see(self, *, timeout_s: float) -> None:
        """Check that the manifest and every object exist, without reading the objects.

        Raises:
            NoObject: an object is missing.
            Malformed: an object has another size.
            Corrupt, BadSetting, Retryable: see `entries`.
        """
        for part in (await self._load(timeout_s)).parts:
            name = self._name(part)
            info = await self._store.head(name, timeout_s=timeout_s)
            if info is None:
                raise NoObject(f"main storage lacks {name}")
            if info.size != part.size:
                raise Malformed(f"{name} has {info.size} bytes, but had {part.size}")

    def together(self, entry: int) -> range:
        """The entries that are unreadable together with this entry: its row group, its object
        while the footer is not known, or the ledger while the manifest is not known."""
        if self._manifest is None:
            return range(self._metadata.last + 1)
        parts = self._manifest.parts
        at = bisect_right(parts, entry, key=lambda part: part.first) - 1
        footer = self._footers.get(at)
        if footer is None:
            return range(parts[at].first, parts[at].last + 1)
        number = footer.group_of(entry)
        start = footer.starts[number]
        return range(start, start + footer.index.groups[number].rows)

    async def _entry(self, entry: int, timeout_s: float) -> EntryItem:
        # One caller at a time: the next caller then finds the same row group in memory.
        async with self._lock:
            parts = (await self._load(timeout_s)).parts
            at = bisect_right(parts, entry, key=lambda part: part.first) - 1
            assert at >= 0, "objects begin at entry 0"
            assert entry <= parts[at].last, "the manifest has every entry"
            footer = await self._footer(at, parts[at], timeout_s)
            number = footer.group_of(entry)
            items = await self._group(at, parts[at], footer, number, timeout_s)
            return items[entry - footer.starts[number]]

    async def _load(self, timeout_s: float) -> LedgerManifest:
        if self._manifest is None:
            metadata = self._metadata
            name = ledger_manifest_name(metadata.ledger, self._attempt, self._manifest_crc)
            data, _ = await self._store.read(name, timeout_s=timeout_s)
            found = unpack_ledger_manifest(name, data, self._manifest_crc)
            said = (found.ledger, found.attempt, found.creator, found.created_us, found.last)
            wanted = (
                metadata.ledger, self._attempt, metadata.creator, metadata.created_us,
                metadata.last,
            )  # fmt: skip
            if said != wanted:
                raise BadSetting(f"{name} is the manifest of another ledger")
            self._manifest = found
        return self._manifest

    async def _footer(self, at: int, part: LedgerPart, timeout_s: float) -> LedgerFooter:
        footer = self._footers.get(at)
        if footer is None:
            start = part.size - part.footer_bytes
            tail = await self._store.get(self._name(part), start, part.size, timeout_s=timeout_s)
            footer = read_ledger_footer(tail, part.footer_crc, part.size)
            index = footer.index
            said = (index.ledger, index.attempt, index.first, index.last)
            metadata = self._metadata
            if said != (metadata.ledger, self._attempt, part.first, part.last):
                raise BadSetting(f"{self._name(part)} has other entries than its manifest says")
            self._footers[at] = footer
            if len(self._footers) > FOOTERS_KEPT:
                self._footers.popitem(last=False)
        return footer

    async def _group(
        self, at: int, part: LedgerPart, footer: LedgerFooter, number: int, timeout_s: float
    ) -> list[EntryItem]:
        items = self._groups.get((at, number))
        if items is None:
            group = footer.index.groups[number]
            content = await self._store.get(
                self._name(part), group.start, group.stop, timeout_s=timeout_s
            )
            try:
                items = await self._host.run_blocking(
                    lambda: read_ledger_group(footer, number, content), timeout_s=READ_S
                )
            except TimeoutError as error:
                raise Unreachable(f"a row group was not read in {READ_S} s") from error
            self._groups[at, number] = items
            if len(self._groups) > GROUPS_KEPT:
                self._groups.popitem(last=False)
        else:
            self._groups.move_to_end((at, number))
        return items

    def _name(self, part: LedgerPart) -> str:
        metadata = self._metadata
        return ledger_object_name(
            metadata.ledger, self._attempt, part.first, part.last, part.footer_crc
        )
