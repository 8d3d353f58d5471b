"""Decides which nodes are alive, from the gossip between nodes.

Each node counts its own ticks. At each tick it raises the *age* of every other node by one and
sends its list of ages to one other node, drawn at random. The receiver lowers its ages to those in
the list. So a sign of life reaches all nodes in a few ticks, by any path that still works, and the
age of a silent node grows everywhere.

A node is `SUSPECT` when its age passes `suspect_ticks`: it gets no new copies while other nodes can
take them. It is `DEAD` when its age passes `dead_ticks`: each of its logs goes to the next node in
the log's order. A node that leaves says so, and is dead at once until it comes back with a higher
incarnation.

A node is *isolated* if all other nodes are dead to it. It must stop sequencing, because the others
gave its logs to another node long ago.

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
    """A node's state, as another node sees it."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


class Word(NamedTuple):
    """One node's report about one node.

    Attributes:
        age: the sender's ticks since the last sign of life; 0 for the sender itself.
        incarnation: the reported life of the node. Reports about its earlier lives are stale.
        leaving: whether the node said that it leaves.
    """

    node: int
    age: int
    incarnation: int
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class DetectorLimits:
    """How long silence may last, in ticks.

    Attributes:
        suspect_ticks: with a tick of 0.1 s and about ten nodes, gossip reaches all nodes in
            three or four ticks; ten ticks leave time for a message that is lost or late.
        dead_ticks: LogDevice's 30, so three seconds. A false alarm moves sequencers, which
            costs as much as a failure.
    """

    suspect_ticks: int = 10
    dead_ticks: int = 30


class FailureDetector:
    """One node's view of all nodes; see the module.

    Args:
        node, incarnation: of the node whose view this is.
        limits: when silence counts.
    """

    def __init__(self, node: NodeId, incarnation: int, limits: DetectorLimits) -> None:
        self._node = node
        self._incarnation = incarnation
        self._limits = limits
        # By node: the tick of its last sign of life, so that one addition ages all of them. Ticks
        # and no clock: a process that was stopped finds all nodes as old as before, and not dead.
        self._heard: dict[int, int] = {}
        self._incarnations: dict[int, int] = {}
        self._leavers: set[int] = set()
        self._given_up: Set[int] = frozenset()
        self._ticks = 0
        self._told = 0
        self._leaving = False

    def want(self, incarnations: Mapping[NodeId, int], given_up: Set[NodeId] = frozenset()) -> None:
        """Set the members, with the incarnations that the metadata store knows.

        Args:
            given_up: members whose status says that their data is gone or lies on other nodes.
        """
        self._given_up = given_up
        others = [node for node in sorted(incarnations) if node != self._node]
        self._heard = {node: self._heard.get(node, self._ticks) for node in others}
        self._incarnations = {
            node: self._incarnations.get(node, incarnations[node]) for node in others
        }
        self._leavers.intersection_update(others)

    def tick(self) -> list[Word]:
        """Advance by one tick; the words to send to one of the other nodes."""
        self._ticks += 1
        return self.words()

    def words(self) -> list[Word]:
        """This node's words now; the first is about itself."""
        words = [Word(self._node, 0, self._incarnation, self._leaving)]
        for node, heard in self._heard.items():
            age = min(self._ticks - heard, AGE_MAX)
            words.append(Word(node, age, self._incarnations[node], node in self._leavers))
        return words

    def on_words(self, words: Iterable[tuple[int, int, int, bool]]) -> None:
        """Take another node's words; words about nodes that are no members here are dropped.

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

    @property
    def ticks(self) -> int:
        """The ticks that this node counted."""
        return self._ticks

    def heard(self, node: NodeId) -> int | None:
        """The tick of a node's last sign of life, None if it is not another member."""
        return self._heard.get(node)

    def leave(self) -> None:
        """This node leaves; all its words say so from now on."""
        self._leaving = True

    @property
    def is_trusted(self) -> bool:
        """Whether this view counts yet; until then all nodes are alive."""
        # Trap: a node that has just started has heard no other node, so silence means nothing yet.
        # It
        # waits for TOLD_MIN lists, or as long as it takes to call a node dead.
        return self._told >= TOLD_MIN or self._ticks > self._limits.dead_ticks

    def state(self, node: NodeId) -> NodeState:
        """The state of `node`; an unknown node is alive."""
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
            return frozenset()  # the usual case, and this is asked at every tick
        members = map(NodeId, self._heard)
        return frozenset(node for node in members if self.state(node) in states)

    @property
    def _are_all_alive(self) -> bool:
        oldest = self._ticks - min(self._heard.values(), default=self._ticks)
        return not self._leavers and oldest <= self._limits.suspect_ticks

    @property
    def is_isolated(self) -> bool:
        """Whether all other nodes are dead, and an operator has not given up every one of them."""
        # Nodes whose data an operator gave up take no logs over. If there are no other nodes, this
        # node is the rest of the cluster and goes on.
        members = [NodeId(node) for node in self._heard if node not in self._given_up]
        return bool(members) and all(self.state(node) is NodeState.DEAD for node in members)
