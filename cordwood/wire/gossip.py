"""Gossip: a node's failure detector, which sends and receives over the existing connections.

At each tick the list of ages goes to one peer, drawn among the connected peers. It travels on the
same connection as stores do, so a peer that reads nothing is silent too.

Source: docs/sources/logdevice.md 2.12; the rule is `protocol.failure_detector`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol

from cordwood.layout.frame import Frame, Kind
from cordwood.layout.gossip import pack_gossip, read_gossip
from cordwood.nodes import NodeId
from cordwood.protocol.failure_detector import (
    DetectorLimits,
    FailureDetector,
    NodeState,
    Word,
)
from cordwood.wire.peers import Peers

BACKLOG_BYTES_MAX = 4 << 20
"""A peer for which this many bytes wait gets no gossip, because it does not read."""


LATE_TICKS = 5
"""A sign of life may be counted this many ticks too late: nodes count their ticks apart."""


class Chance(Protocol):
    """A stream of chance; `random.Random` fits it."""

    def random(self) -> float: ...


class Gossip:
    """See the module.

    Args:
        on_tick: called after each tick, when the view may have changed.
    """

    def __init__(
        self,
        node: NodeId,
        incarnation: int,
        tick_s: float,
        peers: Peers,
        random: Chance,
        on_tick: Callable[[], None],
    ) -> None:
        self._node = node
        self._tick_s = tick_s
        self._peers = peers
        self._random = random
        self._on_tick = on_tick
        self._detector = FailureDetector(node, incarnation, DetectorLimits())

    def want(self, incarnations: Mapping[NodeId, int], given_up: Set[NodeId]) -> None:
        """See `FailureDetector.want`."""
        self._detector.want(incarnations, given_up)

    def state(self, node: NodeId) -> NodeState:
        """A node's state, as this node sees it."""
        return self._detector.state(node)

    @property
    def dead(self) -> frozenset[NodeId]:
        """Nodes that this node takes for dead."""
        return self._detector.nodes(NodeState.DEAD)

    @property
    def silent(self) -> frozenset[NodeId]:
        """Dead and suspected nodes."""
        return self._detector.nodes(NodeState.SUSPECT, NodeState.DEAD)

    @property
    def is_isolated(self) -> bool:
        """Whether this node sees no other node."""
        return self._detector.is_isolated

    async def dies(self, node: NodeId) -> bool:
        """Wait until a node is taken for dead (True), or shows a new sign of life (False).

        A node that has just ended, or that did not start with the others, is neither up nor dead
        for some seconds.
        """
        began = self._detector.ticks
        # A node that has just started calls nobody dead for DetectorLimits.dead_ticks.
        for _ in range(2 * DetectorLimits().dead_ticks):
            if self.state(node) is NodeState.DEAD:
                return True
            heard = self._detector.heard(node)
            if heard is None or heard > began + LATE_TICKS:
                return False
            await asyncio.sleep(self._tick_s)
        return False

    def on_frame(self, frame: Frame) -> None:
        """A GOSSIP frame.

        Raises:
            Malformed: it is damaged.
        """
        self._detector.on_words(read_gossip(frame.payload))

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(self._tick_s)
            words = self._detector.tick()
            up = self._others()
            if up:
                self._tell(up[int(self._random.random() * len(up))], words)
            self._on_tick()

    def leave(self) -> None:
        """Tell every peer that this node leaves."""
        self._detector.leave()
        words = self._detector.words()
        for node in self._others():
            self._tell(node, words)

    def _others(self) -> list[NodeId]:
        return [node for node in self._peers.up if node != self._node]

    def _tell(self, node: NodeId, words: Sequence[Word]) -> None:
        connection = self._peers.get(node)
        if connection is None or connection.backlog_bytes > BACKLOG_BYTES_MAX:
            return
        connection.send(Kind.GOSSIP, 0, (pack_gossip(words),))
