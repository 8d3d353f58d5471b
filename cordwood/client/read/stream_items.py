"""The output of a read stream, as records, gaps and columns.

Source: docs/design.md §7; docs/sources/hotpath.md §3 (batches of columns, nothing done record by
record).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

from cordwood.block import Gap, Record
from cordwood.client.blocks import HeldBlock
from cordwood.client.cluster import LogInfo
from cordwood.client.read.delivered import records_of, with_keys, without_keys
from cordwood.client.read.hand import Batches, Hand, Taken, is_no_bridge
from cordwood.lsn import Lsn
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.client.read.arrow_batches import BatchGatherer

ARROW_BYTES = 4 << 20
"""Bodies taken at a time for `arrow`: a batch's worth."""


class StreamItems(ABC):
    """A stream of blocks and gaps, taken by the item.

    Iterating it gives `Record` and `Gap`. A loop may be left by `break`, an error or a cancelled
    `anext`. The next loop, or any other call, continues with the next item that was not given, so
    no item is left out.

    Attributes:
        info: the log.
        until: the last wanted LSN.
        hand: items taken and not given out.
        wants_columns: whether the application asked for columns. Main storage gives rows from then
            on, and a record of them costs more.
    """

    info: LogInfo
    hand: Hand
    wants_columns: bool = False

    def __init__(
        self, until: int, keys: Collection[bytes] | None, record_keys: bool, *, gaps: bool = True
    ) -> None:
        """
        Args:
            keys, record_keys, gaps: what to leave out, see `Store.read`.
        """
        self.until = until
        self._keys = None if keys is None else frozenset(keys)
        self._record_keys = record_keys
        # Not a bound method: a stream that its application drops goes without a collection.
        opener = partial(_items_of, keys=self._keys, record_keys=record_keys)
        self.hand = Hand(opener, gaps=gaps)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def taken_lsn(self) -> int:
        """The first LSN that was not taken from the nodes yet."""

    @property
    def next_lsn(self) -> int:
        """The first LSN that the application has not dealt with, for it to begin at again.

        An item that a loop works on counts once the loop asks for the next one; a list that a
        call returned counts as a whole.
        """
        return Lsn(self.hand.next_lsn(self.taken_lsn))

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
        """The next blocks and gaps: at least one, and all further items that are known by now.

        Args:
            bytes_max: stop once the bodies as stored add up to this.
            items_max: the most items, at least 1.
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

    async def fill(self, bytes_max: int, items_max: int = sys.maxsize) -> bool:
        """Wait until an item is in the hand. Returns False when all items were given out.

        Args:
            bytes_max, items_max: see `next_many`.
        Raises:
            CordwoodError: the stream failed or was closed.
        """
        if not self.hand:
            self.hand.ask()
            many = await self.next_many(bytes_max, items_max)
            self.hand.held.extend(many)
        return bool(self.hand)

    def arrow(
        self, columns: Sequence[str] | None = None, *, gaps: bool = False
    ) -> AsyncIterator[pa.RecordBatch | Gap]:
        """Batches of columns, and gaps, in order; records are not touched one by one.

        Available records form one batch, up to some 8,192 rows or 4 MiB; a batch does not wait for
        more. Without `gaps`, gaps in which no wanted record was ever acknowledged are skipped.
        Unwanted records of a block are always skipped.

        Args:
            columns: see `layout.arrow`; None takes its default.
        Raises:
            BadSetting: the column does not exist.
            CordwoodError: the stream failed or was closed; told by the iterator.
        """
        return _ArrowItems(self, self.batches(columns, gaps=gaps))

    def batches(self, columns: Sequence[str] | None, *, gaps: bool) -> Batches:
        """The maker of columns from the hand; see `arrow`.

        Raises:
            BadSetting: the column does not exist.
        """
        from cordwood.layout.arrow import COLUMNS, batch_schema

        wanted = tuple(columns or COLUMNS)
        batch_schema(wanted)
        make = partial(self.gatherer, wanted)
        return Batches(self.hand, self.info.name, make, (lambda _: True) if gaps else is_no_bridge)

    def gatherer(self, columns: Sequence[str]) -> BatchGatherer:
        """The maker of batches with these columns from taken items."""
        from cordwood.client.read.arrow_batches import BatchGatherer

        self.wants_columns = True
        return BatchGatherer(columns, self._keys)

    async def next_items(self) -> list[Record | Gap]:
        """The next gap, or the records of the next block; empty once all was given out.

        Raises:
            Corrupt: a block's body passed its stored checksum and cannot be read; the stream
                stays before it.
        """
        while not self.hand.open_next():
            if not await self.fill(1, 1):
                return []
        return self.hand.take_rest()

    def items_of(self, taken: Taken) -> list[Record | Gap]:
        """Turn taken items into records and gaps, without unwanted records.

        Raises:
            Corrupt: see `next_items`.
        """
        return _items_of(taken, keys=self._keys, record_keys=self._record_keys)

    def __aiter__(self) -> AsyncIterator[Record | Gap]:
        return self

    async def __anext__(self) -> Record | Gap:
        hand = self.hand
        while True:
            for item in hand.items:
                return item
            if not hand.open_next() and not await self.fill(1, 1):
                raise StopAsyncIteration


class _ArrowItems:
    """See `StreamItems.arrow`."""

    def __init__(self, stream: StreamItems, batches: Batches) -> None:
        self._stream = stream
        self._batches = batches

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch | Gap]:
        return self

    async def __anext__(self) -> pa.RecordBatch | Gap:
        while (batch := self._batches.next()) is None:
            if not await self._stream.fill(ARROW_BYTES):
                raise StopAsyncIteration
        return batch


def _items_of(
    taken: Taken, *, keys: frozenset[bytes] | None, record_keys: bool
) -> list[Record | Gap]:
    if isinstance(taken, Gap):
        return [taken]
    if keys is None:
        return records_of(taken, record_keys=record_keys)
    items = with_keys(records_of(taken), keys)
    return items if record_keys else without_keys(items)
