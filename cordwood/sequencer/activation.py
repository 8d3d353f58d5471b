"""Starting a sequencer: take an epoch, let the old sequencer finish, seal, begin; then recover.

If the node of the epoch before is alive, it is asked to finish first. It then stores and
acknowledges the appends in flight, and redirects its clients. A seal without this question would
make the outcome of those appends unknown.

A taken epoch that could not be recovered yet (members absent) is kept for the next try, so that
retries do not burn epochs. An epoch that is fenced is thrown away.

Source: docs/sources/logdevice.md 2.1, 2.2.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec

from cordwood.decisions import EpochOvertaken, EpochStarted, TakenEpochKept, tell
from cordwood.errors import CordwoodError, Fenced, NoSequencer, UnknownLog
from cordwood.layout.message import Yield
from cordwood.log_attributes import DEFAULTS, LogAttributes
from cordwood.lsn import EVENT_LOG, LogId
from cordwood.metadata.epoch_store import Configuration, EpochRecord, Wanted
from cordwood.metadata.log_tree import LogTree
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.protocol.event_log import event_log_nodes, has_place, replication_with_place
from cordwood.protocol.producers import ProducerTable
from cordwood.quorum.nodeset_selection import choose_nodeset
from cordwood.recovery.recover_log import (
    LowerEpochs,
    Recovered,
    RecoveryTools,
    recover_log,
    seal_log,
)
from cordwood.recovery.tell_nodesets import tell_nodesets
from cordwood.recovery.trim_nodesets import trim_nodesets
from cordwood.sequencer.appender import AppenderTools, LogAppender, Role
from cordwood.sequencer.eligibility import View
from cordwood.sequencer.idle_times import IdleTimes

logger = logging.getLogger(__name__)

FULLY = Authority.FULLY_AUTHORITATIVE
EMPTY = Authority.AUTHORITATIVE_EMPTY

TRIES_MAX = 3
"""The most lost races for one log in a row; after these another node is busy sequencing it."""


YIELD_TIMEOUT_S = 1.2
"""A sequencer that is asked to finish gives up after a second by itself."""


@dataclass(slots=True)
class Beginning:
    """The log tree's word on a log that is being activated.

    Attributes:
        attributes: what a look at the tree told, or else what the epoch was configured by; None
            before either.
        is_deleted: whether the log was deleted since.
    """

    attributes: LogAttributes | None = None
    is_deleted: bool = False

    def on_read(self, attributes: LogAttributes) -> None:
        """The epoch may be configured by these attributes."""
        # Race: a look at the tree may have told newer ones while the answer was on its way.
        if self.attributes is None:
            self.attributes = attributes

    def on_told(self, attributes: LogAttributes) -> None:
        """A look at the tree told these attributes."""
        if self.attributes is not None:
            # The epoch may have that size already. Another size stays visible for the next look.
            size = self.attributes.nodeset_size
            attributes = msgspec.structs.replace(attributes, nodeset_size=size)
        self.attributes = attributes


class Activation:
    """Activates sequencers on one node."""

    def __init__(
        self,
        node: NodeId,
        recovery: RecoveryTools,
        tools: AppenderTools,
        members: Callable[[], Mapping[NodeId, Member]],
        said: Callable[[], tuple[Member, ...]],
        refresh_members: Callable[[], Awaitable[None]],
        view: View,
        logs: LogTree,
    ) -> None:
        self._node = node
        self._logs = logs
        self._beginning: dict[int, Beginning] = {}
        self._view = view
        self._recovery = recovery
        self._tools = tools
        self._members = members
        self._said = said
        self._refresh_members = refresh_members
        self._taken: dict[int, tuple[int, EpochRecord]] = {}

    async def activate(self, log: LogId, role: Role) -> LogAppender:
        """Take a higher epoch and seal all below it.

        Returns:
            The appender, which may take plain appends at once.
        Raises:
            NoSequencer: members are absent, or others keep winning the race.
            UnknownLog: the epoch store does not know the log, or it was deleted.
            Unreachable: the metadata store does not answer.
        """
        above = 0
        for _ in range(TRIES_MAX):
            if kept := self._taken.get(log):
                tell(TakenEpochKept(log, kept[0]))
            epoch, record = kept or await self._take(log, above)
            try:
                return await self.begin_epoch(log, epoch, record, role)
            except Fenced as fenced:
                logger.info("log %d: epoch %d was overtaken: %s", log, epoch, fenced)
                tell(EpochOvertaken(log, epoch, fenced.epoch))
                del self._taken[log]
                del self._beginning[log]
                # The metadata store may be behind the nodes, as after a restore of an older copy:
                # the next epoch has to be above every seal that a node has told of.
                above = fenced.epoch
        raise NoSequencer(f"log {log}: other nodes took every epoch that this one tried")

    async def _take(self, log: int, above: int = 0) -> tuple[int, EpochRecord]:
        """Take the next epoch above `above`; the epoch before finishes first, if it can."""
        # Before the tree is read: a look at the tree that follows a change finds this log.
        beginning = self._beginning[log] = Beginning()
        try:
            epoch, record = await self._recovery.epochs.take_epoch(
                log,
                owner=self._node,
                above=above,
                configure=lambda: self._configure(log, beginning),
            )
            self._taken[log] = (epoch, record)
        finally:
            if log not in self._taken:
                del self._beginning[log]
        old, peers = NodeId(record.owner_before), self._recovery.peers
        # Number: asking a node that is dead or suspect would cost YIELD_TIMEOUT_S before the seal.
        if old and old != self._node and old not in self._view.silent and peers.get(old):
            try:
                await peers.call(old, Yield(log, epoch, self._node), timeout_s=YIELD_TIMEOUT_S)
            except CordwoodError as error:
                logger.info("log %d: node %d was asked to finish: %s", log, old, error)
        return epoch, record

    async def _configure(self, log: int, beginning: Beginning) -> Wanted:
        """The next epoch's configuration, from the log's attributes and the present members.

        Raises:
            UnknownLog: the log was deleted.
            Unreachable: the metadata store does not answer.
        """
        info = await self._logs.described(LogId(log))
        if info is not None and info.is_deleted:
            # Trap: the epoch store may not know. The tree is told first, and the caller of the
            # deletion may have given up in between. Records of such a log are trimmed after a day.
            raise UnknownLog(f"log {log} was deleted")
        if info is not None:
            beginning.on_read(info.attributes)
        attributes = beginning.attributes
        said, asked = self._said(), attributes.replication if attributes is not None else None
        if log == EVENT_LOG and said and asked and not has_place(Nodeset(said), asked):
            # Race: the events move once all members are there, and the member that takes the first
            # epoch may not have read of some. An epoch on two nodes of five cannot record that
            # either of them is lost, and no later epoch begins without both.
            await self._refresh_members()

        def wanted(record: EpochRecord) -> Configuration | None:
            known = self._members().keys()
            if not record.has_room:
                # The log goes on with its present nodes: a refusal would stop all its appends.
                logger.warning(
                    "log %d has had %d nodesets since its oldest record: the last stays until it "
                    "is trimmed", log, len(record.history),
                )  # fmt: skip
                return None
            if attributes is None or not known >= set(record.history[-1].nodes):
                # Race: a node that just started may not know all members yet. It must not remove
                # unknown members from the nodeset.
                return None
            return self.wanted(log, attributes)

        return wanted

    @property
    def beginning(self) -> frozenset[int]:
        """The logs that are being activated, or wait for the next try: without an appender yet.
        Those that are known to be deleted are left out."""
        return frozenset(log for log, each in self._beginning.items() if not each.is_deleted)

    def note_attributes(self, log: int, attributes: LogAttributes) -> None:
        """Keep the present attributes of a log, if it is being activated.

        Race: until the appender of an epoch exists, no other call tells the epoch of a change. The
        epoch may wait long for nodes that are away.
        """
        if (beginning := self._beginning.get(log)) is not None:
            beginning.on_told(attributes)

    def note_deleted(self, log: int) -> None:
        """A log was deleted; if it is being activated, it gets no appender."""
        if (beginning := self._beginning.get(log)) is not None:
            beginning.is_deleted = True

    def wanted(self, log: int, attributes: LogAttributes) -> Configuration | None:
        """The configuration that a new epoch should have. None if the present members cannot keep
        it: then the new epoch has the configuration of the last one."""
        members, replication = self._members(), attributes.replication
        size = attributes.nodeset_size or 0
        nodes: tuple[NodeId, ...] | None = None
        if log == EVENT_LOG:
            # Its recovery counts on every node of its nodeset: take only nodes that have their data
            # by the metadata store, because the event log may not be believed about itself.
            there = [each for each in members.values() if each.authority is FULLY]
            replication = self._of_event_log(replication)
            size = event_log_nodes(replication)
            nodes = choose_nodeset(log, there, replication, size)
        if nodes is None:
            nodes = choose_nodeset(log, members.values(), replication, size)
        if nodes is None:
            return None
        return Configuration.of(Nodeset(tuple(members[node] for node in nodes)), replication)

    def _of_event_log(self, asked: Replication) -> Replication:
        """The replication of the event log, which may not be what the root asks for."""
        # Without what the event log adds, so that a drain of an hour changes nothing. But a node
        # whose data lies elsewhere may stay away: the others must be able to record the next loss.
        empty = {m.node for m in self._members().values() if m.authority is EMPTY}
        able = tuple(m for m in self._said() if m.weight > 0 and m.node not in empty)
        return replication_with_place(Nodeset(able), asked) if able else asked

    def able(self) -> frozenset[NodeId]:
        """The members that take new records."""
        return frozenset(node for node, m in self._members().items() if m.weight > 0)

    def has_moved(self, nodeset: Nodeset) -> bool:
        """Whether a node of an epoch's nodeset has another location than that epoch recorded."""
        members = self._members()
        return any(
            member.node in members and members[member.node].location != member.location
            for member in nodeset.members
        )

    async def is_newest(self, log: int, epoch: int) -> bool:
        """Whether no node has taken an epoch above `epoch`.

        Raises:
            Retryable: the metadata store does not answer.
        """
        record = await self._recovery.epochs.read(log)
        return record is not None and record.next_epoch == epoch + 1

    async def begin_epoch(
        self, log: LogId, epoch: int, record: EpochRecord, role: Role
    ) -> LogAppender:
        recovery = self._recovery
        members = await self._located(log, record)
        begins = await seal_log(log, epoch, record, members, recovery)
        if epoch == 1:
            # Nothing is below the first epoch, so there is nothing to seal or to recover. Readers
            # need its nodeset.
            await tell_nodesets(log, epoch, record, members, recovery.peers, begins=True)
        if record.clean_epoch + 1 < epoch:
            # This epoch may end before it has recovered the epochs below; its successor must know.
            time_us = begins.time_us if begins.is_latest else None
            await recovery.epochs.note_begun(log, epoch, time_us)
        entry = record.entry(epoch)
        nodeset, replication = entry.nodeset(members), entry.replication
        # The epoch begins: a later failure must not let another appender begin it again, with LSNs
        # that this appender gave out.
        del self._taken[log]
        logger.info("log %d: this node sequences epoch %d", log, epoch)
        tell(EpochStarted(log, epoch))
        appender = LogAppender(
            log, epoch, nodeset, replication, begins.time_us, role, self._tools,
            idle=IdleTimes(
                epoch, self._tools.now(), *begins.idle_since(recovery.host.clock.now_us())
            ),
        )  # fmt: skip
        appender.lower = LowerEpochs(log, epoch, begins)
        appender.token, appender.holder = record.token, record.holder
        appender.audience = sorted({NodeId(n) for each in record.history for n in each.nodes})
        # Not earlier: from here on a look at the tree finds the appender.
        beginning = self._beginning.pop(log)
        if beginning.is_deleted:
            raise UnknownLog(f"log {log} was deleted while it was activated")
        appender.attributes = beginning.attributes or DEFAULTS
        if epoch == 1:
            appender.on_recovered(Recovered(ProducerTable(), 0))
        return appender

    async def recover(self, lower: LowerEpochs) -> Recovered:
        """Make all epochs below an epoch of this node clean.

        An epoch that is recorded as recovered is not recovered again. Another sequencer may have
        recovered it before this one sealed, or an earlier attempt. Its records may be trimmed by
        now, and then no node knows the producers above its LNG, nor its tail. Before an epoch is
        recorded, no record above its LNG is released, so none is trimmed.

        Raises:
            Fenced: a higher epoch rules.
            NoSequencer: too many members are absent; may be tried again.
            Unreachable: the metadata store does not answer.
        """
        log, epoch = lower.log, lower.epoch
        record = await self._recovery.epochs.read(log)
        if record is None or record.clean_epoch >= epoch:
            ruling = 0 if record is None else record.next_epoch - 1
            raise Fenced(f"log {log}: epoch {epoch} is over, or the log is gone", ruling)
        members = await self._located(log, record)
        await tell_nodesets(log, epoch, record, members, self._recovery.peers)
        # Not earlier: a recovery that only waits for members has not tried. Before the first store:
        # an attempt that dies half-way has used its number.
        lower.attempts += 1
        return await recover_log(
            log, epoch, record, members, self._recovery, lower.begins, lower.attempts
        )

    async def trim_nodesets(self, log: int, epoch: int) -> None:
        """Trim the log's history of nodesets with its data; all lower epochs are recovered."""
        tools = self._recovery
        try:
            await trim_nodesets(log, epoch, tools.epochs, tools.peers, tools.statuses(log))
        except CordwoodError as error:
            logger.info("log %d: its nodesets are not trimmed: %s", log, error)

    async def has_room(self, log: int) -> bool:
        """Whether the log's next epoch may have another nodeset.

        Raises:
            CordwoodError: the metadata store does not answer.
        """
        record = await self._recovery.epochs.read(log)
        return record is not None and record.has_room

    async def _located(self, log: int, record: EpochRecord) -> dict[NodeId, Member]:
        """The members, with addresses, for all nodes of a log. Failure domains are the epochs' own.

        The list of members is read at intervals, so a young node may be missing in it.

        Raises:
            NoSequencer: even the metadata store does not know some of the nodes.
            Unreachable: the metadata store does not answer.
        """
        nodes = {NodeId(node) for each in record.history for node in each.nodes}
        if not nodes <= self._members().keys():
            await self._refresh_members()
        unknown = sorted(nodes - self._members().keys())
        if unknown:
            named = ", ".join(map(str, unknown))
            raise NoSequencer(f"log {log}: the metadata store has no address for nodes {named}")
        return dict(self._members())
