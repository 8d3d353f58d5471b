"""Chooses the nodes that a sequencer picks for new copies, from their earlier answers.

::

    AVAILABLE ──refused: full──────────► OVERLOADED ──1 s, or it tells of room──► AVAILABLE
    AVAILABLE ──refused: no space──────► NO_SPACE ──30 s, or it tells of room───► AVAILABLE
    AVAILABLE ──refused: failed────────► DISABLED ──it connects anew────────────► AVAILABLE
    AVAILABLE ──named as being rebuilt─► REBUILDING ──30 s──────────────────────► AVAILABLE
    any       ──it is reported rebuilt────► REBUILDING while that is so
    AVAILABLE ──a wave timed out,──────► SLOW ──2 s, doubling to 60 s──► PROBING
                or it lags behind the others
    PROBING   ──a probe was answered in time──► AVAILABLE
    PROBING   ──it was not────────────────────► SLOW
    any       ──the failure detector suspects it──► SUSPECTED while that lasts
    any       ──no connection──► UNROUTABLE; a new one makes it AVAILABLE

Only AVAILABLE nodes are picked. If they cannot hold a copyset, every node that is up counts again,
because a slow copy is better than none. The rules for a copyset never change. If a node is being
rebuilt, the members of its copyset refuse the wave until they hear that the node is back.

A probe of a slow node is an empty store that the node makes durable like any other, and no append
that a client waits for. LogDevice leaves a slow node out for 600 s. Here a node that only paused
gets its share back soon, and a node that is slow again is left out for longer each time.

Source: docs/sources/logdevice.md 2.4 ("NodeSetState").
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from cordwood.nodes import NodeId

SLOW_S = 2.0
"""The first time on the list of slow nodes, after a wave that timed out."""

SLOW_MAX_S = 60.0
"""The longest time on the list. A node that did well for this long begins with SLOW_S again."""

FULL_S = 1.0
"""How long a node that answered "overloaded" is left out; LogDevice's value."""

NO_SPACE_S = 30.0
"""How long a node that answered "no space" is left out: half of LogDevice's value. Trims free
space, and the node then reports it."""

REBUILDING_S = 30.0
"""How long a node is left out after a member of its copyset reported that it is being rebuilt;
LogDevice's value."""

PROBE_S = 1.0
"""A probe without an answer after this time has failed: twice the wait of a wave for a node
without earlier answers."""


class NodeState(enum.Enum):
    """See the module."""

    AVAILABLE = "available"
    OVERLOADED = "overloaded"
    NO_SPACE = "no space"
    DISABLED = "disabled"
    REBUILDING = "rebuilding"
    SLOW = "slow"
    PROBING = "probing"
    SUSPECTED = "suspected"
    UNROUTABLE = "unroutable"


_NOT_OF_ROOM = frozenset({NodeState.DISABLED, NodeState.REBUILDING})


class _Slow:
    """A node on the graylist, or lately on it.

    Attributes:
        until: when the node may be probed.
        length_s: of this stay on the list.
        probed_at: when the probe under way was sent; None for none.
        left_at: when the node left the list; None while it is on the list.
    """

    __slots__ = ("left_at", "length_s", "probed_at", "until")

    def __init__(self, now: float) -> None:
        self.length_s = SLOW_S
        self.until = now + SLOW_S
        self.probed_at: float | None = None
        self.left_at: float | None = None

    def again(self, now: float) -> None:
        """The node was slow again: it stays twice as long, unless it did well for SLOW_MAX_S."""
        is_new = self.left_at is not None and now - self.left_at > SLOW_MAX_S
        self.length_s = SLOW_S if is_new else min(SLOW_MAX_S, 2 * self.length_s)
        self.until = now + self.length_s
        self.probed_at = self.left_at = None


