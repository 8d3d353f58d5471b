"""Moves a closed ledger into main storage: claims it, uploads it, and commits.

A claim names a new attempt in the ledger's metadata, which ends every earlier one: only the attempt
in force may be committed (`ledger.may_follow`). So of two that upload at once one is given up, and
what it put can never count. The commit names the manifest in the metadata, by compare-and-set. Only
then do nodes let go of their copies.

Source: docs/protocol/ledgers.md; docs/objects.md, "Ledgers".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.errors import BadSetting, Fenced, Overloaded, Rejected
from cordwood.host.seams import Host
from cordwood.layout.message_ledgers import EntryItem
from cordwood.ledger import LedgerMetadata, LedgerState
from cordwood.tier.ledger_upload import upload_ledger
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.owner import check_owner

READ_AT_ONCE = 256
"""Entries that are read at once, or some MiB of them."""

TRIES_MAX = 20
"""Compare-and-sets of one step: others change a closed ledger seldom, as a repair does."""


class TieredLedger(NamedTuple):
    """What it took to have a ledger in main storage.

    Attributes:
        metadata: as it is now.
        objects, stored: objects that were put, and their bytes; 0 where it was there already.
    """

    metadata: LedgerMetadata
    objects: int
    stored: int


class LedgerTiering:
    """See the module; of one ledger.

    Args:
        cluster: its identity, which the store is to have.
    """

    def __init__(
        self,
        opened: ReadableLedger,
        calls: LedgerMetadataCalls,
        store: ObjectStore,
        host: Host,
        cluster: str,
    ) -> None:
        self._opened = opened
        self._calls = calls
        self._store = store
        self._host = host
        self._cluster = cluster

    async def run(self) -> TieredLedger:
        """Have the ledger in main storage; once it is there, nothing is done.

        Raises:
            Rejected: it is not closed.
            Fenced: somebody else began to move it meanwhile.
            BadSetting: the store is another cluster's, or another one than the nodes'.
            CordwoodError: nodes, the metadata store or main storage do not answer, or an entry has
                no copy that is whole.
        """
        opened = self._opened
        if opened.metadata.is_tiered:
            return TieredLedger(opened.metadata, 0, 0)
        if opened.metadata.state is not LedgerState.CLOSED:
            raise Rejected(
                f"ledger {opened.ledger_id} is not closed: only a closed one goes to main storage"
            )
        # Trap: a directory of the nodes' name on this machine is not theirs, and nobody would find
        # there what this puts. A node writes the mark where it looks itself.
        await self._calls.open_main_storage()
        if not await check_owner(self._store, self._cluster):
            raise BadSetting(
                "main storage, as this client reaches it, does not say that it is this cluster's: "
                "is it another directory than the nodes'?"
            )
        attempt = self._host.random.getrandbits(62) + 1
        if not await self._claim(attempt):
            return TieredLedger(opened.metadata, 0, 0)
        done = await upload_ledger(self._store, self._host, opened.metadata, self._entries())
        await self._commit(attempt, done.manifest_crc)
        return TieredLedger(opened.metadata, done.objects, done.stored)

    async def _entries(self) -> AsyncIterator[list[EntryItem]]:
        """All entries, as nodes keep them, each checked by its digest."""
        at, last = 0, self._opened.metadata.last
        while at <= last:
            copies = await self._opened.copies(range(at, min(at + READ_AT_ONCE, last + 1)))
            yield copies
            at += len(copies)

    async def _claim(self, attempt: int) -> bool:
        """Put an attempt in force; False where the ledger is in main storage by now."""
        for _ in range(TRIES_MAX):
            held = self._opened.held
            if held.metadata.is_tiered:
                return False
            if _attempt(held.metadata) == attempt:
                return True
            await self._calls.set(held.version, held.metadata.tiering(attempt))
            await self._opened.refresh()
        raise Overloaded(f"ledger {self._opened.ledger_id} changes all the time; ask again")

    async def _commit(self, attempt: int, manifest_crc: int) -> None:
        """Name the manifest in the metadata; a commit without an answer is looked after."""
        for _ in range(TRIES_MAX):
            held = self._opened.held
            if _attempt(held.metadata) != attempt:
                raise Fenced(
                    f"somebody else began to move ledger {self._opened.ledger_id} to main storage"
                )
            if held.metadata.is_tiered:
                return
            now_us = self._host.clock.now_us()
            await self._calls.set(held.version, held.metadata.tiered(manifest_crc, now_us))
            await self._opened.refresh()
        raise Overloaded(f"ledger {self._opened.ledger_id} changes all the time; ask again")


def _attempt(metadata: LedgerMetadata) -> int:
    """The attempt in force, 0 for none."""
    return 0 if metadata.tier is None else metadata.tier.attempt
