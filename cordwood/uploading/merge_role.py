"""Merges small objects of the logs that this node uploads, so that no cluster needs Spark for it.

A fallback that takes few resources: it looks at the head of a manifest and at a few young pages,
and merges where many small objects piled up there. It merges a few at a time, no faster than its
pace, and not at all while the disk fills up. `cordwood tier compact` and Spark merge older objects.

As with uploads, a lease keeps two nodes from the same work, and turns keep it safe. A node waits
for the turn of a merge by hand or by Spark. A log is looked at once something was uploaded.

Source: docs/objects.md, "Compaction"; docs/protocol/main-storage.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from cordwood.errors import CordwoodError, Fenced
from cordwood.host.seams import Host
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import NodeId
from cordwood.protocol.merge_plan import MergePolicy
from cordwood.protocol.tier_plan import Pressure
from cordwood.settings import TierSettings
from cordwood.storage.said_once import SaidOfEach, SaidOnce
from cordwood.tier.compact import compact_log, plan_log
from cordwood.uploading.leases import leased
from cordwood.uploading.objects_at_hand import ObjectsAtHand

logger = logging.getLogger(__name__)

MERGES_A_LOOK = 4
"""Of one log; other logs wait for their turn."""


class MergeRole:
    """See the module; `run` does the work.

    Args:
        me: this node.
        mine: the logs that this node uploads.
        end_of: where a log's manifest ended, as uploads know it; -1 if they do not know it.
        presses: how full the disk is.
    Attributes:
        merged: objects that took the place of others.
    """

    def __init__(
        self,
        me: NodeId,
        host: Host,
        settings: TierSettings,
        metadata: MetadataStore,
        objects: ObjectsAtHand,
        *,
        mine: Callable[[], Awaitable[Mapping[int, LogInfo]]],
        end_of: Callable[[int], int],
        presses: Callable[[], Pressure],
    ) -> None:
        self.merged = 0
        self._me = me
        self._host = host
        self._settings = settings
        self._policy = MergePolicy(
            object_bytes=settings.merge_object_bytes,
            entries_min=max(2, settings.merge_objects),
            shared_bytes_min=settings.merge_shared_bytes,
        )
        self._metadata = metadata
        self._objects = objects
        self._mine = mine
        self._end_of = end_of
        # By log: where its manifest ended when there was nothing to merge.
        self._looked_at: dict[int, int] = {}
        self._presses = presses
        self._said = SaidOnce(logger)
        self._said_of = SaidOfEach(logger)

    async def run(self) -> None:
        """Look for objects to merge at intervals, until cancelled."""
        while self._settings.merge_objects:
            await asyncio.sleep(self._settings.merge_s * (0.5 + self._host.random.random()))
            try:
                await self._look(await self._mine())
                self._said.over("merges go on")
            except CordwoodError as error:
                self._said.warning(f"merges have to wait: {error}")

    async def _look(self, logs: Collection[int]) -> None:
        self._looked_at = {log: at for log, at in self._looked_at.items() if log in logs}
        for log in logs:
            if self._presses() is not Pressure.NONE:
                return
            try:
                with contextlib.suppress(Fenced):  # another process merges it, as Spark may
                    await self._look_at(log)
                self._said_of.over(log, f"log {log}: merges go on")
            except CordwoodError as error:
                # A bad manifest of one log stops no other log.
                self._said_of.warning(log, f"log {log}: its objects are not merged: {error}")

    async def _look_at(self, log: int) -> None:
        end = self._end_of(log)
        if end < 0 or self._looked_at.get(log) == end:
            return
        manifest = await self._objects.manifest(log)
        if not await plan_log(manifest, self._policy, everything=False):
            self._looked_at[log] = end
            return
        async with leased(self._metadata, f"merge/{log}", f"node {self._me}") as is_mine:
            if not is_mine:
                return
            done = await compact_log(
                await self._objects.store(), manifest, self._host, log, self._policy,
                everything=False, waits=True, merges_max=MERGES_A_LOOK,
                turn_s=self._settings.merge_turn_s, pace=self._rest,
            )  # fmt: skip
            self.merged += done.merged

    async def _rest(self, size: int) -> None:
        await asyncio.sleep(size / self._settings.merge_bytes_s)
