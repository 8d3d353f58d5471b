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
from cordwood.tier.repair import find_logs
from cordwood.tiered import Entry


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    """A merge, as it travels.

    Attributes:
        log: its number.
        objects, records, body_bytes: that go into it.
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
        self._numbers: dict[LogId, int] = {}

    def logs(self) -> list[int]:
        """The numbers of all logs of which the store holds something."""
        return self._thread.call(find_logs(self._objects))

    def plan(self, log: LogId, object_bytes: int) -> list[PlannedMerge]:
        """The merges to make of a log; no turn is taken yet."""
        return self._thread.call(self._plan(log, object_bytes))

    def begin(self, merges: Sequence[PlannedMerge], turn_s: float) -> list[PlannedMerge]:
        """Take a turn at merging each log, and give the merges its number.

        Args:
            turn_s: when it may be ended for us.
        """
        return self._thread.call(self._begin(merges, turn_s))

    def merge(self, task: bytes) -> bytes:
        """Put the object of a merge; the entry for `commit`. Made again, it puts the same.

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

    async def _begin(self, merges: Sequence[PlannedMerge], turn_s: float) -> list[PlannedMerge]:
        begun: list[PlannedMerge] = []
        for each in merges:
            if each.log not in self._numbers:
                until_us = self._host.clock.now_us() + round(turn_s * 1e6)
                head = await self._manifest(each.log).take_merging(until_us)
                self._numbers[each.log] = head.merging.number
            task = MergeTask(each.log, self._numbers[each.log], _task(each.task).run)
            begun.append(
                PlannedMerge(
                    each.log, each.objects, each.records, each.body_bytes, msgspec.json.encode(task)
                )
            )
        return begun

    async def _commit(self, task: MergeTask, entry: Entry) -> bool:
        manifest = self._manifest(LogId(task.log))
        try:
            await commit_merge(manifest, self._host, task.run, entry, task.number)
        except (Fenced, ObjectChanged):
            return False
        return True

    async def _end(self) -> None:
        numbers, self._numbers = self._numbers, {}
        for log, number in numbers.items():
            await self._manifest(log).end_merging(number)


def _task(task: bytes) -> MergeTask:
    return msgspec.json.decode(task, type=MergeTask)
