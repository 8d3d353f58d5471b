"""A node's answers about ledgers: its storage answers about entries, and the metadata store about
metadata. It also lets go of ledgers that were deleted.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (c).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cordwood.admin.ledger_autorecovery import LedgerAutorecovery
from cordwood.errors import CordwoodError
from cordwood.layout.ledger_entry import ledger_key_of
from cordwood.layout.ledger_records import LedgerChange, LedgerFlag
from cordwood.layout.message import DoneReply, Reply
from cordwood.layout.message_ledgers import (
    LEDGERS_MAX,
    AutorecoveryCall,
    LedgerCall,
    LedgerEntryCall,
    OpenMainStorage,
)
from cordwood.ledger import LedgerState
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.nodes import NodeId
from cordwood.storage.ledgers.ledger_store import LedgerStore
from cordwood.storage.said_once import SaidOnce

logger = logging.getLogger(__name__)

SWEEP_S = 600.0
"""The time between two looks for deleted ledgers, as in BookKeeper."""

FORGET_AT_ONCE = 100
"""Ledgers that are dropped together: flushes of the table wait while its rows are removed."""

FORGET_PAUSE_S = 1.0


class LedgerCalls:
    """See the module."""

    def __init__(
        self,
        store: LedgerStore,
        metadata: LedgerMetadataStore,
        node: NodeId,
        autorecovery: LedgerAutorecovery,
        open_main_storage: Callable[[], Awaitable[None]],
    ) -> None:
        self._open_main_storage = open_main_storage
        self._store = store
        self._autorecovery = autorecovery
        self._metadata = metadata
        self._node = node
        self._said_strangers = SaidOnce(logger)

    async def answer(self, call: LedgerCall) -> Reply:
        """Do what a client asks; see `LedgerStore.answer` and `LedgerMetadataStore.answer`."""
        if isinstance(call, LedgerEntryCall):
            return await self._store.answer(call)
        if isinstance(call, AutorecoveryCall):
            return await self._autorecovery.answer(call)
        if isinstance(call, OpenMainStorage):
            await self._open_main_storage()
            return DoneReply()
        return await self._metadata.answer(call)

    async def run(self) -> None:
        """Let go of deleted ledgers, and repair those that lack copies, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep_on())
            tasks.create_task(self._autorecovery.run())

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep()
            except CordwoodError as error:
                # A doubtful answer deletes nothing.
                logger.info("deleted ledgers are looked for later: %s", error)

    async def sweep(self) -> int:
        """Let go of ledgers that were deleted; how many went.

        The ledgers of this node are listed first, so a ledger that is made meanwhile is not among
        them. Before a ledger goes, the metadata store is asked once more for it alone, and whether
        it was deleted. A ledger that the metadata store lacks for another reason stays.

        Raises:
            CordwoodError: the metadata store did not answer, or a tombstone is not durable.
        """
        left = self._store.not_dropped()
        for at in range(0, len(left), FORGET_AT_ONCE):
            await self._store.drop(left[at : at + FORGET_AT_ONCE])
            await asyncio.sleep(FORGET_PAUSE_S)
        index = self._store.index
        here = [each for each, held in index.held.items() if not held.flags & LedgerFlag.GONE]
        known: set[int] = set()
        after = -1
        while page := await self._metadata.page(after, LEDGERS_MAX):
            known.update(page)
            after = page[-1]
        known.difference_update(await self._metadata.delete_again(known))
        missing = [
            each
            for each in sorted(here)
            if each not in known and await self._metadata.get(each) is None
        ]
        gone = [each for each in missing if await self._was_deleted(each)]
        if len(gone) < len(missing):
            count = len(missing) - len(gone)
            self._said_strangers.warning(
                f"{count} ledgers of this node are not in the metadata store, and no tombstone "
                "says that they were deleted: their entries stay"
            )
        else:
            self._said_strangers.over("all ledgers of this node are known again")
        for at in range(0, len(gone), FORGET_AT_ONCE):
            if at:
                await asyncio.sleep(FORGET_PAUSE_S)
            await self._store.forget(gone[at : at + FORGET_AT_ONCE])
        if gone:
            logger.info("%d ledgers were deleted, and their entries are gone here too", len(gone))
        return len(gone)

    async def _was_deleted(self, ledger: int) -> bool:
        """Whether a ledger that the metadata store does not have was deleted. An older copy of the
        metadata store lacks ledgers as well, and the only copies would go."""
        return await self._metadata.was_deleted(ledger)

    async def note_loss(self, *, is_anew: bool) -> None:
        """This node lost records: fence all ledgers whose fences or entries it may have lost.

        Every closed ledger is fenced too. Its writer may not know of its end, and would take
        this node's word for an entry after it (BookKeeper #4812). The metadata does not tell
        whether it writes to this node: a recovery or a repair may have put another node in this
        one's place. Missing entries of a closed ledger do not count as unknown, because no
        conclusion follows from their absence.

        Args:
            is_anew: the node has an empty disk, so every ledger that names it lacks copies.
        Raises:
            Unreachable: the metadata store does not list the ledgers.
        """
        if is_anew:
            await self._autorecovery.leave_strays()
        changes: list[LedgerChange] = []
        async for held in self._metadata.all():
            metadata = held.metadata
            # Race: a ledger may name this node only now. One that is fenced here has to be marked:
            # its writer is shut out, and no other node would end it.
            if is_anew:
                await self._autorecovery.note_anew(metadata)
            flags = LedgerFlag.FENCED
            if metadata.state is not LedgerState.CLOSED:
                if self._node not in metadata.newest.nodes:
                    continue
                flags |= LedgerFlag.LIMBO
            changes.append(LedgerChange(metadata.ledger, ledger_key_of(metadata.password), flags))
        await self._store.note_loss(changes)
        if changes:
            logger.warning("%d ledgers are fenced here, as records were lost", len(changes))
