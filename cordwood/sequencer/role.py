"""The sequencer role: the logs that this node sequences, and the answers to clients.

Appends for a log that is not active here wait while it is activated, within a bound. Clients with
appends for a log of another node are redirected there. Entries that arrive in one tick are handled
at its end, over all logs and connections.

Source: docs/design.md §4; docs/sources/logdevice.md 2.2, 2.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from crc32c import crc32c

from cordwood.decisions import AppendOverloaded, LogGivenUp, RuleQuestioned, SequencerFenced, tell
from cordwood.errors import (
    ChecksumMismatch,
    CordwoodError,
    NoSequencer,
    Overloaded,
    RecordTooLarge,
    Retryable,
)
from cordwood.host.seams import Host
from cordwood.layout.frame import Frame
from cordwood.layout.message import (
    AskReleased,
    AskTail,
    ReleasedReply,
    TailReply,
)
from cordwood.layout.waves import AppendEntry, AppendFlag, read_append
from cordwood.lsn import LogId
from cordwood.nodes import Member, NodeId
from cordwood.sequencer.activation import Activation
from cordwood.sequencer.answers import Answers
from cordwood.sequencer.appender import AppenderTools, LogAppender
from cordwood.sequencer.eligibility import Eligibility, View
from cordwood.sequencer.probes import Probes
from cordwood.sequencer.releases import Releases
from cordwood.sequencer.run_contents import Waiting
from cordwood.sequencer.sequencer_table import SequencerTable, TableRow
from cordwood.settings import SequencerSettings
from cordwood.wire.connection import Connection

logger = logging.getLogger(__name__)

TICK_S = 0.1
"""The time between checks of waves for their timeout; a fifth of the first timeout."""

ACTIVATING_BYTES_MAX = 16 << 20
"""Bodies that wait for one log's activation; the client keeps the rest."""

TAIL_TRIES_MAX = 3
"""The most epochs that other nodes may take while one question for the tail is answered."""

LEAVE_S = 2.0
"""How long a leaving node lets its sequencers finish, as LogDevice drains an epoch."""

FINISH_S = 1.0
"""How long a replaced sequencer may take to finish; its successor waits meanwhile."""

RECOVERED_S = 2.0
"""The longest wait for the end of a recovery while a tail is asked for. Storage nodes wait 3 s for
an answer, and clients 5 s. Then they have another node sequence the log, where recovery begins
anew: a recovery that takes longer would never end."""

RECOVERS_S = 60.0
"""After this time callers may have the next node sequence the log: this node may be cut off from
nodes that another one reaches. Many times the deadlines of a whole recovery."""

CUT_OFF_S = 30.0
"""A node whose questions the metadata store has not answered for so long names the next node to
clients that need an answer: it alone may be cut off. Most outages of the store itself are shorter,
and then the log should stay where it is."""

LOGS_MAX = 100_000
"""The most logs that one node sequences at once."""


