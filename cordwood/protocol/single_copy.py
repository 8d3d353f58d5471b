"""Single-copy delivery: which node sends a block, and when a reader asks for all copies instead.

Every node that holds a block knows its copyset, so each node can work out alone which of them sends
the block. This module has both sides:

- `ships`: a storage node calls it once for each copyset, not for each block. The answer stays the
  same while the copyset does, and a block that is filtered out costs no read of its body.
- `SenderChoice`: the reader's side. It knows the nodes that are down, whether the reader asks for
  one copy or all, and when the nodes must be asked again (a *rewind*). Page:
  docs/protocol/single-copy-delivery.md.

A reader in single-copy mode never concludes that a record is lost, because the silence of nodes
that do not send means nothing. On any doubt it asks all nodes to send all that they hold. It goes
back to single copies when its window moves next.

Source: docs/sources/logdevice.md 2.10, 2.11.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from cordwood.nodes import NodeId

_MASK = (1 << 64) - 1


class Shuffle(enum.IntEnum):
    """The order of a copyset from which its first member is taken.

    LogDevice's `scd_copyset_reordering_max`, with its numbers.
    """

    NONE = 0
    """The order of the copyset itself."""
    FIXED = 1
    """By the copyset alone: every reader gets a block from the same node, whose caches then serve
    all readers."""
    CLIENT = 2
    """By the copyset and the reader's own seed: readers spread over all copies."""


@dataclass(frozen=True, slots=True)
class CopyFilter:
    """A reader's request to the nodes that send.

    Attributes:
        shuffle, seed: the order of copysets; the seed counts for CLIENT only.
        known_down: nodes that the reader does not count on.
        copies: how many members of a copyset hold the block for certain; 0 for all of them.
        local: nodes in the reader's region, which go first; empty without local delivery.
        quiet: whether the nodes in `known_down` stay silent. Without it they also send where they
            stand first, so that the reader notices that they are back.
    """

    shuffle: Shuffle = Shuffle.CLIENT
    seed: int = 0
    known_down: Set[int] = frozenset()
    copies: int = 0
    local: Set[int] = frozenset()
    quiet: bool = False


def ships(me: int, copyset: Sequence[int], rule: CopyFilter) -> bool:
    """Whether node `me`, which holds a block of this copyset, sends it.

    In the shuffled copyset the first member that is not known to be down sends. The members before
    it send too, so that the reader notices a node that came back. If some members may lack the
    block (`copies` below the copyset's size), enough members at the end send as well, so that at
    least one sender has the block.
    """
    order = shuffled(copyset, rule)
    local = [node for node in order if node in rule.local]
    for group in (local, order):
        first = next((at for at, node in enumerate(group) if node not in rule.known_down), None)
        # The reader keeps this node off on purpose, for example a slow node in its probation.
        if first is not None and rule.quiet and me in rule.known_down:
            return False
        if first is not None:
            return me in group[: first + 1] or me in _spares(order, group[first], rule)
    return True


def _spares(order: Sequence[int], first: int, rule: CopyFilter) -> Sequence[int]:
    """The nodes that send beside `first`. With local delivery `first` may stand anywhere."""
    # Number: if S members may lack the block, at least one of S + 1 senders has it.
    spare = len(order) - rule.copies if rule.copies else 0
    up = [node for node in order if node not in rule.known_down and node != first]
    return up[-spare:] if spare > 0 else ()


def shuffled(copyset: Sequence[int], rule: CopyFilter) -> list[int]:
    """The copyset in the order in which its members send; the same on every node."""
    if rule.shuffle == Shuffle.NONE:
        return list(copyset)
    # Trap: without the copyset in the seed, one node would stand first in every copyset that has
    # it as a member. It would send most of a reader's blocks.
    seed = rule.seed if rule.shuffle == Shuffle.CLIENT else 0
    for node in copyset:
        seed = _mix(seed ^ node)
    return sorted(copyset, key=lambda node: (_mix(seed + node), node))


