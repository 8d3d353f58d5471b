"""A read stream: one reader of one log, over all nodes that may hold it.

Nodes send each block once, or every copy of it when something may be lost
(`protocol.single_copy`); the buffer orders blocks, drops copies and tells gaps. What may
arrive is bounded for each node in bytes, and in LSNs by a window that follows the size of
the records.

Source: LogDevice digest 2.11; design.md §7; seed logdevice-read-path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Set
from typing import Protocol

from crc32c import crc32c

from cordwood.block import BlockKind, Gap, Record
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.errors import Closed, CordwoodError
from cordwood.layout.body import open_body
from cordwood.layout.frame import Kind
from cordwood.layout.reading import (
    BlocksHead,
    OneCopy,
    ReadRequest,
    ReadStatus,
    pack_read,
    pack_stop,
    pack_window,
)
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX, Lsn, format_lsn
from cordwood.nodes import NodeId
from cordwood.protocol.gap_detection import Delivery, ReadBuffer
from cordwood.protocol.single_copy import Doubt, SenderChoice, Shuffle
from cordwood.protocol.slow_shards import SlowShards
from cordwood.quorum.authority import Hearing, hear
from cordwood.settings import ClientSettings
from cordwood.wire.connection import Connection

logger = logging.getLogger(__name__)

WINDOW_LSNS_MIN = 1024
WINDOW_LSNS_MAX = 1 << 20
"""Bounds of the LSN window: LogDevice's default is 512 records, ours are blocks."""

NUDGE_FIRST_S = 1.0
NUDGE_MAX_S = 8.0
"""A reader that sees nothing asks the sequencer for the tail, which makes a stopped
one start and the nodes hear what is released."""

STUCK_S = 2.0
"""How long a readable record may be waited for before another copy is asked for.

LogDevice waits 300 s, then 600: its clients have thousands of streams, and each rewind has
a window sent again by every node. Here a window is some megabytes, nodes answer within
milliseconds, and 2 s is well above the pauses of a busy one; what it costs when it was
wrong is one window. A sequencer's first two waves fit into it.
"""

GRACE_S = 5.0
"""How long nodes that were not heard are waited for before a loss is told.

LogDevice waits 100 ms. But what is released was stored on a whole copyset, or plugged: an
f-majority without it means that one of these nodes has lost it and does not know. That is
so rare that the wait costs nothing, a loss is told for good, and a node restarts in seconds.
"""

GRACE_MISSES_MAX = 2
"""Grace periods in a row that a node may miss before it gets none (LogDevice's
`grace-counter-limit`): a range of many losses is not waited through one by one."""

SHUFFLES = {
    "none": Shuffle.NONE,
    "hash-shuffle": Shuffle.FIXED,
    "hash-shuffle-client-seed": Shuffle.CLIENT,
}
"""Values of the setting `scd_copyset_reordering_max`, with LogDevice's names."""


class Nudge(Protocol):
    """Asks a log's sequencer for the tail."""

    async def __call__(self) -> Lsn: ...


