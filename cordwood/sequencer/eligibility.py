"""Whether this node may sequence a log now, and who may instead.

Source: docs/design.md §4; docs/sources/logdevice.md 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cordwood.errors import NoSequencer
from cordwood.nodes import Member, NodeId
from cordwood.quorum.sequencer_placement import sequencer_order

ISOLATED_S = 2.0
"""How long a node that sees nobody goes on to sequence, after it took the last other one for
dead. LogDevice waits 20 minutes; here the others have given its logs away by then."""


SUCCESSOR_S = 60.0
"""How long clients are sent on to the node that a log was given up to. It asked for it because
a client could not reach this one; took this one the log back for the next client that can, it
went to and fro between the two, an epoch each time."""

SUCCESSORS_MAX = 100_000
"""Logs of which that is remembered; past that it is forgotten of all."""


class View(Protocol):
    """What the failure detector knows; see `wire.gossip.Gossip`."""

    @property
    def dead(self) -> frozenset[NodeId]:
        """Nodes taken for dead."""


class Eligibility:
    """See the module.

    Attributes:
        is_leaving: the node leaves and sequences nothing any more.
    """

    def __init__(
        self,
        node: NodeId,
        members: Callable[[], Mapping[NodeId, Member]],
        view: View,
        now: Callable[[], float],
    ) -> None:
        self.is_leaving = False
        self._node = node
        self._members = members
        self._view = view
        self._now = now
        self._isolated_since: float | None = None
        # By log: who took it over from this node, and until when that holds.
        self._successors: dict[int, tuple[NodeId, float]] = {}

    def note_successor(self, log: int, successor: NodeId) -> None:
        """`log` was given up to `successor`."""
        if len(self._successors) >= SUCCESSORS_MAX:
            self._successors.clear()
        self._successors[log] = successor, self._now() + SUCCESSOR_S

    def on_peer_up(self, node: NodeId) -> None:
        """A node connected: it may have started anew, and then sequences nothing."""
        self._successors = {log: each for log, each in self._successors.items() if each[0] != node}

    def elsewhere(self, log: int, activate_here: bool) -> NodeId:
        """The node that should sequence `log`, 0 if this one may."""
        successor, until = self._successors.get(log, (NodeId(0), 0.0))
        if (
            successor
            and not activate_here
            and self._now() < until
            and successor not in self._view.dead
        ):
            return successor
        self._successors.pop(log, None)
        order = sequencer_order(log, self._members().values(), self._view.dead)
        if activate_here or not order or order[0] == self._node:
            return NodeId(0)
        return order[0]

    def next_node(self, log: int) -> NodeId:
        """The node that sequences `log` once this one is gone, 0 if there is none."""
        order = sequencer_order(log, self._members().values(), self._view.dead)
        return next((node for node in order if node != self._node), NodeId(0))

    def refusal(self, log: int) -> tuple[NoSequencer, NodeId] | None:
        """Why this node sequences nothing now, and who may instead; None while it does."""
        if self.is_leaving:
            text = f"node {self._node} leaves and sequences nothing any more"
            return NoSequencer(text), self.next_node(log)
        if self.is_isolated:
            text = f"node {self._node} sees no other node, so it sequences nothing"
            return NoSequencer(text), NodeId(0)
        return None

    @property
    def is_isolated(self) -> bool:
        """Whether this node has seen no other one for ISOLATED_S."""
        since = self._isolated_since
        return since is not None and self._now() - since >= ISOLATED_S

    def note_isolated(self, is_isolated: bool) -> None:
        """What the failure detector says of this node, again and again."""
        if not is_isolated:
            self._isolated_since = None
        elif self._isolated_since is None:
            self._isolated_since = self._now()
