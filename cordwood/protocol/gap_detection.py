"""What a reader may deliver next, from what each node has sent.

Every node sends all it holds of a range, in order, and says how far it has come
(its marker). The buffer keeps the blocks above `next`, drops what it has seen,
and gives out blocks and gaps that tile `[start, until]` exactly.

- A block that covers `next` is delivered from there on, whoever sent it.
- A hole plug is a HOLE gap. A bridge is a BRIDGE gap to the end of its epoch and
  over the slot (E+1, 0), which no sequencer issues.
- Nothing at `next`, and every member of the epoch's nodeset has come past it with
  an intact view: DATA_LOSS, up to the lowest place where anything is known again.
- Anything else: wait. A node that sent a damaged copy never counts as past it,
  for it does not know what it holds there; nor does one that is not connected.

Until the f-majority rules come with the read path, a loss needs every member: that
may wait where the full rule would speak, and never speaks falsely.

Source: LogDevice digest 2.11; design.md §2 (gaps); seed logdevice-read-path.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cordwood.block import BlockHeader, BlockKind, Gap, GapKind
from cordwood.lsn import EPOCH_MAX, ESN_MAX, Lsn
from cordwood.nodes import NodeId


class HasHeader(Protocol):
    """Whatever the shell keeps a block in."""

    @property
    def header(self) -> BlockHeader:
        """The block's header."""


Item = TypeVar("Item", bound=HasHeader)


@dataclass(frozen=True, slots=True)
class Delivery(Generic[Item]):
    """Deliver the records `[first, last]` of a data block."""

    block: Item
    first: int
    last: int


class ReadBuffer(Generic[Item]):
    """See the module.

    Attributes:
        next: the first LSN that was not given out yet.
        until: the last LSN that is wanted.
    """

    def __init__(self, start: int, until: int) -> None:
        self.next = start
        self.until = until
        self._heap: list[tuple[int, int, int, Item]] = []
        self._ranges: set[tuple[int, int, BlockKind]] = set()
        self._arrivals = 0
        self._markers: dict[NodeId, int] = {}
        self._frozen: dict[NodeId, int] = {}

    @property
    def is_done(self) -> bool:
        """Whether all of `[start, until]` was given out."""
        return self.next > self.until

    def on_connected(self, node: NodeId) -> None:
        """`node` starts to send from `next`; what it said before counts no more."""
        self._markers.pop(node, None)
        self._frozen.pop(node, None)

    def on_gone(self, node: NodeId) -> None:
        """`node` sends nothing for now, so it counts for nothing."""
        self._markers.pop(node, None)

    def on_block(self, block: Item) -> bool:
        """Take a block; False if it is a copy of one that is here or given out already."""
        header = block.header
        key = (header.first, header.last, header.kind)
        if header.last < self.next or key in self._ranges:
            return False
        self._ranges.add(key)
        self._arrivals += 1
        heapq.heappush(self._heap, (header.first, _order(header.kind), self._arrivals, block))
        return True

    def on_marker(self, node: NodeId, marker: int) -> None:
        """`node` has sent all it holds below `marker`."""
        self._markers[node] = min(marker, self._frozen.get(node, marker))

    def on_damaged(self, node: NodeId, first: int) -> None:
        """`node` sent a damaged copy of something at `first`: it never counts as past it."""
        self._frozen[node] = min(first, self._frozen.get(node, first))
        self.on_marker(node, self._markers.get(node, first))

    def take(self, nodes: Collection[NodeId]) -> Delivery[Item] | Gap | None:
        """What comes next, or None if that is not known yet; moves `next`.

        Args:
            nodes: the nodeset of `next`'s epoch; empty if it is not known, and then
                no loss is concluded.
        """
        if self.is_done:
            return None
        self._drop_passed()
        if self.next & ESN_MAX == 0 or self.next >> 32 == 0:
            return self._gap(self._never_issued(), GapKind.BRIDGE)
        if self._heap and self._heap[0][0] <= self.next:
            return self._deliver(heapq.heappop(self._heap)[3])
        return self._lost(nodes)

    def _never_issued(self) -> int:
        """The end of the slots around `next` that no sequencer issues."""
        return (1 << 32) if self.next >> 32 == 0 else self.next

    def _drop_passed(self) -> None:
        while self._heap and self._heap[0][3].header.last < self.next:
            self._forget(heapq.heappop(self._heap)[3].header)

    def _forget(self, header: BlockHeader) -> None:
        self._ranges.discard((header.first, header.last, header.kind))

    def _deliver(self, block: Item) -> Delivery[Item] | Gap:
        header = block.header
        self._forget(header)
        if header.kind == BlockKind.HOLE:
            return self._gap(header.last, GapKind.HOLE)
        if header.kind == BlockKind.BRIDGE:
            end = header.first | ESN_MAX
            return self._gap(end if end >> 32 == EPOCH_MAX else end + 1, GapKind.BRIDGE)
        delivery = Delivery(block, self.next, min(header.last, self.until))
        self.next = delivery.last + 1
        return delivery

    def _gap(self, last: int, kind: GapKind) -> Gap:
        gap = Gap(Lsn(self.next), Lsn(min(last, self.until)), kind)
        self.next = gap.last + 1
        return gap

    def _lost(self, nodes: Collection[NodeId]) -> Gap | None:
        if not nodes:
            return None
        passed = min(self._markers.get(node, 0) for node in nodes)
        if passed <= self.next:
            return None
        known = min(passed, self._heap[0][0] if self._heap else passed)
        return self._gap(min(known - 1, self.next | ESN_MAX), GapKind.DATA_LOSS)


def _order(kind: BlockKind) -> int:
    """At one LSN a data block goes before a plug, since what was kept was kept whole."""
    return 0 if kind == BlockKind.DATA else 1
