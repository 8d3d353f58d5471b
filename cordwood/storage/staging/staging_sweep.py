"""Drops staged blocks that have expired, and pinned blocks after their publish is over.

A commit may name a pinned block, so only the metadata store can tell that the block is no longer
needed. If an attempt has neither committed nor ended when its blocks would have expired, it is
fenced first: a publisher that comes back late can then not commit blocks that are gone.

Source: docs/design.md §9; `protocol.publishing`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from cordwood.errors import CordwoodError
from cordwood.layout.message_staging import STAGES_MAX, Unstage
from cordwood.protocol.publishing import Publication, is_over
from cordwood.storage.staging.staging import Pinned, Staging

logger = logging.getLogger(__name__)

SWEEP_S = 5.0
"""The time between sweeps for expired blocks. A sweep reads only memory."""

PINS_EVERY = 12
"""Sweeps between two checks of pins, a minute: a publisher drops its own blocks, so the pins that
are left belong to publishers that died."""


class Queries(Protocol):
    """The state of publishing queries; see `metadata.publications.Publications`."""

    async def get(self, query: str) -> Publication:
        """A query."""

    async def fence(self, query: str, attempt: int) -> Publication:
        """Shut out an attempt that has not committed."""


class StagingSweep:
    """See the module."""

    def __init__(self, staging: Staging, queries: Queries, now_us: Callable[[], int]) -> None:
        self._staging = staging
        self._queries = queries
        self._now_us = now_us

    async def run(self) -> None:
        """Sweep until cancelled."""
        sweeps = 0
        while True:
            await asyncio.sleep(SWEEP_S)
            sweeps += 1
            try:
                await self.drop_expired()
                if sweeps % PINS_EVERY == 0:
                    await self.drop_finished()
            except CordwoodError as error:
                logger.info("staged blocks cannot be swept yet: %s", error)

    async def drop_expired(self) -> None:
        """Drop the blocks that no attempt has pinned in time.

        Raises:
            CordwoodError: the WAL takes no more.
        """
        await self._staging.drop(self._staging.expired()[:STAGES_MAX])

    async def drop_finished(self) -> None:
        """Drop the blocks that were pinned by attempts that are over.

        Raises:
            CordwoodError: the metadata store or the WAL does not answer.
        """
        for pinned in self._staging.pins():
            if await self._is_over(pinned):
                logger.info(
                    "attempt %d of %r is over: %d staged blocks go",
                    pinned.pin.attempt, pinned.pin.query, len(pinned.stages),
                )  # fmt: skip
                # Race: check the present pins; a later attempt may have pinned the blocks again.
                some = list(pinned.stages[:STAGES_MAX])
                await self._staging.unstage(Unstage(*pinned.pin, some))

    async def _is_over(self, pinned: Pinned) -> bool:
        query, attempt = pinned.pin
        known = await self._queries.get(query)
        if not is_over(known, attempt) and pinned.expires_us <= self._now_us():
            known = await self._queries.fence(query, attempt)
        return is_over(known, attempt)
