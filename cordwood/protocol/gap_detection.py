"""Decides what a reader delivers next, from the blocks and markers of the nodes.

Every node sends its share of a range in order, and tells how far it has come (its marker). The
buffer keeps the blocks above `next` and drops duplicates. It gives out blocks and gaps that tile
`[start, until]` exactly.

- A block that covers `next`: deliver it from `next` on, from any sender.
- A hole plug: a HOLE gap. A bridge: a BRIDGE gap to the end of its epoch and over the slot
  (E+1, 0), which no sequencer issues.
- `next` lies at or below the trim point of any node: a TRIM gap up to that point. Blocks that are
  here below it are dropped.
- No block at `next`, and enough nodes have come past it with an intact view (`quorum.f_majority`):
  a DATA_LOSS gap, up to the point where that stops being true or a block is here. If nodes that
  have data did not answer, the gap comes only after a grace period.
- Nodes that know that they lost records (LogDevice's UNDER_REPLICATED gaps) send what they have.
  Their silence never makes an f-majority. When they and all other nodes have come past `next`, no
  node is left to ask: a DATA_LOSS gap after the grace period.
- The log was deleted, or this reader may not read it: deliver the blocks that are here, then one
  gap to `until`.
- No block covers `next`, and a node says that main storage holds the log there: `tiered_up_to`.
  The caller reads on in objects, up to the tier point of the nodes, and tells how far it came.
- Blocks that a node left out because the reader wants none of their records: a FILTERED gap.
- Anything else: wait.

The caller says whether silence means anything. It means nothing while nodes leave out blocks that
another node sends (`protocol.single_copy`). Page: docs/protocol/read.md.

Source: docs/sources/logdevice.md 2.11; docs/design.md §2 (gaps).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cordwood.block import BlockHeader, BlockKind, Gap, GapKind
from cordwood.lsn import EPOCH_MAX, ESN_MAX, LSN_MAX, NO_LOG, Lsn
from cordwood.nodes import NodeId
from cordwood.quorum.f_majority import QuorumVerdict

BAD_RANGES_MAX = 1024
"""Damaged copies remembered of one node. A node with more counts as knowing nothing."""


class HasHeader(Protocol):
    """The object in which the caller keeps a block."""

    @property
    def header(self) -> BlockHeader:
        """The block's header."""


Item = TypeVar("Item", bound=HasHeader)


class _LeftOut:
    """A range of blocks that a node holds and the reader does not want, in place of a block."""

    __slots__ = ("header",)

    def __init__(self, first: int, last: int) -> None:
        self.header = BlockHeader(NO_LOG, first, last - first + 1, 0)


Judge = Callable[[Set[NodeId]], QuorumVerdict]
"""The verdict on the nodes that have come past `next`, in the epoch of `next`."""


