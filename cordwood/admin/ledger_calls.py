"""What a node answers about ledgers: of their entries by its storage, of their metadata by the
metadata store.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import logging

from cordwood.layout.ledger_entry import ledger_key_of
from cordwood.layout.ledger_records import LedgerChange, LedgerFlag
from cordwood.layout.message import Reply
from cordwood.layout.message_ledgers import LedgerCall, LedgerEntryCall
from cordwood.ledger import LedgerState
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.nodes import NodeId
from cordwood.storage.ledgers.ledger_store import LedgerStore

logger = logging.getLogger(__name__)


class LedgerCalls:
    """See the module."""

    def __init__(self, store: LedgerStore, metadata: LedgerMetadataStore, node: NodeId) -> None:
        self._store = store
        self._metadata = metadata
        self._node = node

    async def answer(self, call: LedgerCall) -> Reply:
        """Do what a client asks; see `LedgerStore.answer` and `LedgerMetadataStore.answer`."""
        if isinstance(call, LedgerEntryCall):
            return await self._store.answer(call)
        return await self._metadata.answer(call)

    async def note_loss(self) -> None:
        """This node lost records: fence what it may have lost fences or entries of.

        A closed ledger is fenced too. Its writer may not know of its end, and would take this
        node's word for an entry behind it (BookKeeper #4812). What lacks of a closed ledger is
        not unknown: nothing is concluded from its absence.

        Raises:
            Unreachable: the metadata store does not say which ledgers there are.
        """
        changes: list[LedgerChange] = []
        async for held in self._metadata.all():
            metadata = held.metadata
            if self._node not in metadata.newest.nodes:
                continue
            flags = LedgerFlag.FENCED
            if metadata.state is not LedgerState.CLOSED:
                flags |= LedgerFlag.LIMBO
            changes.append(LedgerChange(metadata.ledger, ledger_key_of(metadata.password), flags))
        await self._store.note_loss(changes)
        if changes:
            logger.warning("%d ledgers are fenced here, as records were lost", len(changes))
