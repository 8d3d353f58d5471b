"""Which nodes live, from what nodes tell one another.

Each node counts its own ticks. At each it grows the *age* of every other node by one
and tells its whole list of ages to one of them, drawn at random; a list that comes in
lowers ages to what the other one heard. So word of a node that lives reaches everybody
in a few ticks, over whoever can still reach it, and a silent node's age grows everywhere.

A node is `SUSPECT` once its age passes `suspect_ticks` (no new copies go there while
others can take them) and `DEAD` past `dead_ticks` (its logs fall to the next node of
each log's order). One that leaves says so and is dead at once, until it comes back with
a higher incarnation. Time is counted in ticks and not read from a clock: a process that
was stopped finds everybody as old as it left them, and not dead.

A node that has just started trusts nobody's silence before it was told something by
`TOLD_MIN` lists, or for as long as it takes to call anybody dead; until then all live.
One for which everybody else is dead is *isolated*: it must stop to sequence, because the
others have long given its logs to another. Nodes whose data an operator gave up give nothing to
anybody: one that has no others but those is what is left of the cluster, and goes on.

Source: docs/sources/logdevice.md 2.12 (every 100 ms to a random node; dead after 30 intervals;
three lists before the own view counts).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.nodes import NodeId

TOLD_MIN = 3
"""Lists heard before this node's own view counts, as in LogDevice."""

AGE_MAX = 1_000_000
"""Ages stop here; it is far past dead."""


class NodeState(enum.Enum):
    """What a node is to another one."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


class Word(NamedTuple):
    """What one node says of one node.

    Attributes:
        age: the teller's ticks since the last sign of life, 0 for itself.
        incarnation: the life that is meant; a higher one makes all else stale.
        leaving: it said that it goes.
    """

    node: int
    age: int
    incarnation: int
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class DetectorLimits:
    """How long silence may last, in ticks.

    Attributes:
        suspect_ticks: with a tick of 0.1 s and some ten nodes, word takes three or four
            ticks to get round; ten leave room for one that is lost or late.
        dead_ticks: LogDevice's 30, so three seconds. A false alarm moves sequencers, which
            costs as much as a failure.
    """

    suspect_ticks: int = 10
    dead_ticks: int = 30


class FailureDetector:
    """One node's view of all; see the module.

    Args:
        node, incarnation: who looks.
        limits: when silence counts.
    """

    def __init__(self, node: NodeId, incarnation: int, limits: DetectorLimits) -> None:
        self._node = node
        self._incarnation = incarnation
        self._limits = limits
        # By node: the tick of its last sign of life, so that a tick ages all of them at once.
        self._heard: dict[int, int] = {}
        self._incarnations: dict[int, int] = {}
        self._leavers: set[int] = set()
        self._given_up: Set[int] = frozenset()
        self._ticks = 0
        self._told = 0
        self._leaving = False

    def want(self, incarnations: Mapping[NodeId, int], given_up: Set[NodeId] = frozenset()) -> None:
        """These are the members, with the incarnations that the metadata store knows.

        Args:
            given_up: those of which it was said that their data is gone, or lies on others.
        """
        self._given_up = given_up
        others = [node for node in sorted(incarnations) if node != self._node]
        self._heard = {node: self._heard.get(node, self._ticks) for node in others}
        self._incarnations = {
            node: self._incarnations.get(node, incarnations[node]) for node in others
        }
        self._leavers.intersection_update(others)

    def tick(self) -> list[Word]:
        """Time goes on by one tick; what to tell one of the others."""
        self._ticks += 1
        return self.words()

    def words(self) -> list[Word]:
        """What this node says now, of itself first."""
        words = [Word(self._node, 0, self._incarnation, self._leaving)]
        for node, heard in self._heard.items():
            age = min(self._ticks - heard, AGE_MAX)
            words.append(Word(node, age, self._incarnations[node], node in self._leavers))
        return words

    def on_words(self, words: Iterable[tuple[int, int, int, bool]]) -> None:
        """Another node tells what it knows; of those who are no members here nothing is kept.

        Args:
            words: each a `Word`, or a plain tuple of the same.
        """
        self._told += 1
        for node, age, incarnation, leaving in words:
            known = self._incarnations.get(node)
            if known is None or incarnation < known:
                continue
            heard = self._ticks - age
            if incarnation > known:
                self._incarnations[node] = incarnation
                self._heard[node] = heard
                self._leavers.discard(node)
            elif heard > self._heard[node]:
                self._heard[node] = heard
            if leaving:
                self._leavers.add(node)

    def leave(self) -> None:
        """This node goes: so say all its words from now on."""
        self._leaving = True

    @property
    def is_trusted(self) -> bool:
        """Whether this view counts yet."""
        return self._told >= TOLD_MIN or self._ticks > self._limits.dead_ticks

    def state(self, node: NodeId) -> NodeState:
        """What `node` is to this one; a node it knows nothing of is alive."""
        heard = self._heard.get(node)
        if heard is None:
            return NodeState.ALIVE
        if node in self._leavers:
            return NodeState.DEAD
        age = self._ticks - heard
        if not self.is_trusted or age <= self._limits.suspect_ticks:
            return NodeState.ALIVE
        return NodeState.DEAD if age > self._limits.dead_ticks else NodeState.SUSPECT

    def nodes(self, *states: NodeState) -> frozenset[NodeId]:
        """The other nodes that are in one of these states."""
        if NodeState.ALIVE not in states and self._are_all_alive:
            return frozenset()  # asked at every tick, and mostly so
        members = map(NodeId, self._heard)
        return frozenset(node for node in members if self.state(node) in states)

    @property
    def _are_all_alive(self) -> bool:
        oldest = self._ticks - min(self._heard.values(), default=self._ticks)
        return not self._leavers and oldest <= self._limits.suspect_ticks

    @property
    def is_isolated(self) -> bool:
        """Whether there are others that nobody gave up, and all of them are dead."""
        members = [NodeId(node) for node in self._heard if node not in self._given_up]
        return bool(members) and all(self.state(node) is NodeState.DEAD for node in members)
