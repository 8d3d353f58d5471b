"""Sends releases to storage nodes: the LSN up to which readers may see, sent and repeated.

Every store also carries the LNG, but only to the nodes of its copyset. The other nodes hear the LNG
from this module, and so do all nodes when stores cease. A release is sent at once if none was sent
for RELEASE_SPACING_S, else RELEASE_DELAY_S later. It is repeated every RELEASE_REPEAT_S, until it
was sent RELEASE_REPEATS times, and whenever a node connects. So under load a reader is behind by
milliseconds, and after a lost message by a second. Idle logs cost nothing, because a lost message
means a lost connection.

Told are the nodes of every epoch that the log has had: those of older nodesets learn only
from this that their epochs are over.

Source: docs/sources/logdevice.md 2.3 (release, retry and broadcast to the union of nodesets).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from cordwood.layout.frame import Kind
from cordwood.layout.waves import pack_pairs
from cordwood.nodes import NodeId
from cordwood.wire.peers import Peers

RELEASE_DELAY_S = 0.002
"""How long a release waits for others. The next wave carries the LNG to its copyset anyway. A frame
to every node for each wave doubled the time of a lone append."""

RELEASE_SPACING_S = 0.004
"""After this time without a release, the next is sent at once. So a reader at the tail of a log
with a few hundred appends a second gets each block without delay, and a lone client that appends
one by one still has few release frames beside its waves."""

RELEASE_REPEAT_S = 1.0
"""The time between repeats of a release; a reader behind a lost release waits this long."""

RELEASE_REPEATS = 10
"""The number of repeats after a release moved; after that only a node that connects hears it."""


class _Told:
    """One log's last release, the nodes that hear it, and the number of repeats left."""

    __slots__ = ("audience", "left", "lsn")

    def __init__(self, audience: Sequence[NodeId]) -> None:
        self.audience = audience
        self.lsn = 0
        self.left = 0


class Releases:
    """See the module."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._logs: dict[int, _Told] = {}
        self._due: dict[NodeId, dict[int, int]] = {}
        self._send_due = False
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time() - RELEASE_SPACING_S
        self._since_repeat_s = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no release has to be repeated."""
        return not any(told.left for told in self._logs.values())

    def tell(self, log: int, audience: Sequence[NodeId], lsn: int) -> None:
        """The release of `log` moved to `lsn`."""
        self._say(log, audience, lsn, RELEASE_REPEATS)

    def remind(self, log: int, audience: Sequence[NodeId], lsn: int) -> None:
        """A client asked about `log`: send its release again now, and repeat it once."""
        self._say(log, audience, lsn, 1)

    def forget(self, log: int) -> None:
        """This node no longer sequences `log`."""
        self._logs.pop(log, None)

    def on_peer_up(self, node: NodeId) -> None:
        """A node connected: it may have missed any release."""
        for log, told in self._logs.items():
            # A log has no record on a node outside its audience.
            if node in told.audience:
                self._queue(log, told.lsn, (node,))

    def tick(self, passed_s: float) -> None:
        """`passed_s` seconds have passed since the last tick."""
        self._since_repeat_s += passed_s
        if self._since_repeat_s < RELEASE_REPEAT_S:
            return
        self._since_repeat_s = 0.0
        for log, told in self._logs.items():
            if told.left:
                told.left -= 1
                self._queue(log, told.lsn, told.audience)

    def send(self) -> None:
        """Send the releases since the last call, one frame to each node."""
        self._send_due = False
        self._sent_at = self._loop.time()
        due, self._due = self._due, {}
        for node in sorted(due):
            peer = self._peers.get(node)
            if peer is not None:
                numbers = [number for pair in due[node].items() for number in pair]
                # A lost frame is no fault: the release is repeated, and a node that connects hears
                # it again.
                peer.send(Kind.RELEASE, 0, (pack_pairs(numbers),))

    def _say(self, log: int, audience: Sequence[NodeId], lsn: int, repeats: int) -> None:
        told = self._logs.get(log)
        if told is None:
            told = self._logs[log] = _Told(audience)
        # A reminder must not cut the repeats of a release that has just moved.
        told.audience, told.lsn, told.left = audience, lsn, max(told.left, repeats)
        self._queue(log, lsn, audience)

    def _queue(self, log: int, lsn: int, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            self._due.setdefault(node, {})[log] = lsn
        if not self._send_due:
            self._send_due = True
            if self._loop.time() >= self._sent_at + RELEASE_SPACING_S:
                self._loop.call_soon(self.send)
            else:
                self._loop.call_later(RELEASE_DELAY_S, self.send)
