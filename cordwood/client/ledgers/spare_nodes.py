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
from cordwood.protocol.ledger_effects import Refusal
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

    def weighed(self, refusal: Refusal, node: int, ensemble: Sequence[int]) -> Refusal:
        """A member's refusal as the writer is to take it: READ_ONLY if the member is to be replaced
        although the others have a quorum."""
        if refusal is Refusal.FAILED and self._calls.is_lost(node):
            # With delayed change the writer would keep it, until a recovery shuts the writer out.
            refusal = Refusal.READ_ONLY
        if refusal is Refusal.READ_ONLY and not self._has_for(node, ensemble):
            # The ledger would be closed for want of another node.
            return Refusal.FAILED
        return refusal

    def _has_for(self, node: int, ensemble: Sequence[int]) -> bool:
        """Whether another node may take the place of a member, by the ledger's placement too."""
        ring = [None if each == node else each for each in ensemble]
        return self._calls.may_choose(ring, self._write, taken=ensemble, placement=self._placement)

    async def _picked(self, places: Sequence[int], taken: Sequence[int]) -> dict[int, int]:
        # An enforced placement may allow another node in some of the places only.
        alone = [[place] for place in places]
        for some in (*(places[:count] for count in range(len(places), 1, -1)), *alone):
            ring = [None if place in some else node for place, node in enumerate(taken)]
            try:
                nodes = await self._calls.choose(
                    ring, self._write, taken=taken, placement=self._placement
                )
            except TooFewNodes:
                continue
            return {place: nodes[place] for place in some}
        return {}
