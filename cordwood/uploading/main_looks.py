"""What main storage has of a log, by its manifest, for the donors of a rebuilding.

Nodes let go of records that main storage held. If main storage loses them later, the nodes that
still hold them keep them (`uploading.local_drops`), and a donor copies them. A donor that meets a
node that let go asks here.

Source: docs/protocol/rebuilding.md, rule 9; docs/protocol/main-storage.md, rule 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from cordwood.errors import BadSetting
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.origin import check_origin
from cordwood.tier.presence import Presence
from cordwood.tiered import is_lost
from cordwood.uploading.objects_at_hand import ObjectsAtHand
from cordwood.uploading.tiered_logs import TieredLogs

LOOK_S = 10.0
"""For how long a manifest counts as read. Donors ask for each run of blocks."""

LOOKS_MAX = 64
"""The most manifests that are kept."""


class _Look(NamedTuple):
    manifest: LogManifest
    presence: Presence
    read_s: float


class MainLooks:
    """See the module; `rebuild.main_copies` says what a donor asks."""

    def __init__(
        self,
        logs: TieredLogs,
        objects: ObjectsAtHand,
        ask_trim: Callable[[int], Awaitable[int]],
    ) -> None:
        self._logs = logs
        self._objects = objects
        self._ask_trim = ask_trim
        self._looks: dict[int, _Look] = {}

    def forget(self) -> None:
        """Have manifests that were read before count no more."""
        self._looks.clear()

    async def lacks(self, log: int, first: int, last: int) -> Sequence[tuple[int, int]]:
        """See `MainCopies`. A node without main storage believes the nodes that let go."""
        look = await self._look(log) if self._objects.address else None
        if look is None:
            return ()
        head = look.manifest.head
        if head is None or head.end <= head.start:
            return ((first, last),)
        found: list[tuple[int, int]] = []
        # A repair may have been told another beginning than the trim point.
        if first < head.start and await self._ask_trim(log) < head.start - 1:
            found.append((first, min(last, head.start - 1)))
        lsn = max(first, head.start)
        while lsn <= last and (page := await look.manifest.entries(lsn)):
            for entry in page:
                if entry.first > last:
                    break
                if is_lost(entry) or not await look.presence.has(entry):
                    found.append((max(first, entry.first), min(last, entry.last)))
            lsn = page[-1].last + 1
        if last >= head.end:
            found.append((max(first, head.end), last))
        return found

    async def _look(self, log: int) -> _Look | None:
        """The log's manifest; None if the log was deleted."""
        now_s = asyncio.get_running_loop().time()
        known = self._looks.get(log)
        if known is not None and now_s < known.read_s + LOOK_S:
            return known
        await self._logs.refresh()
        info = await self._logs.of(log)
        if info is None:
            return None
        manifest = await self._objects.manifest(log)
        head = await manifest.load()
        store = await self._objects.store()
        if head is not None and not await check_origin(store, log, info.created_us):
            raise BadSetting(f"main storage has no origin for its history of log {log}")
        # Order matters: after all that was read from the store, see `LocalDrops`.
        await self._objects.check()
        self._looks.pop(log, None)
        if len(self._looks) == LOOKS_MAX:
            del self._looks[next(iter(self._looks))]
        self._looks[log] = found = _Look(manifest, Presence(store), now_s)
        return found
