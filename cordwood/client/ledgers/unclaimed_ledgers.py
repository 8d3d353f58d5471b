"""Deletes ledgers that a cancelled creation may have made: no caller knows their ids.

Otherwise such a ledger would stay open for ever. The creation may still be on its way, so the
metadata is asked for a while. Only a ledger with the number that its creator drew is deleted:
another client may have chosen the same id.

Source: docs/protocol/ledgers.md, rule 24.
"""

from __future__ import annotations

import asyncio
import logging

from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.errors import CordwoodError, UnknownLedger

logger = logging.getLogger(__name__)

LOOK_FOR_S = 5.0
"""How long a ledger is looked for, and at most how much longer the close of a client takes."""

AGAIN_S = 0.2
"""Pause before it is looked for again."""


class UnclaimedLedgers:
    """See the module; of one client."""

    def __init__(self, calls: LedgerMetadataCalls, tasks: asyncio.TaskGroup) -> None:
        self._calls = calls
        self._tasks = tasks
        self._deleting: set[asyncio.Task[None]] = set()

    def delete_soon(self, ledger: int, creator: int) -> None:
        """Delete a ledger in the background, if this creator makes it or has made it."""
        task = self._tasks.create_task(self._delete(ledger, creator))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def end(self) -> None:
        """Wait for the deletions, for as long as each may take."""
        if self._deleting:
            await asyncio.wait({*self._deleting}, timeout=LOOK_FOR_S)

    async def _delete(self, ledger: int, creator: int) -> None:
        try:
            async with asyncio.timeout(LOOK_FOR_S):
                while not await self._is_gone(ledger, creator):  # noqa: ASYNC110 - a store has no event for it
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            logger.info("the creation of ledger %d was cancelled, and made none in time", ledger)

    async def _is_gone(self, ledger: int, creator: int) -> bool:
        """Whether it needs to be looked for no more: it was deleted, or is another client's."""
        try:
            if (await self._calls.get(ledger)).metadata.creator == creator:
                await self._calls.delete(ledger)
        except UnknownLedger:
            return False
        except CordwoodError as error:
            logger.debug("ledger %d is not deleted yet: %s", ledger, error)
            return False
        return True
