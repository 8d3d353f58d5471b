"""Releases on their way to storage nodes: how far readers may see, told, and told again.

The LNG also travels with every store, to the nodes that it goes to. The others, and all of
them once stores cease, hear it here: as soon as it moved where none was told for
RELEASE_SPACING_S, else RELEASE_DELAY_S later; again every
RELEASE_REPEAT_S while it was told fewer than RELEASE_REPEATS times, and whenever a node
connects. So under load a reader is behind by milliseconds, and one behind a lost message by
a second; idle logs cost nothing, because a lost message means a lost connection.

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
"""How long a release waits for others. The next wave carries the LNG anyway, to the nodes
that it goes to; a frame to every node for each wave doubled the time of a lone append."""

RELEASE_SPACING_S = 0.004
"""So long without one, and a release waits for nobody: a reader at the tail of a log that is
appended to a few hundred times a second gets each block as soon as that is possible, and a
lone client that appends one by one still has most of its waves to itself."""

RELEASE_REPEAT_S = 1.0
"""How often a release is said again; a reader behind a lost one waits this long."""

RELEASE_REPEATS = 10
"""How often it is said again after it moved; then every peer that connects hears it."""


class _Told:
    """What was said of one log, to whom, and how often it will be said again."""

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
        """Whether nothing has to be said again."""
        return not any(told.left for told in self._logs.values())

    def tell(self, log: int, audience: Sequence[NodeId], lsn: int) -> None:
        """The release of `log` moved to `lsn`."""
        self._say(log, audience, lsn, RELEASE_REPEATS)

    def remind(self, log: int, audience: Sequence[NodeId], lsn: int) -> None:
        """Somebody wonders about `log`: say it once more, and once again."""
        self._say(log, audience, lsn, 1)

    def forget(self, log: int) -> None:
        """This node sequences `log` no longer."""
        self._logs.pop(log, None)

    def on_peer_up(self, node: NodeId) -> None:
        """A node connected: it may have missed anything."""
        for log, told in self._logs.items():
            if node in told.audience:
                self._queue(log, told.lsn, (node,))

    def tick(self, passed_s: float) -> None:
        """So much time has passed since the last tick."""
        self._since_repeat_s += passed_s
        if self._since_repeat_s < RELEASE_REPEAT_S:
            return
        self._since_repeat_s = 0.0
        for log, told in self._logs.items():
            if told.left:
                told.left -= 1
                self._queue(log, told.lsn, told.audience)

    def send(self) -> None:
        """Tell nodes what was released since the last time, a frame to each."""
        self._send_due = False
        self._sent_at = self._loop.time()
        due, self._due = self._due, {}
        for node in sorted(due):
            peer = self._peers.get(node)
            if peer is not None:
                numbers = [number for pair in due[node].items() for number in pair]
                peer.send(Kind.RELEASE, 0, (pack_pairs(numbers),))

    def _say(self, log: int, audience: Sequence[NodeId], lsn: int, repeats: int) -> None:
        told = self._logs.get(log)
        if told is None:
            told = self._logs[log] = _Told(audience)
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
