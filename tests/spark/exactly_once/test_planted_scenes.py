"""Bugs of the sink that a scene of their own shows: the right code passes it, the bug does not."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine import VALUE, Checkpoint, Context, Died, Engine, at_the_sink, in_the_source
from pyspark.sql.streaming.datasource import ReadAllAvailable
from swaps import swap

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.publish.publishing import Published, Publisher
from cordwood.errors import BadSetting, Fenced, OutOfSequence, Rejected, StageExpired, UnknownLog
from cordwood.sim.planted.bug import planted
from cordwood.sim.planted.spark_sink import SCENE_BUGS
from cordwood.spark.delivery import publish, stage_all
from cordwood.spark.idempotent import OnceAppender
from cordwood.spark.jobs.land import Landed, Lander
from cordwood.spark.jobs.landing import Landing
from cordwood.spark.jobs.parquet_table import ParquetTable
from cordwood.spark.jobs.table import StagedBatch, staged_files
from cordwood.spark.ledger_ends import LedgerEnds
from cordwood.spark.ledger_options import parse_ledger_options
from cordwood.spark.offsets import DataLoss
from cordwood.spark.options import SERVERS
from cordwood.spark.sink import CordwoodStreamWriter, CordwoodWriter, Written
from cordwood.spark.sink_options import EXACTLY_ONCE, IDEMPOTENT, parse_sink_options
from cordwood.spark.sink_rows import row_blocks
from cordwood.spark.source import CordwoodSource, CordwoodStreamReader
from cordwood.spark.splitting import plan

pytestmark = pytest.mark.real


def rows(first: int, stop: int, **columns: list) -> pa.RecordBatch:
    values = pa.array([b"%d" % number for number in range(first, stop)])
    return pa.RecordBatch.from_arrays(
        [values, *map(pa.array, columns.values())], names=["value", *columns]
    )


def values(store: BlockingStore, log: str) -> list[int]:
    with store.read(log) as reader:
        return [int(item.value) for item in reader if isinstance(item, Record)]


def planned_again(store: BlockingStore, log: str, tmp_path: Path) -> bool:
    """A power cut took offsets/0 after its publish; the plan made anew is the same."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": log}))
    options = {SERVERS: "h:1", "log": log, "checkpointLocation": str(tmp_path)}
    for planned_at in (1, 2):
        plan = json.dumps({"logs": {"1": "e1n10"}})
        (offsets / "0").write_text(f'v1\n{{"batchTimestampMs":{planned_at}}}\n{plan}')
        writer = CordwoodStreamWriter(parse_sink_options(options))
        refs, *_ = stage_all(store, row_blocks(iter([rows(0, 10)]), log), 60.0)
        try:
            writer.commit([Written(log, 0, 0, tuple(refs), 0, 0, begun=writer.begun)], 0)
        except Rejected:
            return False
    return values(store, log) == list(range(10))


def planned_anew_amid_the_batch(store: BlockingStore, log: str, tmp_path: Path) -> bool:
    """A driver stands before its commit. An older checkpoint is put back, and another driver plans
    another batch of that number; it commits when the first one has."""
    source, directory = f"{log}-from", tmp_path / "checkpoint"
    (directory / "offsets").mkdir(parents=True)
    first, second = (Checkpoint(log, directory=directory) for _ in range(2))
    store.append_many(source, [b"%d" % number for number in range(10)])
    reads = {SERVERS: "h:1", "subscribe": source, "startingOffsets": "earliest"}
    writes = {SERVERS: "h:1", "log": log, "checkpointLocation": str(directory)}

    def driver(known: Checkpoint, at: Callable[[str, int], None]) -> Engine:
        return Engine(reads, writes, known, [], at, list, lambda: False, lambda: None)

    def stands(point: str, _: int) -> None:
        if point == "before publish":
            store.append_many(source, [b"%d" % number for number in range(10, 20)])
            with contextlib.suppress(Died):
                driver(second, dies).run()

    def dies(point: str, _: int) -> None:
        if point == "before publish":
            raise Died(point)

    with contextlib.suppress(Rejected):
        driver(first, stands).run()
    with contextlib.suppress(Rejected):
        driver(second, lambda *_: None).run()
    return Counter(at_the_sink(store, log)) == Counter(in_the_source(store, [source]))