class SequencerRole:
    """See the module."""

    def __init__(
        self,
        node: NodeId,
        host: Host,
        activation: Activation,
        tools: AppenderTools,
        members: Callable[[], Mapping[NodeId, Member]],
        view: View,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._eligibility = Eligibility(node, members, view, tools.now)
        self._stored = asyncio.Event()
        self._node = node
        self._host = host
        self._activation = activation
        self._tools = tools
        self._dirty: dict[int, None] = {}
        self._held: dict[int, None] = {}
        self._answers = Answers()
        self._releases = Releases(tools.peers)
        self._probes = Probes(tools.peers, tools.channel, tools.states, tools.times, tools.now)
        self._table = SequencerTable(activation, self, self._releases, tools.now, tasks)
        self._rows = self._table.rows
        self._tasks = tasks
        self._tick_due = False
        self._stirred = asyncio.Event()
        self._in_flight_bytes = 0
        # Since when the metadata store has not answered this node whether it rules; None if it did.
        self._unanswered_s: float | None = None
        self.appended_records = 0

    # Requests of clients.

    def on_append(self, connection: Connection, frame: Frame) -> None:
        """An APPEND frame.

        If a block is refused and the client may retry it, later blocks of its log are refused too,
        until the client has heard of the refusal: a large call consists of several blocks, and no
        block may pass another.

        Raises:
            Malformed: the frame is damaged.
        """
        for entry in read_append(frame.payload):
            error = self._answers.behind(connection, entry) or self._admit(connection, entry)
            if error is not None:
                if isinstance(error[0], Overloaded):
                    tell(AppendOverloaded(entry.log, str(error[0])))
                self._answers.send_back(connection, entry, *error)
        self._tick_soon()

    def on_lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._answers.on_lost(connection)

    async def tail(self, ask: AskTail) -> TailReply:
        """The last released LSN, from this log's sequencer, which is started if necessary.

        A replaced sequencer may not know of its successor. Its tail could lie below records that
        the successor has acknowledged, so the epoch store is asked first.

        Raises:
            NoSequencer: another node should be asked, activation failed, or the epoch
                store does not answer.
        """
        began = self._tools.now()
        for _ in range(TAIL_TRIES_MAX):
            refusal = self._eligibility.refusal(ask.log)
            if refusal is not None:
                raise refusal[0]
            row = self._rows.get(ask.log)
            if row is None:
                elsewhere = self._eligibility.elsewhere(ask.log, ask.activate_here)
                if elsewhere:
                    text = f"log {ask.log} is sequenced by node {elsewhere}, not here"
                    raise NoSequencer(text, elsewhere)
                row = self._table.start_if_due(LogId(ask.log))
            if row is None:
                failure = self._table.failures[ask.log][0]
                raise NoSequencer(str(failure), failure.node)
            appender = row.appender
            if appender is None:
                appender = await asyncio.shield(row.ready)
            if row.successor is not None:
                raise NoSequencer(f"log {ask.log}: another node takes over just now", row.successor)
            # Before that the tail could lie above records that the recovery makes into holes.
            await self._until_recovered(ask.log, row, began)
            self.remind(row)
            if await self._still_rules(appender.log, row, appender):
                return TailReply(appender.epoch, appender.lng, self._node, appender.numbered)
        raise NoSequencer(f"log {ask.log}: other nodes took every epoch that this one had")

    async def _until_recovered(self, log: int, row: TableRow, began: float) -> None:
        """Wait until all lower epochs are recovered.

        Args:
            began: when the question came.
        Raises:
            NoSequencer: recovery failed, or goes on for longer than the caller waits.
        """
        now = self._tools.now()
        if row.recovered.done() or now >= row.active_s + RECOVERS_S:
            await asyncio.shield(row.recovered)
            return
        try:
            async with asyncio.timeout(max(0.0, began + RECOVERED_S - now)):
                await asyncio.shield(row.recovered)
        except TimeoutError:
            goes_on = f"log {log}: its earlier epochs are being recovered: ask again in a moment"
            raise NoSequencer(row.trouble or goes_on) from None

    def released(self, ask: AskReleased) -> ReleasedReply:
        """The released LSNs of the logs that are active here, 0 for other logs.

        A replaced sequencer that does not know it yet answers with its own last release. That
        stays true: the log may only have released more.
        """
        rows = map(self._rows.get, ask.logs)
        return ReleasedReply(
            [0 if row is None or row.appender is None else row.appender.released for row in rows]
        )

    async def _still_rules(self, log: LogId, row: TableRow, appender: LogAppender) -> bool:
        """Whether no node has taken a higher epoch; ends the appender if a node has."""
        try:
            rules = await self._activation.is_newest(log, appender.epoch)
        except Retryable as error:
            now = self._tools.now()
            self._unanswered_s = now if self._unanswered_s is None else self._unanswered_s
            is_cut_off = now >= self._unanswered_s + CUT_OFF_S
            text = f"log {log}: its sequencer is not known: {error}"
            raise NoSequencer(text, self.next_node(log) if is_cut_off else 0) from error
        self._unanswered_s = None
        tell(RuleQuestioned(log, appender.epoch, rules))
        if not rules and self._rows.get(log) is row:
            await self._finish(log, row, NodeId(0))
        return rules

    async def give_up(self, log: LogId, epoch: int, successor: NodeId) -> None:
        """`successor` took `epoch`: finish the numbered runs, within FINISH_S, then stop."""
        row = self._rows.get(log)
        if row is not None and row.appender is not None and row.appender.epoch < epoch:
            tell(LogGivenUp(log, row.appender.epoch, successor))
            await self._finish(log, row, successor)

    async def _finish(self, log: LogId, row: TableRow, successor: NodeId) -> None:
        """Take no more entries for `log`, store its runs, and stop; clients go to `successor`."""
        appender = row.appender
        assert appender is not None, "only an active log finishes"
        # From here on `_admit` sends entries back: an entry that joins now could be numbered after
        # the seal.
        row.successor = successor
        if successor:
            self._eligibility.note_successor(log, successor)
        error = NoSequencer(f"log {log}: epoch {appender.epoch} ends, another node takes over")
        for waiting in appender.take_pending():
            self._in_flight_bytes -= waiting.entry.stored_bytes
            self._answers.send_back(waiting.connection, waiting.entry, error, successor)
        await self._wait_stored(lambda: appender.in_flight, FINISH_S)
        # Runs that are not stored by now end as unknown: their stores may still arrive.
        self._table.end(log, row, 0)

    async def _wait_stored(self, in_flight: Callable[[], int], timeout_s: float) -> None:
        """Wait until no run is in flight, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while in_flight():
                    await self._stored.wait()
        except TimeoutError:
            logger.warning("%d runs are not stored, and this node gives up", in_flight())

    def sequencing(self) -> dict[int, LogAppender]:
        """Logs that are active here, for status pages."""
        return {
            log: row.appender for log, row in sorted(self._rows.items()) if row.appender is not None
        }

    def _admit(
        self, connection: Connection, entry: AppendEntry
    ) -> tuple[CordwoodError, NodeId] | None:
        """Queue an entry, or return the refusal and the node to ask instead (0: none)."""
        settings = self._tools.settings
        fault = _fault(entry, settings)
        if fault is not None:
            return fault, NodeId(0)
        refusal = self._eligibility.refusal(entry.log)
        if refusal is not None:
            return refusal
        row = self._rows.get(entry.log)
        if row is None:
            activate_here = bool(entry.flags & AppendFlag.ACTIVATE_HERE)
            elsewhere = self._eligibility.elsewhere(entry.log, activate_here)
            if elsewhere:
                return NoSequencer(f"node {elsewhere} sequences log {entry.log}"), elsewhere
            if len(self._rows) >= LOGS_MAX:
                return Overloaded(f"this node sequences {LOGS_MAX} logs already"), NodeId(0)
            row = self._table.start_if_due(entry.log)
        if row is not None and row.successor is not None:
            return NoSequencer(f"node {row.successor} takes over log {entry.log}"), row.successor
        if row is None or (row.appender is None and entry.log in self._table.failures):
            # Trap: the activation is retried meanwhile. If a client waited for the tries, its
            # deadline could pass during one, and it could not tell that from a numbered append.
            failure = self._table.failures[entry.log][0]
            return failure, NodeId(failure.node)
        in_flight = self._in_flight_bytes
        # Trap: a group may be as large as the window, so any run in flight would keep it out.
        size = 0 if entry.parts else entry.stored_bytes
        if in_flight and in_flight + size > settings.window_bytes:
            text = f"{settings.window_bytes} bytes are in flight at this sequencer: slow down"
            return Overloaded(text), NodeId(0)
        waiting = Waiting(connection, entry)
        appender = row.appender
        if appender is not None and not appender.has_unreleased_space(entry.stored_bytes):
            text = "this log's earlier epochs are being recovered: try again in a moment"
            return Overloaded(text), NodeId(0)
        if appender is not None and (appender.is_recovered or not row.must_wait(waiting)):
            appender.enqueue(waiting)
            self._dirty[entry.log] = None
        elif row.waiting_bytes + entry.stored_bytes > ACTIVATING_BYTES_MAX:
            return Overloaded("the log's sequencer is starting: try again in a moment"), NodeId(0)
        else:
            row.keep(waiting)
        self._in_flight_bytes += entry.stored_bytes
        return None

    def on_isolated(self, is_isolated: bool) -> None:
        """Take the failure detector's verdict on this node; called repeatedly.

        A node that has been isolated for a while ends its sequencers: their runs in flight cannot
        be stored, and other nodes serve its clients better.
        """
        self._eligibility.note_isolated(is_isolated)
        if self._eligibility.is_isolated:
            for log, row in list(self._rows.items()):
                if row.appender is not None:
                    logger.warning("log %d: not sequenced here, no other node is seen", log)
                    self._table.end(LogId(log), row, 0)

    async def leave(self) -> None:
        """Take no more entries, and wait until all numbered runs are stored, at most LEAVE_S."""
        self._tick()
        self._eligibility.is_leaving = True
        self._table.end_unstarted(f"node {self._node} leaves before it could sequence log")
        await self._wait_stored(self._table.in_flight, LEAVE_S)
        self._answers.send()

    # Calls from appenders.

    def acknowledge(
        self, acks: Sequence[tuple[Connection, int, int]], freed: int, records: int
    ) -> None:
        """See `appender.Role`."""
        self._in_flight_bytes -= freed
        self.appended_records += records
        self._stored.set()
        self._stored = asyncio.Event()
        self._answers.acknowledge(acks)

    def refuse(self, connection: Connection, entry: AppendEntry, error: CordwoodError) -> None:
        """See `appender.Role`."""
        self._in_flight_bytes -= entry.stored_bytes
        node = error.node if isinstance(error, NoSequencer) else 0
        self._answers.send_back(connection, entry, error, NodeId(node))

    def refuse_if_newest(self, log: LogId, waiting: Waiting, error: CordwoodError) -> None:
        """See `appender.Role`.

        Trap: a sequencer that is cut off from the others does not know what its successor stored.
        It would say that the tail is below the expected one, or that a producer's records are
        missing, and a client takes that for final.
        """
        row = self._rows.get(log)
        if row is None or row.appender is None:
            gone = NoSequencer(f"log {log} is not sequenced here any more")
            self.refuse(waiting.connection, waiting.entry, gone)
        else:
            self._tasks.create_task(self._refuse_if_newest(log, row, row.appender, waiting, error))

    async def _refuse_if_newest(
        self,
        log: LogId,
        row: TableRow,
        appender: LogAppender,
        waiting: Waiting,
        error: CordwoodError,
    ) -> None:
        told = error
        try:
            if not await self._still_rules(log, row, appender):
                told = NoSequencer(f"log {log}: another node took it over; nothing was stored")
        except NoSequencer as unsure:
            told = unsure
        self.refuse(waiting.connection, waiting.entry, told)

    def unknown(self, connection: Connection, token: int, error: CordwoodError) -> None:
        """See `appender.Role`."""
        self._answers.fault(connection, token, error)

    def release(self, log: int, audience: Sequence[NodeId], lsn: int) -> None:
        """See `appender.Role`."""
        self._stirred.set()
        self._releases.tell(log, audience, lsn)

    def remind(self, row: TableRow) -> None:
        """A client asks for the log, or the log begins: send its release again."""
        appender = row.appender
        if appender is not None and appender.is_recovered:
            self._stirred.set()
            self._releases.remind(appender.log, appender.audience, appender.released)

    def on_fenced(self, log: LogId, epoch: int) -> None:
        """See `appender.Role`."""
        row = self._rows.get(log)
        if row is not None and row.appender is not None:
            logger.info("log %d: fenced by epoch %d", log, epoch)
            tell(SequencerFenced(log, row.appender.epoch, epoch))
            self._table.end(log, row, epoch)

    def on_released(self, log: int, epoch: int) -> None:
        """This node's storage heard of a release in `epoch`: lower epochs are over.

        Without this, a replaced sequencer that does not know it would take the next append,
        however late, and could then not tell its outcome.
        """
        row = self._rows.get(log)
        if row is not None and row.appender is not None and row.appender.epoch < epoch:
            self.on_fenced(LogId(log), epoch)

    def on_drained(self, log: LogId, epoch: int) -> None:
        """See `appender.Role`."""
        self._table.restart(log, epoch)

    def next_node(self, log: int) -> NodeId:
        """See `sequencer_table.TableRole`."""
        return self._eligibility.next_node(log)

    def hold(self, log: int) -> None:
        """See `appender.Role`."""
        self._held[log] = None

    def on_space(self, node: NodeId) -> None:
        """`node` reports free space by itself."""
        self._tools.states.on_space(node)
        self.on_settled()

    def on_settled(self) -> None:
        """See `appender.Role`."""
        if self._held:
            self._dirty.update(self._held)
            self._held.clear()
            self._tick_soon()

    # Ticks.

    def number(self, log: int) -> None:
        """See `sequencer_table.TableRole`."""
        self._dirty[log] = None
        self._tick()

    def _tick_soon(self) -> None:
        if self._dirty and not self._tick_due:
            self._tick_due = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        """Number and send all entries that arrived since the last tick."""
        self._tick_due = False
        self._stirred.set()
        logs, self._dirty = self._dirty, {}
        now, now_us = self._tools.now(), self._host.clock.now_us()
        with self._tools.channel.together():
            for log in logs:
                if (row := self._rows.get(log)) is not None and row.appender is not None:
                    row.appender.flush(now, now_us)

    def on_peer_up(self, node: NodeId) -> None:
        """A node connected: it may have missed releases, and runs may wait for it."""
        self._tools.states.on_up(node)
        self._tools.times.forget(node)
        self._eligibility.on_peer_up(node)
        self._releases.on_peer_up(node)
        now = self._tools.now()
        with self._tools.channel.together():
            for row in list(self._rows.values()):
                if row.appender is not None and row.appender.in_flight:
                    row.appender.on_peer_up(node, now)

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to check: no run in flight and no release to repeat."""
        return self._releases.is_idle and not self._table.in_flight()

    async def run(self) -> None:
        """Check waves for timeouts, and repeat releases, until cancelled."""
        while True:
            if self._is_idle:
                self._stirred.clear()
                await self._stirred.wait()
            await asyncio.sleep(TICK_S)
            now = self._tools.now()
            self.on_settled()  # refuses entries that have waited too long for free space
            with self._tools.channel.together():
                for row in list(self._rows.values()):
                    if row.appender is not None and row.appender.in_flight:
                        row.appender.tick(now)
            self._probes.tick(now)
            self._releases.tick(TICK_S)

    async def close(self) -> None:
        """Stop: take no more entries, and answer appends in flight as unknown."""
        self._table.end_all()
        self._answers.send()
        self._releases.send()


def _fault(entry: AppendEntry, settings: SequencerSettings) -> CordwoodError | None:
    """The fault of an entry that every sequencer would refuse; None if it has none."""
    if entry.count > settings.esns:
        return RecordTooLarge(f"a block has at most {settings.esns} records: no epoch holds more")
    if entry.parts and entry.stored_bytes > settings.group_bytes_max:
        return RecordTooLarge(
            f"an atomic group of {entry.stored_bytes} bytes as stored; here it has at most "
            f"{settings.group_bytes_max} (sequencer.group_bytes_max, and half of the smallest WAL "
            "of the members)"
        )
    whole = (entry.stored_bytes, entry.stored_crc, entry.body)
    parts = [(part.stored_bytes, part.stored_crc, part.body) for part in entry.parts]
    for size, crc, body in parts or [whole]:
        if size > settings.block_bytes_max:
            text = f"a block has at most {settings.block_bytes_max} bytes as stored"
            return RecordTooLarge(text)
        if crc32c(body) != crc:
            return ChecksumMismatch("the block arrived damaged; nothing was stored")
    return None
