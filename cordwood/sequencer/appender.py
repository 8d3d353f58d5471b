"""One log's sequencer: numbers blocks, sends them in waves, acknowledges in order.

Until every lower epoch is recovered, no record is released. Stored records are acknowledged, but
neither stores nor releases carry an LNG, because nodes would show records up to it to readers.

All entries that arrive for the log in one tick become one run, or a few if they are large: one pass
of numbering, and one STORE frame to each member of the copyset. An atomic group is numbered as a
whole, in runs of its own; the window retires these together.

Source: docs/design.md §3, §4; docs/sources/logdevice.md 2.3, 2.4.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from crc32c import crc32c

from cordwood.block import BlockKind, Buffer, Envelope
from cordwood.decisions import (
    LISTENERS,
    AnsweredLate,
    AnswerLost,
    AppendsRefused,
    EpochDrained,
    GroupNumbered,
    NoSpaceAnywhere,
    RefusalHeard,
    RunAcknowledged,
    RunOvertaken,
    SpaceAwaited,
    TooFewNodesUp,
    WaveRetried,
    tell,
)
from cordwood.errors import (
    AccessDenied,
    CordwoodError,
    NoSequencer,
    OutcomeUnknown,
    OutOfSequence,
    Overloaded,
    TailMoved,
    TokenFenced,
    TooFewNodes,
    UnknownProducer,
)
from cordwood.layout.block_header import pack_envelope, pack_header_fields, unpack_header
from cordwood.layout.frame import checksum
from cordwood.layout.waves import AppendEntry, Refusal, StoreRefusal, amend_of, store_head
from cordwood.log_attributes import DEFAULTS, LogAttributes
from cordwood.lsn import EVENT_LOG, LSN_MAX, LogId
from cordwood.metadata.epoch_store import fenced_words
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.append_window import AppendWindow
from cordwood.quorum.copyset import can_replicate, choose_copyset
from cordwood.recovery.recover_log import LowerEpochs, Recovered
from cordwood.sequencer.idle_times import IdleTimes
from cordwood.sequencer.producer_checks import ProducerChecks
from cordwood.sequencer.run_contents import (
    RunContents,
    SentRun,
    Waiting,
    cut_group,
    header_flags,
    space_needed,
)
from cordwood.sequencer.tools import AppenderTools as AppenderTools
from cordwood.wire.connection import Connection
from cordwood.wire.for_nodes import is_node
from cordwood.wire.store_channel import SPACE_UNTOLD_BYTES

logger = logging.getLogger(__name__)

STICKY_BYTES = 32 << 20
"""A copyset is kept for this many bytes, as in LogDevice, so that few nodes hold a log's recent
records. It changes at once if a wave fails, or if a member should get no more blocks."""

STICKY_S = 600.0
"""A copyset is kept for at most this time, as in LogDevice: a log with little traffic must not stay
on the same nodes for ever."""

UNRELEASED_BYTES_MAX = 64 << 20
"""Bodies taken while lower epochs are not recovered; recovery usually takes a fraction of a second.
If this epoch fails, the next recovery has to read all of them at once."""

SPACE_WAIT_S = 2.0
"""How long entries wait for nodes that flush: 32 MiB take a fraction of a second, and a refused
client retries by itself."""

GROUP_SENT_BYTES = 8 << 20
"""Bodies of a large group in flight at once. With more, its waves would time out, and each would be
sent again to other nodes."""

QUICK_WAVES = 4
"""This many times, the next wave follows a refused wave at once. After that the growing timeouts
set the pace, so that retries do not flood full nodes."""


class Role(Protocol):
    """The part of the sequencer role that an appender uses."""

    def acknowledge(
        self, acks: Sequence[tuple[Connection, int, int]], freed: int, records: int
    ) -> None:
        """Tell clients (connection, token, first lsn) that `records` are stored; `freed` bytes
        left the window."""

    def refuse(self, connection: Connection, entry: AppendEntry, error: CordwoodError) -> None:
        """Tell a client that an entry was never numbered; its bytes leave the window."""

    def refuse_if_newest(self, log: LogId, waiting: Waiting, error: CordwoodError) -> None:
        """The same, of an error that is true only if no node has taken a higher epoch. Else the
        client is told to ask another node."""

    def unknown(self, connection: Connection, token: int, error: CordwoodError) -> None:
        """Tell a client that it is unknown whether an entry will be stored."""

    def release(self, log: int, audience: Sequence[NodeId], lsn: int) -> None:
        """Tell these nodes that readers may see up to `lsn`."""

    def on_fenced(self, log: LogId, epoch: int) -> None:
        """A higher epoch rules this log; 0 if its number is not known."""

    def on_drained(self, log: LogId, epoch: int) -> None:
        """`epoch` has no esns left and no run in flight: take the next one, if it still rules."""

    def hold(self, log: int) -> None:
        """Entries of `log` wait for free space: flush it again after a store was answered."""

    def on_settled(self) -> None:
        """A store was answered: there may be free space for the logs on hold."""


class LogAppender:
    """See the module.

    Attributes:
        epoch: the epoch it rules.
        nodeset, replication: the epoch's, which never change.
        attributes: the log's; may be replaced at any time.
        is_recovered: whether every lower epoch is recovered.
        audience: nodes that hear of releases: the nodes of every epoch of the log.
        token, holder: the log's fencing token in this epoch, and its holder.
        idle: for how long producers have been idle.
        lower: what the recovery of the lower epochs needs.
    """

    def __init__(
        self,
        log: LogId,
        epoch: int,
        nodeset: Nodeset,
        replication: Replication,
        append_time_us: int,
        role: Role,
        tools: AppenderTools,
        attributes: LogAttributes = DEFAULTS,
        idle: IdleTimes | None = None,
    ) -> None:
        self.log = log
        self.epoch = epoch
        self.nodeset = nodeset
        self.audience: Sequence[NodeId] = nodeset.nodes
        self.replication = replication
        self.attributes = attributes
        self.token = 0
        self.holder = ""
        self.lower: LowerEpochs | None = None
        self._blocks_in_flight = 0
        self._append_time_us = append_time_us
        self.idle = idle or IdleTimes(epoch, tools.now())
        self._role = role
        self._tools = tools
        self._window: AppendWindow[RunContents] = AppendWindow(epoch, esn_max=tools.settings.esns)
        self._pending: list[Waiting] = []
        # Runs of large groups that are numbered and not sent yet; the bytes of those that are sent.
        self._unsent: deque[SentRun] = deque()
        self._paced_bytes = 0
        self._copyset: tuple[NodeId, ...] | None = None
        self._sticky_bytes = 0
        self._sticky_until = 0.0
        self._exhausted = False
        self._over = False
        self.is_recovered = False
        self._unreleased_bytes = 0
        self._checks: ProducerChecks | None = None
        # A run that was refused again and again, and the last refusal.
        self._stuck_on: SentRun | None = None
        self._stuck_by: StoreRefusal | None = None
        # The time since which no entry was numbered for lack of free space; None if entries are.
        self._short_since: float | None = None

    @property
    def lng(self) -> int:
        """Last LSN fully stored; (epoch, 0) before the first."""
        return self._window.lng

    @property
    def numbered(self) -> int:
        """Last LSN that was numbered; (epoch, 0) before the first."""
        return self._window.next - 1

    @property
    def released(self) -> int:
        """Last LSN that readers may see, 0 while lower epochs are not recovered."""
        return self._window.lng if self.is_recovered else 0

    def on_recovered(self, below: Recovered) -> None:
        """Every lower epoch is recovered: stored records are released from now on."""
        self.is_recovered = True
        self.lower = None
        self._checks = ProducerChecks(self.epoch, below, self._tools.queries, self.idle)
        if self._window.lng > self.epoch << 32:
            self._role.release(self.log, self.audience, self._window.lng)
        self._check_drained()

    def go_on_after(self, idle: IdleTimes) -> None:
        """Go on with the idle times of the epoch before, if this process had that one too. Before
        the first entry, and before `on_recovered`."""
        if idle.continued(self.epoch):
            self.idle = idle

    def has_unreleased_space(self, size: int) -> bool:
        """Whether `size` more bytes may be taken while no record is released."""
        return self.is_recovered or self._unreleased_bytes + size <= UNRELEASED_BYTES_MAX

    @property
    def in_flight(self) -> int:
        """The number of runs that are not stored yet; 0 after the end of the epoch."""
        return 0 if self._over else len(self._window)

    def enqueue(self, waiting: Waiting) -> None:
        """Take an entry; `flush` numbers it at the end of the tick."""
        assert not self._over, "a fenced appender takes nothing"
        if self.log == EVENT_LOG and not is_node(waiting.connection):
            error = AccessDenied("only nodes append to the event log")
            self._role.refuse(waiting.connection, waiting.entry, error)
            return
        wanted = self.attributes.write_token
        if wanted and wanted not in waiting.connection.tokens:
            error = AccessDenied(f"log {self.log} wants a write token, and this client showed none")
            self._role.refuse(waiting.connection, waiting.entry, error)
            return
        if not self.is_recovered:
            self._unreleased_bytes += waiting.entry.stored_bytes
        self._pending.append(waiting)

    def flush(self, now: float, now_us: int) -> None:
        """Number and send the pending entries.

        Args:
            now: the loop's clock, for timeouts.
            now_us: wall time, for append times.
        """
        if self._exhausted or not self._pending:
            return
        if self._is_stuck:
            self._refuse_pending(self._full())
            return
        self._append_time_us = max(self._append_time_us, now_us)
        if self._checks is not None:
            self._checks.tick(now)
        pending, self._pending = self._pending, []
        blocks_max, is_full = self.attributes.max_writes_in_flight or 1, False
        contents, count, room = RunContents(), 0, 0
        copyset: tuple[NodeId, ...] | None = None
        for at, waiting in enumerate(pending):
            entry = waiting.entry
            if entry.needs_recovery and self._is_settled(waiting, count):
                continue
            if entry.fencing < self.token:
                # After the check for repeats, so that a retry of a stored block still gets its LSN.
                text = fenced_words(self.log, entry.fencing, self.token, self.holder)
                self._role.refuse(waiting.connection, entry, TokenFenced(text))
                continue
            size = space_needed(entry)
            fits = size <= room and not entry.parts and contents.has_space(size, self._run_bytes)
            if contents.blocks and not fits:
                assert copyset is not None, "a run is loaded for a copyset"
                self._send_new(contents, count, copyset, now)
                contents, count = RunContents(), 0
            if size > room:
                copyset = self._fitting_copyset(
                    self._group_space(size) if entry.parts else size, now
                )
                room = self._space_of(copyset)
            is_full = self._blocks_in_flight + len(contents.blocks) >= blocks_max
            if copyset is None or is_full or not self._window.fits(count + entry.count):
                self._exhausted = copyset is not None and not is_full
                self._pending = pending[at:]
                break
            self._short_since = None
            if entry.parts:
                self._number_group(waiting, now)
                room -= size
                continue
            self._load(contents, waiting, count)
            count += entry.count
            room -= size
        if contents.blocks:
            assert copyset is not None, "a run is loaded for a copyset"
            self._send_new(contents, count, copyset, now)
        self._check_drained()
        if not self._pending:
            self._short_since = None
        elif is_full:
            self._role.hold(self.log)
        elif not self._exhausted:
            self._wait_for_space(now)

    def _wait_for_space(self, now: float) -> None:
        """Keep the entries that were not numbered while there may be space soon, else refuse them.

        A numbered run must be stored. So an entry gets no number before there is space for it:
        its run would block the window until the client gives up with an unknown outcome. Space
        comes from runs in flight that are stored, and from nodes that flush.
        """
        if self._short_since is None:
            tell(SpaceAwaited(self.log))
            self._short_since = now
        is_busy = len(self._window) or self._tools.channel.is_busy
        can_replicate = self._can_replicate()
        if is_busy or (can_replicate and now - self._short_since < SPACE_WAIT_S):
            self._role.hold(self.log)
        elif can_replicate:
            self._refuse_pending(self._full())
        else:
            self._refuse_pending(self._too_few())

    def _is_settled(self, waiting: Waiting, loaded: int) -> bool:
        """Answer an entry that needs no number: a repeat, or an entry that may not be appended.

        Args:
            loaded: records in the run that is being loaded.
        """
        checks, entry = self._checks, waiting.entry
        assert checks is not None, "what depends on lower epochs waits for their recovery"
        last = self._window.next + loaded - 1
        try:
            first = checks.check(entry, last, self._append_time_us)
        except OutOfSequence as error:
            checks.misplace(waiting, error)
            self._tell_refused()
            return True
        except TailMoved as error:
            checks.note_moved(waiting, error, last)
            self._tell_refused()
            return True
        except UnknownProducer as error:
            self._role.refuse_if_newest(self.log, waiting, error)
            return True
        except CordwoodError as error:
            self._role.refuse(waiting.connection, entry, error)
            return True
        if first is None:
            return False
        self._role.acknowledge((), entry.stored_bytes, 0)
        last = first + entry.count - 1
        if last <= self._window.lng:
            self._role.acknowledge([(waiting.connection, entry.token, first)], 0, 0)
        else:
            checks.repeats.append((last, (waiting.connection, entry.token, first)))
        return True

    def _tell_refused(self) -> None:
        assert self._checks is not None, "only recovered epochs place blocks"
        for last, waiting, error in self._checks.take_refused(self._window.lng):
            if isinstance(error, TailMoved) and waiting.entry.expected_tail <= last:
                self._role.refuse(waiting.connection, waiting.entry, error)  # in any later epoch
            else:
                self._role.refuse_if_newest(self.log, waiting, error)

    def _load(self, contents: RunContents, waiting: Waiting, offset: int) -> None:
        """Add an entry's block to a run, `offset` LSNs after the run's first."""
        entry = waiting.entry
        first = self._window.next + offset
        header = pack_header_fields(
            BlockKind.DATA,
            entry.codec,
            self.log,
            first,
            entry.count,
            self._append_time_us,
            entry.producer,
            entry.producer_epoch,
            entry.producer_sequence,
            first,
            first + entry.count - 1,
            entry.stored_bytes,
            entry.raw_bytes,
            entry.stored_crc,
            entry.raw_crc,
            header_flags(entry),
            entry.key_bits,
        )
        if entry.producer and self._checks is not None:
            self._checks.note(entry, first, self._append_time_us)
        contents.blocks.append((header, entry.body))
        contents.acks.append((waiting.connection, entry.token, first))
        contents.bytes += entry.stored_bytes

    def _group_space(self, size: int) -> int:
        """The free space to ask for before a group of `size` bytes is numbered: all of it, or the
        space that a node without a report is assumed to have."""
        told = all(map(self._tools.channel.has_told, self._up))
        return size if told else min(size, SPACE_UNTOLD_BYTES)

    def _number_group(self, waiting: Waiting, now: float) -> None:
        """Give a group its LSNs, all at once, and begin to send it."""
        entry = waiting.entry
        first = self._window.next
        if entry.producer and self._checks is not None:
            self._checks.note(entry, first, self._append_time_us)
        runs = cut_group(waiting, first, self._append_time_us, self._run_bytes)
        for at, (contents, count) in enumerate(runs, 1):
            self._sticky_bytes += contents.bytes
            self._blocks_in_flight += len(contents.blocks)
            run = self._window.number(count, contents, ends_group=at == len(runs))
            run.sent_at = float("inf")
            self._unsent.append(run)
        tell(GroupNumbered(self.log, first, self._window.next - 1))
        self._send_unsent(now)

    def _send_unsent(self, now: float) -> None:
        """Send runs of groups, as many as may be in flight."""
        while self._unsent and self._paced_bytes < GROUP_SENT_BYTES:
            run = self._unsent.popleft()
            if run.contents.is_paced:
                self._paced_bytes += run.contents.bytes
            copyset = self._fitting_copyset(run.contents.size, now) or self.choose_nodes(
                now, self._up
            )
            if copyset is None:
                run.park(now)
            else:
                self._send(run, copyset, now)

    def _send_new(
        self, contents: RunContents, count: int, copyset: tuple[NodeId, ...], now: float
    ) -> None:
        self._sticky_bytes += contents.bytes
        self._blocks_in_flight += len(contents.blocks)
        self._send(self._window.number(count, contents), copyset, now)

    def _send(self, run: SentRun, copyset: tuple[NodeId, ...], now: float) -> None:
        """Start a wave of `run`: the same frame to each member."""
        run.send_to(copyset, now)
        envelope = pack_envelope(Envelope(copyset, run.wave, 0, self.released))
        parts: list[Buffer] = [store_head(len(run.contents.blocks))]
        for header, body in run.contents.blocks:
            parts += (header + envelope, body)
        crc = checksum(parts)
        for node in copyset:
            settled = partial(self.on_store_settled, run, run.wave)
            # Race: a member may just have gone down, so the wave stays incomplete. The tick, or
            # the member's return, starts another wave.
            if run.holders and node in run.holders:
                is_sent = self._tools.channel.send_amend(node, amend_of(parts), settled)
            else:
                is_sent = self._tools.channel.send(node, parts, crc, settled)
            if not is_sent:
                run.sent_at = float("-inf")

    def on_store_settled(
        self, run: SentRun, wave: int, node: NodeId, refusals: Sequence[StoreRefusal] | None
    ) -> None:
        self._role.on_settled()
        now = self._tools.now()
        is_stored = refusals is not None and not refusals
        if is_stored and self._tools.times.on_answer(node, now - run.waves_at[wave - 1], now):
            self._tools.states.on_slow(node, now)
        if refusals is None:
            tell(AnswerLost(self.log, run.first, run.last, node))
        elif wave != run.wave:
            tell(AnsweredLate(self.log, run.first, run.last, node, wave))
        # A late answer: another wave stored the run, or the epoch has ended.
        if self._over or run.stored:
            return
        if wave != run.wave:
            if is_stored:
                run.holders.add(node)  # its copy names an old copyset, and is amended if necessary
            return
        if refusals is None:
            self.send_again(run, now)
            return
        mine = [refusal for refusal in refusals if refusal.log == self.log]
        if mine:
            self.on_refused(run, node, mine[0], now)
        elif run.on_stored(node, wave):
            if run.contents.is_paced:
                self._paced_bytes -= run.contents.bytes
                self._send_unsent(now)
            self._retire(run)

    def on_refused(self, run: SentRun, node: NodeId, refusal: StoreRefusal, now: float) -> None:
        """A node refused a store of `run`."""
        tell(RefusalHeard(self.log, run.first, run.last, node, refusal.reason.name))
        if refusal.reason == Refusal.SEALED:
            self._role.on_fenced(self.log, refusal.epoch)
            return
        states = self._tools.states
        if refusal.reason == Refusal.FAILED:
            states.on_failed(node)
        elif refusal.reason == Refusal.CORRUPT:
            # If the connection damaged the frame, a retry helps. Damage in this memory is final,
            # because every wave would send it.
            if not _is_whole(run.contents.blocks):
                self._give_up_damaged(run)
                return
            states.on_slow(node, now)
        elif refusal.reason == Refusal.NO_SPACE:
            states.on_no_space(node, now)
        elif refusal.reason == Refusal.REBUILDING:
            # This refusal names the rebuilt node in the place of the epoch.
            states.on_rebuilding(NodeId(refusal.epoch), now)
        elif refusal.reason == Refusal.NOT_HELD:
            run.lacking.add(node)
            self.send_again(run, now)
            return
        else:
            states.on_full(node, now)
        # Trap: retries at once, without end, flood nodes that are full.
        if run.wave < QUICK_WAVES:
            self.send_again(run, now)
        else:
            run.sent_at = now
            self._stuck_on, self._stuck_by = run, refusal
            self._refuse_pending(self._full())

    def _give_up_damaged(self, run: SentRun) -> None:
        """This node's memory damaged a numbered run, so no further copy of it can be made.

        The epoch ends, and recovery finds the copies that exist. LogDevice ends the process.
        """
        logger.error("log %d: the run from %d was damaged in memory", self.log, run.first)
        self._role.on_fenced(self.log, 0)

    def _retire(self, stored: SentRun) -> None:
        retired = self._window.retire()
        # A lower run is not stored yet: runs are acknowledged in the order of their LSNs.
        if not retired:
            tell(RunOvertaken(self.log, stored.first, stored.last))
            return
        for run in retired:
            records = run.last - run.first + 1
            if LISTENERS:
                tell(RunAcknowledged(self.log, run.first, run.last))
            self._blocks_in_flight -= len(run.contents.blocks)
            self._role.acknowledge(run.contents.acks, run.contents.bytes, records)
        if self._checks is not None and self._checks.repeats:
            self._role.acknowledge(self._checks.take_repeats(self._window.lng), 0, 0)
        if self._checks is not None and self._checks.refused:
            self._tell_refused()
        if self.is_recovered:
            self._role.release(self.log, self.audience, self._window.lng)
        self._check_drained()

    def drain(self) -> None:
        """Stop numbering; when all numbered runs are stored, the next epoch is taken.

        Source: docs/sources/logdevice.md 2.2, "graceful reactivation".
        """
        self._exhausted = True
        self._check_drained()

    def _check_drained(self) -> None:
        # Trap: an epoch must be recovered before the next one is taken. Otherwise epoch after epoch
        # would be filled and none released.
        if self._exhausted and not len(self._window) and self.is_recovered:
            tell(EpochDrained(self.log, self.epoch))
            self._role.on_drained(self.log, self.epoch)

    def tick(self, now: float) -> None:
        """Retry the runs whose wave took too long."""
        for run in list(self._window):
            copyset = list(map(NodeId, run.copyset))
            if run.stored or now - run.sent_at < self._tools.times.wave_s(copyset, run.wave):
                continue
            # A wave that was not sent whole stands at -inf: no member was slow.
            if run.sent_at > 0:
                waiting = list(map(NodeId, run.waiting))
                self._tools.states.on_timed_out(waiting, copyset, now)
            self.send_again(run, now)

    def on_peer_up(self, node: NodeId, now: float) -> None:
        """A node of the nodeset connected: send the runs that had no copyset without it.

        Their timeouts have grown meanwhile: after a power cut they would wait for seconds.
        """
        if self._over or node not in self.nodeset.nodes:
            return
        for run in [each for each in self._window if each.is_parked and not each.stored]:
            self.send_again(run, now)

    def send_again(self, run: SentRun, now: float) -> None:
        """Send `run` to another copyset; if there is none, a node that connects or the tick tries
        again.

        Nodes with free space come first, but later waves may use the space that nodes reserve for
        them.
        """
        # The next runs must not stick to the copyset that failed this run.
        self._copyset = None
        run.note_holders()
        copyset = self._fitting_copyset(run.contents.size, now) or self.choose_nodes(now, self._up)
        if copyset is None:
            run.park(now)
            return
        self._send(run, copyset, now)
        tell(WaveRetried(self.log, run.first, run.last, run.wave))

    @property
    def _up(self) -> frozenset[NodeId]:
        peers = self._tools.peers
        return frozenset(node for node in self.nodeset.nodes if peers.get(node) is not None)

    def _fitting_copyset(self, size: int, now: float) -> tuple[NodeId, ...] | None:
        """A copyset with free space for `size` bytes on each node: the last one, for some time."""
        room = self._tools.channel.room
        roomy = frozenset(node for node in self.nodeset.nodes if room(node) >= size)
        kept = self._copyset
        is_sticky = self._sticky_bytes < STICKY_BYTES and now < self._sticky_until
        if kept and self.attributes.sticky_copysets and is_sticky:
            good = self._tools.states.pick_from(roomy, now)
            if all(node in good for node in kept):
                return kept
        self._sticky_bytes = 0
        self._sticky_until = now + STICKY_S
        self._copyset = self.choose_nodes(now, roomy)
        if self._copyset is None:
            tell(NoSpaceAnywhere(self.log))
        return self._copyset

    def choose_nodes(self, now: float, nodes: frozenset[NodeId]) -> tuple[NodeId, ...] | None:
        """A copyset among `nodes`: among the available nodes, if these can hold a copyset."""
        for available in (self._tools.states.pick_from(nodes, now), nodes):
            copyset = choose_copyset(self.nodeset, self.replication, available, self._tools.random)
            if copyset is not None:
                return copyset
        return None

    def _space_of(self, copyset: tuple[NodeId, ...] | None) -> int:
        return min(map(self._tools.channel.room, copyset)) if copyset else 0

    @property
    def _run_bytes(self) -> int:
        return self._tools.settings.run_bytes

    @property
    def _is_stuck(self) -> bool:
        """Whether no node has space for a run, so that no later run can be acknowledged."""
        run = self._stuck_on
        return run is not None and not run.stored

    def _can_replicate(self) -> bool:
        return can_replicate(self._up, self.nodeset, self.replication)

    def _full(self) -> Overloaded:
        stuck = self._stuck_by
        if self._is_stuck and stuck is not None and stuck.reason == Refusal.REBUILDING:
            return Overloaded(
                f"log {self.log} has no copyset without node {stuck.epoch}, which is said to be "
                "rebuilt: it takes new records once the others have heard that it is back"
            )
        room = {node: self._tools.channel.room(node) for node in sorted(self._up)}
        full = [node for node in room if room[node] < self._run_bytes] or list(room)
        return Overloaded(
            f"nodes {', '.join(map(str, full))} have no room: they are written to faster than "
            "they flush, or their disks are full"
        )

    def _too_few(self) -> TooFewNodes:
        tell(TooFewNodesUp(self.log))
        down = [n for n in self.nodeset.nodes if self._tools.peers.get(n) is None]
        named = ", ".join(str(node) for node in down) or "none"
        return TooFewNodes(
            f"log {self.log} wants {self.replication}; too few nodes are up (down: {named})"
        )

    def _refuse_pending(self, error: CordwoodError) -> None:
        pending, self._pending = self._pending, []
        if pending:
            tell(AppendsRefused(self.log, len(pending), str(error)))
        for waiting in pending:
            self._role.refuse(waiting.connection, waiting.entry, error)

    def take_pending(self) -> list[Waiting]:
        """Entries that were never numbered, for the next epoch's appender."""
        pending, self._pending = self._pending, []
        return pending

    def end(self, epoch: int) -> None:
        """A higher epoch rules, or this node stops: answer all clients and stop working."""
        self._over = True
        why = f"log {self.log}: epoch {self.epoch} was fenced" + (f" by {epoch}" if epoch else "")
        untold = self._checks.take_refused(LSN_MAX) if self._checks is not None else []
        self._pending = [waiting for _, waiting, _ in untold] + self._pending
        self._refuse_pending(NoSequencer(f"{why}; nothing was stored"))
        for run in self._window:
            error = OutcomeUnknown(f"{why} while this append was in flight: read the log to know")
            for connection, token, _ in run.contents.acks:
                self._role.unknown(connection, token, error)
            self._role.acknowledge((), run.contents.bytes, 0)
        for _, (connection, token, _) in self._checks.repeats if self._checks else ():
            self._role.unknown(connection, token, OutcomeUnknown(f"{why}: read the log to know"))


def _is_whole(blocks: Sequence[tuple[bytes, Buffer]]) -> bool:
    """Whether every body still has the checksum in its header."""
    return all(crc32c(body) == unpack_header(header).stored_crc for header, body in blocks)
