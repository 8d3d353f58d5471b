"""What a read stream gives out, as records, gaps and columns.

Source: design.md §7; hotpath digest §3 (batches of columns, nothing done record by record).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from typing import TYPE_CHECKING

from cordwood.block import Gap, GapKind, Record
from cordwood.client.cluster import LogInfo
from cordwood.client.delivered import records_of, with_keys, without_keys
from cordwood.client.senders import HeldBlock
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.client.batches import BatchGatherer

ARROW_BYTES = 4 << 20
"""Bodies taken at a time for `arrow`: a batch's worth."""

_BENIGN = (GapKind.BRIDGE, GapKind.HOLE, GapKind.FILTERED)


class StreamItems(ABC):
    """A stream of blocks and gaps, taken by the item.

    Attributes:
        info: the log that is read.
    """

    info: LogInfo

    def __init__(self, keys: Collection[bytes] | None, record_keys: bool) -> None:
        """
        Args:
            keys, record_keys: what is left out, see `Store.read`.
        """
        self._keys = None if keys is None else frozenset(keys)
        self._record_keys = record_keys

    @abstractmethod
    def close(self) -> None:
        """Take nothing any more."""

    @abstractmethod
    async def next(self) -> Delivery[HeldBlock] | Gap | None:
        """The next block or gap, waited for; None once all was given out.

        Raises:
            CordwoodError: the stream failed or was closed.
        """

    @abstractmethod
    def take(self) -> Delivery[HeldBlock] | Gap | None:
        """The next block or gap if it is known, else None.

        Raises:
            CordwoodError: the stream failed or was closed.
        """

    async def next_many(
        self, bytes_max: int, items_max: int = sys.maxsize
    ) -> list[Delivery[HeldBlock] | Gap]:
        """The next blocks and gaps, at least one, and what else is known by now.

        Args:
            bytes_max: stop once the bodies as stored add up to this.
            items_max: at most so many, at least 1.
        Returns:
            Blocks and gaps in order; empty once `until` was given out.
        Raises:
            CordwoodError: the stream failed or was closed.
        """
        taken = await self.next()
        many: list[Delivery[HeldBlock] | Gap] = []
        size = 0
        while taken is not None:
            many.append(taken)
            size += taken.block.header.stored_bytes if isinstance(taken, Delivery) else 0
            taken = self.take() if size < bytes_max and len(many) < items_max else None
        return many

    async def arrow(
        self, columns: Sequence[str] | None = None, *, gaps: bool = False
    ) -> AsyncIterator[pa.RecordBatch | Gap]:
        """Batches of columns, and gaps, in order; records are not touched one by one.

        What is there goes into one batch, up to some 8,192 rows or 4 MiB; nothing waits for
        more. Without `gaps` those where nothing that is wanted was ever acknowledged are passed
        over; of a block of which some records are wanted, the others are passed over always.

        Args:
            columns: see `layout.arrow`; None takes its default.
        Raises:
            BadSetting: there is no such column.
            CordwoodError: the stream failed or was closed.
        """
        from cordwood.layout.arrow import COLUMNS, batch_schema

        wanted = tuple(columns or COLUMNS)
        batch_schema(wanted)
        gatherer = self.gatherer(wanted)
        while many := await self.next_many(ARROW_BYTES):
            for taken in many:
                if isinstance(taken, Delivery):
                    for batch in gatherer.add(self.info.name, taken):
                        yield batch
                elif gaps or taken.kind not in _BENIGN:
                    for batch in gatherer.finish():
                        yield batch
                    yield taken
            for batch in gatherer.finish():
                yield batch

    def gatherer(self, columns: Sequence[str]) -> BatchGatherer:
        """What makes batches with these columns of what was taken."""
        from cordwood.client.batches import BatchGatherer

        return BatchGatherer(columns, self._keys)

    async def next_items(self) -> list[Record | Gap]:
        """The next gap, or the records of the next block; empty once all was given out.

        Raises:
            Corrupt: a block's body passed its stored checksum and cannot be read.
        """
        taken = await self.next()
        return [] if taken is None else self.items_of(taken)

    def items_of(self, taken: Delivery[HeldBlock] | Gap) -> list[Record | Gap]:
        """What was taken as records and gaps, without the records that are not wanted.

        Raises:
            Corrupt: see `next_items`.
        """
        if isinstance(taken, Gap):
            return [taken]
        if self._keys is None:
            return records_of(taken, record_keys=self._record_keys)
        items = with_keys(records_of(taken), self._keys)
        return items if self._record_keys else without_keys(items)

    async def __aiter__(self) -> AsyncIterator[Record | Gap]:
        try:
            while items := await self.next_items():
                for item in items:
                    yield item
        finally:
            self.close()
