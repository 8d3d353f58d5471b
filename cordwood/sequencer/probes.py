"""Probes of slow nodes: empty stores, so that no append has to test a slow node.

A node makes an empty store durable in its WAL before it answers. So a probe finds a slow disk as
well as a slow process.

Source: docs/sources/logdevice.md 2.4 (PROBING).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.layout.frame import checksum
from cordwood.layout.waves import StoreRefusal, store_head
from cordwood.nodes import NodeId
from cordwood.protocol.node_states import NodeStates
from cordwood.protocol.store_times import StoreTimes
from cordwood.wire.peers import Peers
from cordwood.wire.store_channel import StoreChannel

_NOTHING = (store_head(0),)
_NOTHING_CRC = checksum(_NOTHING)


class Probes:
    """See the module."""

    def __init__(
        self,
        peers: Peers,
        channel: StoreChannel,
        states: NodeStates,
        times: StoreTimes,
        now: Callable[[], float],
    ) -> None:
        self._peers = peers
        self._channel = channel
        self._states = states
        self._times = times
        self._now = now

    def tick(self, now: float) -> None:
        """Probe the nodes that are due."""
        for node in self._states.due_probes(self._peers.up, now):
            if not self._channel.send(node, _NOTHING, _NOTHING_CRC, self._on_settled):
                self._states.on_probed(node, False, now)

    def _on_settled(self, node: NodeId, refusals: Sequence[StoreRefusal] | None) -> None:
        is_stored = refusals is not None and not refusals
        self._states.on_probed(node, is_stored, self._now(), self._times.late_s(node))
