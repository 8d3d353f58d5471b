"""Finds the places of times, records and bytes in the part of a log that nodes let go of and main
storage has.

Each question reads the head of the log's manifest, one page of each level, and the footers of one
or two objects. To find the block of a time, it also reads the object itself.

Source: docs/objects.md, "Reading".
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.block import Gap, GapKind
from cordwood.client.find.log_info import LogInfo
from cordwood.client.tier_store import TierStore
from cordwood.errors import Malformed, NoObject, Unreachable
from cordwood.layout.object_file import ObjectRun, Piece
from cordwood.tier.history import GET_S
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import entry_footer
from cordwood.tiered import Entry, is_lost

Placed = tuple[int, int]
"""An LSN, and the append time (µs) of its block."""


class TierPositions:
    """The places in one log. An instance is made for one question.

    Attributes:
        up_to: the nodes' tier point. Nodes answer for later records.
    """

    def __init__(self, tier: TierStore, manifest: LogManifest, info: LogInfo, up_to: int) -> None:
        self._tier = tier
        self._manifest = manifest
        self._info = info
        self.up_to = up_to

    async def find_time(self, time_us: int, trim: int, *, is_exact: bool) -> int | None:
        """The first LSN up to the tier point from which on no block is older than a time; None if
        all of them are older.

        Args:
            is_exact: False allows an answer that is too early by up to one object.
        """
        entry = await self._manifest.find_append_time(time_us)
        while entry is not None and is_lost(entry):
            # Main storage has no record from there on. Nodes answer for the records that they hold.
            entry = await self._manifest.find(entry.last + 1)
        if entry is None or entry.first > self.up_to:
            return None
        start = max(entry.first, trim + 1)
        if not is_exact or entry.append_first_us >= time_us:
            return start
        async with await self._tier.history(self._info, start, entry.last) as blocks:
            async for item in blocks:
                if not isinstance(item, Gap) and item.header.append_time_us >= time_us:
                    return item.first
        return entry.last + 1

    async def lost_before(self, lsn: int) -> int | None:
        """Where the range begins that main storage lost right before an LSN; None if it lost none
        there."""
        lost: int | None = None
        while (entry := await self._manifest.find(lsn - 1)) is not None and is_lost(entry):
            lost = lsn = entry.first
        return lost

    async def first(self, trim: int) -> Placed | None:
        """The first record above the trim point, up to the tier point; None if main storage holds
        none."""
        lsn = trim + 1
        while page := await self._manifest.entries(lsn):
            for entry in page:
                if entry.first > self.up_to:
                    return None
                for piece in await self._pieces(entry):
                    if piece.first > trim:
                        return piece.first, piece.append_first_us
                    if piece.last > trim and (
                        found := await self._first_within(trim + 1, piece.last)
                    ):
                        return found
                lsn = entry.last + 1
        return None

    async def _first_within(self, first: int, last: int) -> Placed | None:
        """The first record of a range that is still there: trims go on meanwhile."""
        async with await self._tier.history(self._info, first, last) as blocks:
            async for item in blocks:
                if not isinstance(item, Gap):
                    return item.first, item.header.append_time_us
        return None

    async def last(self, trim: int) -> Placed | None:
        """The last record up to the tier point; None if main storage holds none above the trim
        point."""
        lsn = self.up_to
        while lsn > trim and (entry := await self._manifest.find(lsn)) is not None:
            for piece in reversed(await self._pieces(entry)):
                if piece.last <= trim or piece.first > self.up_to:
                    continue
                if piece.last <= self.up_to:
                    return piece.last, piece.append_last_us
                start = max(piece.first, trim + 1)
                if found := await self._last_within(start, self.up_to):
                    return found
            lsn = entry.first - 1
        return None

    async def _last_within(self, first: int, last: int) -> Placed | None:
        """The last record of a range that is still there."""
        found: Placed | None = None
        async with await self._tier.history(self._info, first, last) as blocks:
            async for item in blocks:
                if not isinstance(item, Gap):
                    found = item.last, item.header.append_time_us
        return found

    async def bytes_between(self, start_us: int, stop_us: int) -> int:
        """The approximate bytes of bodies that were appended in `[start, stop)`, up to the tier
        point."""
        items = await self._manifest.kept()
        start = self._manifest.head.start if self._manifest.head is not None else 0
        size = 0.0
        for item in items:
            if item.first > self.up_to:
                break
            low, high = item.append_first_us, item.append_last_us
            within = min(high + 1, stop_us) - max(low, start_us)
            kept = min(item.last, self.up_to) - max(item.first, start) + 1
            lsns = kept / (item.last - item.first + 1)
            if within > 0:
                size += item.bytes * lsns * within / (high + 1 - low)
        return round(size)

    async def epoch_end(self, last: int) -> int | None:
        """Where the bridge that covers an epoch's last LSN begins; None if it is not there."""
        entry = await self._manifest.find(last)
        if entry is None or is_lost(entry):
            return None
        run = await self._run(entry)
        return next(
            (
                int(gap.first)
                for gap in run.gap_list()
                if gap.kind is GapKind.BRIDGE and gap.first <= last <= gap.last
            ),
            None,
        )

    async def _pieces(self, entry: Entry) -> Sequence[Piece]:
        return () if is_lost(entry) else (await self._run(entry)).pieces

    async def _run(self, entry: Entry) -> ObjectRun:
        before = self._manifest.head
        try:
            footer = await entry_footer(await self._tier.objects(), entry, timeout_s=GET_S)
        except NoObject as error:
            after = await self._manifest.load()
            if before is None or after is None or after.version == before.version:
                raise
            # Trims and merges go on meanwhile, and the object's grace is over.
            raise Unreachable(
                f"log {self._info.log_id}: main storage changed meanwhile: ask again"
            ) from error
        run = footer.index.run(self._info.log_id)
        if run is None:
            raise Malformed(f"{entry.name} holds nothing of log {self._info.log_id}")
        return run