def aborted_without_its_plan(store: BlockingStore, log: str, tmp_path: Path) -> bool:
    """The newest plan cannot be read any more when Spark makes the writer of the abort."""
    (tmp_path / "offsets" / "0").mkdir(parents=True)
    options = {SERVERS: "h:1", "log": log, "checkpointLocation": str(tmp_path)}
    refs, *_ = stage_all(store, row_blocks(iter([rows(0, 10)]), log), 60.0)
    with contextlib.suppress(BadSetting):
        made = CordwoodSource(options).streamWriter(VALUE, False)
        made.abort([Written(log, 0, 0, tuple(refs), 0, 0)], 0)
    try:
        publish(store, log, 0, refs)
    except StageExpired:
        return True
    return False


def planned_anew_before_the_tasks(store: BlockingStore, log: str, tmp_path: Path) -> bool:
    """Another driver is a batch ahead when the writer of an idempotent batch is made."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": log}))
    for batch in (0, 1):
        (tmp_path / "offsets" / str(batch)).write_text('v1\n{}\n{"logs":{"1":"e1n10"}}')
    options = {
        SERVERS: "h:1", "log": log, "checkpointLocation": str(tmp_path), "deliveryMode": IDEMPOTENT
    }  # fmt: skip
    store.create_log(log)
    writer = CordwoodStreamWriter(parse_sink_options(options))
    properties = {"sql.streaming.queryId": log, "streaming.sql.batchId": "0"}
    Context.now = Context(0, properties)
    try:
        writer.write(iter([rows(0, 10)]))
    except Rejected as error:
        return "Stop all runs of the query, and start one" in str(error)
    finally:
        Context.now = None
    return False


def two_queries_of_one_name(store: BlockingStore, log: str, tmp_path: Path) -> bool:
    """Two streams over one source share a txnAppId; each goes into a log of its own."""
    for name in (log, f"{log}-bad"):
        checkpoint = tmp_path / name.replace("/", "")
        (checkpoint / "offsets").mkdir(parents=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": name}))
        (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"logs":{"1":"e1n10"}}')
        options = {SERVERS: "h:1", "log": name, "checkpointLocation": str(checkpoint)}
        writer = CordwoodStreamWriter(parse_sink_options({**options, "txnAppId": log}))
        refs, *_ = stage_all(store, row_blocks(iter([rows(0, 10)]), name), 60.0)
        try:
            writer.commit([Written(log, 0, 0, tuple(refs), 0, 0, begun=writer.begun)], 0)
        except Rejected as error:
            return "another query has this name" in str(error)
    return False


def cut_anew(store: BlockingStore, log: str, _) -> bool:
    """The first try died half-way, and the next one's batches of Arrow are others."""
    for sizes in ([4] * 4, [10, 20, 40]):
        at, batches = 0, []
        for size in sizes:
            batches.append(rows(at, at + size))
            at += size
        OnceAppender(store, log, 0, 0).append(row_blocks(iter(batches), log))
    return values(store, log) == list(range(70))


def ahead_of_the_log(store: BlockingStore, log: str, _) -> bool:
    """Rows before a block are missing: it is no repeat."""
    (block,) = row_blocks(iter([rows(0, 4)]), log)
    OnceAppender(store, log, 0, 0).append([block])
    ahead = OnceAppender(store, log, 0, 0)
    ahead._next[log] = 50
    ahead._begin_anew()
    try:
        ahead.append([block])
    except OutOfSequence:
        return True
    return False


def spelled_in_two_ways(store: BlockingStore, log: str, _) -> bool:
    spellings = [(log, log[1:], None)[number % 3] for number in range(30)]
    with contextlib.suppress(OutOfSequence):
        for _ in range(2):
            batches = iter([rows(0, 30, log=spellings)])
            OnceAppender(store, log, 0, 0).append(row_blocks(batches, log))
    return values(store, log) == list(range(30))


def one_version_for_two_logs(store: BlockingStore, log: str, _) -> bool:
    for name in (log, f"{log}-bad"):
        options = {SERVERS: "h:1", "log": name, "txnAppId": log, "txnVersion": "7"}
        writer = CordwoodWriter(parse_sink_options(options))
        try:
            writer.commit([writer.write(iter([rows(0, 10)]))])
        except (BadSetting, Rejected):
            return False
    return values(store, log) == values(store, f"{log}-bad") == list(range(10))


