"""A read stream: one reader of one log, over all nodes that may hold it.

Nodes send each block once, or every copy of it when something may be lost
(`protocol.single_copy`); the buffer orders blocks, drops copies and tells gaps. Each node may send
a bounded number of bytes ahead, and LSNs within a window that follows the size of the records.

Source: docs/sources/logdevice.md 2.11; docs/design.md §7.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import weakref
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Protocol

from cordwood.block import Gap, GapKind
from cordwood.client.blocks import HeldBlock
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.client.own_loop import check_loop, check_loop_at_end
from cordwood.client.read.counted_out import CountedOut
from cordwood.client.read.read_access import ReadAccess, call_weakly
from cordwood.client.read.read_grace import Grace
from cordwood.client.read.read_health import HEALTH_S, ReadHealth
from cordwood.client.read.senders import Senders
from cordwood.client.read.shared_tail import SharedTails, SubscriberQueue
from cordwood.client.read.stream_items import StreamItems
from cordwood.client.read.tier_read import ReadTier, TierRead
from cordwood.decisions import (
    GapConcluded,
    ReaderEnded,
    ReaderHealth,
    ReaderStuck,
    TailSought,
    tell,
)
from cordwood.errors import AccessDenied, Closed, CordwoodError, Overloaded, UnknownLog
from cordwood.layout.key_bits import key_bits
from cordwood.layout.reading import BlocksHead, GapRange, ReadStatus
from cordwood.lsn import LSN_MAX, Lsn
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.gap_detection import Delivery, ReadBuffer
from cordwood.protocol.read_budget import ReadBudget
from cordwood.quorum.f_majority import QuorumVerdict
from cordwood.settings import ClientSettings
from cordwood.wire.connection import Connection

logger = logging.getLogger(__name__)

NUDGE_FIRST_S = 1.0
NUDGE_MAX_S = 8.0
NUDGE_BOUNDED_S = 0.05
"""An idle reader asks the sequencer for the tail. The question starts a stopped sequencer, and
nodes learn the last released LSN. A bounded reader asks once soon after its begin."""

STUCK_S = 2.0
"""A readable record may stay away this long before the reader asks for another copy.

LogDevice waits 300 s, then 600: its clients have thousands of streams, and each rewind has
a window sent again by every node. Here a window is some megabytes, nodes answer within
milliseconds, and 2 s is well above the pauses of a busy node; a wrong guess costs one window. A
sequencer's first two waves fit into this time.
"""

LOOK_S = 0.05
"""The reader investigates a missing record this long after a node sent records beyond it.

At the tail all nodes of a log report their progress at once, and one of them sends the record. A
reader that woke for each report woke five times for a block, and four times in vain.
"""

LOST_S = 10.0
"""The longest time that a reader believes what main storage said of a range that it does not give.

The manifest may be repaired meanwhile, or the object put back. It is one read in this time, while
too few nodes answer.
"""

_MAY_COME = (QuorumVerdict.NONE, QuorumVerdict.INCOMPLETE)
"""Verdicts while a silent node has data."""


class Nudge(Protocol):
    """Asks a log's sequencer for the tail."""

    async def __call__(self) -> Lsn: ...


OnHealth = Callable[["ReadStream", str], None]


