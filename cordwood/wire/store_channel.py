"""STORE frames on their way to storage nodes, paired with their answers.

Frames are numbered from 1 on each connection; a STORED settles every number up to
its own. A lost connection settles its open frames as lost: their blocks may or may not have been
stored.

A STORED also tells the free space of its node. Blocks sent since then and not settled may still
need a part of it, so their bytes are subtracted. A store within `room` finds space, unless other
senders use the node too.

Source: docs/design.md §4 (cumulative acks); `layout.waves`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cordwood.block import Buffer
from cordwood.errors import Malformed
from cordwood.layout.frame import Frame, Kind, checksum
from cordwood.layout.waves import (
    SPACE_UNIT_BYTES,
    StoreRefusal,
    read_stored,
    store_blocks,
    store_head,
    stored_space,
)
from cordwood.nodes import NodeId
from cordwood.wire.connection import Connection
from cordwood.wire.peers import Peers

Settled = Callable[[NodeId, "Sequence[StoreRefusal] | None"], None]
"""Called once a frame is settled: with its refusals, empty for stored, None for lost."""


SPACE_UNTOLD_BYTES = 8 << 20
"""The most bytes that are sent to a node before its first answer, which takes a millisecond: enough
for the largest block and a run."""


TOGETHER_BYTES = 64 << 10
"""A larger payload gets a frame of its own: the frame's cost is small in comparison, and its
checksum is known already."""


class _Held:
    """Payloads to one node that leave as one frame."""

    __slots__ = ("blocks", "bytes", "crc", "parts", "settled")

    def __init__(self) -> None:
        self.blocks = 0
        self.bytes = 0
        self.crc = 0
        self.parts: list[Sequence[Buffer]] = []
        self.settled: list[Settled] = []

    def settle(self, node: NodeId, refusals: Sequence[StoreRefusal] | None) -> None:
        """Tell all of them; each finds its own log's refusals."""
        for settled in self.settled:
            settled(node, refusals)


class _Numbered:
    """The open frames of one connection; `room` is the free space as last told, and `unsettled` the
    bytes sent since."""

    __slots__ = ("has_told", "open", "room", "sent", "unsettled")

    def __init__(self) -> None:
        self.sent = 0
        self.open: deque[tuple[int, int, Settled]] = deque()
        self.room = SPACE_UNTOLD_BYTES
        self.has_told = False
        self.unsettled = 0