class Proof(Protocol):
    """Where a verdict may count nodes out: their statuses may be older than the markers."""

    @property
    def is_needed(self) -> bool:
        """Whether the judge may count a node out."""

    def cautious(self, heard: Set[NodeId]) -> QuorumVerdict:
        """A judge that counts nobody out."""

    def upto(self) -> int:
        """The LSN below which nodes may be counted out. At `next` or below, nobody is counted out
        yet: newer statuses are asked for."""


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
        wants_grace: whether a loss at `next` waits for the end of the grace period.
        is_held: whether only trims are given out: a node may not have told its trim point yet.
        proof: bounds verdicts that count nodes out; None to take them as they are.
    """

    proof: Proof | None = None

    def __init__(self, start: int, until: int) -> None:
        self.next = start
        self.until = until
        self.wants_grace = self.is_held = False
        self._heap: list[tuple[int, int, int, Item | _LeftOut]] = []
        self._ranges: set[tuple[int, int, BlockKind]] = set()
        self._arrivals = 0
        self._markers: dict[NodeId, int] = {}
        self._bad: dict[NodeId, list[tuple[int, int]]] = {}
        self._unknown: set[NodeId] = set()
        self._damaged: set[NodeId] = set()
        self._over: GapKind | None = None
        self._trim = 0
        self._tier = 0
        self._passed: list[Item] = []

    @property
    def is_done(self) -> bool:
        """Whether all of `[start, until]` was given out."""
        return self.next > self.until

    @property
    def has_blocks(self) -> bool:
        """Whether anything above `next` is here."""
        return bool(self._heap)

    @property
    def first_here(self) -> int:
        """The first LSN of the blocks that are here, above all LSNs if there are none."""
        return self._heap[0][0] if self._heap else LSN_MAX + 1

    @property
    def is_ready(self) -> bool:
        """Whether `take` can give something without regard to the nodes' markers."""
        return (
            self._is_here()
            or 0 < self._trim >= self.next
            or self._tier >= self.next
            or self._over is not None
            or (self.next & ESN_MAX == 0 or self.next >> 32 == 0)
        )

    def on_connected(self, node: NodeId) -> None:
        """`node` starts to send from `next`; its earlier markers and reports no longer count."""
        self._markers.pop(node, None)
        self._bad.pop(node, None)
        self._unknown.discard(node)
        self._damaged.discard(node)

    def on_gone(self, node: NodeId) -> None:
        """`node` is disconnected, so its marker does not count."""
        self._markers.pop(node, None)

    def rewind(self) -> None:
        """All nodes start again at `next`. Drop all blocks, because the nodes send them again."""
        self._heap.clear()
        self._passed.clear()
        self._ranges.clear()
        self._markers.clear()
        self._bad.clear()
        self._unknown.clear()
        self._damaged.clear()
        self.wants_grace = False

    def on_block(self, block: Item) -> bool:
        """Take a block; False if a copy of it is here or was given out."""
        header = block.header
        key = (header.first, header.last, header.kind)
        # The other copies of a block come from other nodes; one copy is enough.
        if header.last < self.next or key in self._ranges:
            return False
        self._ranges.add(key)
        self._arrivals += 1
        heapq.heappush(self._heap, (header.first, _order(header.kind), self._arrivals, block))
        return True

    def on_left_out(self, first: int, last: int) -> None:
        """A node holds all of `[first, last]`, and the reader wants no record in it."""
        if last >= self.next:
            self._arrivals += 1
            entry = (first, _order(BlockKind.DATA), self._arrivals, _LeftOut(first, last))
            heapq.heappush(self._heap, entry)

    def on_marker(self, node: NodeId, marker: int) -> None:
        """`node` has sent its whole share below `marker`."""
        self._markers[node] = marker

    def on_trim(self, trim: int) -> bool:
        """A node's trim point is `trim`, 0 for none; whether it covers `next`."""
        self._trim = max(self._trim, trim)
        return 0 < trim >= self.next and not self.is_done

    def on_tiered(self, last: int) -> None:
        """Main storage holds the log up to `last`, durably, as a node says."""
        self._tier = max(self._tier, last)

    @property
    def tiered_up_to(self) -> int:
        """The last LSN from `next` on that has to be read from objects; 0 if none.

        Trimmed ranges come before that, and so do blocks that are here.
        """
        if self.is_done or self._over is not None or self._is_here() or 0 < self._trim >= self.next:
            return 0
        is_issued = self.next & ESN_MAX and self.next >> 32
        return min(self._tier, self.until) if self._tier >= self.next and is_issued else 0

    def pass_to(self, upto: int) -> None:
        """All below `upto` was given out, from objects."""
        assert upto >= self.next, "a reader does not go back"
        self._move(upto)
        self._drop_passed()

    def weigh_lost(
        self, nodes: Iterable[NodeId], judge: Judge
    ) -> tuple[Set[NodeId], QuorumVerdict]:
        """The members of `nodes` that know that they have no record at `next`, and the verdict on
        them, by the same facts as in `judge_loss`."""
        heard = {node for node in nodes if self.knows_upto(node) > self.next}
        return heard, _amount(judge, heard - self._damaged, heard & self._damaged)

    def lost_up_to(self, last: int, heard: Iterable[NodeId]) -> int:
        """The end of a loss at `next` that main storage reports up to `last`: before the next block
        that is here, as far as all `heard` nodes know, and at the end of the epoch. The next epoch
        has another nodeset, and so another verdict.
        """
        upto = min([self.first_here, *map(self.knows_upto, heard)])
        return min(last, upto - 1, self.next | ESN_MAX)

    def take_passed(self) -> list[Item]:
        """Blocks that were dropped, or told as gaps, since the last call."""
        passed, self._passed = self._passed, []
        return passed

    def on_bad_copy(self, node: NodeId, first: int, last: int) -> None:
        """`node` sent a damaged copy of `[first, last]`; it does not count as past `first`."""
        # Trap: the node does not know what it holds in that range, so its silence means nothing.
        bad = self._bad.setdefault(node, [])
        bad.append((first, last))
        # This bounds the memory for a node whose whole disk is bad.
        if len(bad) > BAD_RANGES_MAX:
            self._unknown.add(node)

    def on_damaged(self, node: NodeId) -> None:
        """`node` lost records and does not know which: its silence never makes an f-majority."""
        self._damaged.add(node)

    def on_over(self, why: GapKind) -> None:
        """No more blocks will come; the reason is `NOT_IN_CONFIG` or `ACCESS`."""
        self._over = why

    def is_passed_by(self, nodes: Iterable[NodeId]) -> bool:
        """Whether all of `nodes`, at least one, have come past `next`, and no block covers it."""
        found = False
        for node in nodes:
            # A marker at `next` says nothing of `next` itself.
            if self._markers.get(node, 0) <= self.next:
                return False
            found = True
        return found and not self._is_here()

    def marker(self, node: NodeId) -> int:
        """How far `node` has come; 0 if that is not known."""
        return self._markers.get(node, 0)

    @property
    def furthest(self) -> int:
        """How far any node has come; 0 if none is known."""
        return max(self._markers.values(), default=0)

    def behind(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """The members of `nodes` that have not come past `next`."""
        return [node for node in nodes if self._markers.get(node, 0) <= self.next]

    @property
    def is_overdue(self) -> bool:
        """Whether a block or marker above `next` shows that it is readable, and it is not here."""
        if self.is_done or self._is_here() or self.tiered_up_to:
            return False
        return bool(self._heap) or any(marker > self.next for marker in self._markers.values())

    def take(self, judge: Judge | None, *, grace_over: bool = False) -> Delivery[Item] | Gap | None:
        """The next delivery or gap, or None if it is not known yet; moves `next`.

        Args:
            judge: None if silence means nothing: no loss is concluded.
            grace_over: the grace period is over; do not wait for silent nodes.
        """
        self.wants_grace = False
        if self.is_done:
            return None
        # Before all else: a record below the trim point is not given out, even if a copy is here.
        if 0 < self._trim >= self.next:
            gap = self._gap(self._trim, GapKind.TRIM)
            self._drop_passed()
            return gap
        if self.is_held:
            return None
        self._drop_passed()
        if self.next & ESN_MAX == 0 or self.next >> 32 == 0:
            return self._gap(self._never_issued(), GapKind.BRIDGE)
        # A block goes before main storage and before every verdict: a block that is here is not
        # lost.
        if self._is_here():
            return self.deliver_block(heapq.heappop(self._heap)[3])
        if self.tiered_up_to:
            return None
        if self._over is not None:
            return self._gap(self.until, self._over)
        return None if judge is None else self.judge_loss(judge, grace_over)

    def _is_here(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= self.next

    def _never_issued(self) -> int:
        """The last of the LSNs around `next` that no sequencer issues."""
        return (1 << 32) if self.next >> 32 == 0 else self.next

    def _drop_passed(self) -> None:
        while self._heap and self._heap[0][3].header.last < self.next:
            # Two blocks may overlap: recovery kept one, and a node that has not purged sent the
            # other.
            block = heapq.heappop(self._heap)[3]
            self._forget(block.header)
            if not isinstance(block, _LeftOut):
                self._passed.append(block)

    def _left_out(self, last: int) -> Gap:
        """One gap for consecutive ranges that were left out."""
        heap = self._heap
        # The reader gets one gap, and not one for each block that its filter left out.
        while heap and isinstance(heap[0][3], _LeftOut) and heap[0][0] <= last + 1:
            last = max(last, heapq.heappop(heap)[3].header.last)
        return self._gap(last, GapKind.FILTERED)

    def _forget(self, header: BlockHeader) -> None:
        self._ranges.discard((header.first, header.last, header.kind))

    def deliver_block(self, block: Item | _LeftOut) -> Delivery[Item] | Gap:
        header = block.header
        if isinstance(block, _LeftOut):
            return self._left_out(header.last)
        self._forget(header)
        if header.kind in (BlockKind.HOLE, BlockKind.BRIDGE):
            # The caller gets a gap, and no block whose bytes it could give back to its node.
            self._passed.append(block)
        if header.kind == BlockKind.HOLE:
            return self._gap(header.last, GapKind.HOLE)
        if header.kind == BlockKind.BRIDGE:
            end = header.first | ESN_MAX
            return self._gap(end if end >> 32 == EPOCH_MAX else end + 1, GapKind.BRIDGE)
        delivery = Delivery(block, self.next, min(header.last, self.until))
        self._move(delivery.last + 1)
        return delivery

    def _gap(self, last: int, kind: GapKind) -> Gap:
        gap = Gap(Lsn(self.next), Lsn(min(last, self.until)), kind)
        self._move(gap.last + 1)
        return gap

    def _move(self, upto: int) -> None:
        self.next = upto
        self.wants_grace = False

    def judge_loss(self, judge: Judge, grace_over: bool) -> Gap | None:
        """A DATA_LOSS gap, as long as one verdict holds for all of it; None to wait."""
        reached = {node: at for node in self._markers if (at := self.knows_upto(node)) > self.next}
        # The longest range first, with the fewest nodes that know all of it; then shorter ones with
        # more nodes.
        for known in sorted(set(reached.values()), reverse=True):
            heard = {node for node, at in reached.items() if at >= known}
            verdict = _amount(judge, heard - self._damaged, heard & self._damaged)
            if verdict is QuorumVerdict.NONE:
                continue
            # Number: a silent node gets the grace period, because it may be about to send the
            # block.
            if verdict is QuorumVerdict.INCOMPLETE and not grace_over:
                self.wants_grace = True
                continue
            # The loss ends before the next block that is here, and at the end of the epoch: the
            # next epoch has another nodeset, and so another verdict.
            end = min(known, self._heap[0][0]) if self._heap else known
            end = min(end, self._proven_to(heard, grace_over))
            if end <= self.next:
                continue
            return self._gap(min(end - 1, self.next | ESN_MAX), GapKind.DATA_LOSS)
        return None

    def _proven_to(self, heard: Set[NodeId], grace_over: bool) -> int:
        """The end of the range for which a verdict counts, above all LSNs if it counts nobody out.

        If it counts a node out and its status may be old, the silent nodes get the grace period
        where that is enough without the status.
        """
        if self.proof is None or not self.proof.is_needed:
            return LSN_MAX + 1
        verdict = _amount(self.proof.cautious, heard - self._damaged, heard & self._damaged)
        if verdict is not QuorumVerdict.NONE:
            if verdict is not QuorumVerdict.INCOMPLETE or grace_over:
                return LSN_MAX + 1
            self.wants_grace = True
        return self.proof.upto()

    def knows_upto(self, node: NodeId) -> int:
        """The end of `node`'s intact view above `next`: its marker, or its first damaged copy."""
        if node in self._unknown:
            return 0
        upto = self.marker(node)
        bad = [each for each in self._bad.get(node, ()) if each[1] >= self.next]
        # Ranges below `next` were dealt with: they no longer bound what the node knows.
        if bad:
            self._bad[node] = bad
            upto = min(upto, min(first for first, _ in bad))
        return upto


def _amount(judge: Judge, intact: Set[NodeId], damaged: Set[NodeId]) -> QuorumVerdict:
    """The verdict on nodes, some of which know that they lost records.

    LogDevice (docs/sources/logdevice.md 2.11) reports the loss at once; here the other nodes get
    the grace period first.
    """
    verdict = judge(intact)
    if not damaged or verdict not in (QuorumVerdict.NONE, QuorumVerdict.INCOMPLETE):
        return verdict
    if judge({*intact, *damaged}) not in (QuorumVerdict.COMPLETE, QuorumVerdict.NON_AUTHORITATIVE):
        return verdict
    return (
        QuorumVerdict.COMPLETE if verdict is QuorumVerdict.INCOMPLETE else QuorumVerdict.INCOMPLETE
    )


def _order(kind: BlockKind) -> int:
    """At one LSN a data block goes before a plug, because recovery keeps only whole blocks."""
    return 0 if kind == BlockKind.DATA else 1