class NodeStates:
    """See the module. All times are the loop's, in seconds."""

    def __init__(self) -> None:
        # By node that refused: the state, and the time until which it holds.
        self._refused: dict[NodeId, tuple[NodeState, float]] = {}
        self._slow: dict[NodeId, _Slow] = {}
        self._silent: frozenset[NodeId] = frozenset()
        self._rebuilding: frozenset[NodeId] = frozenset()

    def set_rebuilding(self, nodes: frozenset[NodeId]) -> None:
        """Set the nodes whose data is reported as gone or being rebuilt, as known here."""
        self._rebuilding = nodes

    def set_silent(self, nodes: frozenset[NodeId]) -> None:
        """Set the nodes that the failure detector now suspects or calls dead."""
        self._silent = nodes

    def on_timed_out(self, waiting: Collection[NodeId], copyset: Collection[NodeId], now: float) \
            -> None:  # fmt: skip
        """A wave on `copyset` took too long; the nodes `waiting` did not answer it."""
        # Trap: if no node answered, the cause is more likely the sequencer than the nodes.
        if len(waiting) < len(copyset) or len(copyset) == 1:
            for node in sorted(waiting):
                self.on_slow(node, now)

    def on_slow(self, node: NodeId, now: float) -> None:
        """`node` did not answer in time, or lags behind the other nodes."""
        slow = self._slow.get(node)
        if slow is None:
            self._slow[node] = _Slow(now)
        elif slow.left_at is not None:
            slow.again(now)
        # Trap: a node on the list is not punished again: one stall makes many waves late.

    def on_full(self, node: NodeId, now: float) -> None:
        """`node` refused a wave because it was full."""
        self._refused[node] = (NodeState.OVERLOADED, now + FULL_S)

    def on_no_space(self, node: NodeId, now: float) -> None:
        """`node` refused a wave, because its disk is full."""
        self._refused[node] = (NodeState.NO_SPACE, now + NO_SPACE_S)

    def on_space(self, node: NodeId) -> None:
        """`node` reported that it has free space."""
        if self._refused.get(node, (None, 0.0))[0] not in _NOT_OF_ROOM:
            self._refused.pop(node, None)

    def on_rebuilding(self, node: NodeId, now: float) -> None:
        """A member of a copyset refused a wave, because `node` in it is being rebuilt."""
        self._refused[node] = (NodeState.REBUILDING, now + REBUILDING_S)

    def on_failed(self, node: NodeId) -> None:
        """`node` cannot store until it is restarted."""
        self._refused[node] = (NodeState.DISABLED, float("inf"))

    def on_up(self, node: NodeId) -> None:
        """`node` connected again, so its earlier answers no longer count."""
        self._refused.pop(node, None)
        self._slow.pop(node, None)

    # Probes.

    def due_probes(self, up: Iterable[NodeId], now: float) -> tuple[NodeId, ...]:
        """The nodes to probe now; each counts as being probed from now on."""
        due = []
        for node in sorted(up):
            slow = self._slow.get(node)
            if slow is None or slow.left_at is not None:
                continue
            if slow.probed_at is not None and now - slow.probed_at >= PROBE_S:
                slow.again(now)
            if slow.probed_at is None and now >= slow.until:
                slow.probed_at = now
                due.append(node)
        return tuple(due)

    def on_probed(self, node: NodeId, is_stored: bool, now: float, late_s: float = PROBE_S) -> None:
        """A probe of `node` came back; an answer to an earlier probe changes nothing.

        Args:
            late_s: a node that took longer is still slow.
        """
        slow = self._slow.get(node)
        if slow is None or slow.probed_at is None:
            return
        if is_stored and now - slow.probed_at < min(late_s, PROBE_S):
            slow.left_at, slow.probed_at = now, None
        else:
            slow.again(now)

    # Verdicts.

    def state(self, node: NodeId, now: float) -> NodeState:
        """The state of `node`, which has a connection, at `now`."""
        if node in self._rebuilding:
            return NodeState.REBUILDING
        refused = self._refused.get(node)
        if refused is not None and now < refused[1]:
            return refused[0]
        slow = self._slow.get(node)
        if slow is not None and slow.left_at is None:
            return NodeState.SLOW if now < slow.until else NodeState.PROBING
        return NodeState.SUSPECTED if node in self._silent else NodeState.AVAILABLE

    def pick_from(self, up: Iterable[NodeId], now: float) -> frozenset[NodeId]:
        """The nodes of `up` that are AVAILABLE at `now`."""
        return frozenset(node for node in up if self.state(node, now) is NodeState.AVAILABLE)