class StoreChannel:
    """All STORE traffic of one node towards its peers.

    Attributes:
        on_space: called with a node that tells of room and settles nothing with it.
        together_bytes: what `together` puts into one frame.
    """

    def __init__(self, peers: Peers) -> None:
        self.on_space: Callable[[NodeId], None] = lambda _: None
        self.together_bytes = TOGETHER_BYTES
        self._held: dict[NodeId, _Held] | None = None
        self._peers = peers
        self._numbered: dict[Connection, _Numbered] = {}
        self._unsettled = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything is not settled yet."""
        return self._unsettled > 0

    def has_told(self, node: NodeId) -> bool:
        """Whether `node` has told its free space on the present connection."""
        connection = self._peers.get(node)
        numbered = self._numbered.get(connection) if connection is not None else None
        return numbered is not None and numbered.has_told

    def room(self, node: NodeId) -> int:
        """Bytes that may be sent to `node` now in first waves, 0 if it is not up."""
        connection = self._peers.get(node)
        if connection is None or not connection.is_open:
            return 0
        numbered = self._numbered.get(connection)
        if numbered is None:
            return SPACE_UNTOLD_BYTES
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
        length = sum(map(len, parts))
        if self._held is None or length > self.together_bytes:
            self._ship_held(node)
            self._ship(connection, numbered, parts, payload_crc, length, settled)
            return True
        held = self._held.get(node)
        # In the order of the calls: the held frames leave before this call's.
        if held is None or held.bytes + length > self.together_bytes:
            self._ship_held(node)
            held = self._held[node] = _Held()
        held.parts.append(parts)
        held.settled.append(settled)
        held.blocks += store_blocks(parts[0])
        held.bytes += length
        held.crc = payload_crc
        numbered.unsettled += length
        self._unsettled += length
        return True

    def send_amend(self, node: NodeId, parts: Sequence[Buffer], settled: Settled) -> bool:
        """As `send`, for a payload of blocks without bodies: it is a frame of its own."""
        held, self._held = self._held, None
        try:
            return self.send(node, parts, checksum(parts), settled)
        finally:
            self._held = held

    @contextmanager
    def together(self) -> Iterator[None]:
        """Small payloads sent within the `with` block leave at its end, in one frame for each node.

        With many logs a tick has a run for each log; a frame for each run and node was ten times
        the work of the blocks in it. Only for payloads of a sequencer, which have no seal epoch.
        """
        assert self._held is None, "one tick at a time"
        self._held = {}
        try:
            yield
        finally:
            for node in list(self._held):
                self._ship_held(node)
            self._held = None

    def _ship_held(self, node: NodeId) -> None:
        held = self._held.pop(node, None) if self._held else None
        connection = self._peers.get(node)
        if held is None or connection is None:
            return  # down within this tick: `on_down` has settled it
        numbered = self._numbered[connection]
        self._forget(numbered, held.bytes)
        if len(held.parts) == 1:
            self._ship(connection, numbered, held.parts[0], held.crc, held.bytes, held.settled[0])
            return
        parts: list[Buffer] = [store_head(held.blocks)]
        for each in held.parts:
            parts += each[1:]
        self._ship(connection, numbered, parts, checksum(parts), held.bytes, held.settle)

    def _ship(
        self,
        connection: Connection,
        numbered: _Numbered,
        parts: Sequence[Buffer],
        payload_crc: int,
        length: int,
        settled: Settled,
    ) -> None:
        # A lone frame takes whole blocks of the WAL.
        size = -(-length // SPACE_UNIT_BYTES) * SPACE_UNIT_BYTES
        numbered.sent += 1
        numbered.unsettled += size
        self._unsettled += size
        numbered.open.append((numbered.sent, size, settled))
        connection.send(Kind.STORE, numbered.sent, parts, payload_crc)

    def on_stored(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        """A STORED frame from `node`.

        Raises:
            Malformed: it settles a frame that was never sent.
        """
        wave, refusals = read_stored(frame.payload)
        numbered = self._numbered.get(connection)
        if numbered is None or wave > numbered.sent:
            raise Malformed(f"node {node} settles a wave that was not sent")
        by_wave: dict[int, list[StoreRefusal]] = {}
        for refusal in refusals:
            by_wave.setdefault(refusal.wave, []).append(refusal)
        numbered.room = stored_space(frame.payload)
        numbered.has_told = True
        done: list[tuple[int, int, Settled]] = []
        # One answer settles all frames up to it, because a node answers in the order of its WAL.
        while numbered.open and numbered.open[0][0] <= wave:
            done.append(numbered.open.popleft())
        # All of them first: a caller that is told next may send more.
        self._forget(numbered, sum(size for _, size, _ in done))
        for number, _, settled in done:
            settled(node, by_wave.get(number, ()))
        if not done:
            self.on_space(node)

    def _forget(self, numbered: _Numbered, size: int) -> None:
        numbered.unsettled -= size
        self._unsettled -= size

    def on_down(self, node: NodeId, connection: Connection) -> None:
        """The connection was lost, and with it the answers to open frames."""
        numbered = self._numbered.pop(connection, None)
        held = self._held.pop(node, None) if self._held else None
        if numbered is not None:
            self._forget(numbered, numbered.unsettled)
            for _, _, settled in numbered.open:
                # Lost is neither stored nor refused: the frame may have arrived before the
                # connection ended.
                settled(node, None)
            if held is not None:
                held.settle(node, None)
