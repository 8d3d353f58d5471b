"""Single-copy delivery: which of a block's copies is sent, and when a reader stops trusting that.

Every node that holds a block knows its copyset, so all can work out alone which one of
them sends it. Both halves of the agreement are here:

- `ships`, asked by a storage node for each copyset (not for each block: the answer is the
  same as long as the copyset is, and a block that is filtered out costs no read of its body);
- `SenderChoice`, a reader's: who is known to be down, whether one copy is asked for or all,
  and when the nodes must be told anew (a *rewind*). Page: docs/protocol/single-copy-delivery.md.

A reader in single-copy mode never concludes that something is lost: silence of the nodes
that do not send means nothing. On any doubt it asks all to send all they hold, and goes
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
    """How a copyset is put in order before its first member is taken.

    LogDevice's `scd_copyset_reordering_max`, with its numbers.
    """

    NONE = 0
    """As it was chosen."""
    FIXED = 1
    """By the copyset alone: every reader gets a block from the same node, whose caches
    then serve them all."""
    CLIENT = 2
    """By the copyset and the reader's own seed: many readers spread over all copies."""


@dataclass(frozen=True, slots=True)
class CopyFilter:
    """What a reader asked of the nodes that send.

    Attributes:
        shuffle, seed: how copysets are put in order; the seed counts for CLIENT only.
        known_down: nodes that the reader does not count on.
        copies: how many members of a copyset hold the block for certain; 0 for all of them.
        local: nodes in the reader's region, which go first; empty without local delivery.
        quiet: a node that is listed does not send where it stands before the first that is
            not: the reader knows that it is there, and does without it for a while.
    """

    shuffle: Shuffle = Shuffle.CLIENT
    seed: int = 0
    known_down: Set[int] = frozenset()
    copies: int = 0
    local: Set[int] = frozenset()
    quiet: bool = False


def ships(me: int, copyset: Sequence[int], rule: CopyFilter) -> bool:
    """Whether node `me`, which holds a block of this copyset, sends it.

    In the shuffled copyset the first member that is not known to be down sends; one that
    is listed and stands before it sends too, so that a node that came back is noticed, and
    nobody has to tell it. Where members may lack the block (`copies` below the copyset's
    size), so many more at the end send that one who has it is among them.
    """
    order = shuffled(copyset, rule)
    local = [node for node in order if node in rule.local]
    for group in (local, order):
        first = next((at for at, node in enumerate(group) if node not in rule.known_down), None)
        if first is not None and rule.quiet and me in rule.known_down:
            return False
        if first is not None:
            return me in group[: first + 1] or me in _spares(order, group[first], rule)
    return True


def _spares(order: Sequence[int], first: int, rule: CopyFilter) -> Sequence[int]:
    """Who sends beside `first`. With local delivery that one may stand anywhere."""
    spare = len(order) - rule.copies if rule.copies else 0
    up = [node for node in order if node not in rule.known_down and node != first]
    return up[-spare:] if spare > 0 else ()


def shuffled(copyset: Sequence[int], rule: CopyFilter) -> list[int]:
    """The copyset in the order in which its members send; the same on every node."""
    if rule.shuffle == Shuffle.NONE:
        return list(copyset)
    # The copyset goes into the seed, or one node would stand first in every copyset that
    # it is a member of and send most of what a reader gets.
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
    """It said that it lost records: what it sends is good, what it does not send is unknown."""
    BAD_COPY = "bad copy"
    SILENT = "silent"
    """It fell behind all the others while the reader waited."""
    SLOW = "slow"
    """Greylisted, see `slow_shards`: it stays so however much it sends, until its time is up."""


_LASTING = frozenset({Doubt.DAMAGED, Doubt.SLOW})
"""Doubts that a block from the node does not settle."""


class SenderChoice:
    """A reader's half: see the module. Events in; `takes_rewind` says when to ask anew.

    Attributes:
        nodes: every node that the reader reads from.
        version: of what is asked for; a node's answer names the version it obeys.
        rewinds: how often the nodes had to be asked anew.
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
        """Whether one copy is asked for, or all: where nobody is counted on, all."""
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
        """Whether the nodes have to be asked anew."""
        return self._due

    @property
    def is_gentle(self) -> bool:
        """Whether they may go on by the old order up to where the first of them has come: so
        where a node is merely slow, or no longer. What was sent is not sent again then."""
        return self._due and not self._at_once

    def add_node(self, node: NodeId) -> None:
        """The reader reads from `node` too: a later epoch has it in its nodeset."""
        self.nodes = tuple(sorted({*self.nodes, node}))

    def takes_rewind(self) -> bool:
        """Whether the nodes have to be asked anew; counts that as done, in a new version."""
        if not self._due:
            return False
        self._due = self._at_once = False
        self.version = self.version % 0xFFFF_FFFF + 1
        self.rewinds += 1
        self._shipped.clear()
        return True

    def on_doubt(self, node: NodeId, why: Doubt) -> None:
        """Count on `node` no more, until it is seen to send (or `on_settled`)."""
        known = self._doubts.get(node)
        if known in _LASTING and why is not Doubt.DAMAGED:
            return
        was_single = self.is_single
        self._doubts[node] = why
        self._shipped.discard(node)
        if known is None and was_single:
            self._ask_anew(at_once=why is not Doubt.SLOW)

    def on_settled(self, node: NodeId, why: Doubt) -> None:
        """The reason `why` is gone: a probation is over, a damaged node came back whole."""
        if self._doubts.get(node) is why:
            del self._doubts[node]
            if self.is_single:
                self._ask_anew(at_once=why is not Doubt.SLOW)

    def on_moved(self) -> None:
        """A node's data lies on other nodes by now, where it may not have been before."""
        self._ask_anew(at_once=True)

    def on_late(self) -> None:
        """The old order takes too long to come to its end."""
        self._ask_anew(at_once=True)

    def _ask_anew(self, *, at_once: bool) -> None:
        self._due = True
        self._at_once = self._at_once or at_once

    def on_shipped(self, node: NodeId) -> None:
        """`node` sent a block."""
        self._shipped.add(node)

    def on_suspicion(self) -> None:
        """What comes next may be lost: every node must send all that it has."""
        if self.is_single:
            self._is_suspicious = True
            self._ask_anew(at_once=True)

    def on_stuck(self, behind: Iterable[NodeId]) -> None:
        """Nothing came for a while, and the trusted nodes `behind` owe something.

        The first time they are counted on no more; if that leaves none, or did not help,
        all must send all.
        """
        fresh = [node for node in sorted(behind) if node not in self._doubts]
        for node in fresh:
            self.on_doubt(node, Doubt.SILENT)
        if not fresh:
            self.on_suspicion()

    def on_slide(self) -> None:
        """The window moved: back to single copies, and to the nodes that are seen to send."""
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
