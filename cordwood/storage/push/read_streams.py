"""Push streams: each reader's blocks, sent when they become readable.

Each stream sends this node's blocks in order, up to the release, to its window and to its byte
credit, and then tells how far it has come. Streams that can go on take turns with a batch each.
Streams with a full connection wait for it. So a slow reader holds one batch for all its streams
together, and disturbs no other reader.

A few tasks read blocks that only LogsDB has, a batch at a time, while streams at the tail continue
from memory: the loop never waits for a disk. Nothing is read for a full connection. Batches under
way when it filled wait at their streams, one batch for each task at most. For a few streams the
next batch is read while the last one leaves, see `read_ahead`.

A stream with single copies receives only the blocks that this node has to send
(`protocol.single_copy`). The copyset decides, so an omitted block costs a look at its envelope and
no read of its body. The same is true of blocks that have none of the keys a reader wants
(`layout.key_bits`), and of all bodies where it wants no payloads.

Streams of one log at the same position with the same wishes share one batch, see `shared_push`.

Clients take turns: a client with many streams gets no more than a client with few. A tick
ends after some megabytes, batches or milliseconds, and the rest follows in the next tick.

Source: docs/sources/logdevice.md 2.10; docs/design.md §2.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Sequence

from cordwood.block import Buffer
from cordwood.errors import CordwoodError, Corrupt, Overloaded
from cordwood.layout.frame import Kind
from cordwood.layout.message import StreamState
from cordwood.layout.reading import (
    BlocksHead,
    GapRange,
    NodeGap,
    ReadRequest,
    ReadStatus,
    blocks_head,
    pack_gaps,
    pack_reading,
)
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.nodes import NodeId
from cordwood.protocol.single_copy import CopyFilter
from cordwood.storage.log_reader import LogReader
from cordwood.storage.logs_db.partition import BlockRun
from cordwood.storage.push.own_copies import CHOICES_MAX as CHOICES_MAX
from cordwood.storage.push.own_copies import NodesIn, OwnCopies
from cordwood.storage.push.push_stream import PushStream
from cordwood.storage.push.read_ahead import ReadAhead
from cordwood.storage.push.shared_push import Push, Pushes
from cordwood.storage.push.turn_queue import TurnQueue
from cordwood.wire.connection import Connection

logger = logging.getLogger(__name__)

FETCHES_MAX = 4
"""Batches read from LogsDB at once: as many as the host has threads for."""

FETCH_RETRY_S = 1.0
"""The pause of a stream after a failed read of its batch, for lack of a thread or because of
damage."""

BATCH_BYTES = 1 << 20
"""Bytes a stream sends before the next one has its turn (LogDevice's 1 MB)."""

FETCH_BYTES = 4 << 20
"""Bytes read from LogsDB at a time: each read is some calls of threads, which on a busy machine
wait longer for a core than they work for one megabyte."""

AHEAD_AFTER_BYTES = 1 << 20
"""A stream gets no read-ahead before it took this much: many readers want a record or two."""

BATCH_BLOCKS = 4096
"""Blocks likewise, sent or left out, so that tiny blocks do not hold the loop for long."""

TICK_BYTES = 8 << 20
TICK_BATCHES = 256
"""The most bytes and the most batches that one tick sends to all clients: a few milliseconds of
work. So a release that wakes thousands of streams does not delay appends. LogDevice gives a read a
second of its own thread; here reads share the loop with appends."""

TICK_S = 0.005
"""The longest time of a tick's sends, exceeded by one batch at most. The numbers of bytes and
batches tell little about the time that many small blocks, filters or a busy core take. An append
waits for this time, and its own tick and sync take about as long."""

STREAMS_MAX = 10_000
"""Streams on one connection; a client reads far fewer logs at once."""


class ReadStreams:
    """Every stream of one node.

    Attributes:
        sent_blocks, sent_bytes: blocks and bytes sent to readers, recoveries included.
        filtered_blocks: blocks left out because another node sends them.
        unwanted_blocks: blocks left out because they have none of the keys wanted.
    """

    def __init__(
        self,
        reader: LogReader,
        me: NodeId | None = None,
        nodes_in: NodesIn = lambda region: frozenset(),
    ) -> None:
        """
        Args:
            me: this node; None if no reader asks for single copies.
            nodes_in: the nodes of a region, for readers that prefer theirs.
        """
        self.sent_blocks = 0
        self.sent_bytes = 0
        self.filtered_blocks = 0
        self.unwanted_blocks = 0
        self._me = me or NodeId(0)
        self._nodes_in = nodes_in
        self._reader = reader
        # Streams whose next batch is in LogsDB, each once; and a token for each, for waiting tasks.
        self._to_fetch: TurnQueue[Connection, PushStream] = TurnQueue()
        self._fetchable: asyncio.Queue[None] = asyncio.Queue()
        self._ahead: ReadAhead[PushStream] = ReadAhead()
        self._by_connection: dict[Connection, dict[int, PushStream]] = {}
        self._by_log: dict[int, dict[PushStream, None]] = {}
        # Ready streams, in turn: streams that may send, and for each full connection the streams
        # that wait for it.
        self._ready: TurnQueue[Connection, PushStream] = TurnQueue()
        self._parked: dict[Connection, list[PushStream]] = {}
        self._pumping = False
        self._kinds: dict[CopyFilter, int] = {}
        self._kinds_made = itertools.count(1)

    def start(
        self,
        connection: Connection,
        request: ReadRequest,
        status: ReadStatus = ReadStatus.OK,
        *,
        guarded: bool = False,
    ) -> None:
        """Start a stream; one of the same number on this connection is replaced.

        Args:
            guarded: it is a client's stream, whose right to read may end.
        Raises:
            Overloaded: too many streams on this connection.
        """
        self.stop(connection, request.stream)
        streams = self._by_connection.setdefault(connection, {})
        if len(streams) >= STREAMS_MAX:
            raise Overloaded(f"more than {STREAMS_MAX} read streams on one connection")
        asked = request.one_copy
        share = None if asked is None else OwnCopies(self._me, asked, self._nodes_in, self._kind_of)
        stream = PushStream(connection, request, share)
        stream.token = request.token if guarded else None
        streams[request.stream] = stream
        self._by_log.setdefault(request.log, {})[stream] = None
        connection.on_writable = self._on_writable
        self._answer(stream, status)
        self._wake(stream)

    def guarded_logs(self) -> list[int]:
        """The logs with streams whose right to read may end."""
        return [
            log
            for log, streams in self._by_log.items()
            if any(each.token is not None for each in streams)
        ]

    def guarded(self, log: int) -> list[tuple[Connection, int, int, str]]:
        """Streams of a log that came with a token: connection, number, version and token."""
        return [
            (each.connection, each.number, each.version, each.token)
            for each in self._by_log.get(log, ())
            if each.token is not None
        ]

    def _kind_of(self, rule: CopyFilter) -> int:
        """A number for a rule; numbers are never reused."""
        if len(self._kinds) >= CHOICES_MAX:
            self._kinds.clear()
        return self._kinds.setdefault(rule, next(self._kinds_made))

    def move_window(self, connection: Connection, number: int, high: int, limit: int) -> None:
        """A reader consumed data and moved its window; windows never shrink."""
        stream = self._by_connection.get(connection, {}).get(number)
        if stream is not None:
            stream.high = max(stream.high, high)
            stream.limit = max(stream.limit, limit)
            self._wake(stream)

    def stop(self, connection: Connection, number: int) -> None:
        """Forget a stream; an unknown stream has no effect."""
        stream = self._by_connection.get(connection, {}).pop(number, None)
        if stream is not None:
            self._drop(stream)

    def drop_connection(self, connection: Connection) -> None:
        """Forget all streams of a connection that is gone."""
        self._parked.pop(connection, None)
        for stream in self._by_connection.pop(connection, {}).values():
            self._drop(stream)

    def describe(self) -> list[StreamState]:
        """Every stream now, for people, by log."""
        streams = [each for held in self._by_connection.values() for each in held.values()]
        return [
            StreamState(
                log=each.log,
                reader=str(each.connection),
                next=min(each.next, LSN_MAX),
                until=each.until,
                window_high=each.high,
                sent_bytes=each.sent,
                single_copy=each.share is not None,
                known_down=[] if each.share is None else each.share.known_down,
                waits="connection"
                if not each.connection.is_writable
                else "window"
                if each.next > each.high
                else "credit"
                if each.sent >= each.limit
                else "",
            )
            for each in sorted(streams, key=lambda each: (each.log, each.number))
        ]

    def on_change(self, log: int) -> None:
        """The log's release or its trim point moved."""
        streams = self._by_log.get(log)
        if not streams:
            return  # every stored block comes past here, and most logs have no reader
        held = self._reader.get(log)
        gone = held.gone if held is not None else 0
        for stream in streams:
            # A stream with a closed window sends no blocks, but it must report trims.
            if stream.next <= min(stream.until, max(stream.high, gone)):
                self._wake(stream)

    def _drop(self, stream: PushStream) -> None:
        of_log = self._by_log[stream.log]
        del of_log[stream]
        if not of_log:
            del self._by_log[stream.log]
        stream.held = None
        self._ahead.drop(stream)
        stream.until = -1  # if it is still in the ready queue, it has nothing to send

    def _on_writable(self, connection: Connection) -> None:
        self._ready.push_back(connection, deque(self._parked.pop(connection, ())))
        self._pump_soon()

    def _wake(self, stream: PushStream) -> None:
        # Race: a stream with a read from LogsDB under way wakes after it, and sees changes then.
        if not (stream.ready or stream.fetching):
            stream.ready = True
            self._ready.push(stream.connection, stream)
            self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Send a batch for each stream that was ready when this tick began.

        About one batch is under way on each connection: the next stream's batch leaves once the
        machine has taken the batch before it."""
        self._pumping = False
        waiting: dict[Connection, deque[PushStream]] = {}
        batches, sent_before = 0, self.sent_bytes
        now = asyncio.get_running_loop().time
        deadline = now() + TICK_S
        pushes = Pushes()
        for _ in range(len(self._ready)):
            if batches >= TICK_BATCHES or self.sent_bytes - sent_before >= TICK_BYTES:
                break
            if batches and now() >= deadline:
                break
            stream = self._ready.pop()
            connection = stream.connection
            if not connection.is_writable:
                parked = self._parked.setdefault(connection, [])
                # Streams that hold a batch go first, so that their number does not grow.
                parked.insert(len(parked) if stream.held is None else 0, stream)
            elif connection.backlog_bytes + pushes.due_bytes(connection) >= BATCH_BYTES:
                waiting.setdefault(connection, deque()).append(stream)
            else:
                batches += 1
                stream.ready = False
                if self._send_batch(stream, pushes):
                    self._wake(stream)
        pushes.send()
        for connection, streams in waiting.items():
            self._ready.push_back(connection, streams)
        if self._ready:
            self._pump_soon()

    def _answer(self, stream: PushStream, status: ReadStatus) -> None:
        released, trim = self._released(stream.log), self._trim(stream.log)
        answer = pack_reading(stream.number, status, released, stream.version, trim)
        stream.connection.send(Kind.READING, 0, (answer,))

    def _released(self, log: int) -> int:
        held = self._reader.get(log)
        return held.released if held is not None else 0

    def _trim(self, log: int) -> int:
        held = self._reader.get(log)
        return held.trim if held is not None else 0

    def _bound(self, stream: PushStream) -> int:
        """The last LSN that may be sent now."""
        bound = min(stream.until, stream.high)
        if stream.digest:
            return bound
        held = self._reader.get(stream.log)
        return min(bound, held.readable if held is not None else 0)

    def _send_batch(self, stream: PushStream, pushes: Pushes) -> bool:
        """Send what may be sent, at most a batch; True if there is more at once."""
        if stream.held is not None:
            (run, bound), stream.held, stream.fetching = stream.held, None, False
            self._ship(stream, run, bound)
            return True  # its window may have moved meanwhile
        log = self._reader.get(stream.log)
        if log is not None and 0 < log.gone >= stream.next:
            self._pass_gone(stream, log.gone)
        bound = min(stream.until, stream.high)
        if not stream.digest:
            bound = min(bound, log.readable if log is not None else 0)
        if stream.next > bound or stream.fetching:
            return False
        credit = stream.limit - stream.sent
        if self._reader.is_at_hand(stream.log, stream.next):
            if stream.is_plain:
                return self._push(stream, bound, credit, pushes)
            run = self._reader.read_cached(
                stream.log,
                stream.next,
                bound,
                stream.wanted,
                bytes_max=min(BATCH_BYTES, credit),
                blocks_max=BATCH_BLOCKS,
            )
            return self._ship(stream, self._past_window(stream, run, bound), bound)
        if credit <= 0 or self._ahead.is_under_way(stream):
            return False
        ahead = self._ahead.take(stream, stream.next, bound, credit)
        if ahead is not None:
            is_more = self._ship(stream, ahead, bound)
            self._read_ahead(stream)
            return is_more
        stream.fetching = True
        self._to_fetch.push(stream.connection, stream)
        self._fetchable.put_nowait(None)
        return False

    def _read_ahead(self, stream: PushStream) -> None:
        """Have a stream's next batch read before it asks for it, if it will want one."""
        if stream.digest or stream.sent < AHEAD_AFTER_BYTES:
            return
        if stream.next > self.readable_upto(stream):
            return
        if not self._reader.is_at_hand(stream.log, stream.next) and self._ahead.ask(stream):
            self._fetchable.put_nowait(None)

    def readable_upto(self, stream: PushStream) -> int:
        """The last LSN that the node may send to a stream, apart from the stream's window."""
        held = self._reader.get(stream.log)
        return min(stream.until, held.readable if held is not None else 0)

    def _past_window(self, stream: PushStream, run: BlockRun, bound: int) -> BlockRun:
        """The blocks read from memory, and the LSN up to which none follow after an empty
        window."""
        limit = self._empty_up_to(stream, run, bound)
        if not limit:
            return run
        return run._replace(next=self._reader.first_cached(stream.log, bound + 1, limit))

    def _empty_up_to(self, stream: PushStream, run: BlockRun, bound: int) -> int:
        """The last LSN that a reader may be told of after a window with nothing in it, 0 if none.

        Trap: if the end of an epoch is lost, its bridge included, no block comes for four billion
        LSNs. A reader that moved one window after the other would never get past them.
        """
        is_empty = not (run.blocks or run.passed or run.damaged) and run.next > bound
        held = self._reader.get(stream.log)
        if not is_empty or bound != stream.high or stream.digest or held is None:
            return 0
        limit = min(stream.until, held.readable)
        return limit if limit > bound else 0

    def _push(self, stream: PushStream, bound: int, credit: int, pushes: Pushes) -> bool:
        """Send from memory, together with all streams that want the same; True if there is more at
        once."""
        key = (stream.log, stream.next, None if stream.share is None else stream.share.kind)
        push = pushes.find(key)
        if push is None or push.sent_bytes > credit or push.run.next > bound + 1:
            run = self._reader.read_cached(
                stream.log, stream.next, bound, stream.wanted,
                bytes_max=min(BATCH_BYTES, credit), blocks_max=BATCH_BLOCKS,
            )  # fmt: skip
            if run.next == stream.next and not run.blocks:
                return False
            run = self._past_window(stream, run, bound)
            push = Push(run, self._released(stream.log), self._trim(stream.log))
            pushes.keep(key, push)
        if pushes.add(push, stream):
            self.sent_bytes += push.sent_bytes
        self.sent_blocks += len(push.run.blocks)
        self.filtered_blocks += push.run.passed
        stream.next = push.run.next
        stream.sent += push.sent_bytes
        return push.run.next <= bound and stream.sent < stream.limit

    def _pass_gone(self, stream: PushStream, gone: int) -> None:
        """Tell the reader at once that no block up to `gone` comes, even if its window is full."""
        if stream.next <= stream.until and not stream.fetching:
            self._tell_tiered(stream)
            stream.next = gone + 1
            self._send_blocks(stream, ())

    def _tell_tiered(self, stream: PushStream) -> None:
        """Tell the reader, before `next` moves past them, which ranges are in main storage.

        Race: some of the blocks in the range may have been let go of during the read. Without this
        message the reader would take them for lost.
        """
        held = self._reader.get(stream.log)
        if held is not None and held.tier >= stream.next and not stream.digest:
            self.tell_gaps(stream, NodeGap.TIERED, [(stream.next, held.tier)])

    def _send_blocks(self, stream: PushStream, parts: Sequence[Buffer], blocks: int = 0) -> None:
        released, trim = self._released(stream.log), self._trim(stream.log)
        if stream.digest and (held := self._reader.get(stream.log)) is not None:
            trim = held.gone  # a recovery plugs no hole up to there
        head = BlocksHead(stream.number, blocks, stream.next, released, trim)
        kind = Kind.HEADS if stream.heads_only else Kind.BLOCKS
        stream.connection.send(kind, 0, (blocks_head(head), *parts))

    def _ship(self, stream: PushStream, run: BlockRun, bound: int) -> bool:
        """Send a run; True if there is more at once."""
        if run.next == stream.next and not run.blocks:
            return False
        blocks = run.blocks if stream.keys is None else self._leave_out(stream, run.blocks)
        if run.damaged:
            self.tell_gaps(stream, NodeGap.CHECKSUM_FAIL, run.damaged)
        parts: list[Buffer] = []
        for block in blocks:
            parts.append(block.wire)
            if not stream.heads_only:
                parts.append(block.body)
        sent = sum(map(len, parts))
        self._tell_tiered(stream)
        stream.next = run.next
        stream.sent += sent
        self.sent_blocks += len(blocks)
        self.sent_bytes += sent
        self.filtered_blocks += run.passed
        self._send_blocks(stream, parts, len(blocks))
        return run.next <= bound and stream.sent < stream.limit

    def _leave_out(self, stream: PushStream, blocks: list[StoredBlock]) -> list[StoredBlock]:
        """The blocks that may have a wanted key; the others are reported as ranges."""
        kept: list[StoredBlock] = []
        left_out: list[tuple[int, int]] = []
        for block in blocks:
            first, last = block.header.first, block.header.last
            if not stream.lacks_keys(block):
                kept.append(block)
            elif left_out and left_out[-1][1] + 1 == first:
                left_out[-1] = (left_out[-1][0], last)
            else:
                left_out.append((first, last))
        if left_out:
            self.unwanted_blocks += len(blocks) - len(kept)
            self.tell_gaps(stream, NodeGap.FILTERED, left_out)
        return kept

    def tell_gaps(
        self, stream: PushStream, reason: NodeGap, ranges: Sequence[tuple[int, int]]
    ) -> None:
        gaps = [GapRange(first, last, reason) for first, last in ranges]
        stream.connection.send(Kind.GAPS, 0, (pack_gaps(stream.number, gaps),))

    async def run(self) -> None:
        """Read from LogsDB what streams are behind with, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(FETCHES_MAX):
                tasks.create_task(self._fetch_in_turn())

    async def _fetch_in_turn(self) -> None:
        while True:
            await self._fetchable.get()
            # Race: the stream of this token may have been put off or dropped meanwhile.
            if self._to_fetch:
                await self._fetch(self._to_fetch.pop())
            elif (stream := self._ahead.next_asked()) is not None:
                await self._fetch_ahead(stream)

    async def _fetch_ahead(self, stream: PushStream) -> None:
        start, bound = stream.next, self.readable_upto(stream)
        try:
            if start > bound:  # trimmed meanwhile
                self._ahead.drop(stream)
            else:
                run = await self._reader.read(
                    stream.log,
                    start,
                    bound,
                    stream.wanted,
                    bytes_max=FETCH_BYTES,
                    blocks_max=BATCH_BLOCKS,
                )
                self._ahead.keep(stream, start, run)
        except CordwoodError as error:
            # The stream comes to the same place by itself, and reports the error then.
            logger.info("log %d was not read ahead from %d on: %s", stream.log, start, error)
            self._ahead.drop(stream)
        if stream.until >= 0 and stream.connection.is_open:
            self._wake(stream)

    async def _fetch(self, stream: PushStream) -> None:
        """Read a stream's next batch from LogsDB and send it, or keep it until it may be sent."""
        if stream.until >= 0 and _is_full(stream.connection):
            self._put_off(stream)
            return
        bound = self._bound(stream)
        if stream.next <= bound:
            try:
                run = await self._reader.read(
                    stream.log,
                    stream.next,
                    bound,
                    stream.wanted,
                    bytes_max=min(FETCH_BYTES, stream.limit - stream.sent),
                    blocks_max=BATCH_BLOCKS,
                )
                if limit := self._empty_up_to(stream, run, bound):
                    first = await self._reader.first(stream.log, bound + 1, limit)
                    run = run._replace(next=first)
            except CordwoodError as error:
                self._on_unreadable(stream, error)
                return
            if run.damaged and stream.digest:
                # A digest with one unknown range is useless as a whole.
                self._on_unreadable(stream, Corrupt(f"nothing is known of {run.damaged}"))
                return
            if stream.until >= 0 and stream.connection.is_open:
                if _is_full(stream.connection):
                    # It stays `fetching`, so that no other batch is read or sent before this batch.
                    stream.held, stream.ready = (run, bound), True
                    self._ready.push_back(stream.connection, deque((stream,)))
                    self._pump_soon()
                    return
                self._ship(stream, run, bound)
                self._read_ahead(stream)
        stream.fetching = False
        # Trap: a closed connection may still flush its data, but it takes no more. Without this
        # check the node would read for its streams again and again until it is gone.
        if stream.until >= 0 and stream.connection.is_open:
            self._wake(stream)

    def _put_off(self, stream: PushStream) -> None:
        """The stream's connection is full: it and the connection's other streams in the queue wait
        for it, ahead of streams that had their turn. The pump parks them."""
        waiting = self._to_fetch.take_all(stream.connection)
        waiting.appendleft(stream)
        for each in waiting:
            each.fetching, each.ready = False, True
        self._ready.push_back(stream.connection, waiting)
        self._pump_soon()

    def _on_unreadable(self, stream: PushStream, error: CordwoodError) -> None:
        """This node does not know its blocks there: report so, and retry later."""
        logger.error("log %d cannot be read from %d on: %s", stream.log, stream.next, error)
        if isinstance(error, Corrupt) and stream.until >= 0 and stream.connection.is_open:
            self._answer(stream, ReadStatus.DAMAGED)
        asyncio.get_running_loop().call_later(FETCH_RETRY_S, self._unpark, stream)

    def _unpark(self, stream: PushStream) -> None:
        stream.fetching = False
        if stream.until >= 0 and stream.connection.is_open:
            self._wake(stream)


def _is_full(connection: Connection) -> bool:
    """Whether the connection has to send its last data first."""
    return not connection.is_writable or connection.backlog_bytes >= BATCH_BYTES
