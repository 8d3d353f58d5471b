"""Measures the free disk space, and makes the node read-only if there is too little.

Source: as for `protocol.disk_space`, which decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cordwood.errors import CordwoodError
from cordwood.host.seams import Disk
from cordwood.protocol.disk_space import DiskFill, DiskSpace, to_write
from cordwood.settings import StorageSettings
from cordwood.storage.engine import StorageEngine
from cordwood.storage.said_once import SaidOnce

logger = logging.getLogger(__name__)

NEVER_US = 1 << 62
"""A time at which every partition is old, so that the newest may be dropped too."""


class SpaceWatch:
    """See the module; `run` does the work."""

    def __init__(
        self,
        engine: StorageEngine,
        disk: Disk,
        path: str,
        settings: StorageSettings,
        on_space: Callable[[], None],
        on_low: Callable[[], None] = lambda: None,
        tell_fill: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """
        Args:
            path: a directory on the disk.
            on_space: called when the node takes new records again.
            on_low: called at each measurement while it takes none: drop trimmed records at once.
            tell_fill: tells the cluster how full the disk is; None without a cluster to tell.
        """
        self._engine = engine
        self._disk = disk
        self._path = path
        self._every_s = settings.disk_look_s
        self._space = DiskSpace(settings.disk_low_bytes, settings.disk_back_bytes)
        self._on_space = on_space
        self._on_low = on_low
        self._said = SaidOnce(logger)
        self._fill = DiskFill()
        self._tell_fill = tell_fill
        self._told_fill = 0  # the fill level in the entry of a node that starts

    async def run(self) -> None:
        """Measure at intervals, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Measure the free space; while there is too little, drop trimmed records."""
        is_known = await self._measure()
        await self._tell()
        if not is_known or not self._space.is_low or self._engine.failed:
            return
        self._on_low()
        try:
            dropped = await self._engine.logs.drop_trimmed(self._engine.gone_of, NEVER_US)
        except CordwoodError as error:
            self._said.warning(f"what is trimmed cannot be dropped yet: {error}")
            return
        if dropped:
            await self._measure()

    async def _tell(self) -> None:
        """Tell the cluster of another level of fill; if that fails, at the next measurement."""
        level = self._fill.level
        if self._tell_fill is None or level == self._told_fill:
            return
        try:
            await self._tell_fill(level)
        except CordwoodError as error:
            logger.info("how full the disk is could not be told: %s", error)
        else:
            self._told_fill = level

    async def _measure(self) -> bool:
        """Measure the free space. Returns whether this succeeded."""
        try:
            self._on_free(*await self._disk.space(self._path))
        except OSError as error:
            # The next write notices a disk that is gone.
            self._said.warning(f"the space on the disk is not known: {error}")
            return False
        return True

    def _on_free(self, free_bytes: int, total_bytes: int) -> None:
        low, back = self._space.marks(total_bytes)
        self._fill.on_free(free_bytes, total_bytes)
        engine = self._engine
        room = engine.free_bytes
        engine.disk.on_free(free_bytes, low * 3 // 4)
        if engine.free_bytes > room:
            self._on_space()
        # First waves may use less than the space down to the mark. So unflushed bytes count here:
        # the mark is reached, and the node reports it.
        free_bytes = max(0, free_bytes - to_write(engine.unflushed_bytes))
        if not self._space.on_free(free_bytes, total_bytes):
            return
        if self._space.is_low:
            engine.low_space = (
                f"{free_bytes >> 20} MiB are free on the disk of {self._path}, beside what is "
                f"still to be flushed: this node takes no new records until there are "
                f"{back >> 20}. Trim logs, or give it more space"
            )
            logger.warning("%s", engine.low_space)
        else:
            engine.low_space = ""
            logger.info("the disk of %s has room again", self._path)
            self._on_space()