def _mix(number: int) -> int:
    """SplitMix64's finaliser: every bit of the input moves about half of the output's."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


class Doubt(enum.Enum):
    """Why a reader does not count on a node."""

    UNREACHABLE = "unreachable"
    DAMAGED = "damaged"
    """The node said that it lost records: the blocks it sends are good, its silence is unknown."""
    BAD_COPY = "bad copy"
    SILENT = "silent"
    """The node fell behind all other nodes while the reader waited."""
    SLOW = "slow"
    """Greylisted, see `slow_nodes`, until its probation ends, however much the node sends."""


_LASTING = frozenset({Doubt.DAMAGED, Doubt.SLOW})
"""Doubts that stay when the node sends a block."""


class SenderChoice:
    """The reader's side: see the module. `takes_rewind` says when to ask the nodes again.

    Attributes:
        nodes: every node that the reader reads from.
        version: of the request; a node's answer names the version that it follows.
        rewinds: how often the nodes had to be asked again.
    """

    def __init__(
        self, nodes: Iterable[NodeId], *, enabled: bool, down: Iterable[NodeId] = ()
    ) -> None:
        """
        Args:
            down: nodes that cannot be reached now.
        """
        self.nodes = tuple(sorted(nodes))
        self.version = 1
        self.rewinds = 0
        self._enabled = enabled
        self._is_suspicious = False
        self._doubts: dict[NodeId, Doubt] = dict.fromkeys(down, Doubt.UNREACHABLE)
        self._shipped: set[NodeId] = set()
        self._due = False
        self._at_once = False

    @property
    def is_single(self) -> bool:
        """Whether the reader asks for one copy; if it counts on no node, it asks for all."""
        return self._enabled and not self._is_suspicious and len(self._doubts) < len(self.nodes)

    @property
    def known_down(self) -> tuple[NodeId, ...]:
        """The nodes not counted on, in node order."""
        return tuple(sorted(self._doubts))

    def doubt(self, node: NodeId) -> Doubt | None:
        """Why a node is not counted on; None if it is."""
        return self._doubts.get(node)

    @property
    def is_rewind_due(self) -> bool:
        """Whether the nodes have to be asked again."""
        return self._due

    @property
    def is_gentle(self) -> bool:
        """Whether a due rewind may wait until all nodes reach the foremost node in the old order.
        It may if a node became slow, or is not slow any more. Then no block is sent twice."""
        return self._due and not self._at_once

    def add_node(self, node: NodeId) -> None:
        """The reader reads from `node` too: a later epoch has it in its nodeset."""
        self.nodes = tuple(sorted({*self.nodes, node}))

    def takes_rewind(self) -> bool:
        """Whether the nodes have to be asked again. If so, this begins a new version, and the
        rewind counts as done."""
        if not self._due:
            return False
        self._due = self._at_once = False
        self.version = self.version % 0xFFFF_FFFF + 1
        self.rewinds += 1
        # Blocks of the old order do not tell the sender in the new order.
        self._shipped.clear()
        return True

    def on_doubt(self, node: NodeId, why: Doubt) -> None:
        """Stop counting on `node` until it sends a block, or until `on_settled`."""
        known = self._doubts.get(node)
        # A weaker doubt would be lifted by the next block, and the lasting one with it.
        if known in _LASTING and why is not Doubt.DAMAGED:
            return
        was_single = self.is_single
        self._doubts[node] = why
        self._shipped.discard(node)
        # A reader that asks for all copies gets those of the other nodes already.
        if known is None and was_single:
            self._ask_anew(at_once=why is not Doubt.SLOW)

    def on_settled(self, node: NodeId, why: Doubt) -> None:
        """The reason `why` is gone: a probation ended, or a damaged node came back whole."""
        if self._doubts.get(node) is why:
            del self._doubts[node]
            if self.is_single:
                self._ask_anew(at_once=why is not Doubt.SLOW)

    def on_moved(self) -> None:
        """Other nodes hold a node's data now, which they may not have held before."""
        self._ask_anew(at_once=True)

    def on_trim_untold(self) -> None:
        """Main storage begins behind the trim points that the nodes told: ask for present ones."""
        self._ask_anew(at_once=True)

    def on_late(self) -> None:
        """The nodes take too long to finish by the old order."""
        self._ask_anew(at_once=True)

    def _ask_anew(self, *, at_once: bool) -> None:
        self._due = True
        self._at_once = self._at_once or at_once

    def on_shipped(self, node: NodeId) -> None:
        """`node` sent a block."""
        self._shipped.add(node)

    def on_suspicion(self) -> None:
        """The next records may be lost: every node must send all that it has."""
        if self.is_single:
            self._is_suspicious = True
            self._ask_anew(at_once=True)

    def on_stuck(self, behind: Iterable[NodeId]) -> None:
        """No block came for a while, and the trusted nodes `behind` have not come past `next`.

        The first time, the reader stops counting on them. If no node is left, or if that did not
        help, all nodes must send all copies.
        """
        fresh = [node for node in sorted(behind) if node not in self._doubts]
        for node in fresh:
            self.on_doubt(node, Doubt.SILENT)
        # Trap: without this a reader whose nodes are all doubted would wait for ever.
        if not fresh:
            self.on_suspicion()

    def on_slide(self) -> None:
        """The window moved: go back to single copies, and count on nodes that sent a block."""
        back = [
            node
            for node, why in self._doubts.items()
            if node in self._shipped and why not in _LASTING
        ]
        for node in back:
            del self._doubts[node]
        self._shipped.clear()
        if back or self._is_suspicious:
            self._is_suspicious = False
            if self.is_single:
                self._ask_anew(at_once=True)
