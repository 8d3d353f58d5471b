"""Whole blocks for readers that do not want records one by one.

The Spark source takes these and makes batches of them. No other part of the client's reading is
known outside the client.

Source: docs/protocol/read.md.
"""

from __future__ import annotations

from crc32c import crc32c

from cordwood.layout.object_rows import RowBlock
from cordwood.layout.waves import StoredBlock
from cordwood.nodes import NodeId
from cordwood.protocol.gap_detection import Delivery


class HeldBlock:
    """A block and the node that sent it; streams that got it together share one object.

    Attributes:
        size: bytes of the block in its frame.
        rows: the block as rows, if main storage gave it so; then `stored` has no body.
    """

    __slots__ = ("_is_intact", "header", "node", "rows", "size", "stored")

    def __init__(self, node: NodeId, stored: StoredBlock, rows: RowBlock | None = None) -> None:
        self.node = node
        self.stored = stored
        self.rows = rows
        self.header = stored.header
        self.size = stored.wire_bytes
        self._is_intact: bool | None = None

    @property
    def is_intact(self) -> bool:
        """Whether the body matches its header's checksum; computed once for all streams."""
        if self._is_intact is None:
            self._is_intact = crc32c(self.stored.body) == self.header.stored_crc
        return self._is_intact


DeliveredBlock = Delivery[HeldBlock]
"""The records `[first, last]` of a block, in its place between the blocks and gaps around it."""
