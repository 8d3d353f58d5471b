"""Stores copies of settled entries of marked ledgers in the places that the metadata names.

The rule is `protocol.ledger_fills`; this is its shell, for `admin.ledger_autorecovery`.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Set

from cordwood.client.ledgers.ledger_repair import OnProgress
from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.ledger import LedgerMetadata
from cordwood.protocol.ledger_autorecovery import Mark, may_fill_more
from cordwood.protocol.ledger_fills import ALL, Fills, Seen, back_in_place

logger = logging.getLogger(__name__)


class LedgerFilling:
    """See the module."""

    def __init__(self) -> None:
        self._fills = Fills()

    def keep(self, ledgers: Set[int]) -> None:
        """Forget all but these: they are marked still."""
        self._fills.keep(ledgers)

    async def fill(
        self,
        store: Store,
        metadata: LedgerMetadata,
        entries: Collection[int] | None,
        on_progress: OnProgress,
    ) -> tuple[int, list[int]]:
        """Store copies of some settled entries, of all for None. Returns the number of copies, and
        the first entries that lack copies still."""
        filled, missing = 0, list[int]()
        for fills in (True, False):
            check = await store.ledgers.check(
                metadata.ledger, metadata.password, fills=fills, settled=True, entries=entries,
                on_progress=on_progress,
            )  # fmt: skip
            filled, missing = filled + check.filled, check.missing
        return filled, missing

    async def fill_meanwhile(
        self,
        store: Store,
        mark: Mark,
        version: int,
        metadata: LedgerMetadata,
        whole: Set[int],
        on_progress: OnProgress,
    ) -> list[int]:
        """Store copies while the mark has to stay. Returns the first entries that were looked at
        and lack copies still; none if the look failed, and the next one is the same.

        Args:
            whole: see `back_in_place`.
        """
        seen = Seen(version, back_in_place(metadata, mark, whole), metadata.settled_last)
        look = self._fills.look(mark, seen)
        if look.is_empty or not metadata.settled:
            return []
        try:
            filled, missing = await self.fill(store, metadata, look.entries, on_progress)
            if may_fill_more(look.has_more, filled, missing):
                look = ALL
                _, missing = await self.fill(store, metadata, None, on_progress)
        except CordwoodError as error:
            logger.info("ledger %d: copies are stored later: %s", mark.ledger, error)
            return []
        self._fills.note(mark, seen, missing, has_more=look.has_more)
        return missing