def renamed_before_its_commit(store: BlockingStore, log: str, _) -> bool:
    store.create_log(log)
    options = {SERVERS: "h:1", "log": log, "txnAppId": log, "txnVersion": "7"}
    writer = CordwoodWriter(parse_sink_options(options))
    message = writer.write(iter([rows(0, 10)]))
    store.log_tree.rename(log, f"{log}-renamed")
    writer.commit([message])
    return values(store, f"{log}-renamed") == list(range(10))


def name_that_moves_after_the_driver(store: BlockingStore, log: str, _) -> bool:
    """The first log has the version, the second has not; the first gets its name again."""

    def begun() -> CordwoodWriter:
        options = {SERVERS: "h:1", "log": log, "txnAppId": log, "txnVersion": "7"}
        return CordwoodWriter(parse_sink_options(options))

    store.create_log(log)
    writer = begun()
    writer.commit([writer.write(iter([rows(0, 10)]))])
    store.log_tree.rename(log, f"{log}-first")
    store.create_log(log)
    writer = begun()
    store.log_tree.rename(log, f"{log}-second")
    store.log_tree.rename(f"{log}-first", log)
    with contextlib.suppress(Rejected):
        writer.commit([writer.write(iter([rows(10, 20)]))])
    return (values(store, log), values(store, f"{log}-second")) == (
        list(range(10)),
        list(range(10, 20)),
    )


def one_version_for_logs_of_the_column(store: BlockingStore, log: str, _) -> bool:
    for name in (log, f"{log}-bad"):
        options = {SERVERS: "h:1", "txnAppId": log, "txnVersion": "7"}
        writer = CordwoodWriter(parse_sink_options(options))
        try:
            writer.commit([writer.write(iter([rows(0, 10, log=[name] * 10)]))])
        except BadSetting:
            return True
    return False


def undone_version_for_logs_of_the_column(store: BlockingStore, log: str, _) -> bool:
    """The first driver dies after its commit, and before the publish is done. The next writes
    begin while the version is not in its log."""

    def begun(version: str, name: str) -> tuple[CordwoodWriter, Written]:
        options = {SERVERS: "h:1", "txnAppId": log, "txnVersion": version}
        writer = CordwoodWriter(parse_sink_options(options))
        return writer, writer.write(iter([rows(0, 10, log=[name] * 10)]))

    async def dies(*_: object, **__: object) -> Published:
        raise Fenced("the driver dies here")

    other = f"{log}-bad"
    writer, message = begun("7", log)
    with pytest.MonkeyPatch.context() as patch:
        swap(patch, Publisher.finish_batch, dies, within=Publisher)
        with pytest.raises(Fenced, match="dies here"):
            writer.commit([message])
    again, lower, late = begun("7", log), begun("6", other), begun("7", other)
    try:
        late[0].commit([late[1]])
    except BadSetting as error:
        refused = str(error)
    else:
        return False
    for writer, message in (again, lower):
        writer.commit([message])
    expected = f"was written into {log}, and these rows are for {other}"
    return expected in refused and values(store, log) == list(range(10))


