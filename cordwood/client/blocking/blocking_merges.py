"""Merges of objects for callers that have no loop, step by step: plan, merge, commit, end.

Spark plans and commits on its driver, and merges in its tasks, which may be on other machines. What
goes between them is text. Nothing here needs a node.

Source: docs/objects.md, "Compaction"; docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cordwood.client.blocking.object_thread import ObjectThread
from cordwood.errors import Fenced, ObjectChanged
from cordwood.lsn import LogId
from cordwood.protocol.merge_plan import MergePolicy
from cordwood.tier.compact import commit_merge, plan_log
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.merge import MergeTask, merge_run
from cordwood.tier.presence import Presence
from cordwood.tier.repair import find_logs
from cordwood.tiered import Entry


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    """A merge, as it travels.

    Attributes:
        log: its number.
        objects, records, body_bytes: the numbers of objects, records and bytes of bodies that go
            into it.
        task: all that the merge needs, for `BlockingMerges.merge`.
    """

    log: LogId
    objects: int
    records: int
    body_bytes: int
    task: bytes


class BlockingMerges(ObjectThread):
    """See the module.

    Args:
        address: of the object store.
    Raises:
        BadSetting: it is no store that opens here.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address, "cordwood-merges")
        self._turns: dict[LogId, tuple[int, int]] = {}  # by log: its number, and when to renew it

    def logs(self) -> list[int]:
        """The numbers of all logs of which the store holds something."""
        return self._thread.call(find_logs(self._objects))

    def plan(self, log: LogId, object_bytes: int) -> list[PlannedMerge]:
        """The merges to make of a log; no turn is taken yet."""
        return self._thread.call(self._plan(log, object_bytes))

    def present(self, merges: Sequence[PlannedMerge]) -> list[PlannedMerge]:
        """The merges whose objects are all there.

        No turn is taken for the others: a turn ends earlier turns, and lets their objects be
        deleted. They may be the only copies, if the manifest is an older copy that was put back.
        """
        return self._thread.call(self._present(merges))

    def begin(self, merges: Sequence[PlannedMerge], turn_s: float) -> list[PlannedMerge]:
        """Take a turn at merging each log, and give the merges its number.

        A turn is taken anew after half of its time: a run over a large store may take longer than
        one turn. So all merges that were begun before are committed by then, or stay as they are.

        Args:
            turn_s: seconds after which another process may end the turn.
        """
        return self._thread.call(self._begin(merges, turn_s))

    def merge(self, task: bytes) -> bytes:
        """Put the object of a merge. Returns the entry for `commit`. A repeated call puts the same
        object.

        Raises:
            NoObject, Corrupt, BadSetting: see `tier.merge.merge_run`; the run stays as it is.
            OutcomeUnknown, Retryable: the store does not answer; try again.
        """
        work = merge_run(self._objects, self._host, _task(task))
        return msgspec.json.encode(self._thread.call(work))

    def commit(self, task: bytes, entry: bytes) -> bool:
        """Put an entry in the place of its run; False if the manifest holds other entries there by
        now, or another process merges the log.

        Raises:
            OutcomeUnknown, Retryable: the store does not answer.
        """
        return self._thread.call(self._commit(_task(task), msgspec.json.decode(entry, type=Entry)))

    def end(self) -> None:
        """End the turns that were begun here."""
        self._thread.call(self._end())

    def _manifest(self, log: LogId) -> LogManifest:
        return LogManifest(self._objects, log, self._host, "cordwood spark compact")

    async def _plan(self, log: LogId, object_bytes: int) -> list[PlannedMerge]:
        runs = await plan_log(self._manifest(log), MergePolicy(object_bytes), everything=True)
        return [
            PlannedMerge(
                log, len(run), sum(each.rows for each in run), sum(each.bytes for each in run),
                msgspec.json.encode(MergeTask(log, 0, run)),
            )
            for run in runs
        ]  # fmt: skip

    async def _present(self, merges: Sequence[PlannedMerge]) -> list[PlannedMerge]:
        presence = Presence(self._objects)
        return [each for each in merges if await presence.has_all(_task(each.task).run)]

    async def _begin(self, merges: Sequence[PlannedMerge], turn_s: float) -> list[PlannedMerge]:
        begun: list[PlannedMerge] = []
        # One time for all: a log has one turn in a step.
        now_us, turn_us = self._host.clock.now_us(), round(turn_s * 1e6)
        for each in merges:
            number = await self._turn(each.log, now_us, turn_us)
            task = MergeTask(each.log, number, _task(each.task).run)
            begun.append(
                PlannedMerge(
                    each.log, each.objects, each.records, each.body_bytes, msgspec.json.encode(task)
                )
            )
        return begun

    async def _turn(self, log: LogId, now_us: int, turn_us: int) -> int:
        """The number of the turn at merging a log, which is taken now or goes on."""
        number, renew_us = self._turns.get(log, (0, 0))
        if now_us >= renew_us:
            head = await self._manifest(log).take_merging(now_us + turn_us)
            number = head.merging.number
            self._turns[log] = (number, now_us + max(1, turn_us // 2))
        return number

    async def _commit(self, task: MergeTask, entry: Entry) -> bool:
        manifest = self._manifest(LogId(task.log))
        try:
            await commit_merge(manifest, self._host, task.run, entry, task.number)
        except (Fenced, ObjectChanged):
            return False
        return True

    async def _end(self) -> None:
        turns, self._turns = self._turns, {}
        for log, (number, _) in turns.items():
            await self._manifest(log).end_merging(number)


def _task(task: bytes) -> MergeTask:
    return msgspec.json.decode(task, type=MergeTask)
