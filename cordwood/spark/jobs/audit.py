"""Compare every copy of every block: `cordwood spark audit`.

The driver cuts the selected logs into ranges and plans a task for each range: it asks every node
that may hold it, one after another, for all it has there, sums each body up, and judges each
block by `replica_rule`. What comes back to Spark is findings only, as a table; the store mends,
the audit tells.

A block that no node holds any more is no block here: `cordwood spark stats` tells such ranges as
gaps. Holes and bridges are compared likewise.

Source: research digest on PySpark 4.3, §7 ("Spark emits findings, the store repairs").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cordwood.client.blocking import BlockingStore
from cordwood.client.replica_scan import Copy
from cordwood.errors import CordwoodError
from cordwood.lsn import OLDEST
from cordwood.spark.jobs.replica_rule import Finding, judge_block
from cordwood.spark.options import SourceOptions, parse_options
from cordwood.spark.shared_store import shared_store
from cordwood.spark.splitting import Slice, plan
from cordwood.spark.watch import Watch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 64 << 20
"""Of records in one task; every node's copies of them are read."""

COLUMNS = "log STRING, log_id BIGINT, first_lsn BIGINT, last_lsn BIGINT, node INT, " \
    "finding STRING, text STRING"  # fmt: skip
"""Of the findings."""

_TASKS = "log STRING, log_id BIGINT, start BIGINT, stop BIGINT"


@dataclass(frozen=True, slots=True)
class Scanned:
    """One range, as its nodes told it.

    Attributes:
        blocks: different ones.
        copies: of them, on all nodes.
    """

    blocks: int
    copies: int
    findings: list[Finding]


def audit(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    """The findings, one row each, of COLUMNS; what is released when it is planned.

    Raises:
        BadSetting: an option is wrong.
    """
    options = parse_options(source)
    options.check_batch()
    slices = audit_slices(options)
    rows = [(each.name, each.log_id, each.start, each.stop) for each in slices]
    tasks = spark.createDataFrame(rows, _TASKS).repartition(max(1, len(rows)))
    servers, timeout_s = options.servers, options.request_timeout_s

    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            store = shared_store(servers, timeout_s)
            for task in batch.to_pylist():
                read = Slice(task["log_id"], task["log"], task["start"], task["stop"])
                yield pa.RecordBatch.from_pylist(_rows(read, scan_slice(store, read)), _schema())

    return tasks.mapInArrow(scan, COLUMNS)


def audit_slices(options: SourceOptions) -> list[Slice]:
    """The ranges that tasks look at, all of the selected logs."""
    watch = Watch(options)
    logs = watch.selected()
    ends = watch.tails(logs)
    slices = watch.slices({log: (int(OLDEST), tail + 1) for log, tail in ends.items()})
    planned = plan(watch.spans(slices), target_bytes=TASK_BYTES, min_partitions=0)
    return [each for task in planned for each in task if each.start < each.stop]


def scan_slice(store: BlockingStore, read: Slice) -> Scanned:
    """Ask every node for its copies of a range, and judge them.

    A block that begins before the range belongs to the range that it begins in.
    """
    info = store.log(read.name)
    blocks: dict[tuple[int, int, int], dict[int, Copy]] = {}
    asked: list[int] = []
    findings: list[Finding] = []
    for node in info.all_nodes:
        try:
            told = store.scan_copies(read.name, node, read.start, read.stop)
        except CordwoodError as error:
            findings.append(Finding(read.start, read.stop - 1, node, "unasked", str(error)))
            continue
        if told.is_damaged:
            text = "it says that it lost records"
            findings.append(Finding(read.start, read.stop - 1, node, "missing", text))
        asked.append(node)
        for copy in told.copies:
            if read.start <= copy.first:
                blocks.setdefault((copy.first, copy.last, copy.kind), {})[node] = copy
    for _, copies in sorted(blocks.items()):
        findings += judge_block(copies, asked)
    return Scanned(len(blocks), sum(map(len, blocks.values())), findings)


def _rows(read: Slice, scanned: Scanned) -> list[dict[str, object]]:
    return [
        {
            "log": read.name, "log_id": read.log_id, "first_lsn": each.first,
            "last_lsn": each.last, "node": each.node, "finding": each.kind, "text": each.text,
        }
        for each in scanned.findings
    ]  # fmt: skip


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"log": pa.string(), "node": pa.int32(), "finding": pa.string(), "text": pa.string()}
    names = ("log", "log_id", "first_lsn", "last_lsn", "node", "finding", "text")
    return pa.schema([(name, types.get(name, pa.int64())) for name in names])
