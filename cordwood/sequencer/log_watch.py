"""Applies changes of the log tree to the logs that this node sequences.

A change of replication or nodeset takes a new epoch. The old epoch stops numbering, stores and
acknowledges its numbered runs, and then the next epoch is taken, so that no outcome becomes
unknown. An epoch that cannot finish in DRAIN_S is ended anyway. Other attributes take effect at
once. A deleted log is no longer sequenced.

Source: docs/sources/logdevice.md 2.1, 2.2; docs/design.md §6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set

import msgspec

from cordwood.errors import CordwoodError, Malformed, Retryable
from cordwood.lsn import EVENT_LOG, LogId
from cordwood.metadata.epoch_store import Configuration
from cordwood.metadata.log_changes import CHANGES_PREFIX
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import NodeId
from cordwood.protocol.nodeset_growth import NodesetGrowth
from cordwood.sequencer.activation import Activation
from cordwood.sequencer.appender import LogAppender
from cordwood.sequencer.role import SequencerRole

logger = logging.getLogger(__name__)

DRAIN_S = 2.0
"""As in LogDevice. Runs that are not stored by then wait for a node that is away."""

WATCH_S = 60.0
"""After this time a watch begins again, and all logs are checked: the process that set an attribute
may have stopped before it could notify."""

MOVED_S = 5.0
"""The time between two checks for nodes with a new location, in this node's own list of members."""

AGAIN_S = 1.0
"""Pause after the metadata store did not answer."""


