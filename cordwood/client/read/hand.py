"""The items that a stream has taken from the nodes, and the point up to which its application has
dealt with them.

An item is in one of three places. *Held* blocks and gaps were taken and not opened. The *opened*
block gives its items one by one. The item *in hand* is the item that an iterator gave last. It
counts as dealt with when the application asks for the next one, because the application may end or
save its position while it works on it. The result of a call that returns a whole (`next_items`,
`read`) counts as dealt with at once.

The loop fills a hand, and only while it is empty. The application's thread takes from it. So an
exception in a waiting thread or a cancelled task loses nothing: the item is still here and comes
next. Each method that gives items first computes its result. Then it changes the hand by plain
assignments and `del`, between which CPython runs no signal handler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import length_hint
from typing import TYPE_CHECKING, TypeVar

from cordwood.block import Gap, GapKind, Record
from cordwood.client.blocks import HeldBlock
from cordwood.errors import Corrupt
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.client.read.arrow_batches import BatchGatherer

Taken = Delivery[HeldBlock] | Gap
"""An item that a stream received from the nodes: a block's records, or a gap."""

Opener = Callable[[Taken], list[Record | Gap]]
"""Makes records of received items; see `stream_items.StreamItems.items_of`."""

_BENIGN = (GapKind.BRIDGE, GapKind.HOLE, GapKind.FILTERED)


def is_told(item: Record | Gap) -> bool:
    """Whether a reader without `gaps` gets the item: records, lost records, and records that it may
    not read."""
    return isinstance(item, Record) or item.kind in (GapKind.DATA_LOSS, GapKind.ACCESS)


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of one `read`: records of one log, or one gap, or no item (false).

    Attributes:
        log: the log's name as the caller gave it; "" if no item came.
        records: in order; empty if there is a gap.
        gap: a range without records.
    """

    log: str = ""
    records: tuple[Record, ...] = ()
    gap: Gap | None = None

    def __bool__(self) -> bool:
        return bool(self.log)

    def __iter__(self) -> Iterator[Record | Gap]:
        return iter(self.records if self.gap is None else (self.gap,))


def read_result_of(log: str, records: tuple[Record, ...], gap: Gap | None) -> ReadResult:
    """The result of `read` for one log."""
    return ReadResult(log, records, gap) if records or gap else ReadResult()


class Hand:
    """See the module.

    Attributes:
        held: blocks and gaps in order, after the opened block.
        is_cut: whether the hand was left with items that will not be given any more.
        items: gives the opened items; an application's loop takes from it without a call.
        opened: the block of `items`, until the application asks for more.
    """

    __slots__ = (
        "_dealt_at",
        "_first",
        "_gaps",
        "_in_hand",
        "_left_at",
        "_open",
        "_source",
        "held",
        "is_cut",
        "items",
        "opened",
    )

    def __init__(self, opener: Opener, *, gaps: bool = True) -> None:
        """
        Args:
            gaps: give all gaps; otherwise only gaps for which `is_told` holds.
        """
        self.held: deque[Taken] = deque()
        self.items: Iterator[Record | Gap] = iter([])
        self._open = opener
        self._gaps = gaps
        self.opened: Sequence[Record | Gap] = ()
        self._source: Taken | None = None
        self._first = 0
        # The first LSN of the last result of `block`, or of the last batch, until more is asked
        # for.
        self._in_hand: int | None = None
        self._left_at: int | None = None
        # The index in `opened` that `settle` came past last.
        self._dealt_at = -2
        self.is_cut = False

    def __bool__(self) -> bool:
        """Whether something is here that was not given."""
        return bool(self.held) or length_hint(self.items) > 0

    def next_lsn(self, after: int) -> int:
        """The first LSN that the application has not dealt with.

        Args:
            after: what follows all that was taken.
        """
        opened = self.opened
        if self._left_at is not None:
            return self._left_at
        if opened:
            at = len(opened) - length_hint(self.items) - 1
            if at == self._dealt_at:
                at += 1
            if 0 <= at < len(opened):
                return _first(opened[at])
            if at < 0:
                return self._first
        if self._in_hand is not None:
            return self._in_hand
        return self.held[0].first if self.held else after

    def ask(self) -> None:
        """The application asks for more: the item in hand counts as processed."""
        left = length_hint(self.items)
        given = len(self.opened) - left
        if not left:
            self.opened = ()
        elif given:
            self._dealt_at = given - 1
        self._in_hand = None

    def open_next(self) -> bool:
        """Make sure that `items` has an item. Returns False if all held items were given.

        Raises:
            Corrupt: the next block's body cannot be read; it stays here.
        """
        self.ask()
        while not length_hint(self.items):
            if not self.held:
                return False
            source = self.held[0]
            opened = self._open(source)
            if not self._gaps:
                opened = [each for each in opened if is_told(each)]
            items = iter(opened)
            first = int(source.first)
            self._first = first
            self._source = source
            self._dealt_at = -2
            self.opened = opened
            self.items = items
            del self.held[0]
        return True

    def peek(self) -> Record | Gap:
        """The next item of the opened block, which has one."""
        return self.opened[len(self.opened) - length_hint(self.items)]

    def settle(self) -> None:
        """Note that the item of `peek` was dealt with."""
        at = len(self.opened) - length_hint(self.items)
        next(self.items)
        self._dealt_at = at

    def rest(self) -> Sequence[Record | Gap]:
        """The items of the opened block that were not given."""
        left = length_hint(self.items)
        return self.opened[len(self.opened) - left :] if left else ()

    def take_rest(self, count: int | None = None) -> list[Record | Gap]:
        """Give the opened block's items, up to `count`; empty if no block is opened."""
        rest = self.rest()
        stop = len(rest) if count is None else max(1, count)
        given, left = list(rest[:stop]), rest[stop:]
        self._keep(left)
        return given

    def take_portion(
        self, count: int, make: Callable[[tuple[Record, ...], Gap | None], Made]
    ) -> Made:
        """Give the result of `make`, which gets a gap, or up to `count` records before the next
        gap."""
        rest = self.rest()
        first = rest[0] if rest else None
        if isinstance(first, Gap):
            left, given = rest[1:], make((), first)
        else:
            until_gap = takewhile(lambda item: isinstance(item, Record), rest[: max(1, count)])
            records = tuple(item for item in until_gap if isinstance(item, Record))
            left, given = rest[len(records) :], make(records, None)
        # Trap: make the result before the hand drops the items. A signal handler may raise at the
        # end of any call, and the items would then be in neither place.
        self._keep(left)
        return given

    def _keep(self, left: Sequence[Record | Gap]) -> None:
        """`left` are the items of the opened block that were not given."""
        items = iter(left)
        first = _first(left[0]) if left else 0
        self._first = first
        self._in_hand = None
        self._dealt_at = -2
        self.opened = left
        self.items = items

    def close_block(self) -> None:
        """Put the remaining items of the opened block back to the held items."""
        rest = self.rest()
        held = self.held
        if rest:
            source, first = self._source, rest[0]
            if isinstance(source, Delivery) and source.first < _first(first):
                source = Delivery(source.block, _first(first), source.last)
            assert source is not None, "something was opened"
            held = deque((source, *held))
        nothing: Iterator[Record | Gap] = iter(())
        self._in_hand = None
        self.opened = ()
        self.items = nothing
        self.held = held

    def block(self, *, in_hand: bool = False) -> Taken | None:
        """Give the next block or gap as it was taken; None if nothing is held.

        Args:
            in_hand: it counts as dealt with once more is asked for, and not at once.
        """
        self.close_block()
        if not self.held:
            return None
        taken = self.held[0]
        first = int(taken.first) if in_hand else None
        self._in_hand = first
        del self.held[0]
        return taken

    def run(self) -> list[Taken]:
        """Give all held items; they count as processed at the next call."""
        self.close_block()
        if not self.held:
            return []  # Race: an interrupted call may still be filling this deque
        given = list(self.held)
        first = int(given[0].first)
        nothing: deque[Taken] = deque()
        self._in_hand = first
        self.held = nothing
        return given

    def give_up_to(self, first: int | None, end: int) -> None:
        """Held items below `end` were given as a part of a batch that begins at `first`."""
        held = self.held
        kept: list[Taken] = []
        for taken in held:
            if taken.last < end:
                continue
            if isinstance(taken, Delivery) and taken.first < end:
                taken = Delivery(taken.block, end, taken.last)
            kept.append(taken)
        left = deque(kept)
        self._in_hand = first
        self.held = left

    def leave(self, after: int) -> None:
        """Stop giving items; `next_lsn` stays.

        Args:
            after: what follows all that was taken.
        """
        if self._left_at is None and (self.held or self.opened):
            self._left_at = self.next_lsn(after)
            self.is_cut = bool(self)
        self.held = deque()
        self.opened = ()
        self.items = iter(())


