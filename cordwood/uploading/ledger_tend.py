"""A node's work for ledgers in main storage: it deletes the objects that count for nothing.

One node does it at a time: the living node with the lowest number. Another node stands in now and
then, because that node may be cut off from main storage alone (`protocol.upload_turns`). Turns only
save work (`tier.ledger_collect`).

Source: docs/objects.md, "Ledgers"; docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from cordwood.errors import CordwoodError, Corrupt
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import NodeId
from cordwood.protocol.upload_turns import uploader_of
from cordwood.settings import TierSettings
from cordwood.storage.said_once import SaidOnce
from cordwood.tier.ledger_collect import Fate, collect_ledgers
from cordwood.uploading.objects_at_hand import ObjectsAtHand

logger = logging.getLogger(__name__)


class LedgerTend:
    """See the module; `run` does the work.

    Args:
        living: the living nodes, by number.
    Attributes:
        deleted: objects that this node deleted.
    """

    def __init__(
        self,
        me: NodeId,
        settings: TierSettings,
        metadata: MetadataStore,
        objects: ObjectsAtHand,
        living: Callable[[], Sequence[NodeId]],
    ) -> None:
        self.deleted = 0
        self._me = me
        self._settings = settings
        self._ledgers = LedgerMetadataStore(metadata)
        self._objects = objects
        self._living = living
        self._after = ""
        # By deleted ledger that main storage has something of: when this node found that, in µs.
        self._deleted_since: dict[int, int] = {}
        self._seen: set[int] = set()
        self._said = SaidOnce(logger)
        self._said_unread = SaidOnce(logger)

    async def run(self) -> None:
        """Look at intervals, until cancelled."""
        while True:
            chance = self._objects.host.random.random()
            await asyncio.sleep(self._settings.tend_s * (0.5 + chance))
            try:
                await self.look()
                self._said.over("objects of ledgers are looked after again")
            except CordwoodError as error:
                self._said.warning(f"main storage keeps what belongs to no ledger: {error}")

    async def look(self) -> None:
        """Look at one page of objects, if it is this node's turn.

        Raises:
            CordwoodError: the metadata store or main storage does not answer.
        """
        if uploader_of(self._living(), self._now_us(), self._settings.tend_s) != self._me:
            return
        if not await self._ledgers.uses_main_storage():
            return
        store = await self._objects.store()
        if not await self._objects.is_ours():
            self._said.warning(
                "main storage does not name its cluster: the objects of deleted ledgers stay"
            )
            return
        done, self._after = await collect_ledgers(
            store, self._fate_of, self._after, self._now_us(), self._settings.grace_s
        )
        self.deleted += done.deleted
        if done.deleted:
            logger.info("ledgers: %d objects deleted, %d bytes", done.deleted, done.deleted_bytes)
        if not self._after:
            # A round is over: ledgers that it did not see were deleted.
            self._deleted_since = {
                ledger: since for ledger, since in self._deleted_since.items()
                if ledger in self._seen
            }  # fmt: skip
            self._seen = set()

    async def _fate_of(self, ledger: int) -> Fate:
        try:
            found = await self._ledgers.get(ledger)
        except Corrupt as error:
            # Its attempt is not known: all its objects stay. The others go on.
            self._said_unread.warning(f"its objects in main storage stay: {error}")
            return Fate(False, 0)
        if found is not None:
            tier = found.metadata.tier
            is_committed = found.metadata.is_tiered
            return Fate(False, 0 if tier is None else tier.attempt, is_committed=is_committed)
        if not await self._ledgers.was_deleted(ledger):
            return Fate(False, -1)
        self._seen.add(ledger)
        return Fate(True, -1, self._deleted_since.setdefault(ledger, self._now_us()))

    def _now_us(self) -> int:
        return self._objects.host.clock.now_us()
