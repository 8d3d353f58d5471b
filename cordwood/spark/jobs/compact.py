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
"""Of bodies in a merged object: 64 gets of 4 MiB. A task holds three times that."""

OBJECT_MIB_MAX = 512

STEP_MERGES = 64
"""Merges between two rounds of commits: 16 GiB at most, which is what a dead driver costs."""

TURN_S = 86_400.0
"""When a turn may be ended for a driver that died. Until then its orphans stay."""

MIB = 1 << 20

Say = Callable[[str], None]

MergeAll = Callable[[Sequence[bytes]], Sequence[tuple[bytes, str]]]
"""Makes the objects of some tasks: of each its entry, or why there is none."""

_TASKS = "place INT, task BINARY"
_MADE = "place INT, entry BINARY, why STRING"


@dataclass(slots=True)
class CompactedObjects:
    """What a run did.

    Attributes:
        merged, replaced: objects that were made, and those whose place they took.
        records, bytes: in them, and bytes of their bodies.
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
    """What a run would do.

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
        planned = _planned(merges, logs, object_mib)
        for start in range(0, len(planned), STEP_MERGES):
            step = merges.begin(planned[start : start + STEP_MERGES], TURN_S)
            made = merge_all([each.task for each in step])
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


def _planned(merges: BlockingMerges, logs: Sequence[int], object_mib: int) -> list[PlannedMerge]:
    if not 1 <= object_mib <= OBJECT_MIB_MAX:
        raise BadSetting(f"objects of {object_mib} MiB: ask for 1 to {OBJECT_MIB_MAX}")
    return [
        each for log in logs or merges.logs() for each in merges.plan(LogId(log), object_mib * MIB)
    ]


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
    """What a task does: each row's merge."""
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
    """The entry of a merge, or why its run stays as it is.

    Raises:
        OutcomeUnknown, Retryable: the store does not answer; Spark tries the task again.
    """
    try:
        return merges.merge(task), ""
    except (NoObject, Corrupt, BadSetting) as error:
        return b"", str(error)