class Batches:
    """Columns of what a hand holds.

    Items stay held until they are given, so that an application may continue in any way after it
    left a loop.

    Args:
        name: the log's.
        make: a gatherer with no rows.
        wants: whether a gap is given.
    """

    def __init__(
        self, hand: Hand, name: str, make: Callable[[], BatchGatherer], wants: Callable[[Gap], bool]
    ) -> None:
        self._hand = hand
        self._name = name
        self._make = make
        self._wants = wants
        self._making: Iterator[tuple[pa.RecordBatch | Gap, int]] | None = None
        # The hand's position after the last batch: if other calls took items since, begin anew.
        self._upto = 0
        self._end = 0

    def next(self) -> pa.RecordBatch | Gap | None:
        """The next batch or gap, None if nothing more is held.

        Raises:
            Corrupt: a block's body cannot be read; it stays held.
        """
        hand = self._hand
        hand.close_block()
        if not hand.held:
            self._making = None
            return None
        begins = int(hand.held[0].first)
        # After an interruption, begin anew at the held items.
        making, self._making = self._making, None
        if making is None or begins != self._upto:
            self._end = int(hand.held[-1].last) + 1
            making = self._make_of(list(hand.held))
        made = next(making, None)
        if made is None:
            # None of the remaining records is wanted: skip them, and look further on.
            hand.give_up_to(None, self._end)
            return self.next() if hand.held else None
        batch, upto = made
        self._upto = upto
        self._making = making
        hand.give_up_to(begins, upto)
        return batch

    def _make_of(self, many: Sequence[Taken]) -> Iterator[tuple[pa.RecordBatch | Gap, int]]:
        """Batches and gaps, each with the first LSN after it."""
        gatherer = self._make()
        for taken in many:
            if isinstance(taken, Delivery):
                try:
                    for batch in gatherer.add(self._name, taken):
                        yield batch, gatherer.given
                except Corrupt:
                    for batch in gatherer.finish():
                        yield batch, gatherer.given
                    raise
            elif self._wants(taken):
                for batch in gatherer.finish():
                    yield batch, gatherer.given
                yield taken, taken.last + 1
        for batch in gatherer.finish():
            yield batch, gatherer.given


def is_no_bridge(gap: Gap) -> bool:
    """Whether wanted records may have been acknowledged in the gap: not for BRIDGE, HOLE or
    FILTERED."""
    return gap.kind not in _BENIGN


def _first(item: Record | Gap) -> int:
    return int(item.first if isinstance(item, Gap) else item.lsn)
