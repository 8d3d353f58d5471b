"""A log's blocks and gaps, as a client reads them, for an upload.

A client's reader waits for silent nodes without a limit. An upload holds up those of other logs, so
it goes no further than to a place that nodes do not send for a while, and it says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Self, TypeGuard

from cordwood.block import Gap, GapKind
from cordwood.client.main_storage import let_go
from cordwood.errors import BadSetting
from cordwood.lsn import Lsn, format_lsn

if TYPE_CHECKING:
    from cordwood.client.read.read_stream import ReadStream
    from cordwood.client.store import Store
    from cordwood.tier.uploader import Item


PATIENCE_S = 30.0
"""For the next block or gap. A block comes within seconds, even where one node after another has to
be asked; a node that restarts is back as soon."""


class LogSource:
    """The readable records of a log at the time of the entry.

    Args:
        next_lsn: where to begin; 0 for the log's beginning.
        stop: behind the last LSN to read, which is released; 0 for the log's tail. The sequencer is
            asked for the tail, and it may be cut off.
        read_end: reads anew where the manifest of main storage ends; None for an upload into
            another store than the nodes'.
    Attributes:
        first: the first LSN: after the trim point, if the beginning was requested.
        silent: the LSN that nodes did not send within PATIENCE_S; None where all came. It may be
            asked for again.
    """

    def __init__(
        self,
        client: Store,
        log: int,
        next_lsn: int,
        *,
        stop: int = 0,
        read_end: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self.first = next_lsn
        self.silent: Lsn | None = None
        self._client = client
        self._log = log
        self._stop = stop
        self._read_end = read_end
        self._stream: ReadStream | None = None
        self._held: Item | None = None

    async def __aenter__(self) -> Self:
        """
        Raises:
            BadSetting: the manifest ends before what nodes let go of.
            CordwoodError: nodes, or main storage, do not answer.
        """
        if self._read_end is not None:
            await self._check_end(self._read_end)
        start: Lsn | str = Lsn(self.first) if self.first else "oldest"
        if self.first and self.first > await self._last():
            return self  # all is uploaded
        until: Lsn | str = Lsn(self._stop - 1) if self._stop else "tail"
        self._stream = await self._client.read(self._log, start, until)
        if not self.first:
            self._held = await self._next()
            while isinstance(self._held, Gap) and self._held.kind is GapKind.TRIM:
                self._held = await self._next()
            if self._held is not None:
                held = self._held
                self.first = int(held.first if isinstance(held, Gap) else held[0].first)
        return self

    async def _check_end(self, read_end: Callable[[], Awaitable[int]]) -> None:
        """Check that the manifest reaches to where nodes let go of records.

        Trap: a head that was put back from an older copy ends too early. A turn at it would end the
        turns that put the objects behind its end. These could not be committed any more, so the
        collection would delete them, and no other copy of their records is left.
        """
        trim, upto = await let_go(self._client, self._log)
        if upto <= trim or upto < self.first:
            return
        # Race: another node committed since the end was read, and nodes let go of that.
        if upto < (end := await read_end()):
            return
        has = f"ends before {format_lsn(end)}" if end else "is missing"
        raise BadSetting(
            f"nodes let go of log {self._log} up to {format_lsn(upto)}, and its manifest in main "
            f"storage {has}: it may be an older copy. An upload would let the objects behind it be "
            f"deleted. `cordwood tier repair {self._log} --end {format_lsn(upto)}` names them again"
        )

    async def _last(self) -> int:
        return self._stop - 1 if self._stop else await self._client.tail(self._log)

    async def __aexit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    async def items(self) -> AsyncIterator[Item]:
        """Blocks and gaps from `first` on.

        Raises:
            BadSetting: the log was deleted, or may not be read any more. Or an accepted loss ends
                inside a block.
        """
        held = self._held
        while self._stream is not None:
            item = await self._next()
            if _is_trim(held) and _is_trim(item):
                held = Gap(held.first, item.last, GapKind.TRIM)  # it went on meanwhile
                continue
            if held is not None and (held := _before(held, item)) is not None:
                yield held
            held = item
            if item is None:
                return

    async def _next(self) -> Item | None:
        assert self._stream is not None
        if self.silent is not None:
            return None
        try:
            async with asyncio.timeout(PATIENCE_S):
                taken = await self._stream.next()
        except TimeoutError:
            self.silent = Lsn(self._stream.taken_lsn)
            return None
        if taken is None:
            return None
        if isinstance(taken, Gap):
            if taken.kind in (GapKind.ACCESS, GapKind.NOT_IN_CONFIG):
                raise BadSetting(f"log {self._log} cannot be read on: {taken.kind.value}")
            return taken
        held = taken.block
        if taken.last != held.header.last:
            return None  # its end is not readable yet
        if (first := held.header.first) < self.first:
            # A repair was told to end the manifest there.
            raise BadSetting(
                f"the accepted loss in main storage ends inside a block of {format_lsn(first)} to "
                f"{format_lsn(taken.last)}, which nodes still have. Take it back: `cordwood tier "
                f"repair {self._log} --end {format_lsn(first - 1)}`"
            )
        return held.header, held.stored.body


def _before(item: Item, follower: Item | None) -> Item | None:
    """An item as far as the next one leaves it; None for a gap of which nothing is left.

    A trim may end inside of a block. Blocks are uploaded whole, so the gap ends before it. If no
    block follows yet, the gap may still grow: it waits for the next upload.
    """
    if not _is_trim(item):
        return item
    if follower is None:
        return None
    if isinstance(follower, Gap):
        # It may be inside of the same block, and nothing is uploaded past it.
        return None if follower.kind is GapKind.DATA_LOSS else item
    last = min(item.last, Lsn(follower[0].first - 1))
    return Gap(item.first, last, item.kind) if last >= item.first else None


def _is_trim(item: Item | None) -> TypeGuard[Gap]:
    return isinstance(item, Gap) and item.kind is GapKind.TRIM
