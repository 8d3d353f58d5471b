"""Uploads a closed ledger: its objects, and then the manifest that lists them.

Each object is read back from the store before the manifest is put, and the manifest is read back
too: nodes will drop their copies, and these are then the only copies. An upload does not count
until the ledger's metadata names the manifest (`client.ledgers.ledger_tiering`). An attempt that is
cut short leaves objects under names of its own, which the collection finds.

Source: docs/objects.md, "Ledgers".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, TypeVar

from crc32c import crc32c

from cordwood.errors import ChecksumMismatch, Malformed, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.ledger_object import (
    FinishedLedgerObject,
    LedgerObjectWriter,
    check_ledger_group,
    read_ledger_footer,
)
from cordwood.layout.manifest import (
    LedgerManifest,
    LedgerPart,
    pack_ledger_manifest,
    unpack_ledger_manifest,
)
from cordwood.layout.message_ledgers import EntryItem
from cordwood.layout.object_names import ledger_manifest_name, ledger_object_name
from cordwood.ledger import LedgerMetadata
from cordwood.tier.object_store import ObjectStore

Result = TypeVar("Result")

OBJECT_BYTES = 64 << 20
"""The approximate bytes of bodies in one object, as for logs."""

CALL_S = 60.0
"""One get, with all its tries."""

PUT_S = 600.0
"""One object, with all its tries: 64 MiB at 110 KB/s."""

MAKE_S = 120.0
"""Writing rows of an object, and reading it back: 64 MiB at half a megabyte a second."""


class UploadedLedger(NamedTuple):
    """The result of an upload.

    Attributes:
        manifest_crc: the CRC32C of the manifest, for the ledger's metadata.
        objects, stored: objects, and their bytes in the store.
    """

    manifest_crc: int
    objects: int
    stored: int


async def upload_ledger(
    store: ObjectStore,
    host: Host,
    metadata: LedgerMetadata,
    entries: AsyncIterator[list[EntryItem]],
) -> UploadedLedger:
    """Upload a closed ledger under the attempt that is in force.

    Args:
        store: patient.
        entries: all of them from 0 on, each checked by its digest.
    Raises:
        Malformed: other entries were given than the ledger has.
        Corrupt: the store gives back other bytes than were put.
        OutcomeUnknown, Retryable: the store does not answer, or the entries cannot be read.
    """
    upload = _Upload(store, host, metadata)
    async for some in entries:
        await upload.add(some)
        if upload.raw_bytes >= OBJECT_BYTES:
            await upload.put_object()
    await upload.put_object()
    return await upload.put_manifest()


class _Upload:
    """One attempt.

    Attributes:
        raw_bytes: bodies of the object that is being written.
    """

    def __init__(self, store: ObjectStore, host: Host, metadata: LedgerMetadata) -> None:
        assert metadata.tier is not None, "an attempt is in force before anything is put"
        self._attempt = metadata.tier.attempt
        self._store = store
        self._host = host
        self._metadata = metadata
        self._parts: list[LedgerPart] = []
        self._next = 0
        self._length = 0
        self._writer: LedgerObjectWriter | None = None

    @property
    def raw_bytes(self) -> int:
        return 0 if self._writer is None else self._writer.raw_bytes

    async def add(self, items: list[EntryItem]) -> None:
        metadata = self._metadata
        writer = self._writer or LedgerObjectWriter(
            metadata.ledger, metadata.digest, self._attempt, self._next
        )
        self._writer = writer
        await self._in_thread(lambda: writer.add(items))
        self._next = writer.next
        if items:
            self._length = items[-1].length

    async def put_object(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        made = await self._in_thread(writer.finish)
        metadata, index = self._metadata, made.footer.index
        name = ledger_object_name(
            metadata.ledger, self._attempt, index.first, index.last, made.footer_crc
        )
        size = len(made.content)
        part = LedgerPart(index.first, index.last, made.footer_crc, size, made.footer_bytes)
        await self._store.put(name, [made.content], timeout_s=PUT_S)
        await check_put(self._store, name, part, made)
        self._parts.append(part)

    async def put_manifest(self) -> UploadedLedger:
        metadata = self._metadata
        if (self._next - 1, self._length) != (metadata.last, metadata.length):
            raise Malformed(
                f"ledger {metadata.ledger} ends at entry {metadata.last}, with {metadata.length} "
                f"bytes, but its entries end at {self._next - 1}, with {self._length}"
            )
        manifest = LedgerManifest(
            metadata.ledger, self._attempt, metadata.creator, metadata.created_us,
            metadata.last, metadata.length, self._parts,
        )  # fmt: skip
        content = pack_ledger_manifest(manifest)
        crc = crc32c(content)
        name = ledger_manifest_name(metadata.ledger, self._attempt, crc)
        await self._store.put(name, [content], timeout_s=PUT_S)
        found, _ = await self._store.read(name, timeout_s=CALL_S)
        unpack_ledger_manifest(name, found, crc)
        return UploadedLedger(crc, len(self._parts), sum(part.size for part in self._parts))

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        try:
            return await self._host.run_blocking(work, timeout_s=MAKE_S)
        except TimeoutError as error:
            raise Unreachable(
                f"an object of ledger {self._metadata.ledger} was not made in {MAKE_S} s"
            ) from error


async def check_put(
    store: ObjectStore, name: str, part: LedgerPart, made: FinishedLedgerObject
) -> None:
    """Read an object from the store, and compare the CRCs of its footer and row groups.

    Raises:
        Corrupt: it is not what was put.
        Retryable: the store does not answer.
    """
    tail = await store.get(name, part.size - part.footer_bytes, part.size, timeout_s=CALL_S)
    footer = read_ledger_footer(tail, part.footer_crc, part.size)
    if footer.index != made.footer.index:
        raise ChecksumMismatch(f"{name} is not the object that was put")
    for number, group in enumerate(footer.index.groups):
        content = await store.get(name, group.start, group.stop, timeout_s=CALL_S)
        check_ledger_group(footer, number, content)
