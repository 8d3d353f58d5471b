"""A client's appends to one log: the records of one tick become one block.

A block goes to the log's sequencer, and the answer is its first LSN. If a refusal says that no
record was stored, the client retries until the deadline, at another node if the refusal names one.
A block with an unknown outcome (connection lost, sequencer fenced, deadline passed) ends as
OutcomeUnknown and is never sent again, because a retry could store it twice. A producer's block is
sent again, because the sequencer recognises it: see `client.append.producer`.

Blocks of one log never pass one another. When a block comes back, the client sends no more until
all sent blocks are answered; then the returned blocks go first. The sequencer's part of the rule:
after a returned block it takes none from this connection until the client says it begins again.

Source: docs/design.md §4, §7; docs/sources/hotpath.md §6 (futures are the client's ceiling).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Protocol

from cordwood.block import Buffer, Codec
from cordwood.client.append.append_limits import (
    FRAME_BLOCKS,
    FRAME_BYTES,
    LAST_TRY_SHARE,
    STALL_S,
)  # fmt: skip
from cordwood.client.append.line import Line
from cordwood.client.append.outbox import Outbox
from cordwood.client.append.pending_block import PendingBlock, unknown
from cordwood.client.append.producer import Producer
from cordwood.client.append.record_check import Headers
from cordwood.client.append.window import Window
from cordwood.client.cluster import Cluster
from cordwood.decisions import AppendCameBack, AppendGivenUp, AppendsLost, SequencerSought, tell
from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Fenced,
    Malformed,
    Misplaced,
    OutcomeUnknown,
    OutOfSequence,
    Retryable,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.layout.append_group import GroupPart
from cordwood.layout.waves import AppendFlag, append_entry
from cordwood.lsn import ESN_MAX, LogId, Lsn, format_lsn
from cordwood.nodes import NodeId
from cordwood.protocol.producers import PLACES_MAX
from cordwood.settings import ClientSettings
from cordwood.wire.connection import Connection

SEEK_DIALS = 2
"""Dials that must fail before the next node is asked sooner: a single failure may be a hiccup."""

SEEK_ONE_S = 1.0
"""How long a log's own node may be away before the next node is asked to activate the log."""

REDIRECTS_MAX = 3
"""The most redirects in a row. The first leads to the log's node; a second leads from a leaving
node to its successor. Nodes that redirect a client more often do not agree with each other."""

RETRY_FIRST_S = 0.02
RETRY_MAX_S = 1.0
"""The longest pause between tries. Pauses are short at first, because most refusals come from a
sequencer that is starting."""


