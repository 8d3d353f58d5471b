"""Answers to clients: acknowledgements and refusals, one frame of each in a tick.

If a block goes back to the client, the later blocks of its log go back too: a large call consists
of several blocks, and no block may pass another. The client marks the block with which it begins
again. Each producer of a log is an order of its own, and so are the blocks without a producer.

Source: docs/design.md §4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cordwood.errors import CordwoodError, Retryable
from cordwood.layout.frame import Kind
from cordwood.layout.message import AppendFault, pack, to_fault
from cordwood.layout.waves import AppendEntry, AppendFlag, pack_pairs
from cordwood.nodes import NodeId
from cordwood.wire.connection import Connection

FRAME_FAULTS = 512
"""Faults in one frame: half of what a control frame holds, if each has the longest text. A client
with a block in each of 20,000 logs is sent as many at once when a node leaves."""

NOWHERE = NodeId(0)
"""No node in particular."""


class Answers:
    """See the module."""

    def __init__(self) -> None:
        self._acks: dict[Connection, list[int]] = {}
        self._faults: dict[Connection, list[AppendFault]] = {}
        # By connection, log and producer: why the last block that may be retried went back.
        self._sent_back: dict[Connection, dict[tuple[int, int], tuple[CordwoodError, NodeId]]] = {}
        self._send_due = False

    def behind(
        self, connection: Connection, entry: AppendEntry
    ) -> tuple[CordwoodError, NodeId] | None:
        """The error with which an earlier entry of this producer went back, so that `entry` goes
        back too; None if no earlier entry did."""
        sent_back = self._sent_back.get(connection)
        if sent_back is None:
            return None
        if entry.flags & AppendFlag.AFRESH:
            sent_back.pop((entry.log, entry.producer), None)
        return sent_back.get((entry.log, entry.producer))

    def on_lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._sent_back.pop(connection, None)

    def acknowledge(self, acks: Sequence[tuple[Connection, int, int]]) -> None:
        """Blocks are stored: connection, token, first LSN of each."""
        for connection, token, first in acks:
            pairs = self._acks.get(connection)
            if pairs is None:
                pairs = self._acks[connection] = []
            pairs.append(token)
            pairs.append(first)
        self._send_soon()

    def send_back(
        self, connection: Connection, entry: AppendEntry, error: CordwoodError, node: NodeId
    ) -> None:
        """An entry was not numbered. If the client may retry it, later entries go back too.

        Args:
            node: the node to which the client should send it, 0 for none.
        """
        if isinstance(error, Retryable) and connection.is_open:
            by_lane = self._sent_back.setdefault(connection, {})
            by_lane[entry.log, entry.producer] = error, node
        self.fault(connection, entry.token, error, node)

    def fault(
        self, connection: Connection, token: int, error: CordwoodError, node: NodeId = NOWHERE
    ) -> None:
        """A block is not acknowledged."""
        self._faults.setdefault(connection, []).append(AppendFault(token, to_fault(error), node))
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._send_due:
            self._send_due = True
            asyncio.get_running_loop().call_soon(self.send)

    def send(self) -> None:
        """Answer clients, a frame to each."""
        self._send_due = False
        acks, self._acks = self._acks, {}
        for connection, pairs in acks.items():
            connection.send(Kind.APPENDED, 0, (pack_pairs(pairs),))
        faults, self._faults = self._faults, {}
        for connection, every in faults.items():
            for at in range(0, len(every), FRAME_FAULTS):
                connection.send(Kind.APPEND_FAULTS, 0, (pack(every[at : at + FRAME_FAULTS]),))
