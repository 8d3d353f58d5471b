"""Lets staged blocks go: those whose time is over, and those whose publish is.

A pinned block may be what a commit names, so only the metadata store can tell that it is not
needed. Where an attempt has neither committed nor ended by the time its blocks would have
expired, it is fenced first: a publisher that comes back late then commits nothing that is gone.

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
"""How often expired blocks are looked for: a look into memory, of what is staged."""

PINS_EVERY = 12
"""Sweeps from one look at pins to the next, a minute: a publisher lets its own blocks go, so
these are of publishers that died."""


class Queries(Protocol):
    """What is known of queries that publish; see `metadata.publications.Publications`."""

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
        """Let go of what nobody has pinned in time.

        Raises:
            CordwoodError: the WAL takes no more.
        """
        await self._staging.drop(self._staging.expired()[:STAGES_MAX])

    async def drop_finished(self) -> None:
        """Let go of what attempts pinned that are over.

        Raises:
            CordwoodError: the metadata store or the WAL does not answer.
        """
        for pinned in self._staging.pins():
            if await self._is_over(pinned):
                logger.info(
                    "attempt %d of %r is over: %d staged blocks go",
                    pinned.pin.attempt, pinned.pin.query, len(pinned.stages),
                )  # fmt: skip
                # As they are by now: a later attempt may have pinned them again.
                some = list(pinned.stages[:STAGES_MAX])
                await self._staging.unstage(Unstage(*pinned.pin, some))

    async def _is_over(self, pinned: Pinned) -> bool:
        query, attempt = pinned.pin
        known = await self._queries.get(query)
        if not is_over(known, attempt) and pinned.expires_us <= self._now_us():
            known = await self._queries.fence(query, attempt)
        return is_over(known, attempt)