class _Source:
    """What is known of one node's sending.

    Attributes:
        version: of what the node was asked; 0 until it answers that it obeys.
    """

    __slots__ = ("connection", "granted", "held", "received", "sent_blocks", "version")

    def __init__(self, connection: Connection, granted: int) -> None:
        self.connection = connection
        self.sent_blocks = 0
        self.start(granted)

    def start(self, granted: int) -> None:
        self.version = 0
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
        settings: ClientSettings,
        nudge: Nudge,
        *,
        seed: int = 0,
    ) -> None:
        """
        Args:
            nudge: asks for the tail when nothing comes.
            seed: puts copysets in order where each reader has an order of its own.
        """
        self.number = number
        self.info = info
        self.bridge: Lsn | None = None
        self._buffer: ReadBuffer[HeldBlock] = ReadBuffer(start, until)
        self._cluster = cluster
        self._settings = settings
        self._credit = settings.read_bytes
        self._nudge = nudge
        self._seed = seed
        down = [node for node in info.all_nodes if cluster.peers.get(node) is None]
        self._choice = SenderChoice(info.all_nodes, enabled=settings.scd_enabled, down=down)
        self._slow = SlowShards(info.replication.copies - 1)
        self._sources: dict[NodeId, _Source] = {}
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._error: CordwoodError | None = None
        self._window = WINDOW_LSNS_MIN
        self._low = start
        self._high = self._window_high()
        self._mean_bytes = 256.0
        self._closed = False
        self._began = False
        self._rewind_due = False
        self._tail_seen = 0
        self._overdue_since: float | None = None
        self._grace_ends: float | None = None
        self._grace_misses: dict[NodeId, int] = {}

    @property
    def next_lsn(self) -> int:
        """The first LSN that was not given out yet."""
        return self._buffer.next

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called or the stream failed."""
        return self._closed

    @property
    def senders(self) -> SenderChoice:
        """Who is counted on, and whether single copies are asked for."""
        return self._choice

    def open(self) -> None:
        """Ask every node that is up; the others are asked when they come."""
        self._slow.on_window(self._high, self._loop.time())
        for node in self.info.all_nodes:
            connection = self._cluster.peers.get(node)
            if connection is not None:
                self._ask(node, connection)

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
        if self._closed or node not in self._choice.nodes:
            return
        if not self._began:
            # Nothing came yet, so that asking all anew costs nothing. Later on a node that
            # came back shows itself by what it sends.
            self._choice.on_settled(node, Doubt.UNREACHABLE)
            self._rewind_soon()
        self._ask(node, connection)

    def on_node_down(self, node: NodeId, connection: Connection) -> None:
        """A node is gone; what it sent stays, and others are asked for the rest."""
        source = self._sources.get(node)
        if source is not None and source.connection is connection:
            del self._sources[node]
            self._buffer.on_gone(node)
            self._choice.on_doubt(node, Doubt.UNREACHABLE)
            self._rewind_soon()

    def on_reading(
        self, node: NodeId, connection: Connection, status: ReadStatus, released: int, version: int
    ) -> None:
        """A node answers a READ: what it sends from here on is what was asked."""
        source = self._sources.get(node)
        if self._closed or source is None or source.connection is not connection:
            return
        source.version = version
        if status == ReadStatus.DAMAGED:
            self._buffer.on_damaged(node)
            self._choice.on_doubt(node, Doubt.DAMAGED)
        else:
            self._choice.on_settled(node, Doubt.DAMAGED)
        self._rewind_soon()

    def on_blocks(
        self, node: NodeId, connection: Connection, head: BlocksHead, blocks: list[StoredBlock]
    ) -> None:
        """A node sent blocks, or only how far it has come."""
        source = self._sources.get(node)
        if self._closed or source is None or source.connection is not connection:
            return
        if source.version != self._choice.version:
            return  # by an order that was changed since: it comes again, or another sends it
        for stored in blocks:
            self._on_block(node, source, stored)
        self._buffer.on_marker(node, head.next)
        self._slow.on_marker(node, head.next, self._loop.time())
        self._grace_misses.pop(node, None)
        self._grant(source)
        self._news.set()

    def _on_block(self, node: NodeId, source: _Source, stored: StoredBlock) -> None:
        header, size = stored.header, stored.wire_bytes
        source.received += size
        self._began = True
        if header.kind == BlockKind.BRIDGE:
            self.bridge = Lsn(header.first)
        if crc32c(stored.body) != header.stored_crc:
            logger.warning(
                "log %d: node %d sent a damaged copy at %s",
                self.info.log_id, node, format_lsn(header.first),
            )  # fmt: skip
            self._buffer.on_bad_copy(node, header.first, header.last)
            self._choice.on_doubt(node, Doubt.BAD_COPY)
            self._rewind_soon()
            return
        if header.kind == BlockKind.DATA:
            source.sent_blocks += 1
            self._choice.on_shipped(node)
        if self._buffer.on_block(HeldBlock(node, stored)):
            source.held += size
            mean = size / header.count
            self._mean_bytes += 0.05 * (mean - self._mean_bytes)

    # What nodes are asked.

    def _ask(self, node: NodeId, connection: Connection) -> None:
        """Have a node send from `next` on."""
        source = self._sources.get(node)
        if source is None or source.connection is not connection:
            source = self._sources[node] = _Source(connection, self._credit)
        source.start(self._credit)
        self._buffer.on_connected(node)
        request = ReadRequest(
            self.number,
            self.info.log_id,
            self._buffer.next,
            self._buffer.until,
            self._high,
            self._credit,
            version=self._choice.version,
            one_copy=self._one_copy(),
        )
        connection.send(Kind.READ, 0, (pack_read(request),))

    def _one_copy(self) -> OneCopy | None:
        if not self._choice.is_single:
            return None
        settings = self._settings
        shuffle = SHUFFLES[settings.scd_copyset_reordering_max]
        return OneCopy(
            shuffle,
            0,
            self._seed if shuffle is Shuffle.CLIENT else 0,
            self._choice.known_down,
            settings.location.partition(".")[0] if settings.local_scd_enabled else "",
        )

    def _rewind_soon(self) -> None:
        """Ask all anew at the end of this turn, once for all that happened in it."""
        if self._choice.is_rewind_due and not self._rewind_due:
            self._rewind_due = True
            self._loop.call_soon(self._rewind)

    def _rewind(self) -> None:
        self._rewind_due = False
        if self._closed or not self._choice.takes_rewind():
            return
        logger.debug(
            "log %d: %s from %s on, known down: %s", self.info.log_id,
            "single copies" if self._choice.is_single else "all copies",
            format_lsn(self._buffer.next), self._choice.known_down,
        )  # fmt: skip
        self._buffer.rewind()
        self._low = self._buffer.next
        self._high = max(self._high, self._window_high())
        self._slow.on_rewind(self._high, self._loop.time())
        self._overdue_since = self._grace_ends = None
        for node, source in sorted(self._sources.items()):
            self._ask(node, source.connection)

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
        judge = self._judge if self._may_conclude() else None
        taken = self._buffer.take(judge, grace_over=self._is_grace_over())
        if not self._buffer.wants_grace:
            self._grace_ends = None
        if isinstance(taken, Delivery):
            self._on_consumed(taken.block)
        if taken is not None:
            self._overdue_since = None
        else:
            self._look_for_doubts()
        if self._buffer.next >> 32 > self.info.epoch and self._is_overdue():
            self._cluster.learn_log(self.info, self._learn)
        self._move_window()
        return taken

    def _may_conclude(self) -> bool:
        """Whether silence means something: never while one node leaves out what another
        sends, unless the reader said that it would rather not wait."""
        if self._choice.is_rewind_due:
            return False
        return not self._choice.is_single or (
            self._settings.read_stream_guaranteed_delivery_efficiency
        )

    def _judge(self, heard: Set[NodeId]) -> Hearing:
        """See `gap_detection.Judge`; an epoch whose nodeset is not known proves nothing."""
        found = self._cluster.nodeset_of(self.info, self._buffer.next >> 32)
        if found is None:
            return Hearing.NONE
        return hear(heard, *found, self._cluster.statuses)

    def _look_for_doubts(self) -> None:
        """Nothing is here: whether that is a reason to ask for other copies."""
        # What was said before the others were asked anew says nothing about their new share.
        if not (self._may_conclude() or self._choice.is_rewind_due) and (
            self._buffer.is_passed_by(self._senders_now())
        ):
            self._choice.on_suspicion()
        if self._settings.reader_slow_shards_detection:
            self._look_for_slow()
        if self._overdue_since is None and self._is_overdue():
            self._overdue_since = self._loop.time()
        if self._grace_ends is None and self._buffer.wants_grace:
            self._grace_ends = self._loop.time() + GRACE_S
        self._rewind_soon()

    def _senders_now(self) -> list[NodeId]:
        """The nodes of `next`'s epoch that are counted on."""
        members = self.info.nodes_of(self._buffer.next >> 32)
        return [node for node in members if self._choice.doubt(node) is None]

    def _is_overdue(self) -> bool:
        return self._buffer.is_overdue or (
            self._tail_seen >= self._buffer.next and not self._buffer.is_done
        )

    def _look_for_slow(self) -> None:
        """Greylist the nodes that are far slower than the others, while that cannot hurt."""
        nodes = self.info.nodes_of(self._buffer.next >> 32)
        others = [n for n in nodes if self._choice.doubt(n) not in (None, Doubt.SLOW)]
        change = self._slow.decide(nodes, others, self._loop.time())
        for node in change.slow:
            logger.info("log %d: node %d is slow, others send for it", self.info.log_id, node)
            self._choice.on_doubt(node, Doubt.SLOW)
        for node in change.back:
            self._choice.on_settled(node, Doubt.SLOW)

    def _is_grace_over(self) -> bool:
        """Whether whoever has not spoken was waited for, or is silent too often for that."""
        if self._grace_ends is None:
            return False
        silent = self._buffer.behind(self.info.nodes_of(self._buffer.next >> 32))
        if self._loop.time() < self._grace_ends:
            return bool(silent) and all(
                self._grace_misses.get(node, 0) > GRACE_MISSES_MAX for node in silent
            )
        for node in silent:
            self._grace_misses[node] = self._grace_misses.get(node, 0) + 1
        return True

    async def next(self) -> Delivery[HeldBlock] | Gap | None:
        """The next block or gap, waited for; None once `until` was given out.

        Raises:
            CordwoodError: the stream failed or was closed.
        """
        patience_s = NUDGE_FIRST_S
        nudge_at = self._loop.time() + patience_s
        while True:
            self._news.clear()
            taken = self.take()
            if taken is not None or self._buffer.is_done:
                return taken
            if await self._wait_news(nudge_at):
                continue
            now = self._loop.time()
            if self._overdue_since is not None and now >= self._overdue_since + STUCK_S:
                self._on_stuck(now)
            if now >= nudge_at:
                await self._ask_tail_until_news()
                patience_s = min(NUDGE_MAX_S, patience_s * 2)
                nudge_at = self._loop.time() + patience_s

    async def _wait_news(self, until: float) -> bool:
        """Wait for something to arrive, at most until there is something else to do."""
        try:
            async with asyncio.timeout_at(self._due_by(until)):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _due_by(self, until: float) -> float:
        """When there is something to do if nothing arrives, `until` at the latest."""
        if self._overdue_since is not None:
            until = min(until, self._overdue_since + STUCK_S)
        if self._grace_ends is not None:
            until = min(until, self._grace_ends)
        return until

    def _on_stuck(self, now: float) -> None:
        """Count no more on those who hold everything up; if that did not help, on nobody."""
        self._overdue_since = now
        self._choice.on_stuck(self._buffer.behind(self._senders_now()))
        self._rewind_soon()

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
        """Ask, but wait for the answer only until something arrives or is due: a sequencer
        that does not answer has the client's whole timeout, and the reader has not."""
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._ask_tail())
            news = tasks.create_task(self._news.wait())
            now = self._loop.time()
            wait_s = self._due_by(now + self._settings.timeout_s) - now
            await asyncio.wait(
                (asking, news), timeout=max(0.0, wait_s), return_when=asyncio.FIRST_COMPLETED
            )
            asking.cancel()
            news.cancel()

    async def _ask_tail(self) -> None:
        try:
            self._tail_seen = max(self._tail_seen, await self._nudge())
        except CordwoodError as error:
            logger.debug("log %d: no tail: %s", self.info.log_id, error)

    def _learn(self, info: LogInfo) -> None:
        """The log has new epochs, and perhaps nodes that were not read from so far."""
        if info.log_id != self.info.log_id or info.epoch <= self.info.epoch or self._closed:
            return
        self.info = info
        for node in info.all_nodes:
            if node in self._choice.nodes:
                continue
            self._choice.add_node(node)
            connection = self._cluster.peers.get(node)
            if connection is not None:
                self._ask(node, connection)
            else:
                self._choice.on_doubt(node, Doubt.UNREACHABLE)
        self._rewind_soon()
        self._news.set()

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
        """Move the LSN window once `client_read_flow_control_threshold` of it was used up."""
        threshold = self._settings.client_read_flow_control_threshold
        if self._buffer.next - self._low < (self._high - self._low) * threshold:
            return
        fitting = int(2 * self._credit / max(1.0, self._mean_bytes))
        self._window = max(WINDOW_LSNS_MIN, min(WINDOW_LSNS_MAX, fitting))
        high = self._window_high()
        if high <= self._high:
            return
        self._low, self._high = self._buffer.next, high
        self._slow.on_window(high, self._loop.time())
        self._choice.on_slide()
        for source in self._sources.values():
            window = pack_window(self.number, high, source.granted)
            source.connection.send(Kind.WINDOW, 0, (window,))
        self._rewind_soon()


def records_of(delivery: Delivery[HeldBlock]) -> list[Record | Gap]:
    """The records of a delivered block, clipped.

    Raises:
        Corrupt: the body cannot be read.
    """
    header = delivery.block.header
    body = open_body(header, delivery.block.stored.body, verify=True)
    start, stop = delivery.first - header.first, delivery.last - header.first + 1
    return list(body.records(header.first, header.append_time_us, start, stop))