class LogWatch:
    """See the module.

    Attributes:
        changes: the count of changes to the log tree at the last check; -1 before.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        logs: LogTree,
        activation: Activation,
        sequencer: SequencerRole,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            on_change: called when the tree changed, or may have changed.
        """
        self.changes = -1
        self._metadata = metadata
        self._logs = logs
        self._activation = activation
        self._sequencer = sequencer
        self._on_change = on_change
        self._growth = NodesetGrowth()
        # Of the last look: the store's mark, and the count of changes; None if another is due.
        self._mark: int | None = None
        self._count: int | None = None
        # Epochs that were told to end, and the time at which they are late.
        self._draining: dict[tuple[int, int], float] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        looked_s = checked_s = -WATCH_S
        loop = asyncio.get_running_loop()
        while True:
            patience_s = DRAIN_S if self._draining else min(MOVED_S, WATCH_S)
            try:
                seen = self._mark
                mark = self._mark = await self._metadata.changed(CHANGES_PREFIX, seen, patience_s)
                is_due = loop.time() - looked_s >= WATCH_S or bool(self._draining)
                growing = self._growing()
                if mark == seen and not (is_due or growing or self._has_moved()):
                    continue
                looked_s = loop.time()
                was, count = self._count, await self._logs.changes()
                self.changes = self._count = count
                # Before the comparison: an epoch that drains too long ends even if nothing changed.
                self._end_late()
                # Trap: the mark counts every write of the metadata store, so it seldom stays.
                is_late = looked_s - checked_s >= WATCH_S
                if count != was or mark == seen or growing or is_late:
                    checked_s = looked_s
                    self._on_change()
                    await self._look(growing)
                    self._growth.on_looked_at(growing)
            except CordwoodError as error:
                logger.warning("the log tree could not be read: %s", error)
                self._look_again(error)
                await asyncio.sleep(AGAIN_S)

    def _look_again(self, error: CordwoodError) -> None:
        """Have the next look check all logs: those that were not read may have changed.

        If the store only did not answer, that look waits for no further write to the store, because
        none may come for a minute. Entries that cannot be read stay so until they are written.
        """
        self._count = None
        if isinstance(error, Retryable):
            self._mark = None

    def _has_moved(self) -> bool:
        """Whether a node has another location than an epoch that is sequenced here recorded."""
        appenders = self._sequencer.sequencing().values()
        return any(self._activation.has_moved(each.nodeset) for each in appenders)

    def _growing(self) -> frozenset[int]:
        """Logs that are due to take in nodes that joined."""

        def nodesets() -> dict[int, tuple[NodeId, ...]]:
            sequencing = self._sequencer.sequencing()
            return {log: each.nodeset.nodes for log, each in sequencing.items()}

        now_s = asyncio.get_running_loop().time()
        return self._growth.due(now_s, self._activation.able(), nodesets)

    async def _look(self, growing: Set[int]) -> None:
        """Bring every log that is sequenced here up to its attributes.

        Args:
            growing: logs that are due to take in nodes that joined.
        """
        if not self._sequencer.sequencing() and not self._activation.beginning:
            return
        infos = {info.log_id: info for info in await self._logs.list(only_readable=True)}
        for log in self._activation.beginning:
            try:
                info = infos.get(LogId(log)) or await self._logs.by_id(log)
                is_deleted = info is None and await self._logs.is_deleted(log)
            except Malformed as error:
                logger.warning("log %d: a change of it cannot be read: %s", log, error)
                continue
            if info is not None:
                self._activation.note_attributes(log, info.attributes)
            elif is_deleted:
                self._activation.note_deleted(log)
        for log, appender in self._sequencer.sequencing().items():
            try:
                info = infos.get(LogId(log)) or await self._logs.by_id(log)
            except Malformed as error:
                # It goes on as it is; the others must not wait for it.
                logger.warning("log %d: a change of it cannot be read: %s", log, error)
                continue
            wants_another = info is not None and self._asks_for_another(
                info, appender, grows=log in growing
            )
            may_have_it = wants_another and await self._may_have_it(log, appender)
            if self._sequencer.sequencing().get(log) is not appender:
                continue  # it ended meanwhile; its next epoch begins with the present attributes
            if info is None:
                logger.info("log %d: it was deleted", log)
                self._sequencer.on_fenced(LogId(log), 0)
            elif not wants_another:
                appender.attributes = info.attributes
            elif not may_have_it:
                size = appender.attributes.nodeset_size  # keep it, so that the change stays visible
                appender.attributes = msgspec.structs.replace(info.attributes, nodeset_size=size)
            else:
                logger.info(
                    "log %d: epoch %d ends, its attributes, locations or nodes changed",
                    log,
                    appender.epoch,
                )
                late_s = asyncio.get_running_loop().time() + DRAIN_S
                self._draining.setdefault((log, appender.epoch), late_s)
                appender.drain()

    def _asks_for_another(self, info: LogInfo, appender: LogAppender, *, grows: bool) -> bool:
        """Whether a log's attributes, locations or nodes need another epoch than the present one.

        Nodes that went do not need one: the next epoch will take that into account. Nodes that
        joined do where the log is due, see `protocol.nodeset_growth`. A node of the nodeset with a
        new location does, because copies are spread over racks that do not exist any more. Stored
        records keep the locations of their own epoch.

        The event log leaves out a node that is lost and takes it in again: its recovery waits for
        every node that it counts on, so all but R - 1 of them have to be there.
        """
        asked, had = info.attributes, appender.attributes
        is_as_asked = info.replication == appender.replication
        has_moved = self._activation.has_moved(appender.nodeset)
        is_same = is_as_asked and asked.nodeset_size == had.nodeset_size and not has_moved
        goes_on = is_same and info.log_id != EVENT_LOG
        if goes_on and not grows:
            return False
        wanted = self._activation.wanted(info.log_id, asked)
        if goes_on and wanted is not None and not {*wanted.nodes} - {*appender.nodeset.nodes}:
            return False  # none of the nodes that joined is for this log
        return wanted not in (None, Configuration.of(appender.nodeset, appender.replication))

    async def _may_have_it(self, log: int, appender: LogAppender) -> bool:
        """Whether the next epoch would have the wanted configuration.

        A log with too many nodesets would get the same nodeset again, and be checked again: that
        took an epoch a minute.
        """
        if not await self._activation.has_room(log) and appender.is_recovered:
            await self._activation.trim_nodesets(log, appender.epoch)
        return await self._activation.has_room(log)

    def _end_late(self) -> None:
        """End the epochs that did not drain in time."""
        now = asyncio.get_running_loop().time()
        for log, epoch in [each for each, late_s in self._draining.items() if late_s <= now]:
            del self._draining[log, epoch]
            appender = self._sequencer.sequencing().get(log)
            if appender is not None and appender.epoch == epoch:
                logger.warning("log %d: epoch %d is ended before all was stored", log, epoch)
                self._sequencer.on_fenced(LogId(log), 0)
