"""The sequencer table of a node: each log that it sequences, from activation to the epoch's end.

Entries that come before the log is active wait in its row. Entries that need every lower epoch
recovered also wait for the recovery.

Source: docs/design.md §4; docs/sources/logdevice.md 2.2, 2.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from cordwood.decisions import (
    ActivationGivenUp,
    EpochEnded,
    EpochRestarted,
    NotRecoveredTold,
    RecoveryEnded,
    tell,
)
from cordwood.errors import CordwoodError, Fenced, NoSequencer, UnknownLog
from cordwood.lsn import LogId
from cordwood.nodes import NodeId
from cordwood.recovery.recover_log import Recovered
from cordwood.sequencer.activation import Activation
from cordwood.sequencer.appender import LogAppender, Role
from cordwood.sequencer.idle_times import IdleTimes
from cordwood.sequencer.releases import Releases
from cordwood.sequencer.run_contents import Waiting
from cordwood.wire.connection import Connection

logger = logging.getLogger(__name__)

ACTIVATE_AGAIN_S = 0.5
"""Pause after a failed activation: each try seals nodes, and clients ask all the time."""

UNEXPECTED_AGAIN_S = 5.0
"""The same after an unexpected error: it is logged with its traceback each time."""

FAILURES_MIN = 1024
"""Failed activations that are kept without a look at their times. The reasons take some hundred
bytes each."""


class TableRow:
    """One log on this node: active, or being activated with entries waiting.

    Attributes:
        active_s: when the epoch began, by the loop's clock.
        successor: the node that takes over while this node finishes; None while this node goes on.
        recovered: done when every lower epoch is recovered.
        trouble: why the last try of the recovery failed, "" before the first failure.
        waiting: entries that wait for the activation; some also wait for the recovery after it.
        idle_before: the idle times of this node's epoch before, if it had that.
    """

    __slots__ = (
        "_held",
        "active_s",
        "appender",
        "idle_before",
        "ready",
        "recovered",
        "recovery",
        "successor",
        "trouble",
        "waiting",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.recovered: asyncio.Future[None] = loop.create_future()
        self.recovery: asyncio.Task[None] | None = None
        self.successor: NodeId | None = None
        self.appender: LogAppender | None = None
        self.active_s = 0.0
        self.trouble = ""
        self.idle_before: IdleTimes | None = None
        self.ready: asyncio.Future[LogAppender] = loop.create_future()
        self.waiting: list[Waiting] = []
        self.waiting_bytes = 0
        # Connections with an entry without a producer that waits for the recovery.
        self._held: set[Connection] = set()

    def must_wait(self, each: Waiting) -> bool:
        """Whether an entry waits for the recovery: it needs that, or it follows one that does.

        Blocks of one client pass one another only if one of them is a producer's. A block passed
        by a later one with an expected tail would be told that the tail had moved.
        """
        follows = not each.entry.producer and each.connection in self._held
        return each.entry.needs_recovery or follows

    def keep(self, each: Waiting) -> None:
        """Have an entry wait behind all that wait already."""
        if each.entry.needs_recovery and not each.entry.producer:
            self._held.add(each.connection)
        self.waiting.append(each)
        self.waiting_bytes += each.entry.stored_bytes

    def take_waiting(self) -> list[Waiting]:
        """All entries that wait, in their order; none waits from now on."""
        waiting, self.waiting, self.waiting_bytes = self.waiting, [], 0
        self._held.clear()
        return waiting


class TableRole(Role, Protocol):
    """The part of the sequencer role that the sequencer table uses."""

    def number(self, log: int) -> None:
        """Entries of `log` were queued outside a tick: number and send them."""

    def remind(self, row: TableRow) -> None:
        """A log begins, or is recovered: send its release again."""

    def next_node(self, log: int) -> NodeId:
        """The node that sequences a log if this one cannot, 0 if there is none."""


class SequencerTable:
    """See the module.

    Attributes:
        rows: logs that are active here or are being activated.
        failures: why a log could not be activated here, and when it may be tried again.
    """

    def __init__(
        self,
        activation: Activation,
        role: TableRole,
        releases: Releases,
        now: Callable[[], float],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.rows: dict[int, TableRow] = {}
        self.failures: dict[int, tuple[NoSequencer, float]] = {}
        self._failures_most = FAILURES_MIN
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._activation = activation
        self._role = role
        self._releases = releases
        self._now = now
        self._tasks = tasks

    def in_flight(self) -> int:
        """Runs that are not stored yet, over all logs."""
        return sum(s.appender.in_flight for s in self.rows.values() if s.appender is not None)

    def end_all(self) -> None:
        """Stop sequencing all logs, and give up activations under way."""
        for task in list(self._under_way.values()):
            task.cancel()
        for log, row in list(self.rows.items()):
            self.end(LogId(log), row, 0)

    def end_unstarted(self, why: str) -> None:
        """Give up every activation that is under way, with `why LOG` as the reason."""
        for log, row in list(self.rows.items()):
            if row.appender is None:
                self._under_way[log].cancel()
                self.abandon(LogId(log), row, NoSequencer(f"{why} {log}"))

    def restart(self, log: LogId, epoch: int) -> None:
        """`epoch` has no LSNs left or must change: take the next epoch, unless that was done."""
        old = self.rows.get(log)
        if old is None or old.appender is None or old.appender.epoch != epoch:
            return
        del self.rows[log]
        if old.successor is not None:
            self._releases.forget(log)
            old.appender.end(0)  # another node has the next epoch already
            return
        tell(EpochRestarted(log, epoch))
        row = self.start(log)
        row.idle_before = old.appender.idle
        # In this order: the pending entries came before the ones that wait for the recovery.
        for each in old.appender.take_pending() + old.waiting:
            row.keep(each)

    def start_if_due(self, log: LogId) -> TableRow | None:
        """Begin to activate a log, unless an activation failed a moment ago."""
        failure = self.failures.get(log)
        if failure is not None and self._now() < failure[1]:
            return None
        return self.start(log)

    def start(self, log: LogId) -> TableRow:
        """Begin to activate a log."""
        row = self.rows[log] = TableRow()
        self._under_way[log] = self._tasks.create_task(self._activate(log, row))
        return row

    async def _activate(self, log: LogId, row: TableRow) -> None:
        try:
            appender = await self._activation.activate(log, self._role)
        except CordwoodError as error:
            logger.info("log %d: not sequenced here: %s", log, error)
            self.abandon(log, row, error)
            return
        except Exception as error:  # noqa: BLE001  (reported, and clients ask again)
            what = f"log {log}: not sequenced here"
            self._report(what, error)
            self.abandon(log, row, NoSequencer(f"{what}: {error!r}"), UNEXPECTED_AGAIN_S)
            return
        finally:
            self._under_way.pop(log, None)
        if row.idle_before is not None and not appender.is_recovered:
            appender.go_on_after(row.idle_before)
        row.appender, row.active_s = appender, self._now()
        self.failures.pop(log, None)
        self._take_waiting(log, row)
        row.ready.set_result(appender)
        if appender.is_recovered:
            self._on_recovered(log, row, None)
        else:
            row.recovery = self._tasks.create_task(self._recover(log, row))

    def _report(self, what: str, error: Exception) -> None:
        """Report an unexpected error, with its traceback, to the loop's handler.

        Trap: in the group of the node's tasks it would end the node, then its successor, and so
        every node that sequences the log.
        """
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{what}, by an error in Cordwood itself", "exception": error}
        )

    def _take_waiting(self, log: int, row: TableRow) -> None:
        """Hand over the waiting entries that no longer have to wait."""
        appender = row.appender
        assert appender is not None, "nothing is taken before the activation"
        for each in row.take_waiting():
            if appender.is_recovered or not row.must_wait(each):
                appender.enqueue(each)
            else:
                row.keep(each)
        self._role.number(log)

    async def _recover(self, log: LogId, row: TableRow) -> None:
        """Recover every lower epoch while appends go on; try until it is done or the epoch ends."""
        appender = row.appender
        assert appender is not None, "recovery follows the activation"
        lower = appender.lower
        assert lower is not None, "the epoch has begun, and is not recovered"
        while self.rows.get(log) is row:
            try:
                recovered = await self._activation.recover(lower)
            except Fenced as fenced:
                if self.rows.get(log) is row:
                    self._role.on_fenced(log, fenced.epoch)
            except CordwoodError as error:
                logger.info("log %d: not recovered yet: %s", log, error)
                self._tell_not_recovered(log, row, NoSequencer(str(error)))
                await asyncio.sleep(ACTIVATE_AGAIN_S)
            except Exception as error:  # noqa: BLE001  (reported, and it is tried again)
                what = f"log {log}: the epochs below {appender.epoch} are not recovered"
                self._report(what, error)
                self._tell_not_recovered(log, row, NoSequencer(f"{what}: {error!r}"))
                await asyncio.sleep(UNEXPECTED_AGAIN_S)
            else:
                if self.rows.get(log) is row:
                    self._on_recovered(log, row, recovered)
                    await self._activation.trim_nodesets(log, appender.epoch)
                return

    def _tell_not_recovered(self, log: LogId, row: TableRow, error: NoSequencer) -> None:
        """Tell the waiting clients why the recovery failed; later clients wait again."""
        tell(NotRecoveredTold(log, str(error)))
        row.trouble = str(error)
        if not row.recovered.done():
            row.recovered.set_exception(error)
            # Read here, because no task may wait for it: asyncio reports an error that is not read.
            row.recovered.exception()
        row.recovered = asyncio.get_running_loop().create_future()
        for each in row.take_waiting():
            self._role.refuse(each.connection, each.entry, error)

    def _on_recovered(self, log: LogId, row: TableRow, recovered: Recovered | None) -> None:
        appender = row.appender
        assert appender is not None, "recovery follows the activation"
        row.recovered.set_result(None)
        tell(RecoveryEnded(log, appender.epoch))
        if recovered is not None:
            appender.on_recovered(recovered)
        if self.rows.get(log) is row:  # Race: its epoch may have run out of LSNs meanwhile
            self._role.remind(row)
            self._take_waiting(log, row)

    def end(self, log: LogId, row: TableRow, epoch: int) -> None:
        """Stop sequencing `log` because of `epoch` (0: unknown, or no other epoch)."""
        if self.rows.get(log) is not row:
            return
        del self.rows[log]
        self._releases.forget(log)
        # Race: the recovery itself may have found that its epoch is fenced, and must not cancel
        # itself.
        if row.recovery is not None and row.recovery is not asyncio.current_task():
            row.recovery.cancel()
        over = NoSequencer(f"log {log} is not sequenced here any more")
        if not row.recovered.done():
            self._tell_not_recovered(log, row, over)
        if row.appender is not None:
            tell(EpochEnded(log, row.appender.epoch))
            row.appender.end(epoch)

    def _note_failure(self, log: int, error: NoSequencer, again_s: float) -> None:
        """Note why a log could not be activated, and forget what nobody asked about since."""
        now = self._now()
        self.failures[log] = error, now + again_s
        if len(self.failures) > self._failures_most:
            # A log that is being activated again keeps its reason: clients are told of it.
            over = [each for each, (_, at_s) in self.failures.items() if at_s <= now]
            for each in over:
                if each not in self.rows:
                    del self.failures[each]
            # Doubled, so that each failure costs a bounded share of these looks.
            self._failures_most = max(FAILURES_MIN, 2 * len(self.failures))

    def abandon(
        self, log: LogId, row: TableRow, error: CordwoodError, again_s: float = ACTIVATE_AGAIN_S
    ) -> None:
        """Give up the activation of `log` for so long, and tell the waiting clients why."""
        tell(ActivationGivenUp(log, str(error)))
        if self.rows.get(log) is row:
            del self.rows[log]
            # Of the epoch before, if this was to be the next one here.
            self._releases.forget(log)
        told: UnknownLog | NoSequencer
        if isinstance(error, (UnknownLog, NoSequencer)):
            told = error
        else:
            # This node alone may be cut off from the metadata store, and all take it for alive.
            told = NoSequencer(str(error), self._role.next_node(log))
        if isinstance(told, NoSequencer):
            self._note_failure(log, told, again_s)
        else:
            # Trap: later entries would be told the failure before this, and never that the log is
            # gone: they do not wait for an activation that failed before.
            self.failures.pop(log, None)
        for waiting in row.take_waiting():
            self._role.refuse(waiting.connection, waiting.entry, told)
        if not row.ready.done():
            row.ready.set_exception(told)
            row.ready.exception()
