"""Answers to clients: acknowledgements and refusals, a frame of each once a tick.

A block that goes back takes those of its log behind it along: a large call comes as several
blocks, and none may pass another. The client says where it begins afresh. Each producer,
and what has none, is a line of its own.

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

NOWHERE = NodeId(0)
"""No node in particular."""


class Answers:
    """See the module."""

    def __init__(self) -> None:
        self._acks: dict[Connection, list[int]] = {}
        self._faults: dict[Connection, list[AppendFault]] = {}
        # By connection, log and producer: why the last one that may come again went back.
        self._sent_back: dict[Connection, dict[tuple[int, int], tuple[CordwoodError, NodeId]]] = {}
        self._send_due = False

    def behind(
        self, connection: Connection, entry: AppendEntry
    ) -> tuple[CordwoodError, NodeId] | None:
        """Why an entry goes back like one before it; None if none before it did."""
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
        """An entry was not numbered; where it may come again, those behind it go back too.

        Args:
            node: where to send it instead, 0 for nowhere in particular.
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
        for connection, each in faults.items():
            connection.send(Kind.APPEND_FAULTS, 0, (pack(each),))
