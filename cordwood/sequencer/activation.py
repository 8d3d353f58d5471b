"""Starting a sequencer: take an epoch, let the old one finish, seal, begin; then recover.

Where the node that took the epoch before still lives, it is asked to finish first: what
it has in flight is then stored and acknowledged, and its clients are sent on. A seal
would make the outcome of all that unknown.

An epoch that was taken and could not be recovered yet (members absent) is kept
for the next try, so that retries do not burn epochs; being fenced throws it away.

Source: docs/sources/logdevice.md 2.1, 2.2.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from cordwood.errors import CordwoodError, Fenced, NoSequencer
from cordwood.layout.message import Yield
from cordwood.log_attributes import DEFAULTS, LogAttributes
from cordwood.lsn import LogId
from cordwood.metadata.epoch_store import Configuration, EpochRecord, Wanted
from cordwood.metadata.log_tree import LogTree
from cordwood.nodes import Member, NodeId, Nodeset
from cordwood.protocol.producers import ProducerTable
from cordwood.quorum.nodeset_selection import choose_nodeset
from cordwood.recovery.recover_log import Begins, Recovered, RecoveryTools, recover_log, seal_log
from cordwood.recovery.tell_nodesets import tell_nodesets
from cordwood.recovery.trim_nodesets import trim_nodesets
from cordwood.sequencer.appender import AppenderTools, LogAppender, Role

logger = logging.getLogger(__name__)

TRIES_MAX = 3
"""Lost races for one log in a row; somebody else is then busy sequencing it."""


YIELD_TIMEOUT_S = 1.2
"""A sequencer that is asked to finish gives up after a second by itself."""


class View(Protocol):
    """What the failure detector knows; see `wire.gossip.Gossip`."""

    @property
    def silent(self) -> frozenset[NodeId]:
        """Nodes that are dead or suspected to be."""


class Activation:
    """Activates sequencers on one node."""

    def __init__(
        self,
        node: NodeId,
        recovery: RecoveryTools,
        tools: AppenderTools,
        members: Callable[[], Mapping[NodeId, Member]],
        refresh_members: Callable[[], Awaitable[None]],
        view: View,
        logs: LogTree,
    ) -> None:
        self._node = node
        self._logs = logs
        self._attributes: dict[int, LogAttributes] = {}
        self._view = view
        self._recovery = recovery
        self._tools = tools
        self._members = members
        self._refresh_members = refresh_members
        self._taken: dict[int, tuple[int, EpochRecord]] = {}
        # By log: an epoch, and what is known of append times where it begins.
        self._begins: dict[int, tuple[int, Begins]] = {}
        # By log: attempts to recover what is below its epoch. An epoch that this process rules no
        # other ever will, so no attempt has the number of another one under the same seal.
        self._attempts: dict[int, int] = {}

    async def activate(self, log: int, role: Role) -> LogAppender:
        """Take a higher epoch and seal all below it.

        Returns:
            The appender, which may take plain appends at once.
        Raises:
            NoSequencer: members are absent, or others keep winning the race.
            UnknownLog: the epoch store knows no such log.
            Unreachable: the metadata store does not answer.
        """
        above = 0
        for _ in range(TRIES_MAX):
            epoch, record = self._taken.get(log) or await self._take(log, above)
            try:
                return await self._begin(log, epoch, record, role)
            except Fenced as fenced:
                logger.info("log %d: epoch %d was overtaken: %s", log, epoch, fenced)
                del self._taken[log]
                above = fenced.epoch
        raise NoSequencer(f"log {log}: other nodes took every epoch that this one tried")

    async def _take(self, log: int, above: int = 0) -> tuple[int, EpochRecord]:
        """Take the next epoch above `above`; the one before is finished first, if it can be."""
        epoch, record = await self._recovery.epochs.take_epoch(
            log, owner=self._node, above=above, configure=lambda: self._configure(log)
        )
        self._taken[log] = (epoch, record)
        old, peers = NodeId(record.owner_before), self._recovery.peers
        if old and old != self._node and old not in self._view.silent and peers.get(old):
            try:
                await peers.call(old, Yield(log, epoch, self._node), timeout_s=YIELD_TIMEOUT_S)
            except CordwoodError as error:
                logger.info("log %d: node %d was asked to finish: %s", log, old, error)
        return epoch, record

    async def _configure(self, log: int) -> Wanted:
        """What the log's attributes and the members of now make of its next epoch."""
        info = await self._logs.described(LogId(log))

        def wanted(record: EpochRecord) -> Configuration | None:
            known = self._members().keys()
            if not record.has_room:
                # It goes on with the nodes that it has: refused, it would take nothing any more.
                logger.warning(
                    "log %d has had %d nodesets since its oldest record: the last stays until it "
                    "is trimmed", log, len(record.history),
                )  # fmt: skip
                return None
            if info is None or not known >= set(record.history[-1].nodes):
                # A node that just started may not know all members yet, and must not take
                # those that it does not know out of the nodeset.
                return None
            return self.wanted(log, info.attributes)

        if info is not None:
            self._attributes[log] = info.attributes
        return wanted

    def wanted(self, log: int, attributes: LogAttributes) -> Configuration | None:
        """What a new epoch should have; None if the members there are cannot keep it: then a
        new epoch has what the last one had."""
        members, replication = self._members(), attributes.replication
        size = attributes.nodeset_size or 0
        nodes = choose_nodeset(log, members.values(), replication, size)
        if nodes is None:
            return None
        return Configuration.of(Nodeset(tuple(members[node] for node in nodes)), replication)

    def has_moved(self, nodeset: Nodeset) -> bool:
        """Whether a node of an epoch's nodeset stands elsewhere than that epoch recorded."""
        members = self._members()
        return any(
            member.node in members and members[member.node].location != member.location
            for member in nodeset.members
        )

    async def is_newest(self, log: int, epoch: int) -> bool:
        """Whether nobody has taken an epoch above `epoch`.

        Raises:
            Retryable: the metadata store does not say.
        """
        record = await self._recovery.epochs.read(log)
        return record is not None and record.next_epoch == epoch + 1

    async def _begin(self, log: int, epoch: int, record: EpochRecord, role: Role) -> LogAppender:
        members = await self._located(log, record)
        begins = await seal_log(log, epoch, record, members, self._recovery)
        if record.clean_epoch + 1 < epoch:
            # Should it end before it has recovered those below, whoever does must know.
            time_us = begins.time_us if begins.is_latest else None
            await self._recovery.epochs.note_begun(log, epoch, time_us)
        entry = record.entry(epoch)
        nodeset, replication = entry.nodeset(members), entry.replication
        del self._taken[log]
        self._begins[log] = (epoch, begins)
        self._attempts[log] = 0
        logger.info("log %d: this node sequences epoch %d", log, epoch)
        attributes = self._attributes.pop(log, DEFAULTS)
        appender = LogAppender(
            log, epoch, nodeset, replication, begins.time_us, role, self._tools, attributes
        )
        appender.token, appender.holder = record.token, record.holder
        appender.audience = sorted({NodeId(n) for each in record.history for n in each.nodes})
        if epoch == 1:
            await tell_nodesets(log, epoch, record, members, self._recovery.peers)
            appender.on_recovered(Recovered(ProducerTable(), 0))
        return appender

    async def recover(self, log: int, epoch: int) -> Recovered:
        """Make all below `epoch` clean.

        What is recorded as recovered, by another sequencer until `epoch` sealed or by an attempt
        that came no further, is not recovered again: its records may be trimmed by now, and of
        those above the LNG nobody would know the producers any more, nor the tail. Before it is
        recorded nothing above the LNG is released, so nothing of it is trimmed either.

        Raises:
            Fenced: a higher epoch rules.
            NoSequencer: too many members are absent; may be tried again.
            Unreachable: the metadata store does not answer.
        """
        record = await self._recovery.epochs.read(log)
        if record is None or record.clean_epoch >= epoch:
            ruling = 0 if record is None else record.next_epoch - 1
            raise Fenced(f"log {log}: epoch {epoch} is over, or the log is gone", ruling)
        members = await self._located(log, record)
        begun, begins = self._begins[log]
        assert begun == epoch, "an epoch begins before those below it are recovered"
        self._attempts[log] += 1
        await tell_nodesets(log, epoch, record, members, self._recovery.peers)
        return await recover_log(
            log, epoch, record, members, self._recovery, begins, self._attempts[log]
        )

    async def trim_nodesets(self, log: int, epoch: int) -> None:
        """Trim the log's history of nodesets with its data, once all below `epoch` is recovered."""
        tools = self._recovery
        try:
            await trim_nodesets(log, epoch, tools.epochs, tools.peers, tools.statuses())
        except CordwoodError as error:
            logger.info("log %d: its nodesets are not trimmed: %s", log, error)

    async def has_room(self, log: int) -> bool:
        """Whether the log's next epoch may have another nodeset.

        Raises:
            CordwoodError: the metadata store does not say.
        """
        record = await self._recovery.epochs.read(log)
        return record is not None and record.has_room

    async def _located(self, log: int, record: EpochRecord) -> dict[NodeId, Member]:
        """Where all nodes of a log are reached. Their failure domains are the epochs' own.

        The member list is read every so often; a young node may not be in it yet.

        Raises:
            NoSequencer: some are not known even to the metadata store.
            Unreachable: the metadata store does not answer.
        """
        nodes = {NodeId(node) for each in record.history for node in each.nodes}
        if not nodes <= self._members().keys():
            await self._refresh_members()
        unknown = sorted(nodes - self._members().keys())
        if unknown:
            named = ", ".join(map(str, unknown))
            raise NoSequencer(f"log {log}: nobody knows where nodes {named} are")
        return dict(self._members())