def note_where_no_checkpoint_is_seen(store: BlockingStore, log: str, tmp_path: Path) -> bool:
    """A batch is begun under a name, and runs again without it and with a remote checkpoint."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": log}))
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logs":{"1":"e1n10"}}')
    named = parse_sink_options(
        {SERVERS: "h:1", "log": log, "checkpointLocation": str(tmp_path), "txnAppId": f"{log}-app"}
    )
    written = Written(log, 0, 0, (), 0, 0, query_id=log)
    writer = CordwoodStreamWriter(named)
    writer.plan_fingerprint(0, replace(written, begun=writer.begun))
    remote = {SERVERS: "h:1", "log": log, "checkpointLocation": "s3a://bucket/checkpoint"}
    writer = CordwoodStreamWriter(parse_sink_options(remote))
    refs, *_ = stage_all(store, row_blocks(iter([rows(0, 10)]), log), 60.0)
    try:
        writer.commit([replace(written, refs=tuple(refs))], 0)
    except Rejected:
        return True
    return values(store, log) == list(range(10))


def version_in_another_mode(store: BlockingStore, log: str, _) -> bool:
    source = {SERVERS: "h:1", "log": log, "txnAppId": log, "txnVersion": "7"}
    store.create_log(log)
    for mode in (EXACTLY_ONCE, IDEMPOTENT):
        made = CordwoodSource({**source, "deliveryMode": mode})
        with contextlib.suppress(BadSetting):
            writer = made.writer(VALUE, False)
            writer.commit([writer.write(iter([rows(0, 10)]))])
    return values(store, log) == list(range(10))


def copy_beside_the_checkpoint(store: BlockingStore, log: str, tmp_path: Path) -> bool:
    """A damaged checkpoint lies aside, and an older copy is in its place: another batch 0."""
    for name, end in (("aside", 10), ("named", 20)):
        (tmp_path / name / "offsets").mkdir(parents=True)
        (tmp_path / name / "metadata").write_text(json.dumps({"id": log}))
        (tmp_path / name / "offsets" / "0").write_text(f'v1\n{{}}\n{{"logs":{{"1":"e1n{end}"}}}}')
    options = {SERVERS: "h:1", "log": log, "queryName": "named"}
    for place, first in ({"checkpointLocation": str(tmp_path / "aside")}, 0), ({}, 10):
        writer = CordwoodStreamWriter(parse_sink_options({**options, **place}))
        refs, *_ = stage_all(store, row_blocks(iter([rows(first, 10 + first)]), log), 60.0)
        told = Written(
            log, 0, 0, tuple(refs), 0, 0, query_id=log, checkpoints="" if place else str(tmp_path),
            begun=writer.begun,
        )  # fmt: skip
        try:
            writer.commit([told], 0)
        except Rejected:
            return True
    return False


def ledger_cut_again(store: BlockingStore, log: str, _) -> bool:
    """The driver dies amid a batch; the ledger grows and is closed before the batch runs again."""
    ledger = store.ledgers.create(ensemble=1, write=1, ack=1)
    ledger.append_many([b"%03d" % number for number in range(200)])
    ledger.append(b"tells that those before are confirmed")
    options = parse_ledger_options({SERVERS: "h:1", "ledgers": str(ledger.ledger_id)})
    is_first = True
    for _ in range(2):
        spans = LedgerEnds(store, options).spans({ledger.ledger_id: (0, 200)})
        tasks = [each for (each,) in plan(spans, target_bytes=100, min_partitions=0)]
        for number, task in enumerate(tasks):
            if is_first and number == 0:
                continue  # it has not run yet when the driver dies
            opened = store.ledgers.open(ledger.ledger_id)
            rows = opened.arrow(["value"], start=task.start, until=task.stop - 1)
            OnceAppender(store, log, 0, number).append(row_blocks(rows, log))
        if is_first:
            ledger.append_many([b"x" * 1000] * 20)
            ledger.close()
        is_first = False
    return sorted(values(store, log)) == list(range(200))


def renamed_while_the_query_was_down(store: BlockingStore, log: str, _) -> bool:
    """Another log was deleted; the renamed one may not be passed over with it."""
    store.append(f"{log}/a", b"1")
    store.append(f"{log}/b", b"1")
    source = CordwoodSource(
        {
            SERVERS: "h:1", "subscribe": f"{log}/a,{log}/b", "startingOffsets": "earliest",
            "failOnDataLoss": "false",
        }
    )  # fmt: skip
    reader = source.streamReader(schema=source.schema())
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    store.log_tree.delete(f"{log}/a")
    store.log_tree.rename(f"{log}/b", f"{log}/c")
    store.append(f"{log}/c", b"2")
    with contextlib.suppress(UnknownLog):
        source.streamReader(schema=source.schema()).latestOffset(end, ReadAllAvailable())
        return False
    return True


def wrong_name_after_a_deletion(store: BlockingStore, log: str, _) -> bool:
    """A deletion was passed over, and a later start names a log that never was."""
    made = follower(store, log)
    reader = made(f"{log}/a,{log}/b")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    store.log_tree.delete(f"{log}/b")
    store.append(f"{log}/a", b"2")
    end = made(f"{log}/a,{log}/b", "false").latestOffset(end, ReadAllAvailable())
    with contextlib.suppress(UnknownLog):
        made(f"{log}/a,{log}/typing-error").latestOffset(end, ReadAllAvailable())
        return False
    return True


def deleted_before_its_first_batch(store: BlockingStore, log: str, _) -> bool:
    """A log that was made again is found while it is empty; it gets records, and is deleted."""
    made = follower(store, log)
    names = f"{log}/a,{log}/b"
    reader = made(names)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    store.log_tree.delete(f"{log}/b")
    store.create_log(f"{log}/b")
    end = made(names, "false").latestOffset(end, ReadAllAvailable())
    store.append(f"{log}/b", b"2")
    store.log_tree.delete(f"{log}/b")
    with contextlib.suppress(DataLoss):
        made(names).latestOffset(end, ReadAllAvailable())
        return False
    return True


def checkpoint_lost_after_a_deletion(store: BlockingStore, log: str, tmp_path: Path) -> bool:
    """A landing passed over a deleted log, and starts without its checkpoint."""
    made, names = follower(store, log), f"{log}/a,{log}/b"
    reader = made(names)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    store.log_tree.delete(f"{log}/b")
    store.append(f"{log}/a", b"2")
    end = made(names, "false").latestOffset(end, ReadAllAvailable())
    landing = Landing({SERVERS: "h:1", "subscribe": names}, str(tmp_path), partition_by=())
    staged = tmp_path / "staged"
    staged.mkdir()
    pq.write_table(pa.table({"lsn": [1, 2]}), staged / "part-0.parquet")
    table = ParquetTable(tmp_path)
    table.publish(StagedBatch("q", 0, end, staged_files(staged), pa.schema([("lsn", pa.int64())])))
    store.append(f"{log}/a", b"3")
    options = Lander(tmp_path, table, landing, Landed(), print).source_options()
    source = CordwoodSource(options)
    reader = source.streamReader(schema=source.schema())
    with contextlib.suppress(UnknownLog):
        start = reader.initialOffset()
        planned = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        return len(planned) == 1
    return False


def follower(store: BlockingStore, log: str) -> Callable[..., CordwoodStreamReader]:
    """Makes readers of logs by name, as starts of a query do; two logs have a record."""
    for name in "ab":
        store.append(f"{log}/{name}", b"1")

    def made(names: str, fails: str = "true") -> CordwoodStreamReader:
        options = {"subscribe": names, "startingOffsets": "earliest", "failOnDataLoss": fails}
        source = CordwoodSource({SERVERS: "h:1", **options})
        return source.streamReader(schema=source.schema())

    return made


SCENES = {
    "time-in-plan": planned_again,
    "abort-needs-the-plan": aborted_without_its_plan,
    "plan-read-at-commit": planned_anew_amid_the_batch,
    "tasks-of-any-batch": planned_anew_before_the_tasks,
    "plans-of-all-queries": two_queries_of_one_name,
    "note-is-a-batch": note_where_no_checkpoint_is_seen,
    "any-misplaced-stored": cut_anew,
    "gap-taken-as-stored": ahead_of_the_log,
    "spellings-apart": spelled_in_two_ways,
    "version-for-all-logs": one_version_for_two_logs,
    "version-by-name-at-commit": renamed_before_its_commit,
    "tasks-go-by-name": name_that_moves_after_the_driver,
    "other-logs-skipped": one_version_for_logs_of_the_column,
    "undone-version-skipped": undone_version_for_logs_of_the_column,
    "version-in-any-mode": version_in_another_mode,
    "checkpoint-by-id-alone": copy_beside_the_checkpoint,
    "any-name-passed-over": renamed_while_the_query_was_down,
    "names-counted": wrong_name_after_a_deletion,
    "table-without-its-gone-logs": checkpoint_lost_after_a_deletion,
    "found-log-forgotten": deleted_before_its_first_batch,
    "ledger-cut-by-its-end": ledger_cut_again,
}


@pytest.mark.parametrize("bug", SCENE_BUGS, ids=lambda bug: bug.name)
def test_the_scene_shows_the_bug(store: BlockingStore, tmp_path: Path, bug):
    scene = SCENES[bug.name]
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    assert scene(store, f"/p-{uuid.uuid4().hex[:8]}", tmp_path / "right")
    with planted(bug):
        assert not scene(store, f"/p-{uuid.uuid4().hex[:8]}", tmp_path / "wrong")
