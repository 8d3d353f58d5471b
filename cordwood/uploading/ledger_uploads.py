"""Moves closed ledgers that ask for it to main storage, as `cordwood ledgers tier` does by hand.

One node at a time looks for these ledgers: the living node with the lowest number. Another node
stands in now and then, because that node may be cut off from main storage alone
(`protocol.upload_turns`). A look reads a few hundred ledgers. A ledger that is in main storage, or
does not ask for it, is not read again. Each upload has a lease, which is renewed during the upload.
Turns and leases only save work: of two uploads of one ledger the later counts
(`client.ledgers.ledger_tiering`).

Source: docs/objects.md, "Ledgers"; docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from cordwood.client.store import Store, connected
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.ledger import LedgerMetadata
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import NodeId
from cordwood.protocol.ledger_autorecovery import Retries
from cordwood.protocol.ledger_tiering import is_settled, wants_upload
from cordwood.protocol.upload_turns import uploader_of
from cordwood.settings import ClientSettings, TierSettings
from cordwood.storage.said_once import SaidOnce
from cordwood.uploading.leases import leased
from cordwood.uploading.objects_at_hand import OpenObjects

logger = logging.getLogger(__name__)

READ_AT_ONCE = 200
"""The number of ledgers to read metadata of at a look: a hundred thousand in an hour and a half."""

LISTED_AT_ONCE = 1000
"""Ids that are listed at a look: most of them were seen before."""

CLIENT = ClientSettings(timeout_s=10.0)


class LedgerUploads:
    """See the module; `run` does the work.

    Args:
        address: where this node listens; its uploads connect there, as any client.
        living: the living nodes, by number.
    Attributes:
        uploaded: ledgers that this node moved to main storage since its start.
    """

    def __init__(
        self,
        me: NodeId,
        host: Host,
        settings: TierSettings,
        metadata: MetadataStore,
        open_objects: OpenObjects,
        address: Callable[[], str],
        living: Callable[[], Sequence[NodeId]],
    ) -> None:
        self.uploaded = 0
        self._me = me
        self._host = host
        self._settings = settings
        self._metadata = metadata
        self._ledgers = LedgerMetadataStore(metadata)
        self._open_objects = open_objects
        self._address = address
        self._living = living
        self._todo: deque[LedgerMetadata] = deque()
        self._after = -1
        self._settled: set[int] = set()
        self._seen: set[int] = set()
        self._retries = Retries()
        self._said = SaidOnce(logger)

    async def run(self) -> None:
        """Look at intervals, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.look_s * (0.5 + self._host.random.random()))
            try:
                await self.look()
                self._said.over("closed ledgers go to main storage again")
            except CordwoodError as error:
                self._said.warning(f"closed ledgers have to wait for main storage: {error}")

    async def look(self) -> None:
        """Look at the next few ledgers, in this node's turn, and upload those that ask for it.

        Ledgers that are left at the end of the turn wait for this node's next turn; other nodes
        find them too.

        Raises:
            CordwoodError: the metadata store does not answer; or this node, as a client's.
        """
        if not self._is_my_turn() or not await self._ledgers.uses_main_storage():
            return
        todo = self._todo
        if not todo:
            todo += await self._find()
        if todo:
            opener = self._open_objects
            async with connected((self._address(),), self._host, CLIENT, opener) as client:
                while todo and self._is_my_turn():
                    await self._upload(client, todo.popleft())

    def _is_my_turn(self) -> bool:
        now_us = self._host.clock.now_us()
        return uploader_of(self._living(), now_us, self._settings.look_s) == self._me

    async def _find(self) -> list[LedgerMetadata]:
        now_s = asyncio.get_running_loop().time()
        page = await self._ledgers.page(self._after, LISTED_AT_ONCE)
        todo: list[LedgerMetadata] = []
        unread = [ledger for ledger in page if ledger not in self._settled]
        for ledger in unread[:READ_AT_ONCE]:
            found = await self._ledgers.get_if_readable(ledger)
            if found is None:
                continue
            if is_settled(found.metadata):
                self._settled.add(ledger)
            elif wants_upload(found.metadata) and self._retries.is_due(ledger, now_s):
                todo.append(found.metadata)
        if len(unread) > READ_AT_ONCE:
            page = [ledger for ledger in page if ledger <= unread[READ_AT_ONCE - 1]]
            self._seen.update(page)
            self._after = page[-1]
            return todo
        self._seen.update(page)
        self._after = page[-1] if len(page) == LISTED_AT_ONCE else -1
        if self._after < 0:
            # A round is over: ledgers that it did not list were deleted.
            self._settled &= self._seen
            self._retries.keep(self._seen)
            self._seen = set()
        return todo

    async def _upload(self, client: Store, metadata: LedgerMetadata) -> None:
        ledger = metadata.ledger
        async with leased(self._metadata, f"ledger-upload/{ledger}", f"node {self._me}") as is_mine:
            if not is_mine:
                return
            try:
                done = await client.ledgers.tier(ledger, metadata.password)
            except CordwoodError as error:
                logger.info("ledger %d goes to main storage later: %s", ledger, error)
                self._retries.failed(ledger, asyncio.get_running_loop().time())
                return
            if done.objects:
                self.uploaded += 1
                logger.info("ledger %d is in main storage: %d bytes", ledger, done.stored)
        await asyncio.sleep(done.stored / self._settings.ledger_bytes_s)
