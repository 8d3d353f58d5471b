"""The nodes that send to one read stream: the requests to them, and their answers.

`protocol.read_window` bounds the data that may arrive. Whenever another node must send, all nodes
are asked again.

Source: docs/sources/logdevice.md 2.11.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cordwood.block import BlockKind
from cordwood.client.admin.log_tree import read_token
from cordwood.client.blocks import HeldBlock
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.decisions import OldOrderDropped, OrderSwitched, Rewound, tell
from cordwood.layout.frame import Kind
from cordwood.layout.reading import (
    BlocksHead,
    GapRange,
    NodeGap,
    OneCopy,
    ReadRequest,
    ReadStatus,
    pack_read,
    pack_stop,
    pack_window,
)
from cordwood.lsn import LSN_MAX, Lsn, format_lsn
from cordwood.nodes import NodeId
from cordwood.protocol.gap_detection import ReadBuffer
from cordwood.protocol.read_budget import ReadBudget
from cordwood.protocol.read_window import Credit, ReadWindow
from cordwood.protocol.single_copy import Doubt, SenderChoice, Shuffle
from cordwood.protocol.slow_nodes import SlowNodes
from cordwood.settings import ClientSettings
from cordwood.wire.connection import Connection

logger = logging.getLogger(__name__)

SHUFFLES = {
    "none": Shuffle.NONE,
    "hash-shuffle": Shuffle.FIXED,
    "hash-shuffle-client-seed": Shuffle.CLIENT,
}
"""Values of the setting `scd_copyset_reordering_max`, with LogDevice's names."""


TRIMS_S = 0.3
"""The first record waits this long for a connected node that has not reported its trim point: many
times what a busy node takes."""


class Source:
    """The state of one sending node.

    Attributes:
        version: of the request that the node follows; 0 until it answers.
        asked: version of the last request to it.
        switches: whether it goes on by the old order, up to the LSN at which all nodes change.
        is_refused: whether it says that this client may not read the log.
        credit: the bytes that it may send.
    """

    __slots__ = ("asked", "connection", "credit", "is_refused", "switches", "version")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.start(0, 0)

    def start(self, granted: int, asked: int) -> None:
        self.version = 0
        self.asked = asked
        self.switches = False
        self.is_refused = False
        self.credit = Credit(granted)


SLOW_LOOK_S = 0.05
"""The time between two checks for slow nodes: a probation lasts seconds, a wait at the tail less
than one millisecond."""


@dataclass(frozen=True, slots=True)
class SenderView:
    """One node as a reader sees it, for status output.

    Attributes:
        blocks: blocks that it sent to this reader; copies and repeats count too.
        doubt: why the reader does not count on it, "" if the reader does.
        window_s: its recent average time for a window; None if not known.
        upto: it has sent its whole share below this LSN; 0 if it sent no marker yet.
        is_heard: whether it answered the last request.
    """

    node: NodeId
    is_connected: bool
    blocks: int
    doubt: str
    window_s: float | None
    upto: int
    is_heard: bool


