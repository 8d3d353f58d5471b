"""Drops a node's entries of ledgers that main storage has.

A node believes the metadata store that a ledger is committed. It checks itself that the objects
exist: it reads the manifest, and asks for the size of each object. So no copy is lost if this node
uses another store than the uploader did. Each pass looks at a few ledgers, one after the other, and
never again at a ledger that this node has dropped.

Source: docs/objects.md, "Ledgers"; docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice

from cordwood.errors import CordwoodError, Corrupt, Rejected
from cordwood.ledger import LedgerMetadata
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.protocol.ledger_tiering import may_let_go
from cordwood.storage.ledgers.ledger_store import LedgerStore
from cordwood.storage.said_once import SaidOnce
from cordwood.tier.ledger_history import LedgerHistory
from cordwood.uploading.objects_at_hand import ObjectsAtHand

logger = logging.getLogger(__name__)

LOOKED_AT_ONCE = 200
"""Ledgers for which a pass reads the metadata: 400 a minute, at the default pace."""

CALL_S = 60.0
"""One call to the store, with all its tries."""


class LedgerDrops:
    """See the module; `run` does the work.

    Args:
        keep_s: how long this node keeps a ledger that main storage has.
        every_s: between two looks.
    Attributes:
        let_go: ledgers that this node let go of since its start.
    """

    def __init__(
        self,
        store: LedgerStore,
        ledgers: LedgerMetadataStore,
        objects: ObjectsAtHand,
        *,
        keep_s: float,
        every_s: float,
    ) -> None:
        self.let_go = 0
        self._store = store
        self._ledgers = ledgers
        self._objects = objects
        self._keep_s = keep_s
        self._every_s = every_s
        self._after = -1
        self._said = SaidOnce(logger)
        self._said_unseen = SaidOnce(logger)

    async def run(self) -> None:
        """Look at intervals, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
                self._said.over("ledgers that main storage has are let go of again")
            except CordwoodError as error:
                self._said.warning(f"no ledger is let go of that main storage has: {error}")

    async def look(self) -> None:
        """Look at the next few ledgers of this node.

        Raises:
            CordwoodError: the metadata store or main storage does not answer.
        """
        if not await self._ledgers.uses_main_storage():
            return
        some = self._next()
        now_us = self._objects.host.clock.now_us()
        gone = 0
        try:
            for ledger in some:
                gone += await self._let_go(ledger, now_us)
        finally:
            self.let_go += gone
        if gone:
            logger.info("this node drops its copies of %d ledgers that main storage has", gone)

    async def _let_go(self, ledger: int, now_us: int) -> bool:
        """Whether this node let go of a ledger."""
        found = await self._ledgers.get_if_readable(ledger)
        if found is None or not may_let_go(found.metadata, now_us, self._keep_s):
            return False
        try:
            await self._see(found.metadata)
        except (Corrupt, Rejected) as error:
            # This ledger's objects are not as they should be: the others go on.
            self._said_unseen.warning(
                f"ledger {ledger}: this node keeps what it might let go of: {error}"
            )
            return False
        # Trap: main storage may lose an object at any time. Looks at the next ledgers take minutes
        # where the store is slow, and this look would be too old by then.
        await self._store.let_go([ledger])
        return True

    def _next(self) -> list[int]:
        held = self._store.index.held
        here = sorted(ledger for ledger, each in held.items() if not each.flags.is_empty)
        some = [*islice((each for each in here if each > self._after), LOOKED_AT_ONCE)]
        # Before the reading: a ledger that cannot be read does not hold up the others.
        self._after = some[-1] if len(some) == LOOKED_AT_ONCE else -1
        return some

    async def _see(self, metadata: LedgerMetadata) -> None:
        history = LedgerHistory(await self._objects.store(), self._objects.host, metadata)
        await history.see(timeout_s=CALL_S)
