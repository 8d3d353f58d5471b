"""A read stream: one reader of one log, over all nodes that may hold it.

Every node sends what it holds; the buffer orders it, drops the copies and tells
gaps. What may arrive is bounded for each node in bytes, and in LSNs by a window
that follows the size of the records.

Source: LogDevice digest 2.11; design.md §7; seed logdevice-read-path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Protocol

from crc32c import crc32c

from cordwood.block import BlockKind, Gap, Record
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.errors import Closed, CordwoodError
from cordwood.layout.body import open_body
from cordwood.layout.frame import Kind
from cordwood.layout.reading import (
    BlocksHead,
    ReadRequest,
    pack_read,
    pack_stop,
    pack_window,
)
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX, Lsn, format_lsn
from cordwood.nodes import NodeId
from cordwood.protocol.gap_detection import Delivery, ReadBuffer
from cordwood.wire.connection import Connection

logger = logging.getLogger(__name__)

WINDOW_LSNS_MIN = 1024
WINDOW_LSNS_MAX = 1 << 20
"""Bounds of the LSN window: LogDevice's default is 512 records, ours are blocks."""

NUDGE_FIRST_S = 1.0
NUDGE_MAX_S = 8.0
"""A reader that sees nothing asks the sequencer for the tail, which makes a stopped
one start and the nodes hear what is released."""


class Nudge(Protocol):
    """Asks a log's sequencer for the tail."""

    async def __call__(self) -> object: ...


class _Source:
    """What is known of one node's sending."""

    __slots__ = ("connection", "granted", "held", "received")

    def __init__(self, connection: Connection, granted: int) -> None:
        self.connection = connection
        self.received = 0
        self.held = 0
        self.granted = granted


class HeldBlock:
    """A block in the buffer and the node that sent it."""

    __slots__ = ("header", "node", "stored")

    def __init__(self, node: NodeId, stored: StoredBlock) -> None:
        self.node = node
        self.stored = stored
        self.header = stored.header


