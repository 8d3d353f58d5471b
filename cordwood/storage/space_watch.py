"""Looks how much of the disk is free, and makes the node read-only where that is too little.

Source: as `protocol.disk_space`, which decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cordwood.host.seams import Disk
from cordwood.protocol.disk_space import DiskSpace
from cordwood.settings import StorageSettings
from cordwood.storage.shard import Shard

logger = logging.getLogger(__name__)


class SpaceWatch:
    """See the module; `run` does the work."""

    def __init__(
        self,
        shard: Shard,
        disk: Disk,
        path: str,
        settings: StorageSettings,
        on_room: Callable[[], None],
    ) -> None:
        """
        Args:
            path: a directory on the disk.
            on_room: called when the node takes new records again.
        """
        self._shard = shard
        self._disk = disk
        self._path = path
        self._every_s = settings.disk_look_s
        self._space = DiskSpace(settings.disk_low_bytes, settings.disk_back_bytes)
        self._on_room = on_room

    async def run(self) -> None:
        """Look every so often, until cancelled."""
        while True:
            try:
                self._on_free(*await self._disk.space(self._path))
            except OSError as error:
                # A disk that is gone shows itself where it is written to.
                logger.warning("the space on the disk is not known: %s", error)
            await asyncio.sleep(self._every_s)

    def _on_free(self, free_bytes: int, total_bytes: int) -> None:
        if not self._space.on_free(free_bytes, total_bytes):
            return
        if self._space.is_low:
            _, back = self._space.marks(total_bytes)
            self._shard.low_space = (
                f"{free_bytes >> 20} MiB are free on the disk of {self._path}: this node takes "
                f"no new records until there are {back >> 20}"
            )
            logger.warning("%s", self._shard.low_space)
        else:
            self._shard.low_space = ""
            logger.info("the disk of %s has room again", self._path)
            self._on_room()
