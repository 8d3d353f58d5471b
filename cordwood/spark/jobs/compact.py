"""Merge the small objects of main storage: `cordwood spark compact`.

The driver plans which runs of which logs become one object, and takes a turn at each log. Tasks
make the objects; a task that is made again puts the same bytes under the same name. The driver
commits the reported objects, step by step. A commit replaces exactly the planned entries, and only
in the turn that made the object. So each record is there once, even if the driver or a task dies.
Objects put by the tasks of a dead driver are collected once its turn is over, and the next run
plans anew.

Source: docs/objects.md, "Compaction"; docs/sources/spark.md §7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cordwood.client.blocking.blocking_merges import BlockingMerges, PlannedMerge
from cordwood.errors import BadSetting, CordwoodError, Corrupt, NoObject
from cordwood.lsn import LogId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

OBJECT_MIB = 256
"""The MiB of bodies in a merged object: 64 gets of 4 MiB. A task needs three times as much
memory."""

OBJECT_MIB_MAX = 512

STEP_MERGES = 64
"""Merges between two rounds of commits, 16 GiB at most. If the driver dies, this much work is
lost."""

TURN_S = 86_400.0
"""The time after which another process may end the turn of a driver that died. Until then its
orphans stay."""

MIB = 1 << 20

Say = Callable[[str], None]

MergeAll = Callable[[Sequence[bytes]], Sequence[tuple[bytes, str]]]
"""Makes the objects of some tasks. Returns for each its entry, or the reason why there is none."""

_TASKS = "place INT, task BINARY"
_MADE = "place INT, entry BINARY, why STRING"


@dataclass(slots=True)
class CompactedObjects:
    """The result of a run.

    Attributes:
        merged, replaced: the numbers of new objects, and of the objects that they replaced.
        records, bytes: the records in the new objects, and the bytes of their bodies.
        left: runs that stay as they are, and why.
    """

    merged: int
    replaced: int
    records: int
    bytes: int
    left: list[str]


def plan(
    address: str, logs: Sequence[int] = (), object_mib: int = OBJECT_MIB
) -> list[PlannedMerge]:
    """The merges that a run would make.

    Args:
        address: of main storage.
        logs: their numbers; none for all.
    """
    merges = BlockingMerges(address)
    try:
        return _planned(merges, logs, object_mib)
    finally:
        merges.close()


def compact(
    spark: SparkSession,
    address: str,
    logs: Sequence[int] = (),
    object_mib: int = OBJECT_MIB,
    say: Say = lambda _: None,
) -> CompactedObjects:
    """Merge small objects; see the module.

    Args:
        address: of main storage, as executors reach it too.
    Raises:
        Fenced: another run merges one of these logs.
        CordwoodError: main storage does not answer.
    """
    return run(address, logs, object_mib, lambda tasks: _on_executors(spark, address, tasks), say)


def run(
    address: str, logs: Sequence[int], object_mib: int, merge_all: MergeAll, say: Say
) -> CompactedObjects:
    """The driver's part; `merge_all` makes the objects."""
    merges = BlockingMerges(address)
    try:
        done = CompactedObjects(0, 0, 0, 0, [])
        planned = _planned(merges, logs, object_mib, done.left)
        for start in range(0, len(planned), STEP_MERGES):
            wanted = planned[start : start + STEP_MERGES]
            present = merges.present(wanted)
            done.left += [
                f"log {each.log}: {each.objects} objects stay as they are: some are gone"
                for each in wanted
                if each not in present
            ]
            step = merges.begin(present, TURN_S)
            made = merge_all([each.task for each in step]) if step else []
            for each, (entry, why) in zip(step, made, strict=True):
                _commit(merges, each, entry, why, done)
            say(f"{done.replaced} objects are {done.merged} now, of {len(planned)} to be made")
        merges.end()
        return done
    finally:
        # After an error too: else nodes would wait for a day until they merge these logs.
        with contextlib.suppress(CordwoodError):
            merges.end()
        merges.close()


def _planned(
    merges: BlockingMerges, logs: Sequence[int], object_mib: int, left: list[str] | None = None
) -> list[PlannedMerge]:
    """The merges of the named logs, or of all logs.

    Args:
        left: gets the logs with a manifest that cannot be read, if no log is named; None to raise.
    Raises:
        Corrupt: a manifest cannot be read.
    """
    if not 1 <= object_mib <= OBJECT_MIB_MAX:
        raise BadSetting(f"objects of {object_mib} MiB: ask for 1 to {OBJECT_MIB_MAX}")
    found: list[PlannedMerge] = []
    for log in logs or merges.logs():
        try:
            found += merges.plan(LogId(log), object_mib * MIB)
        except Corrupt as error:
            if logs or left is None:
                raise
            # The damage of one log does not stop the others: a pipeline would end in each round.
            left.append(f"log {log}: its objects stay as they are: {error}")
    return found


def _commit(
    merges: BlockingMerges, each: PlannedMerge, entry: bytes, why: str, done: CompactedObjects
) -> None:
    if not why and not merges.commit(each.task, entry):
        why = "others changed them meanwhile"
    if why:
        done.left.append(f"log {each.log}: {each.objects} objects stay as they are: {why}")
        return
    done.merged += 1
    done.replaced += each.objects
    done.records += each.records
    done.bytes += each.body_bytes


def _on_executors(
    spark: SparkSession, address: str, tasks: Sequence[bytes]
) -> list[tuple[bytes, str]]:
    """Each task's object, made by an executor."""
    rows = [(place, bytearray(task)) for place, task in enumerate(tasks)]
    frame = spark.createDataFrame(rows, _TASKS).repartition(len(rows))

    def merge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from merged_batches(address, batches)

    made = {row["place"]: (bytes(row["entry"]), row["why"])
            for row in frame.mapInArrow(merge, _MADE).collect()}  # fmt: skip
    return [made[place] for place in range(len(rows))]


def merged_batches(address: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The work of a task: the merge of each row."""
    import pyarrow as pa

    merges: BlockingMerges | None = None
    schema = pa.schema([("place", pa.int32()), ("entry", pa.binary()), ("why", pa.string())])
    try:
        for batch in batches:
            for row in batch.to_pylist():
                merges = merges or BlockingMerges(address)
                entry, why = merge_one(merges, row["task"])
                made = {"place": row["place"], "entry": entry, "why": why}
                yield pa.RecordBatch.from_pylist([made], schema)
    finally:
        if merges is not None:
            merges.close()


def merge_one(merges: BlockingMerges, task: bytes) -> tuple[bytes, str]:
    """Carry out a merge. Returns its entry, or the reason why its run stays as it is.

    Raises:
        OutcomeUnknown, Retryable: the store does not answer; Spark tries the task again.
    """
    try:
        return merges.merge(task), ""
    except (NoObject, Corrupt, BadSetting) as error:
        return b"", str(error)