class ReadStream:
    """See the module. Made by the client's `read`; iterate it, then `close` it.

    Iterating yields `Record` and `Gap` in order, which tile `[start, until]`.

    Attributes:
        number: the stream's, as nodes know it.
        info: the log that is read.
        bridge: where the bridge that was received last begins, None before the first.
    """

    def __init__(
        self,
        number: int,
        info: LogInfo,
        start: int,
        until: int,
        cluster: Cluster,
        credit_bytes: int,
        nudge: Nudge,
    ) -> None:
        self.number = number
        self.info = info
        self.bridge: Lsn | None = None
        self._buffer: ReadBuffer[HeldBlock] = ReadBuffer(start, until)
        self._cluster = cluster
        self._credit = credit_bytes
        self._nudge = nudge
        self._sources: dict[NodeId, _Source] = {}
        self._news = asyncio.Event()
        self._error: CordwoodError | None = None
        self._window = WINDOW_LSNS_MIN
        self._high = self._window_high()
        self._mean_bytes = 256.0
        self._closed = False

    @property
    def next_lsn(self) -> int:
        """The first LSN that was not given out yet."""
        return self._buffer.next

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called or the stream failed."""
        return self._closed

    def open(self) -> None:
        """Ask every node that is up; the others are asked when they come."""
        for node in self.info.all_nodes:
            connection = self._cluster.peers.get(node)
            if connection is not None:
                self.on_node_up(node, connection)

    def close(self) -> None:
        """Stop every node's sending."""
        if self._closed:
            return
        self._closed = True
        for source in self._sources.values():
            source.connection.send(Kind.STOP, 0, (pack_stop(self.number),))
        self._sources.clear()
        self._news.set()

    def fail(self, error: CordwoodError) -> None:
        """End the stream with an error."""
        self._error = error
        self.close()

    # What nodes do.

    def on_node_up(self, node: NodeId, connection: Connection) -> None:
        """Start to read from a node."""
        if self._closed or node not in self.info.all_nodes:
            return
        self._sources[node] = _Source(connection, self._credit)
        self._buffer.on_connected(node)
        request = ReadRequest(
            self.number,
            self.info.log_id,
            self._buffer.next,
            self._buffer.until,
            self._high,
            self._credit,
        )
        connection.send(Kind.READ, 0, (pack_read(request),))

    def on_node_down(self, node: NodeId, connection: Connection) -> None:
        """A node is gone; what it sent stays."""
        source = self._sources.get(node)
        if source is not None and source.connection is connection:
            del self._sources[node]
            self._buffer.on_gone(node)

    def on_damaged(self, node: NodeId) -> None:
        """A node lost records: what it does not send is unknown."""
        self._buffer.on_damaged(node, self._buffer.next)

    def on_blocks(
        self, node: NodeId, connection: Connection, head: BlocksHead, blocks: list[StoredBlock]
    ) -> None:
        """A node sent blocks, or only how far it has come."""
        source = self._sources.get(node)
        if self._closed or source is None or source.connection is not connection:
            return
        for stored in blocks:
            size = stored.wire_bytes
            source.received += size
            if stored.header.kind == BlockKind.BRIDGE:
                self.bridge = Lsn(stored.header.first)
            if crc32c(stored.body) != stored.header.stored_crc:
                logger.warning(
                    "log %d: node %d sent a damaged copy at %s",
                    self.info.log_id, node, format_lsn(stored.header.first),
                )  # fmt: skip
                self._buffer.on_damaged(node, stored.header.first)
            elif self._buffer.on_block(HeldBlock(node, stored)):
                source.held += size
                mean = size / stored.header.count
                self._mean_bytes += 0.05 * (mean - self._mean_bytes)
        self._buffer.on_marker(node, head.next)
        self._grant(source)
        self._news.set()

    # What the reader does.

    def take(self) -> Delivery[HeldBlock] | Gap | None:
        """The next block or gap if it is known, else None.

        Raises:
            CordwoodError: the stream failed or was closed.
        """
        if self._error is not None:
            raise self._error
        if self._closed and not self._buffer.is_done:
            raise Closed("this read stream was closed")
        taken = self._buffer.take(self.info.nodes_of(self._buffer.next >> 32))
        if isinstance(taken, Delivery):
            self._on_consumed(taken.block)
        self._move_window()
        return taken

    async def next(self) -> Delivery[HeldBlock] | Gap | None:
        """The next block or gap, waited for; None once `until` was given out.

        Raises:
            CordwoodError: the stream failed or was closed.
        """
        patience = NUDGE_FIRST_S
        while True:
            self._news.clear()
            taken = self.take()
            if taken is not None or self._buffer.is_done:
                return taken
            try:
                async with asyncio.timeout(patience):
                    await self._news.wait()
            except TimeoutError:
                patience = min(NUDGE_MAX_S, patience * 2)
                await self._ask_tail_until_news()

    async def next_many(self, bytes_max: int) -> list[Delivery[HeldBlock] | Gap]:
        """The next blocks and gaps, at least one, and what else is known by now.

        Args:
            bytes_max: stop once the bodies as stored add up to this.
        Returns:
            Blocks and gaps in order; empty once `until` was given out.
        Raises:
            CordwoodError: the stream failed or was closed.
        """
        taken = await self.next()
        many: list[Delivery[HeldBlock] | Gap] = []
        size = 0
        while taken is not None:
            many.append(taken)
            size += taken.block.header.stored_bytes if isinstance(taken, Delivery) else 0
            taken = self.take() if size < bytes_max else None
        return many

    async def next_items(self) -> list[Record | Gap]:
        """The next gap, or the records of the next block; empty once all was given out.

        Raises:
            Corrupt: a block's body passed its stored checksum and cannot be read.
        """
        taken = await self.next()
        if taken is None:
            return []
        return [taken] if isinstance(taken, Gap) else records_of(taken)

    async def __aiter__(self) -> AsyncIterator[Record | Gap]:
        try:
            while items := await self.next_items():
                for item in items:
                    yield item
        finally:
            self.close()

    async def _ask_tail_until_news(self) -> None:
        """Ask, but wait for the answer only until something arrives: a sequencer that does
        not answer has the client's whole timeout, and the reader has not."""
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._ask_tail())
            news = tasks.create_task(self._news.wait())
            await asyncio.wait((asking, news), return_when=asyncio.FIRST_COMPLETED)
            asking.cancel()
            news.cancel()

    async def _ask_tail(self) -> None:
        try:
            await self._nudge()
        except CordwoodError as error:
            logger.debug("log %d: no tail: %s", self.info.log_id, error)

    def _on_consumed(self, block: HeldBlock) -> None:
        source = self._sources.get(block.node)
        if source is not None:
            # A node that came back started from nothing, so what the old
            # connection sent may be counted off only down to zero.
            source.held = max(0, source.held - block.stored.wire_bytes)
            self._grant(source)

    def _grant(self, source: _Source) -> None:
        """Let a node send more once a quarter of its credit was used up."""
        limit = source.received - source.held + self._credit
        if limit - source.granted >= self._credit // 4:
            source.granted = limit
            window = pack_window(self.number, self._high, limit)
            source.connection.send(Kind.WINDOW, 0, (window,))

    def _window_high(self) -> int:
        return min(LSN_MAX, self._buffer.next + self._window)

    def _move_window(self) -> None:
        """Move the LSN window when a third of it was used up (LogDevice: 0.7 is left)."""
        if self._high - self._buffer.next > self._window * 2 // 3:
            return
        fitting = int(2 * self._credit / max(1.0, self._mean_bytes))
        self._window = max(WINDOW_LSNS_MIN, min(WINDOW_LSNS_MAX, fitting))
        high = self._window_high()
        if high <= self._high:
            return
        self._high = high
        for source in self._sources.values():
            window = pack_window(self.number, high, source.granted)
            source.connection.send(Kind.WINDOW, 0, (window,))


def records_of(delivery: Delivery[HeldBlock]) -> list[Record | Gap]:
    """The records of a delivered block, clipped.

    Raises:
        Corrupt: the body cannot be read.
    """
    header = delivery.block.header
    body = open_body(header, delivery.block.stored.body, verify=True)
    start, stop = delivery.first - header.first, delivery.last - header.first + 1
    return list(body.records(header.first, header.append_time_us, start, stop))
