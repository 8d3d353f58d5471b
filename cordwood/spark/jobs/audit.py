"""Compare every copy of every block: `cordwood spark audit`.

The driver cuts the selected logs into ranges and plans a task for each range: the task asks every
node that may hold the range, one after another, for all its blocks there, computes the checksum of
each body, and judges each block by `replica_rule`. Only findings come back to Spark, as a table.
The store repairs; the audit reports.

With a table, the plan is noted in it and done step by step; an audit that was stopped goes on after
the last step that was done.

A block that no node holds any more does not count here: `cordwood spark stats` reports its LSNs as
a gap. Holes and bridges are compared likewise.

Source: docs/sources/spark.md §7 ("Spark emits findings, the store repairs").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.values import NodeCopies
from cordwood.durable import sync_directory, sync_tree, write_whole
from cordwood.errors import BadSetting, CordwoodError, UnknownLog
from cordwood.lsn import OLDEST
from cordwood.spark.catalog import Catalog
from cordwood.spark.jobs.replica_rule import Finding, judge_range
from cordwood.spark.jobs.table import OURS, check_path, only_writer
from cordwood.spark.options import SourceOptions, parse_options
from cordwood.spark.shared_store import shared_store
from cordwood.spark.splitting import Slice, plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 64 << 20
"""Bytes of records in one task; it reads every node's copies of them."""

STEP_TASKS = 64
"""Tasks of one step: 4 GiB of records, some minutes. A stop costs at most one step."""

Say = Callable[[str], None]

COLUMNS = "log STRING, log_id BIGINT, first_lsn BIGINT, last_lsn BIGINT, node INT, " \
    "finding STRING, text STRING"  # fmt: skip
"""The columns of the findings."""

_TASKS = "log STRING, log_id BIGINT, start BIGINT, stop BIGINT"


@dataclass(frozen=True, slots=True)
class Scanned:
    """The result of one range, from the answers of its nodes.

    Attributes:
        blocks: different ones.
        copies: of them, on all nodes.
    """

    blocks: int
    copies: int
    findings: list[Finding]


def audit(
    spark: SparkSession, source: Mapping[str, str], say: Say = lambda _: None
) -> Iterator[dict[str, Any]]:
    """The findings by the columns of COLUMNS, step by step, over the records released at planning.

    Args:
        say: told after each step.
    Raises:
        BadSetting: an option is wrong.
    """
    options = parse_options(source)
    options.check_batch()
    plan_ = audit_slices(options)
    for done in range(0, len(plan_), STEP_TASKS):
        step = plan_[done : done + STEP_TASKS]
        for row in _findings(spark, options, step).collect():
            yield row.asDict()
        say(f"{done + len(step):,} of {len(plan_):,} ranges")


def audit_into(
    spark: SparkSession, source: Mapping[str, str], table: str, say: Say = lambda _: None
) -> DataFrame:
    """As `audit`, step by step into a table; what an earlier run did is not done again.

    Args:
        table: a directory, of one audit; `source` counts when it begins.
    Raises:
        BadSetting: an option is wrong, or the table is not an audit's.
        StoreInUse: another process audits into it.
    """
    options = parse_options(source)
    options.check_batch()
    path = check_path(table)
    with only_writer(path):
        note = path / OURS / "audit.json"
        cluster = Catalog(options).cluster
        plan_, done = _noted(note, path, options, cluster)
        while done < len(plan_):
            step = plan_[done : done + STEP_TASKS]
            found = _findings(spark, options, step)
            # A directory of its own: a repeated step replaces the files of the first try.
            place = path / f"step={done:08}"
            found.write.mode("overwrite").parquet(str(place))
            # Noted as done and lost in a power cut, findings would be missing for good.
            sync_tree(place)
            sync_directory(path)
            done += len(step)
            _note(note, plan_, done, options, cluster)
            say(f"{done:,} of {len(plan_):,} ranges")
    if not plan_:
        return spark.createDataFrame([], COLUMNS)
    return spark.read.parquet(str(path)).drop("step")


