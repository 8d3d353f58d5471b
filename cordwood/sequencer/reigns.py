"""The sequencer table of a node: each log that it sequences, from activation to the epoch's end.

Entries that come before the log is active wait in its slot. Entries that need every lower epoch
recovered also wait for the recovery.

Source: docs/design.md §4; docs/sources/logdevice.md 2.2, 2.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from cordwood.errors import CordwoodError, Fenced, NoSequencer, UnknownLog
from cordwood.nodes import NodeId
from cordwood.recovery.recover_log import Recovered
from cordwood.sequencer.activation import Activation
from cordwood.sequencer.appender import LogAppender, Role
from cordwood.sequencer.cargo import Waiting
from cordwood.sequencer.releases import Releases

logger = logging.getLogger(__name__)

ACTIVATE_AGAIN_S = 0.5
"""Pause after a failed activation: each try seals nodes, and clients ask all the time."""


class Slot:
    """One log on this node: active, or being activated with entries waiting.

    Attributes:
        heir: the node that takes over while this node finishes; None while this node goes on.
        recovered: done when every lower epoch is recovered.
        waiting: entries that wait for the activation; some also wait for the recovery after it.
    """

    __slots__ = (
        "appender", "heir", "ready", "recovered", "recovery", "waiting",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.recovered: asyncio.Future[None] = loop.create_future()
        self.recovery: asyncio.Task[None] | None = None
        self.heir: NodeId | None = None
        self.appender: LogAppender | None = None
        self.ready: asyncio.Future[LogAppender] = loop.create_future()
        self.waiting: list[Waiting] = []
        self.waiting_bytes = 0


class Ruler(Role, Protocol):
    """The part of the sequencer role that the sequencer table uses."""

    def number(self, log: int) -> None:
        """Entries of `log` were queued outside a tick: number and send them."""

    def remind(self, slot: Slot) -> None:
        """A log begins, or is recovered: send its release again."""


class Reigns:
    """See the module.

    Attributes:
        slots: logs that are active here or are being activated.
        failures: why a log could not be activated here, and when it may be tried again.
    """

    def __init__(
        self,
        activation: Activation,
        ruler: Ruler,
        releases: Releases,
        now: Callable[[], float],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.slots: dict[int, Slot] = {}
        self.failures: dict[int, tuple[NoSequencer, float]] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._activation = activation
        self._role = ruler
        self._releases = releases
        self._now = now
        self._tasks = tasks

    def in_flight(self) -> int:
        """Runs that are not stored yet, over all logs."""
        return sum(s.appender.in_flight for s in self.slots.values() if s.appender is not None)

    def end_all(self) -> None:
        """Stop sequencing all logs, and give up activations under way."""
        for task in list(self._under_way.values()):
            task.cancel()
        for log, slot in list(self.slots.items()):
            self.end(log, slot, 0)

    def end_unstarted(self, why: str) -> None:
        """Give up every activation that is under way, with `why LOG` as the reason."""
        for log, slot in list(self.slots.items()):
            if slot.appender is None:
                self._under_way[log].cancel()
                self.abandon(log, slot, NoSequencer(f"{why} {log}"))

    def restart(self, log: int, epoch: int) -> None:
        """`epoch` has no LSNs left or must change: take the next epoch, unless that was done."""
        old = self.slots.get(log)
        if old is None or old.appender is None or old.appender.epoch != epoch:
            return
        del self.slots[log]
        if old.heir is not None:
            old.appender.end(0)  # another node has the next epoch already
            return
        slot = self.start(log)
        slot.waiting = old.appender.take_pending() + old.waiting
        slot.waiting_bytes = sum(each.entry.stored_bytes for each in slot.waiting)

    def start_if_due(self, log: int) -> Slot | None:
        """Begin to activate a log, unless an activation failed a moment ago."""
        failure = self.failures.get(log)
        if failure is not None and self._now() < failure[1]:
            return None
        return self.start(log)

    def start(self, log: int) -> Slot:
        """Begin to activate a log."""
        slot = self.slots[log] = Slot()
        self._under_way[log] = self._tasks.create_task(self._activate(log, slot))
        return slot

    async def _activate(self, log: int, slot: Slot) -> None:
        try:
            appender = await self._activation.activate(log, self._role)
        except CordwoodError as error:
            logger.info("log %d: not sequenced here: %s", log, error)
            self.abandon(log, slot, error)
            return
        finally:
            self._under_way.pop(log, None)
        slot.appender = appender
        self.failures.pop(log, None)
        self._take_waiting(log, slot)
        slot.ready.set_result(appender)
        if appender.is_recovered:
            self._on_recovered(log, slot, None)
        else:
            slot.recovery = self._tasks.create_task(self._recover(log, slot))

    def _take_waiting(self, log: int, slot: Slot) -> None:
        """Hand over the waiting entries that no longer have to wait."""
        appender = slot.appender
        assert appender is not None, "nothing is taken before the activation"
        waiting, slot.waiting, slot.waiting_bytes = slot.waiting, [], 0
        for each in waiting:
            if appender.is_recovered or not each.entry.needs_recovery:
                appender.enqueue(each)
            else:
                slot.waiting.append(each)
                slot.waiting_bytes += each.entry.stored_bytes
        self._role.number(log)

    async def _recover(self, log: int, slot: Slot) -> None:
        """Recover every lower epoch while appends go on; try until it is done or the epoch ends."""
        appender = slot.appender
        assert appender is not None, "recovery follows the activation"
        while self.slots.get(log) is slot:
            try:
                recovered = await self._activation.recover(log, appender.epoch)
            except Fenced as fenced:
                if self.slots.get(log) is slot:
                    self._role.on_fenced(log, fenced.epoch)
            except CordwoodError as error:
                logger.info("log %d: not recovered yet: %s", log, error)
                self._tell_not_recovered(slot, NoSequencer(str(error)))
                await asyncio.sleep(ACTIVATE_AGAIN_S)
            else:
                if self.slots.get(log) is slot:
                    self._on_recovered(log, slot, recovered)
                    await self._activation.trim_nodesets(log, appender.epoch)
                return

    def _tell_not_recovered(self, slot: Slot, error: NoSequencer) -> None:
        """Tell the waiting clients why the recovery failed; later clients wait again."""
        if not slot.recovered.done():
            slot.recovered.set_exception(error)
            slot.recovered.exception()
        slot.recovered = asyncio.get_running_loop().create_future()
        waiting, slot.waiting, slot.waiting_bytes = slot.waiting, [], 0
        for each in waiting:
            self._role.refuse(each.connection, each.entry, error)

    def _on_recovered(self, log: int, slot: Slot, recovered: Recovered | None) -> None:
        appender = slot.appender
        assert appender is not None, "recovery follows the activation"
        slot.recovered.set_result(None)
        if recovered is not None:
            appender.on_recovered(recovered)
        if self.slots.get(log) is slot:  # Race: its epoch may have run out of LSNs meanwhile
            self._role.remind(slot)
            self._take_waiting(log, slot)

    def end(self, log: int, slot: Slot, epoch: int) -> None:
        """Stop sequencing `log` because of `epoch` (0: unknown, or no other epoch)."""
        if self.slots.get(log) is not slot:
            return
        del self.slots[log]
        self._releases.forget(log)
        if slot.recovery is not None and slot.recovery is not asyncio.current_task():
            slot.recovery.cancel()
        over = NoSequencer(f"log {log} is not sequenced here any more")
        if not slot.recovered.done():
            self._tell_not_recovered(slot, over)
        if slot.appender is not None:
            slot.appender.end(epoch)

    def abandon(self, log: int, slot: Slot, error: CordwoodError) -> None:
        """Give up the activation of `log`, and tell the waiting clients why."""
        if self.slots.get(log) is slot:
            del self.slots[log]
        told = error if isinstance(error, (UnknownLog, NoSequencer)) else NoSequencer(str(error))
        if isinstance(told, NoSequencer):
            self.failures[log] = told, self._now() + ACTIVATE_AGAIN_S
        for waiting in slot.waiting:
            self._role.refuse(waiting.connection, waiting.entry, told)
        slot.waiting.clear()
        if not slot.ready.done():
            slot.ready.set_exception(told)
            slot.ready.exception()
