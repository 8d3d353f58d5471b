"""Looks for nodes that replace failed members of an ensemble.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.errors import CordwoodError, TooFewNodes
from cordwood.quorum.ensemble_choice import Placement

logger = logging.getLogger(__name__)

PICK_S = 2.0
"""How long a writer looks for another node before it goes on without one."""

PICK_AGAIN_S = 0.2
"""Pause between two looks."""


class SpareNodes:
    """Of one ledger's writer."""

    def __init__(
        self, calls: LedgerMetadataCalls, cluster: Cluster, write: int, placement: Placement
    ) -> None:
        self._calls = calls
        self._cluster = cluster
        self._write = write
        self._placement = placement

    async def pick(self, places: Sequence[int], taken: Sequence[int]) -> dict[int, int]:
        """Other nodes for as many of these places as possible, by place.

        Args:
            taken: the present ensemble.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PICK_S
        while not (picked := await self._picked(places, taken)) and loop.time() < deadline:
            # A node may have come since the members were read.
            try:
                await self._cluster.refresh_members(timeout_s=PICK_AGAIN_S)
            except CordwoodError as error:
                logger.debug("the members could not be read: %s", error)
            await asyncio.sleep(PICK_AGAIN_S)
        return picked

    async def _picked(self, places: Sequence[int], taken: Sequence[int]) -> dict[int, int]:
        for count in range(len(places), 0, -1):
            some = places[:count]
            ring = [None if place in some else node for place, node in enumerate(taken)]
            try:
                nodes = await self._calls.choose(
                    ring, self._write, taken=taken, placement=self._placement
                )
            except TooFewNodes:
                continue
            return {place: nodes[place] for place in some}
        return {}