def _noted(note: Path, path: Path, options: SourceOptions, ours: str) -> tuple[list[Slice], int]:
    """The plan of the audit in a table, made now if it is new, and the number of its finished
    steps.

    Args:
        ours: the cluster that is audited now. Logs of another cluster may have the same numbers.
    Raises:
        BadSetting: the table is of an audit of other logs, or of another cluster, or of none.
    """
    if note.exists():
        try:
            noted = json.loads(note.read_bytes())
            plan_, done = [Slice(*each) for each in noted["plan"]], int(noted["done"])
            of, cluster = str(noted["of"]), noted.get("cluster")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadSetting(
                f"{note} is not what an audit noted ({error}): give another directory"
            ) from None
        if of != _of(options):
            raise BadSetting(
                f"{path} is an audit of {of}, and this one is of {_of(options)}: its findings say "
                "nothing of these logs. Give another directory"
            )
        if cluster not in (None, ours):  # a note of an earlier version has none
            raise BadSetting(
                f"{path} is an audit of cluster {cluster}, and this one is {ours}: its findings "
                "say nothing of this cluster. Give another directory"
            )
        return plan_, done
    if any(path.glob("*.parquet")) or any(path.glob("*=*")):
        raise BadSetting(f"{path} holds a table that no audit made: give another directory")
    slices = audit_slices(options)
    _note(note, slices, 0, options, ours)
    return slices, 0


def _of(options: SourceOptions) -> str:
    """The logs of an audit, as its options name them."""
    return ", ".join(sorted(options.selection.logs)) or f"pattern {options.selection.pattern}"


def _note(
    note: Path, slices: Sequence[Slice], done: int, options: SourceOptions, cluster: str
) -> None:
    plan_ = [astuple(each) for each in slices]
    content = {"of": _of(options), "cluster": cluster, "plan": plan_, "done": done}
    write_whole(note, json.dumps(content).encode())


def _findings(spark: SparkSession, options: SourceOptions, slices: Sequence[Slice]) -> DataFrame:
    rows = [(each.name, each.log_id, each.start, each.stop) for each in slices]
    tasks = spark.createDataFrame(rows, _TASKS).repartition(max(1, len(rows)))
    servers, settings = options.servers, options.client_settings()

    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            store = shared_store(servers, settings.timeout_s, settings)
            for task in batch.to_pylist():
                read = Slice(task["log_id"], task["log"], task["start"], task["stop"])
                yield pa.RecordBatch.from_pylist(_rows(read, scan_slice(store, read)), _schema())

    return tasks.mapInArrow(scan, COLUMNS)


def audit_slices(options: SourceOptions) -> list[Slice]:
    """The ranges that tasks look at, all of the selected logs."""
    catalog = Catalog(options)
    logs = catalog.selected()
    ends = catalog.tails(logs)
    slices = catalog.slices({log: (int(OLDEST), tail + 1) for log, tail in ends.items()})
    planned = plan(catalog.spans(slices), target_bytes=TASK_BYTES, min_partitions=0)
    return [each for task in planned for each in task if each.start < each.stop]


def scan_slice(store: BlockingStore, read: Slice) -> Scanned:
    """Ask every node for its copies of a range, and judge them.

    A block that begins before the range belongs to the range that it begins in.
    """
    try:
        info = store.log(read.log_id)
    except UnknownLog:
        text = "the log was deleted after the audit began"
        return Scanned(0, 0, [Finding(read.start, read.stop - 1, 0, "gone", text)])
    told: dict[int, NodeCopies] = {}
    findings: list[Finding] = []
    for node in info.all_nodes:
        try:
            found = store.scan_copies(read.log_id, node, read.start, read.stop)
        except CordwoodError as error:
            findings.append(Finding(read.start, read.stop - 1, node, "unasked", str(error)))
            continue
        if found.is_damaged:
            text = "it says that it lost records"
            findings.append(Finding(read.start, read.stop - 1, node, "missing", text))
        here = [copy for copy in found.copies if read.start <= copy.first]
        told[node] = replace(found, copies=here)
    blocks, copies, wrong = judge_range(told)
    return Scanned(blocks, copies, findings + wrong)


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