class Owner(Protocol):
    """The parts that the appends to all logs of a client share."""

    loop: asyncio.AbstractEventLoop
    window: Window
    sent: dict[int, LogAppends]
    last_token: int
    outbox: Outbox
    fencing: dict[int, int]

    def mark_dirty(self, log: LogAppends) -> None:
        """`log` has a batch to cut at the end of this tick."""

    def next_token(self) -> int:
        """A number for a block, growing."""

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the client closes."""


class LogAppends:
    """Appends of one client to one log; see the module.

    Attributes:
        line: calls that wait before they add; see `append_calls`.
        has_producer: whether its blocks are a producer's.
    """

    def __init__(
        self,
        log: LogId,
        producer: Producer | None,
        cluster: Cluster,
        host: Host,
        settings: ClientSettings,
        owner: Owner,
    ) -> None:
        self.log = log
        self.line = Line(owner.loop)
        self.has_producer = producer is not None
        self._producer = producer
        self._broken: CordwoodError | None = None
        self._cluster = cluster
        self._host = host
        self._settings = settings
        self._owner = owner
        self._codec = Codec[settings.codec.upper()]
        self._batch: PendingBlock | None = None
        self._queue: deque[PendingBlock] = deque()
        self._sent: dict[int, tuple[PendingBlock, Connection]] = {}
        self._target: Connection | None = None
        self._activate_here = False
        self._hint = NodeId(0)
        # Redirects in a row.
        self._redirects = 0
        self._pause_s = 0.0
        self._seeking: asyncio.Task[None] | None = None
        # A block came back: look for the sequencer again when all sent blocks are answered.
        self._came_back = False

    @property
    def is_idle(self) -> bool:
        """Whether no block is about to be added, pending, queued or sent."""
        return not self.has_work and self.line.is_empty

    @property
    def has_work(self) -> bool:
        """Whether a block is pending, queued or sent."""
        return bool(self._sent or self._queue or self._batch)

    @property
    def next_sequence(self) -> int:
        """The sequence of the next added record; 0 without a producer."""
        if self._producer is None:
            return 0
        added = self._batch.count if self._batch is not None else 0
        return self._producer.next_sequence(self.log) + added

    # Submitting.

    def add(
        self,
        value: Buffer,
        key: bytes | None,
        time_us: int | None,
        headers: Headers | None,
        size: int,
        expected_tail: int | None = None,
    ) -> asyncio.Future[Lsn]:
        """Put one record, of `size` bytes by `check_record`, into this tick's block.

        Args:
            expected_tail: if given, the record gets a block of its own, which is stored only if
                the log's last record has this LSN.
        """
        self._check_whole()
        if expected_tail is not None:
            self._cut_before()
        batch = self._space_for(size)
        batch.expected_tail = expected_tail
        future: asyncio.Future[Lsn] = self._owner.loop.create_future()
        batch.futures.append((future, batch.count))
        batch.put(value, key, time_us, headers, size, self._host.clock.now_us)
        self._owner.window.take(1, size)
        if expected_tail is not None:
            self._cut()
        return future

    def add_many(
        self,
        values: Sequence[Buffer],
        keys: Sequence[bytes | None] | None,
        times_us: Sequence[int] | int | None,
        headers: Sequence[Headers] | None,
        sizes: Sequence[int],
    ) -> list[tuple[asyncio.Future[Lsn], int]]:
        """Put records, of these sizes by `check_record`, into blocks, in order; a future
        and a count for each run of LSNs."""
        self._check_whole()
        size = sum(sizes)
        if values and self._takes_all(len(values), size):
            return [self._add_together(values, keys, times_us, headers, size)]
        runs: list[tuple[asyncio.Future[Lsn], int]] = []
        open_batch: PendingBlock | None = None
        for at, value in enumerate(values):
            key = keys[at] if keys is not None else None
            future: asyncio.Future[Lsn]
            try:
                batch = self._space_for(sizes[at])
            except OutOfSequence as error:
                # The caller counts the blocks before, which may be stored.
                future = self._owner.loop.create_future()
                future.set_exception(error)
                future.exception()  # the caller may have gone away
                runs.append((future, 0))
                return runs
            if batch is not open_batch:
                open_batch = batch
                future = self._owner.loop.create_future()
                batch.futures.append((future, batch.count))
                runs.append((future, 0))
            time_us = times_us if times_us is None or isinstance(times_us, int) else times_us[at]
            pairs = headers[at] if headers is not None else None
            batch.put(value, key, time_us, pairs, sizes[at], self._host.clock.now_us)
            self._owner.window.take(1, sizes[at])
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        return runs

    def add_group(self, parts: Sequence[GroupPart], size: int) -> asyncio.Future[Lsn]:
        """Put sealed blocks, with records of `size` bytes in total, after the present blocks:
        they are stored together or not at all."""
        self._check_whole()
        self._cut_before()
        batch = PendingBlock(self._owner.loop.time() + self._settings.timeout_s)
        future: asyncio.Future[Lsn] = self._owner.loop.create_future()
        batch.futures.append((future, 0))
        batch.seal_group(self.log, parts, size, self._producer)
        self._queue.append(batch)
        self._owner.window.take(batch.count, size)
        self._owner.mark_dirty(self)
        return future

    def _takes_all(self, records: int, size: int) -> bool:
        """Whether all these records fit into one block: this tick's block, or a new one."""
        settings = self._settings
        batch = self._batch
        if batch is None or self._is_full(batch):
            return records <= settings.block_records and size <= settings.block_bytes
        return (
            batch.count + records <= settings.block_records
            and batch.bytes + size <= settings.block_bytes
        )

    def _is_full(self, batch: PendingBlock) -> bool:
        settings = self._settings
        return batch.count >= settings.block_records or batch.bytes >= settings.block_bytes

    def _add_together(
        self,
        values: Sequence[Buffer],
        keys: Sequence[bytes | None] | None,
        times_us: Sequence[int] | int | None,
        headers: Sequence[Headers] | None,
        size: int,
    ) -> tuple[asyncio.Future[Lsn], int]:
        """Put records into one block, a column at a time: a client that appends whole blocks
        spends its time here, and one call for each record took five times as long."""
        if self._batch is not None and self._is_full(self._batch):
            self._cut_before()
        batch = self._space_for(size)
        count, more = batch.count, len(values)
        future: asyncio.Future[Lsn] = self._owner.loop.create_future()
        batch.futures.append((future, count))
        batch.put_many(values, keys, times_us, headers, size, self._host.clock.now_us)
        self._owner.window.take(more, size)
        return future, more

    def add_block(
        self,
        values: Sequence[Buffer],
        keys: Sequence[bytes | None] | None,
        times_us: Sequence[int] | None,
        headers: Sequence[Headers] | None,
        size: int,
        codec: Codec | None,
        deadline: float | None = None,
    ) -> asyncio.Future[Lsn]:
        """Put records, `size` bytes by `check_record`, into a block of their own.

        Args:
            codec: of this block, None for the client's.
            deadline: on the loop's clock, infinity for none; None gives it the client's timeout.
        """
        self._check_whole()
        self._cut_before()
        batch = self._space_for(size)
        batch.codec = codec
        if deadline is not None:
            batch.deadline = deadline
        future, _ = self._add_together(values, keys, times_us, headers, size)
        self._cut()
        return future

    def _space_for(self, size: int) -> PendingBlock:
        """This tick's open block, or a new one if that is full."""
        batch = self._batch
        settings = self._settings
        if batch is not None and (
            batch.count >= settings.block_records
            or (batch.count and batch.bytes + size > settings.block_bytes)
        ):
            self._cut_before()
            batch = None
        if batch is None:
            batch = self._batch = PendingBlock(self._owner.loop.time() + settings.timeout_s)
            self._owner.mark_dirty(self)
        return batch

    # Sending.

    def flush(self) -> None:
        """The tick ends: cut its batch and send.

        A producer with the most blocks in flight that a log remembers keeps filling its batch.
        """
        # The log remembers PLACES_MAX blocks of a producer: with more in flight, the repeat of the
        # oldest would not be known.
        if not self._must_wait:
            self._cut()
        self._pump()

    def _check_whole(self) -> None:
        """Raise OutOfSequence if an earlier block of this producer ended with an error."""
        if self._broken is not None:
            raise OutOfSequence(self._broken_by(self._broken), Misplaced.BEHIND)

    def _broken_by(self, error: CordwoodError) -> str:
        return (
            f"{self._producer} is broken by an earlier failure: {error}; send that again with "
            "Producer.again, or begin a higher epoch"
        )

    @property
    def _must_wait(self) -> bool:
        """Whether a producer has to wait for answers before it may send more."""
        return self._producer is not None and len(self._sent) + len(self._queue) >= PLACES_MAX

    def _cut_before(self) -> None:
        """Cut the open block; later records go behind it.

        Raises:
            OutOfSequence: a producer's block could not be encoded.
        """
        self._cut()
        self._check_whole()

    def _cut(self) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            return
        try:
            batch.seal(self.log, self._codec, self._producer, self._host.clock.now_us)
        except Exception as error:  # noqa: BLE001  (the callers of this block are told)
            # Only this batch fails: its bytes are free again, and the batches of other logs are
            # still sent. The libraries that compress have errors of their own, as for a lack of
            # memory.
            self._owner.window.give_back(batch.count, batch.bytes)
            refused = BadSetting(f"records of log {self.log} cannot be encoded: {error!r}")
            batch.fail(refused)
            if self._producer is not None:
                # Trap: the next block would get this block's sequences. If the call was made again
                # at its place, this block would be taken for a repeat of the next one, and lost.
                self._broken = refused
            return
        self._queue.append(batch)

    def _pump(self) -> None:
        """Send the queued blocks to the sequencer, or look for it."""
        self._give_up_late(self._owner.loop.time())
        if not self._queue or self._seeking is not None:
            return
        target = self._target
        if self._came_back or target is None or not target.is_open:
            if not self._sent:
                self._came_back = False
                self._seeking = self._owner.spawn(self._seek())
            return
        now = self._owner.loop.time()
        while self._queue and self._frame_blocks:
            parts: list[Buffer] = []
            count = size = 0
            while self._queue and size < FRAME_BYTES and count < self._frame_blocks:
                batch = self._queue.popleft()
                entry = batch.entry
                assert entry is not None, "a queued batch was cut"
                entry.token = self._owner.next_token()
                entry.fencing = self._owner.fencing.get(self.log, 0)
                entry.flags = self._flags(batch, now)
                batch.sent_at = now
                self._sent[entry.token] = (batch, target)
                self._owner.sent[entry.token] = self
                parts += (append_entry(entry), *entry.bodies)
                count += 1
                size += entry.stored_bytes
            self._owner.outbox.put(target, parts, count, size)

    def _flags(self, batch: PendingBlock, now: float) -> int:
        """The bits of AppendFlag for a batch."""
        entry = batch.entry
        assert entry is not None, "a queued batch was cut"
        flags: int = AppendFlag.ACTIVATE_HERE if self._activate_here else 0
        if not self._sent:
            # All earlier blocks are answered, so the sequencer need not send later ones back.
            flags |= AppendFlag.AFRESH
        if batch.expected_tail is not None:
            flags |= AppendFlag.CONDITIONAL
        if entry.parts:
            flags |= AppendFlag.GROUP
        if entry.fencing:
            flags |= AppendFlag.FENCED
        if self._producer is not None and batch.is_late(self._producer, now):
            flags |= AppendFlag.LATE
        return flags

    @property
    def _frame_blocks(self) -> int:
        """The number of blocks that may be sent now."""
        if self._producer is None:
            return FRAME_BLOCKS
        return max(0, PLACES_MAX - len(self._sent))

    async def _seek(self) -> None:
        """Find a node to send to: the one named by a redirect, the log's own, then the others."""
        tell(SequencerSought(self.log))
        try:
            if self._pause_s:
                await asyncio.sleep(self._pause_s * self._host.random.uniform(0.5, 1.0))
            order = self._cluster.sequencers(self.log)
            hint, self._hint = self._hint, NodeId(0)
            if hint in order:
                order = (hint, *(node for node in order if node != hint))
            for node in order:
                try:
                    self._target = await self._cluster.peers.wait_for(
                        node, timeout_s=SEEK_ONE_S, dials=SEEK_DIALS
                    )
                except Unreachable:
                    continue
                self._activate_here = node != order[0] or self._is_sent_in_circles
                break
            else:
                self._target = None
                self._note_refusal(Unreachable("no node of the cluster is up"))
        finally:
            self._seeking = None
        if self._target is not None:
            self._pump()

    @property
    def _is_sent_in_circles(self) -> bool:
        """Whether nodes that see the cluster differently redirect this client in circles.

        The client then pauses and tells the next node to sequence the log (LogDevice: REACTIVATE).
        """
        return self._redirects >= REDIRECTS_MAX

    def _note_refusal(self, error: CordwoodError) -> None:
        self._pause_s = min(RETRY_MAX_S, max(RETRY_FIRST_S, self._pause_s * 2))
        for batch in self._queue:
            batch.refused = batch.refused or error
        self._seeking = None

    # Answers.

    def on_acked(self, token: int, first: int, by: Connection) -> None:
        """The sequencer stored a block.

        Raises:
            Malformed: no sequencer can have stored it there, or it was sent to another node.
        """
        found = self._sent.get(token)
        if found is not None:
            last = (first & ESN_MAX) + found[0].count - 1
            # A faulty node must not acknowledge what was sent to another one, nor name an LSN that
            # no sequencer gives out.
            if found[1] is not by or first >> 32 == 0 or not first & ESN_MAX or last >= ESN_MAX:
                raise Malformed(f"an append to log {self.log} is said to be at {format_lsn(first)}")
            del self._sent[token]
            self._pause_s = 0.0
            self._redirects = 0
            # Trap: this node sequences now. When it stops, the log's own node takes over. A
            # client that kept asking this node to activate would fence the own node for ever.
            self._activate_here = False
            self._finish(found[0])
            found[0].resolve(first)
            if self._producer is None:
                self._pump_if_settled()
            else:
                self.flush()

    def on_fault(self, token: int, error: CordwoodError, node: NodeId, by: Connection) -> None:
        """The sequencer refused a block, or does not know its outcome.

        Raises:
            Malformed: the block was sent to another node, which may store it.
        """
        found = self._sent.get(token)
        if found is None:
            return
        if found[1] is not by:
            raise Malformed(f"a node refuses an append to log {self.log} that it did not get")
        del self._sent[token]
        is_unknown = isinstance(error, (Fenced, OutcomeUnknown))
        # A producer's block may be sent again after an unknown outcome: the log knows the repeat.
        if isinstance(error, Retryable) or (is_unknown and self._producer is not None):
            found[0].maybe = found[0].maybe or is_unknown
            self._come_back(found[0], token, error, node)
        else:
            self._came_back |= isinstance(error, (Fenced, OutcomeUnknown))
            self._cluster.note_refusal(self.log, error)
            self._finish(found[0])
            # Race: an old sequencer may refuse the block after its successor stored it: seed 12130.
            self._fail(found[0], found[0].given_up(self.log, error))
        self._pump_if_settled()

    def _fail(self, batch: PendingBlock, error: CordwoodError) -> None:
        """A block ends with an error; this also ends the producer's sequence."""
        tell(AppendGivenUp(self.log, str(error)))
        batch.fail(error)
        if self._producer is not None and self._broken is None:
            self._broken = error
            self._cut()
            behind = OutOfSequence(self._broken_by(error), Misplaced.BEHIND)
            while self._queue:
                later = self._queue.popleft()
                self._finish(later)
                later.fail(later.given_up(self.log, behind))

    def _pump_if_settled(self) -> None:
        """After the last answer, go on with the blocks that waited for it."""
        if self._came_back and not self._sent:
            self._pump()

    def _come_back(
        self, batch: PendingBlock, token: int, error: CordwoodError, node: NodeId
    ) -> None:
        """Keep a refused block for another try."""
        tell(AppendCameBack(self.log, str(error)))
        batch.refused = error
        self._owner.sent.pop(token, None)  # it gets another token when it is sent again
        self._requeue(batch, token)
        self._hint = node
        self._redirects += bool(node) and not self._came_back
        if not self._came_back and (not node or self._is_sent_in_circles):
            # Once for all blocks that come back together.
            self._pause_s = min(RETRY_MAX_S, max(RETRY_FIRST_S, self._pause_s * 2))
        self._came_back = True

    def _requeue(self, batch: PendingBlock, token: int) -> None:
        """Put a refused batch back into the queue by its age."""
        later: list[PendingBlock] = []
        while self._queue and self._age(self._queue[0]) < token:
            later.append(self._queue.popleft())
        self._queue.appendleft(batch)
        self._queue.extendleft(reversed(later))

    def _age(self, batch: PendingBlock) -> int:
        assert batch.entry is not None, "a queued batch was cut"
        return batch.entry.token or self._owner.last_token + 1

    def on_down(self, connection: Connection) -> None:
        """Handle the loss of a connection. The blocks sent on it may or may not be stored."""
        if self._target is connection:
            self._target = None
        # A sent block may be stored or lost. Only a producer can find out, because it can send the
        # block again.
        lost = [token for token, (_, used) in self._sent.items() if used is connection]
        if lost:
            tell(AppendsLost(self.log, len(lost)))
        for token in lost:
            batch, _ = self._sent.pop(token)
            error = unknown(f"the connection to {connection} was lost", self.log)
            if self._producer is not None:
                batch.maybe = True
                self._come_back(batch, token, error, NodeId(0))
            else:
                self._finish(batch)
                batch.fail(error)
        self._pump()

    def _check_stall(self, now: float) -> None:
        """Check the node with the oldest outstanding answer, if that is old enough."""
        oldest = next(iter(self._sent.values()), None)
        if oldest is None or now - oldest[0].sent_at < STALL_S:
            return
        peer = oldest[1].peer
        if peer is not None:
            self._cluster.check_node(NodeId(peer.node))

    def is_due(self, now: float) -> bool:
        """Whether `sweep` would find a block to give up.

        Blocks are sent in the order in which they were made, so the first block in flight has
        waited longest, and its deadline comes first.
        """
        if self._queue:
            return True
        for batch, _ in self._sent.values():
            return now - batch.sent_at >= STALL_S or batch.deadline <= now
        return False

    def sweep(self, now: float) -> None:
        """Give up the blocks whose deadline has passed."""
        self._check_stall(now)
        late = [token for token, (batch, _) in self._sent.items() if batch.deadline <= now]
        for token in late:
            batch, _ = self._sent.pop(token)
            self._finish(batch)
            error = unknown(f"no answer within {self._settings.timeout_s:g} s", self.log)
            self._fail(batch, error)
        self._pump()

    def _give_up_late(self, now: float) -> None:
        """Give up queued batches that have no time left.

        A refused batch is not sent again at the very end: its outcome would then be unknown.
        """
        last_try_s = self._settings.timeout_s * LAST_TRY_SHARE
        while self._queue:
            batch = self._queue[0]
            if batch.deadline - (last_try_s if batch.refused else 0.0) > now:
                return
            self._queue.popleft()
            self._finish(batch)
            error = batch.refused or Unreachable("no node took this append in time")
            self._fail(batch, batch.given_up(self.log, error))

    def close(self, error: CordwoodError) -> None:
        """Fail all open appends."""
        self._cut()
        unknown = OutcomeUnknown(f"{error}; this append was in flight")
        for batch, _ in self._sent.values():
            self._finish(batch)
            batch.fail(unknown)
        for batch in self._queue:
            self._finish(batch)
            batch.fail(batch.given_up(self.log, error))
        self._sent.clear()
        self._queue.clear()

    def _finish(self, batch: PendingBlock) -> None:
        entry = batch.entry
        assert entry is not None, "a finished batch was cut"
        self._owner.sent.pop(entry.token, None)
        self._owner.window.give_back(batch.count, batch.bytes)
