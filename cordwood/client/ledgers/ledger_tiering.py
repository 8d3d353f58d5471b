"""Moves a closed ledger into main storage: claims it, uploads it, and commits.

A claim names a new attempt in the ledger's metadata, which ends every earlier attempt: only the
active attempt may be committed (`ledger.may_follow`). So if two clients upload at once, one attempt
ends, and its objects can never count. The commit names the manifest in the metadata, by
compare-and-set. Only then do nodes let go of their copies.

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
"""Number of entries that are read at once, or some MiB of them."""

TRIES_MAX = 20
"""Most compare-and-sets of one step: a closed ledger changes seldom, for example by a repair."""


class TieredLedger(NamedTuple):
    """The result of moving a ledger to main storage.

    Attributes:
        metadata: the present metadata.
        objects, stored: number of objects that were put, and their bytes; 0 if the ledger was there
            already.
    """

    metadata: LedgerMetadata
    objects: int
    stored: int


class LedgerTiering:
    """See the module; of one ledger.

    Args:
        cluster: the cluster's identity, which the store must have.
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
        """Move the ledger to main storage. If it is there already, nothing is done.

        Raises:
            Rejected: the ledger is not closed.
            Fenced: another client began to move it meanwhile.
            BadSetting: the store belongs to another cluster, or is not the nodes' store.
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
        # Trap: a directory with the nodes' path on this machine may be a different one, and nodes
        # would not find the objects there. So a node writes the mark into its own store.
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
        """Make an attempt the active one. Returns False if the ledger is in main storage by now."""
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
        """Name the manifest in the metadata. After a commit without an answer, read the stored
        value."""
        for _ in range(TRIES_MAX):
            held = self._opened.held
            if _attempt(held.metadata) != attempt:
                raise Fenced(
                    f"another client began to move ledger {self._opened.ledger_id} to main storage"
                )
            if held.metadata.is_tiered:
                return
            now_us = self._host.clock.now_us()
            await self._calls.set(held.version, held.metadata.tiered(manifest_crc, now_us))
            await self._opened.refresh()
        raise Overloaded(f"ledger {self._opened.ledger_id} changes all the time; ask again")


def _attempt(metadata: LedgerMetadata) -> int:
    """The active attempt, 0 for none."""
    return 0 if metadata.tier is None else metadata.tier.attempt