class Senders:
    """See the module.

    Attributes:
        choice: the nodes that the reader counts on, and whether it asks for single copies.
        slow: the measured speed of the nodes.
        sources: the nodes that were asked, by number.
        bridge: the begin of the last bridge received, None before the first.
        token: the read token that the log asks for, as far as is known; "" if it asks for none,
            or if this client does not have it.
    """

    def __init__(
        self,
        number: int,
        info: LogInfo,
        buffer: ReadBuffer[HeldBlock],
        cluster: Cluster,
        settings: ClientSettings,
        budget: ReadBudget,
        seed: int,
        *,
        heads_only: bool = False,
        keys: int | None = None,
    ) -> None:
        """
        Args:
            heads_only, keys: the data to leave out, see `ReadRequest`.
        """
        down = [node for node in info.all_nodes if cluster.peers.get(node) is None]
        enabled = settings.scd_enabled and info.attributes.scd_enabled is not False
        self.choice = SenderChoice(info.all_nodes, enabled=enabled, down=down)
        self.slow = SlowNodes(info.replication.copies - 1)
        self.sources: dict[NodeId, Source] = {}
        self.bridge: Lsn | None = None
        self.token = read_token(info, settings.read_tokens) or ""
        self._number = number
        self._log = info.log_id
        self._buffer = buffer
        self._cluster = cluster
        self._settings = settings
        self._seed = seed
        self._heads_only = heads_only
        self._keys = keys
        self._is_local = settings.local_scd_enabled or bool(info.attributes.local_scd_enabled)
        self._loop = asyncio.get_running_loop()
        self._window = ReadWindow(
            buffer.next, len(self.choice.nodes), budget, self._loop.time(),
            bytes_max=settings.read_bytes,
            threshold=settings.client_read_flow_control_threshold,
        )  # fmt: skip
        self._blocks: dict[NodeId, int] = {}
        self._began = False
        self._closed = False
        self._slow_look_at = 0.0
        self._last_views: list[SenderView] | None = None
        self._rewind_due = False
        self._switch_at = 0
        self.trims_by = math.inf

    def open(self, *, is_first: bool = False) -> None:
        """Ask every node that is up; the others are asked once they connect.

        Args:
            is_first: nothing was read yet; see `look_for_trims`.
        """
        if is_first:
            self._buffer.is_held = True
            self.trims_by = self._loop.time() + TRIMS_S
        self.slow.on_window(self._window.high, self._loop.time())
        self._ask_those_up(self.choice.nodes)

    def look_for_trims(self) -> None:
        """Let the first records pass once all connected nodes have told their trim points, or had
        the time for it: a node may have missed a trim."""
        now = self._loop.time()
        if not self.sources:
            self.trims_by = now + TRIMS_S
        elif now >= self.trims_by or all(
            each.version or each.is_refused for each in self.sources.values()
        ):
            self._buffer.is_held = False
            self.trims_by = math.inf

    def close(self) -> None:
        """Stop every node's sending."""
        if self._closed:
            return
        self._closed = True
        self._last_views = self.views()
        self._window.close()
        for source in self.sources.values():
            source.connection.send(Kind.STOP, 0, (pack_stop(self._number),))
        self.sources.clear()

    def views(self) -> list[SenderView]:
        """Every node as this reader sees it, in node order; after close, the last view."""
        if self._last_views is not None:
            return self._last_views
        heard = self.sending()
        return [
            SenderView(
                node,
                node in self.sources,
                self._blocks.get(node, 0),
                doubt.value if (doubt := self.choice.doubt(node)) else "",
                self.slow.latency_s(node),
                self._buffer.marker(node),
                node in heard,
            )
            for node in self.choice.nodes
        ]

    @property
    def window(self) -> tuple[int, int]:
        """The LSNs that nodes may send now, first and last."""
        return self._window.low, self._window.high

    def add_nodes(self, nodes: Iterable[NodeId]) -> None:
        """Read from these nodes too: later epochs have them in their nodesets."""
        new = [node for node in nodes if node not in self.choice.nodes]
        for node in new:
            self.choice.add_node(node)
            if self._cluster.peers.get(node) is None:
                self.choice.on_doubt(node, Doubt.UNREACHABLE)
        self._ask_those_up(new)
        self.rewind_soon()

    def sending(self) -> frozenset[NodeId]:
        """The nodes that answered their last request."""
        return frozenset(n for n, each in self.sources.items() if each.version == each.asked)

    def _ask_those_up(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            connection = self._cluster.peers.get(node)
            if connection is not None:
                self._ask(node, connection)

    # Events from nodes.

    def on_node_up(self, node: NodeId, connection: Connection) -> None:
        """Start to read from a node."""
        if node not in self.choice.nodes:
            return
        if not self._began:
            # No block came yet, so asking all nodes again costs nothing. Later the reader
            # notices a node that came back by the blocks that it sends.
            self.choice.on_settled(node, Doubt.UNREACHABLE)
            self.rewind_soon()
        self._ask(node, connection)

    def on_node_down(self, node: NodeId, connection: Connection) -> None:
        """A node is gone; its blocks stay, and other nodes are asked for the rest."""
        source = self.sources.get(node)
        if source is not None and source.connection is connection:
            del self.sources[node]
            self._buffer.on_gone(node)
            self.choice.on_doubt(node, Doubt.UNREACHABLE)
            self.rewind_soon()

    def on_reading(
        self,
        node: NodeId,
        connection: Connection,
        status: ReadStatus,
        version: int,
        trim: int,
    ) -> None:
        """A node answers a READ: from here on it sends by the new request."""
        source = self.sources.get(node)
        if source is None or source.connection is not connection:
            return
        self._buffer.on_trim(trim)
        if status == ReadStatus.ACCESS:
            if version == source.asked:  # otherwise the answer to the last request follows
                source.is_refused = True
                self._buffer.on_gone(node)
            return
        source.version = version
        if status == ReadStatus.DAMAGED:
            self._buffer.on_damaged(node)
            self.choice.on_doubt(node, Doubt.DAMAGED)
        else:
            self.choice.on_settled(node, Doubt.DAMAGED)
        self.rewind_soon()

    def on_blocks(
        self, node: NodeId, connection: Connection, head: BlocksHead, blocks: Sequence[HeldBlock]
    ) -> bool:
        """A node sent blocks, or only its marker; False if the frame is of an old request."""
        source = self.sources.get(node)
        if source is None or source.connection is not connection:
            return False
        is_trimmed = self._buffer.on_trim(head.trim)
        if source.version != source.asked:
            # Race: the block is of an older request. It comes again, or another node sends it.
            tell(OldOrderDropped(self._log, node))
            return is_trimmed
        for block in blocks:
            self._on_block(source, block)
        self._buffer.on_marker(node, head.next)
        self.slow.on_marker(node, head.next, self._loop.time())
        self.grant_credit(source)
        self._switch(node, source)
        return True

    def on_gaps(self, node: NodeId, connection: Connection, gaps: Sequence[GapRange]) -> bool:
        """A node says why it leaves ranges out; False if the frame is of an old request."""
        source = self.sources.get(node)
        if source is None or source.connection is not connection:
            return False
        for gap in gaps:
            # Main storage holds the range, even if the node answers an old question.
            if gap.reason is NodeGap.TIERED:
                self._buffer.on_tiered(gap.last)
        if source.version != source.asked:
            return self._buffer.tiered_up_to > 0
        for gap in gaps:
            if gap.reason is NodeGap.TIERED:
                self._began = True
            elif gap.reason is NodeGap.FILTERED:
                self._began = True
                self.choice.on_shipped(node)
                self._buffer.on_left_out(gap.first, gap.last)
            else:
                self._on_bad_copy(node, gap.first, gap.last)
        return True

    def _on_bad_copy(self, node: NodeId, first: int, last: int) -> None:
        """A node's copy of a range is damaged: ask the other nodes for it."""
        logger.warning(
            "log %d: node %d has a damaged copy at %s", self._log, node, format_lsn(first)
        )
        self._buffer.on_bad_copy(node, first, last)
        self.choice.on_doubt(node, Doubt.BAD_COPY)
        self.rewind_soon()

    def _on_block(self, source: Source, block: HeldBlock) -> None:
        header, node = block.header, block.node
        source.credit.on_received(block.size)
        self._began = True
        if header.kind == BlockKind.BRIDGE:
            self.bridge = Lsn(header.first)
        if not (self._heads_only or block.is_intact):
            self._on_bad_copy(node, header.first, header.last)
            self.grant_credit(source)
            return
        if header.kind == BlockKind.DATA:
            self._blocks[node] = self._blocks.get(node, 0) + 1
            self.choice.on_shipped(node)
        if self._buffer.on_block(block):
            source.credit.on_kept(block.size)
            self._window.on_block(block.size, header.count)
        else:
            # A node that sends only second copies may still be the last holder of the next record.
            self.grant_credit(source)

    # Requests to nodes.

    def _ask(self, node: NodeId, connection: Connection, start: int = 0) -> None:
        """Ask a node to send from `next` on, or from `start` if it is later."""
        source = self.sources.get(node)
        if source is None or source.connection is not connection:
            source = self.sources[node] = Source(connection)
        source.start(self._window.credit, self.choice.version)
        self._buffer.on_connected(node)
        request = ReadRequest(
            self._number,
            self._log,
            max(start, self._buffer.next),
            self._buffer.until,
            self._window.high,
            self._window.credit,
            version=self.choice.version,
            one_copy=self._one_copy(node),
            heads_only=self._heads_only,
            keys=self._keys,
            token=self.token,
        )
        connection.send(Kind.READ, 0, (pack_read(request),))

    def ask_refused(self) -> None:
        """Ask the nodes that refused this client again: it may read the log after all."""
        for node, source in sorted(self.sources.items()):
            if source.is_refused:
                self._ask(node, source.connection)

    def _one_copy(self, node: NodeId) -> OneCopy | None:
        if not self.choice.is_single:
            return None
        settings = self._settings
        shuffle = SHUFFLES[settings.scd_copyset_reordering_max]
        return OneCopy(
            shuffle,
            0,
            self._seed if shuffle is Shuffle.CLIENT else 0,
            self.choice.known_down,
            settings.location.partition(".")[0] if self._is_local else "",
            # Otherwise a slow node would send blocks of other nodes through its whole probation.
            quiet=self.choice.doubt(node) is Doubt.SLOW,
        )

    def look_for_slow(self, nodes: Sequence[NodeId]) -> None:
        """Greylist the members of `nodes` that are far slower than the others, if that is safe."""
        now = self._loop.time()
        if now < self._slow_look_at:
            return
        self._slow_look_at = now + SLOW_LOOK_S
        others = [n for n in nodes if self.choice.doubt(n) not in (None, Doubt.SLOW)]
        change = self.slow.decide(nodes, others, now)
        for node in change.slow:
            logger.info("log %d: node %d is slow, others send for it", self._log, node)
            self.choice.on_doubt(node, Doubt.SLOW)
        for node in change.back:
            self.choice.on_settled(node, Doubt.SLOW)

    def rewind_soon(self) -> None:
        """Ask all nodes again at the end of this tick, once for all events in it."""
        if self.choice.is_rewind_due and not self._rewind_due:
            self._rewind_due = True
            self._loop.call_soon(self._rewind)

    def _rewind(self) -> None:
        self._rewind_due = False
        is_gentle = self.choice.is_gentle
        if self._closed or not self.choice.takes_rewind():
            return
        if is_gentle:
            self._begin_switch()
            return
        down = tuple(self.choice.known_down)
        tell(Rewound(self._log, self._buffer.next, self.choice.is_single, down))
        self._buffer.rewind()
        self._window.restart(self._buffer.next)
        self.slow.on_rewind(self._window.high, self._loop.time())
        for node, source in sorted(self.sources.items()):
            self._ask(node, source.connection)

    @property
    def is_switching(self) -> bool:
        """Whether some nodes still send by the old order and will change to the new order."""
        return any(source.switches for source in self.sources.values())

    def _begin_switch(self) -> None:
        """All nodes go on by the old order to the end of their window, and change to the new order
        there. So no block that came, or is under way, is asked for again. With a rewind for each
        slow node, a reader on a busy machine was sent 1.2 to 1.7 bytes for each byte it read."""
        if not self.is_switching:
            self._switch_at = self._window.high + 1
        down = tuple(self.choice.known_down)
        tell(OrderSwitched(self._log, min(LSN_MAX, self._switch_at), down))
        for node, source in sorted(self.sources.items()):
            source.switches = True
            self._switch(node, source)

    def _switch(self, node: NodeId, source: Source) -> None:
        if source.switches and self._buffer.marker(node) >= self._switch_at:
            self._ask(node, source.connection, self._switch_at)

    def on_consumed(self, block: HeldBlock) -> None:
        source = self.sources.get(block.node)
        if source is not None:
            source.credit.on_consumed(block.size)
            self.grant_credit(source)

    def grant_credit(self, source: Source) -> None:
        """Let a node send more, if the gain is worth a message."""
        limit = source.credit.grant(self._window.credit)
        if limit is not None:
            window = pack_window(self._number, self._high_of(source), limit)
            source.connection.send(Kind.WINDOW, 0, (window,))

    def _high_of(self, source: Source) -> int:
        """The end of one node's window; it does not pass the LSN at which the order changes."""
        high = self._window.high
        return min(high, self._switch_at - 1) if source.switches else high

    def move_window(self) -> None:
        """Move the LSN window when `client_read_flow_control_threshold` of it is used up."""
        if self._buffer.next < self._window.due:
            return
        now = self._loop.time()
        if not self._window.move(self._buffer.next, len(self.choice.nodes), now):
            return
        self.slow.on_window(self._window.high, now)
        self.choice.on_slide()
        for source in self.sources.values():
            window = pack_window(self._number, self._high_of(source), source.credit.granted)
            source.connection.send(Kind.WINDOW, 0, (window,))
        self.rewind_soon()
