"""STORE frames on their way to storage nodes, paired with what comes back.

Frames are numbered from 1 on each connection; a STORED settles every number up to
its own. A connection that goes settles what was open on it as lost: it may or may
not have been stored.

A STORED also tells how much room its node has. What was sent since and is not settled
may still need some of that, so it is counted off: what is sent within `room` finds its
place, unless others send to that node too.

Source: design.md §4 (cumulative acks); `layout.waves`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from cordwood.block import Buffer
from cordwood.errors import Malformed
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.waves import ROOM_UNIT_BYTES, StoreRefusal, read_stored, stored_room
from cordwood.nodes import NodeId
from cordwood.wire.connection import Connection
from cordwood.wire.peers import Peers

Settled = Callable[[NodeId, "Sequence[StoreRefusal] | None"], None]
"""Called once a frame is settled: with its refusals, empty for stored, None for lost."""


ROOM_UNTOLD_BYTES = 8 << 20
"""Sent to a node that has not answered yet, which takes a millisecond: the largest block
and a run."""


class _Numbered:
    """What is open on one connection; `room` as last told, `unsettled` bytes sent since."""

    __slots__ = ("open", "room", "sent", "unsettled")

    def __init__(self) -> None:
        self.sent = 0
        self.open: deque[tuple[int, int, Settled]] = deque()
        self.room = ROOM_UNTOLD_BYTES
        self.unsettled = 0


class StoreChannel:
    """All STORE traffic of one node towards its peers.

    Attributes:
        on_room: called when a node tells of room and settles nothing with it.
    """

    def __init__(self, peers: Peers) -> None:
        self.on_room: Callable[[], None] = lambda: None
        self._peers = peers
        self._numbered: dict[Connection, _Numbered] = {}
        self._unsettled = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything is not settled yet."""
        return self._unsettled > 0

    def room(self, node: NodeId) -> int:
        """Bytes that may be sent to `node` now in first waves, 0 if it is not up."""
        connection = self._peers.get(node)
        if connection is None or not connection.is_open:
            return 0
        numbered = self._numbered.get(connection)
        if numbered is None:
            return ROOM_UNTOLD_BYTES
        return max(0, numbered.room - numbered.unsettled)

    def send(
        self, node: NodeId, parts: Sequence[Buffer], payload_crc: int, settled: Settled
    ) -> bool:
        """Send one STORE payload; False, and nothing is called, if the node is not up."""
        connection = self._peers.get(node)
        if connection is None or not connection.is_open:
            return False
        numbered = self._numbered.get(connection)
        if numbered is None:
            numbered = self._numbered[connection] = _Numbered()
        # A lone frame takes whole blocks of the WAL.
        size = -(-sum(map(len, parts)) // ROOM_UNIT_BYTES) * ROOM_UNIT_BYTES
        numbered.sent += 1
        numbered.unsettled += size
        self._unsettled += size
        numbered.open.append((numbered.sent, size, settled))
        connection.send(Kind.STORE, numbered.sent, parts, payload_crc)
        return True

    def on_stored(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        """A STORED frame from `node`.

        Raises:
            Malformed: it settles what was never sent.
        """
        wave, refusals = read_stored(frame.payload)
        numbered = self._numbered.get(connection)
        if numbered is None or wave > numbered.sent:
            raise Malformed(f"node {node} settles a wave that was not sent")
        by_wave: dict[int, list[StoreRefusal]] = {}
        for refusal in refusals:
            by_wave.setdefault(refusal.wave, []).append(refusal)
        numbered.room = stored_room(frame.payload)
        done: list[tuple[int, int, Settled]] = []
        while numbered.open and numbered.open[0][0] <= wave:
            done.append(numbered.open.popleft())
        # All of them first: whoever is told next may send more.
        self._forget(numbered, sum(size for _, size, _ in done))
        for number, _, settled in done:
            settled(node, by_wave.get(number, ()))
        if not done:
            self.on_room()

    def _forget(self, numbered: _Numbered, size: int) -> None:
        numbered.unsettled -= size
        self._unsettled -= size

    def on_down(self, node: NodeId, connection: Connection) -> None:
        """The connection is gone, and with it the answers to what was open."""
        numbered = self._numbered.pop(connection, None)
        if numbered is not None:
            self._forget(numbered, numbered.unsettled)
            for _, _, settled in numbered.open:
                settled(node, None)