class ReadStream(StreamItems):
    """See the module. The client's `read` makes it. If it is not read to its end, `close` closes
    it, or the garbage collector does.

    Iterating yields `Record` and `Gap` in order, which tile `[start, until]`.

    Attributes:
        number: the stream's number, as nodes know it.
        info: the log.
        on_health: called with a reason when a reader waits for HEALTH_S although there is, or may
            be, more to read (`client.read.read_health`); called with "" when it continues.
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
        budget: ReadBudget,
        seed: int = 0,
        keys: Collection[bytes] | None = None,
        payloads: bool = True,
        record_keys: bool = True,
        gaps: bool = True,
        tails: SharedTails | None = None,
        tier: ReadTier | None = None,
        on_closed: Callable[[ReadStream], None] | None = None,
    ) -> None:
        """
        Args:
            nudge: asks for the tail when nothing arrives.
            budget: bytes that nodes may send ahead to all streams of the client.
            seed: orders copysets if each reader has its own order.
            keys, payloads, record_keys, gaps: the wanted and omitted parts, see `Store.read`.
            tails: the client's shared tails; None to read alone.
            tier: reads records that nodes let go of.
            on_closed: called at the end; from then on the stream needs no frames of nodes.
        """
        self.number = number
        self.info = info
        self.on_health: OnHealth | None = None
        self._cluster = cluster
        self._settings = settings
        self._budget = budget
        self._seed = seed
        self._payloads = payloads
        self._nudge = nudge
        self._patience_s = NUDGE_BOUNDED_S if until < LSN_MAX else NUDGE_FIRST_S
        super().__init__(until, keys, record_keys, gaps=gaps)
        self._begin(start, until)
        is_plain = keys is None and payloads and until == LSN_MAX
        self._tails = tails if is_plain else None
        self._tier = tier
        self._tier_read: TierRead | None = None
        # The LSN at which main storage failed, and the error. The nodes are asked for records
        # there.
        self._tier_failed: tuple[int, CordwoodError] | None = None
        # A range that main storage lost, or that lies before its start.
        self._tier_lost: Gap | None = None
        # When main storage said so, or failed.
        self._lost_at = 0.0
        # Whether records that main storage does not have are waited for, from silent nodes.
        self._tier_waits = False
        self._queue: SubscriberQueue | None = None
        self._on_closed = on_closed
        self._owes_itself = False  # items that a full queue refused: before it joins another leader
        self._news = asyncio.Event()
        self._look_due: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._error: CordwoodError | None = None
        self._closed, self._tail_seen = False, 0
        self._health = ReadHealth()

    def _begin(self, start: int, until: int) -> None:
        """Continue from `start`, without any knowledge of the nodes' records from there on."""
        self._buffer: ReadBuffer[HeldBlock] = ReadBuffer(start, until)
        keys = None if self._keys is None else key_bits(self._keys)
        self._senders = Senders(
            self.number, self.info, self._buffer, self._cluster, self._settings, self._budget,
            self._seed, heads_only=not self._payloads, keys=keys,
        )  # fmt: skip
        tokens = self._settings.read_tokens
        self._access = ReadAccess(
            self._senders, self._cluster, tokens, weakref.WeakMethod(self._on_denied)
        )
        self._choice = self._senders.choice
        self._buffer.proof = self._counted_out = CountedOut(
            self._cluster, self._senders, self._buffer, weakref.WeakMethod(self._nodeset),
            weakref.WeakMethod(self.on_news),
        )  # fmt: skip
        self._overdue_since: float | None = None
        self._grace = Grace()

    @property
    def senders(self) -> Senders:
        """The nodes that send, and the requests to them; the leader's while it shares a tail."""
        return self._senders if self._queue is None else self._queue.leader.senders

    @property
    def taken_lsn(self) -> int:
        """See `StreamItems.taken_lsn`."""
        return self._buffer.next

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, failed, or came to its end."""
        return self._closed

    @property
    def is_done(self) -> bool:
        """Whether all items up to `until` were given out."""
        return self._buffer.is_done and not self.hand

    @property
    def is_connected(self) -> bool:
        """Whether enough nodes are connected to prove that no node holds a record. With fewer, the
        reader may have to wait for records (LogDevice's `isConnectionHealthy`)."""
        if self._queue is not None:
            return self._queue.leader.is_connected
        sources = self.senders.sources.keys()
        everybody = sources >= {*self.info.all_nodes}
        return everybody or self._judge(sources) is not QuorumVerdict.NONE

    @property
    def trouble(self) -> str:
        """The reason why a waiting reader gets nothing although there may be more; "" if all is
        well."""
        return self._health.trouble

    @property
    def bridge(self) -> Lsn | None:
        """First LSN of the newest bridge, None before the first."""
        return self.senders.bridge or self._senders.bridge

    def open(self) -> None:
        """Ask every node that is up; the others are asked once they connect."""
        self._senders.open(is_first=True)

    def close(self) -> None:
        """Stop every node's sending; received items are not given out any more.

        Raises:
            Rejected: this is another event loop.
        """
        check_loop_at_end(self._loop)
        self.hand.leave(self._buffer.next)
        self._end()

    def __del__(self) -> None:
        # Its application has dropped it, in any thread; see `Store.read`.
        if getattr(self, "_closed", True) or self._loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed just now
            self._loop.call_soon_threadsafe(self._end, context=self._context)

    def _end(self) -> None:
        """Stop all requests to the nodes."""
        if self._closed:
            return
        self._closed = True
        if self._queue is not None:
            self._queue.leave()
        elif self._tails is not None:
            self._tails.forget(self)
        self._stop_asking()
        if not self._buffer.is_done:
            self._buffer.rewind()  # received items are not given out any more, so drop them
        self._news.set()
        if self._on_closed is not None:
            self._on_closed(self)

    def _stop_asking(self) -> None:
        self._end_tier_read()
        self._senders.close()
        self._access.close()
        for timer in (self._look_due, self._alarm):
            if timer is not None:
                timer.cancel()
        self._look_due = self._alarm = None

    def fail(self, error: CordwoodError) -> None:
        """End the stream with an error."""
        tell(ReaderEnded(self.info.log_id, str(error)))
        self._error = error
        self.close()

    # What nodes do.

    def on_node_up(self, node: NodeId, connection: Connection) -> None:
        """Start to read from a node."""
        if not (self._closed or self._queue):
            self._senders.on_node_up(node, connection)

    def on_node_down(self, node: NodeId, connection: Connection) -> None:
        """A node disconnected. Its items stay, and other nodes are asked for the rest."""
        if self._closed or self._queue:
            return
        self._senders.on_node_down(node, connection)
        if not self._senders.sources:
            self._news.set()  # an isolated reader reports so in time

    def on_statuses(self, *, is_moved: bool) -> None:
        """The status of some nodes' data has changed.

        Args:
            is_moved: other nodes have the data of one of these nodes now. Their earlier progress
                says nothing about this data, so the stream asks all nodes anew.
        """
        if is_moved and not self._queue:
            self._choice.on_moved()
            self._senders.rewind_soon()
        self._news.set()

    def on_reading(
        self, node: NodeId, connection: Connection, status: ReadStatus, version: int, trim: int
    ) -> None:
        """A node answers a READ: from here on it sends for this request."""
        if self._closed or self._queue:
            return
        self._senders.on_reading(node, connection, status, version, trim)
        self._news.set()
        # If the stream waited for a place, the reader would wait without a reason.
        if status == ReadStatus.FULL:
            self.fail(
                Overloaded(f"node {node} has no room for one more read stream of this client")
            )
        elif status == ReadStatus.ACCESS:
            self._access.on_refused(self.info)

    def _on_denied(self) -> None:
        """This client may not read the log, or not any more."""
        logger.info("log %d: its read token is asked for", self.info.log_id)
        self._buffer.on_over(GapKind.ACCESS)
        self._news.set()

    def on_blocks(
        self, node: NodeId, connection: Connection, head: BlocksHead, blocks: Sequence[HeldBlock]
    ) -> None:
        """A node sent blocks, or only its progress."""
        if self._closed or not self._senders.on_blocks(node, connection, head, blocks):
            return
        self._grace.on_heard(node)
        if self._buffer.is_ready or not self._choice.is_single:
            self._news.set()
        elif self._look_due is None:
            # With single copies, a record missing here is most often on its way from another node.
            self._look_due = self._loop.call_later(LOOK_S, self._look)

    def on_gaps(self, node: NodeId, connection: Connection, gaps: Sequence[GapRange]) -> None:
        """A node sends no records of some ranges, and reports the reasons."""
        if not self._closed and self._senders.on_gaps(node, connection, gaps):
            self._news.set()

    def _look(self) -> None:
        """A node sent records beyond a record that may be missing: the reader has to check."""
        self._look_due = None
        if not self._closed and self._buffer.is_overdue:
            self._news.set()

    # What the reader does.

    def take(self) -> Delivery[HeldBlock] | Gap | None:
        """The next block or gap if it is known, else None.

        Raises:
            CordwoodError: the stream failed or was closed.
        """
        if self._error is not None:
            raise self._error
        hand = self.hand
        if (hand.held or hand.opened) and (given := hand.block()) is not None:
            return given
        if self._closed and (hand.is_cut or not self._buffer.is_done):
            raise Closed("this read stream was closed")
        if self._queue is not None:
            return self._take_shared(self._queue)
        # Until every node has told its trim point, a record could be given out that is trimmed.
        if self._buffer.is_held:
            self._senders.look_for_trims()
        judge = self._judge if self.may_conclude() else None
        taken = self._buffer.take(judge, grace_over=self.is_grace_over())
        if self._buffer.wants_grace and self._grace.is_waived(self._silent()):
            # At once: a period takes a timer's wait at least, and there may be many losses.
            taken = self._buffer.take(judge, grace_over=True)
        # The missing block is here, or the verdict no longer depends on the silent nodes.
        if not (self._buffer.wants_grace or self._tier_waits):
            self._grace.end()
        self._tier_waits = False
        if taken is None and self._buffer.tiered_up_to:
            taken = self._take_tiered()
        if isinstance(taken, Delivery):
            self._senders.on_consumed(taken.block)
        elif isinstance(taken, Gap):
            tell(GapConcluded(self.info.log_id, taken.first, taken.last, taken.kind.name))
        # Their bytes go back to the node's credit too, or it would stop sending.
        for block in self._buffer.take_passed():
            self._senders.on_consumed(block)
        if taken is not None:
            self._overdue_since = None
            self._owes_itself = False
            self._health.on_taken()
            if self._health.trouble:
                self._on_health("")
        else:
            self._look_for_doubts()
        is_new = self._buffer.next >> 32 > self.info.epoch
        # Pass a bridge at once: the next epoch's nodes must be known before its records arrive.
        # Without them, no range of main storage is judged that is lost or damaged.
        is_judging = self._tier_lost is not None or self._tier_failed is not None
        if is_new and (isinstance(taken, Gap) or self._is_overdue() or is_judging):
            self._cluster.learn_log(self.info, self._learn)
        if self._buffer.is_done:
            self._end()
        else:
            self._senders.move_window()
        return taken

    def _take_tiered(self) -> Delivery[HeldBlock] | Gap | None:
        """Records that nodes let go of, from main storage; None while they are on their way.

        Raises:
            CordwoodError: main storage is damaged there, and no node has a copy.
        """
        # A trim that a node has not told yet may be newer than the manifest.
        if self._buffer.is_held:
            return None
        if self._tier_failed is not None and not self._is_past_failure(*self._tier_failed):
            return None
        if self._tier_lost is not None and self._tier_lost.last < self._buffer.next:
            self._tier_lost = None
        if self._tier_lost is not None and self._is_still_true():
            return self._take_lost(self._tier_lost)
        read = self._tier_read
        # The tier point moves on while objects are read: the next piece reaches to the new point.
        if read is None or read.until < self._buffer.next:
            self._end_tier_read()
            if self._tier is None:
                raise Closed("this read stream does not reach main storage")
            on_news = partial(call_weakly, weakref.WeakMethod(self.on_news))
            read = self._tier_read = self._tier.read(
                self.info, self._buffer.next, self._buffer.tiered_up_to, on_news,
                payloads=self._payloads, as_rows=self.wants_columns,
            )  # fmt: skip
        try:
            taken = read.take(self._buffer.next)
        except CordwoodError as error:
            self._on_tier_failed(error)
            return None
        if isinstance(taken, Gap) and self._needs_nodes(taken):
            self._end_tier_read()
            if self._is_old(read):
                return self._take_tiered()
            self._tier_lost, self._lost_at = taken, read.looked_at
            if taken.kind is GapKind.TRIM:
                # A trim is known to the nodes, and they may not have told it yet.
                self._choice.on_trim_untold()
            return self._take_lost(taken)
        self._overdue_since = None
        if taken is not None:
            self._tier_lost = None
            self._buffer.pass_to(taken.last + 1)
            if taken.last >= read.until:
                self._end_tier_read()
        return taken

    def _on_tier_failed(self, error: CordwoodError) -> None:
        """An object is damaged. Each node lets go by itself, so a node may still have a copy. It
        may not send this copy while another node sends for both. So all nodes are asked for all
        their copies."""
        logger.warning("log %d: nodes are asked for what %s", self.info.log_id, error)
        self._end_tier_read()
        self._tier_failed = (self._buffer.next, error)
        self._lost_at = self._loop.time()
        self._choice.on_suspicion()
        self._senders.rewind_soon()
        self._news.set()

    def _is_past_failure(self, lsn: int, error: CordwoodError) -> bool:
        """Whether objects may be read again: nodes gave the records at the damaged place, or the
        object may be whole again.

        Raises:
            CordwoodError: `error`, after all nodes have passed that place without a copy.
        """
        if lsn != self._buffer.next or not self._is_still_true():
            self._tier_failed = None
            return True
        # Trap: the reader may count on no node, for all of them have restarted. Their answers count
        # all the same. Without any answer it waits.
        _, verdict = self._weigh_lost()
        is_unanswered = verdict is QuorumVerdict.NONE and not self._passed_by()
        if self._is_early() or is_unanswered:
            return False
        if verdict in _MAY_COME and self._waits_for_silent():
            return False
        if self._proven_upto(verdict) <= lsn:
            return False
        self._tier_failed = None  # the next read tries objects again
        raise error

    def _needs_nodes(self, gap: Gap) -> bool:
        """Whether nodes are asked before a gap of main storage is told: they may have records of a
        range that it lost. A repair may have begun the manifest too late, so they may also have
        records before its start."""
        return gap.kind in (GapKind.DATA_LOSS, GapKind.TRIM)

    def _is_old(self, read: TierRead) -> bool:
        """Whether what a read says at `next` may be taken back by now: it waited behind records,
        and the application took its time for these."""
        is_behind = read.first < self._buffer.next
        return is_behind or self._loop.time() >= read.looked_at + LOST_S

    def _is_still_true(self) -> bool:
        """Whether main storage said just now what is lost, or failed just now. An operator may take
        a loss back, or put an object back, while the reader waits for nodes.

        Trap: a grace period that runs would begin anew behind another look.
        """
        since = max(self._lost_at, self._grace.ends or 0.0)
        return self._loop.time() < since + LOST_S

    def _take_lost(self, lost: Gap) -> Gap | None:
        """The range that main storage lost, as far as all nodes passed it without a copy. Nodes
        keep their remaining records of the range. A node may not send them while another node sends
        for both."""
        self._choice.on_suspicion()
        self._senders.rewind_soon()
        if self._is_early():
            return None
        heard, verdict = self._weigh_lost()
        # Nodes that are away may still have records that main storage lost. A node that starts has
        # time to give them: the others may have let go of theirs, and it may have the only copy.
        # Before the manifest's start there is nothing in most cases, so a reader waits no longer.
        if verdict is QuorumVerdict.NONE and lost.kind is GapKind.DATA_LOSS:
            return None
        if verdict in _MAY_COME and self._waits_for_silent():
            return None
        last = min(lost.last, self._proven_upto(verdict) - 1)
        if last < self._buffer.next:
            return None
        gap = Gap(Lsn(self._buffer.next), Lsn(self._buffer.lost_up_to(last, heard)), lost.kind)
        self._overdue_since = None
        self._buffer.pass_to(gap.last + 1)
        return gap

    def _is_early(self) -> bool:
        """Whether nodes that the reader counts on have not told yet what they hold at `next`."""
        is_asking = self._choice.is_rewind_due or self._senders.is_switching
        return is_asking or bool(self._buffer.behind(self._senders_now()))

    def _passed_by(self) -> list[NodeId]:
        """The nodes that have come past `next`."""
        members = self.info.nodes_of(self._buffer.next >> 32)
        return [node for node in members if self._buffer.marker(node) > self._buffer.next]

    def _weigh_lost(self) -> tuple[Set[NodeId], QuorumVerdict]:
        """The nodes that know that they have no record at `next`, and the verdict on them."""
        return self._buffer.weigh_lost(self._passed_by(), self._judge)

    def _proven_upto(self, verdict: QuorumVerdict) -> int:
        """See `CountedOut.lost_upto`."""
        return self._counted_out.lost_upto(self._passed_by(), verdict, self._waits_for_silent)

    def _waits_for_silent(self) -> bool:
        """Whether silent nodes are still in their grace period, which begins here."""
        silent = self._silent()
        self._grace.begin(self._loop.time())
        self._tier_waits = not (self._grace.is_waived(silent) or self.is_grace_over())
        return self._tier_waits

    def _end_tier_read(self) -> None:
        read, self._tier_read = self._tier_read, None
        if read is not None:
            read.close()

    def _take_shared(self, queue: SubscriberQueue) -> Delivery[HeldBlock] | Gap | None:
        """Items from the leader of a shared tail. After the last item the stream reads alone."""
        if self.trouble and not queue.is_empty:
            self._on_health("")
        taken = queue.take()
        if taken is not None:
            self._buffer.next = taken.last + 1
            if self._buffer.is_done:
                self._end()
        elif queue.is_over:
            self._leave_queue(queue)
        return taken

    def _leave_queue(self, queue: SubscriberQueue) -> None:
        """Continue from here: in another queue if there is one, else alone."""
        leader, bridge = queue.leader, self.bridge
        self._queue = None
        self._senders.bridge = bridge
        self._owes_itself = queue.is_dropped
        if leader.info.epoch > self.info.epoch:
            self.info = replace(leader.info, name=self.info.name)
        if self._tails is None or self._buffer.is_done:
            return
        # Trap: a stream that fell out of a queue because it is slow would fall out of the next one.
        if not (self.trouble or self._owes_itself):
            self._queue = self._tails.join_again(self)
        if self._queue is None:
            # Nodes may still send for this stream's earlier requests.
            self.number = self._tails.number_anew(self)
            self._begin(self._buffer.next, self._buffer.until)
            self._senders.bridge = bridge
            self._senders.open(is_first=True)
        self._news.set()

    def _joins(self) -> bool:
        """Subscribe to a shared tail, if the stream has reached it and is healthy."""
        is_behind = self._buffer.has_blocks or self._buffer.tiered_up_to or self._is_overdue()
        is_waiting = not (is_behind or self._owes_itself)
        is_well = self._senders.sources and not self.trouble and self._health.due is None
        if self._tails is None or not (is_waiting and is_well):
            return False
        self._queue = self._tails.join(self)
        if self._queue is not None:
            self._stop_asking()
        return self._queue is not None

    def on_news(self) -> None:
        """The leader of a shared tail gave an item, or ended; or newer statuses are known."""
        self._news.set()

    def may_conclude(self) -> bool:
        """Whether a node's silence counts. It never counts while a node omits blocks that another
        node sends, unless the reader asked not to wait."""
        if self._choice.is_rewind_due:
            return False
        return not self._choice.is_single or (
            self._settings.read_stream_guaranteed_delivery_efficiency
        )

    def _judge(self, heard: Set[NodeId]) -> QuorumVerdict:
        """See `gap_detection.Judge`."""
        return self._counted_out.judge(heard)

    def _nodeset(self) -> tuple[Nodeset, Replication] | None:
        """The nodeset of the epoch of `next`; None if it is not known."""
        return self._cluster.nodeset_of(self.info, self._buffer.next >> 32)

    def _look_for_doubts(self) -> None:
        """Decide whether to ask for other copies of a missing record."""
        if self._buffer.tiered_up_to:
            self._health.on_behind(self._loop.time())
            return
        # A report from before a rewind says nothing about the nodes' new shares.
        is_in_order = not (self._choice.is_rewind_due or self._senders.is_switching)
        if (
            is_in_order
            and not self.may_conclude()
            and self._buffer.is_passed_by(self._senders_now())
        ):
            self._choice.on_suspicion()
        if self._settings.reader_slow_nodes_detection:
            self._senders.look_for_slow(self.info.nodes_of(self._buffer.next >> 32))
        if self._overdue_since is None and self._is_overdue():
            self._overdue_since = self._loop.time()
            self._counted_out.note()
            self._health.on_behind(self._overdue_since)
        if self._buffer.wants_grace:
            self._grace.begin(self._loop.time())
        self._senders.rewind_soon()

    def _senders_now(self) -> list[NodeId]:
        """The nodes of `next`'s epoch that the reader counts on."""
        members = self.info.nodes_of(self._buffer.next >> 32)
        return [node for node in members if self._choice.doubt(node) is None]

    def _is_overdue(self) -> bool:
        return self._buffer.is_overdue or (
            not self._buffer.tiered_up_to
            and self._tail_seen >= self._buffer.next
            and not self._buffer.is_done
        )

    def _silent(self) -> list[NodeId]:
        """The nodes that have neither sent a block at `next` nor passed it."""
        return self._buffer.behind(self.info.nodes_of(self._buffer.next >> 32))

    def is_grace_over(self) -> bool:
        """Whether the waiting time of silent nodes is over."""
        grace = self._grace
        return grace.ends is not None and grace.is_over(self._silent(), self._loop.time())

    async def next(self) -> Delivery[HeldBlock] | Gap | None:
        """Wait for the next block or gap; None after `until` was given out.

        Raises:
            CordwoodError: the stream failed or was closed.
        """
        patience_s = self._patience_s
        nudge_at = self._loop.time() + patience_s
        while True:
            self._news.clear()
            taken = self.take()
            if taken is not None or self._buffer.is_done:
                return taken
            check_loop(self._loop)
            if self._queue is not None:
                if self._queue.trouble != self.trouble:
                    self._on_health(self._queue.trouble)
                await self._news.wait()
                nudge_at = self._loop.time() + patience_s  # the leader asks meanwhile
                continue
            if self._joins():
                continue
            now = self._loop.time()
            if self._overdue_since is not None and now >= self._overdue_since + STUCK_S:
                self._on_stuck(now)
            self._look_at_health(now)
            if now < nudge_at:
                await self._wait_news(nudge_at)
                continue
            await self._ask_tail_until_news()
            self._patience_s = NUDGE_FIRST_S
            patience_s = min(NUDGE_MAX_S, patience_s * 2)
            nudge_at = self._loop.time() + patience_s

    async def _wait_news(self, until: float) -> None:
        """Wait until an item arrives, at most until the next duty is due.

        A reader at the tail waits thousands of times a second, and mostly no duty falls due during
        a wait. A timer for each wait cost as much as the block that arrived.
        """
        due = self._due_by(until)
        if self._alarm is None or self._alarm.when() > due:
            if self._alarm is not None:
                self._alarm.cancel()
            # Weakly: a timer must not keep a dropped stream alive.
            self._alarm = self._loop.call_at(due, call_weakly, weakref.WeakMethod(self._ring))
        await self._news.wait()

    def _ring(self) -> None:
        self._alarm = None
        self._news.set()

    def _due_by(self, until: float) -> float:
        """The time of the next duty if nothing arrives, `until` at the latest."""
        if self._overdue_since is not None:
            until = min(until, self._overdue_since + STUCK_S)
        if self._grace.ends is not None:
            until = min(until, self._grace.ends)
        due = self._health.due
        return min(until, self._senders.trims_by, until if due is None else due)

    def _on_stuck(self, now: float) -> None:
        """Stop counting on the nodes that delay the reader. If that does not help, count on no
        node."""
        self._overdue_since = now
        tell(ReaderStuck(self.info.log_id, self._buffer.next))
        if self._senders.is_switching:
            self._choice.on_late()
        else:
            self._choice.on_stuck(self._buffer.behind(self._senders_now()))
        self._senders.rewind_soon()

    def _look_at_health(self, now: float) -> None:
        """Tell that the stream stands still or may stand still, or that it is at the tail and
        connected again. A log without nodes offers no node to connect to."""
        is_connected = bool(self._senders.sources) or not self.info.all_nodes
        self._health.on_connected(is_connected, now)
        if self._health.is_over:
            self._on_health("")
            return
        due = self._health.due
        if due is None or now < due:
            return
        # At a range that main storage lost, the reader waits for nodes.
        read = self._tier_read
        if read is not None and (read.trouble or self._tier_lost is None):
            self._on_health(read.trouble or "main storage does not answer")
        else:
            members = self.info.nodes_of(self._buffer.next >> 32)
            absent = [node for node in members if node not in self._senders.sources]
            doubted = {n: why.value for n in members if (why := self._choice.doubt(n))}
            self._on_health(self._health.why(self._buffer.next, len(members), absent, doubted))

    def _on_health(self, trouble: str) -> None:
        """A health event: the stream stands still, or goes on again."""
        self._health.trouble = trouble
        tell(ReaderHealth(self.info.log_id, trouble))
        level = logging.WARNING if trouble else logging.INFO
        logger.log(level, "log %d: %s", self.info.log_id, trouble or "read on")
        if self.on_health is not None:
            self.on_health(self, trouble)

    async def _ask_tail_until_news(self) -> None:
        """Ask the sequencer, and wait for its answer only until an item arrives or a duty is due. A
        silent sequencer has the client's whole timeout; the reader does not have that time."""
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._ask_tail())
            news = tasks.create_task(self._news.wait())
            now = self._loop.time()
            # At most until the silence has to be reported: that clock does not run yet.
            patience_s = HEALTH_S if not self.trouble else self._settings.timeout_s
            until = self._due_by(now + min(patience_s, self._settings.timeout_s))
            done, _ = await asyncio.wait(
                (asking, news), timeout=max(0.0, until - now), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self._health.on_no_tail(now)
            asking.cancel()
            news.cancel()

    async def _ask_tail(self) -> None:
        asked_at = self._loop.time()
        tell(TailSought(self.info.log_id))
        try:
            self._tail_seen = max(self._tail_seen, await self._nudge())
            self._health.on_tail()
        except (UnknownLog, AccessDenied) as error:
            is_gone = isinstance(error, UnknownLog)
            self._buffer.on_over(GapKind.NOT_IN_CONFIG if is_gone else GapKind.ACCESS)
            self._news.set()
            logger.info("log %d: %s", self.info.log_id, error)
        except CordwoodError as error:
            self._health.on_no_tail(asked_at)
            logger.debug("log %d: no tail: %s", self.info.log_id, error)

    def _learn(self, info: LogInfo) -> None:
        """The log has new epochs, and perhaps new nodes to read from."""
        if info.log_id != self.info.log_id or info.epoch <= self.info.epoch or self._closed:
            return
        self.info = info
        if self._queue is None:
            self._senders.add_nodes(info.all_nodes)
            self._news.set()
        else:
            self._queue.leader._learn(info)
