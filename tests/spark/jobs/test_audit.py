"""The audit: the rule, case by case, and what real nodes tell of their copies."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate
from live_cluster import LiveCluster
from pyspark.sql import SparkSession
from scenarios import as_scenario
from swaps import swap, swap_value

from cordwood import durable
from cordwood.cli.app import run
from cordwood.client.blocking.blocking_store import BlockingStore, connect
from cordwood.client.read.replica_scan import Copy, NodeCopies, scan_copies
from cordwood.client.store import Store
from cordwood.errors import BadSetting, Unreachable
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import OLDEST
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings, TierSettings
from cordwood.spark.jobs import audit
from cordwood.spark.jobs.audit import scan_slice
from cordwood.spark.jobs.replica_rule import FINDINGS, judge_block, judge_range
from cordwood.spark.options import SERVERS, parse_options
from cordwood.spark.splitting import Slice

GOOD = Copy(10, 19, 0, 100, 7, True, (1, 2, 3), False, 0, 1)


def kinds(copies: dict[int, Copy], asked: tuple[int, ...] = (1, 2, 3, 4)) -> list[tuple[int, str]]:
    found = judge_block(copies, asked)
    assert all(each.kind in FINDINGS for each in found)
    assert all((each.first, each.last) == (10, 19) for each in found)
    return [(each.node, each.kind) for each in found]


def other(**changes: object) -> Copy:
    return dataclasses.replace(GOOD, **changes)


@pytest.mark.parametrize(
    ("copies", "wanted"),
    [
        ({1: GOOD, 2: GOOD, 3: GOOD}, []),
        ({1: GOOD, 2: GOOD}, [(3, "missing")]),
        ({1: GOOD, 2: GOOD, 3: other(is_intact=False, raw_crc=9)}, [(3, "corrupt")]),
        ({1: GOOD, 2: GOOD, 3: other(raw_crc=9)},
         [(1, "differs"), (2, "differs"), (3, "differs")]),
        # The second wave counts; what the first one left on node 4 is an extra.
        ({1: other(wave=2), 2: other(wave=2), 3: other(wave=2), 4: other(copyset=(1, 2, 4))},
         [(4, "extra")]),
        # Recovery's copy counts over any wave.
        ({1: other(by_recovery=True, seal_epoch=2, copyset=(1, 4)),
          4: other(by_recovery=True, seal_epoch=2, copyset=(1, 4)), 2: other(wave=9)},
         [(2, "extra")]),
        # One that holds the block by an older wave holds it.
        ({1: other(wave=2), 2: GOOD, 3: other(wave=2)}, []),
    ],
)  # fmt: skip
def test_the_rule(copies, wanted):
    assert kinds(copies) == wanted


def test_copies_of_one_wave_that_name_others():
    found = kinds({1: GOOD, 2: other(copyset=(1, 2, 4)), 3: GOOD})
    assert (2, "copyset") in found or (1, "copyset") in found


def test_a_node_that_was_not_asked_misses_nothing():
    assert kinds({1: GOOD, 2: GOOD}, asked=(1, 2)) == [(3, "unasked")]


@as_scenario(simulate)
async def test_nodes_tell_what_they_hold_and_a_lost_block_is_found(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        lsns = await store.append_many("log", [b"%d" % n for n in range(3000)])
        await store.append("log", b"alone")
        tail = await store.tail("log")
        info = await store.log("log")
        told = {
            node: (await scan_copies(store, "log", node, OLDEST, tail + 1)).copies
            for node in info.all_nodes
        }
        assert {node: [each.first for each in copies] for node, copies in told.items()} == {
            node: sorted({each.first for each in told[NodeId(1)]}) for node in told
        }
        assert told[NodeId(1)][0].first == lsns[0]
        assert all(each.is_intact for copies in told.values() for each in copies)
        cluster.kill(3)
        with pytest.raises(Unreachable):
            await scan_copies(store, "log", NodeId(3), OLDEST, tail + 1)


async def told_by_all(store: Store, log: str) -> dict[int, NodeCopies]:
    tail = await store.tail(log)
    nodes = (await store.log(log)).all_nodes
    return {node: await scan_copies(store, log, node, OLDEST, tail + 1) for node in nodes}


STORAGE = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)
TIER = TierSettings(BUCKET, look_s=1.0)


@as_scenario(simulate, nodes=3, storage=STORAGE, tier=TIER)
async def test_what_a_node_let_go_of_is_not_missing(cluster: ClusterAtHand) -> None:
    """Nodes drop partitions at times of their own: an audit called what one had dropped missing."""
    kept_long = LogAttributes(tier=True, local_retention=6 * 3600, tier_after_s=1)
    async with cluster.client() as store:
        await store.create_log("log", attributes=kept_long)
        for number in range(20):
            await store.append("log", b"%d" % number + bytes(400))
            await asyncio.sleep(0.2)
        await asyncio.sleep(8)
        cluster.machine(2).disk.free_bytes = 1  # it drops what main storage holds
        await asyncio.sleep(5)
        gone = {number: node.engine.gone_of(1) for number, node in cluster.running.items()}
        assert gone[1] == gone[3] == 0 < gone[2]
        told = await told_by_all(store, "log")
        assert len(told[1].copies) > len(told[2].copies)
        blocks, copies, findings = judge_range(told)
        assert (blocks, findings) == (len(told[1].copies), [])
        assert copies == sum(len(each.copies) for each in told.values())
        # A block that a node has neither let go of nor holds is missing all the same.
        told[2] = replace(told[2], tiered=())
        assert {(each.node, each.kind) for each in judge_range(told)[2]} == {(2, "missing")}


@as_scenario(simulate)
async def test_what_was_trimmed_amid_an_audit_is_not_missing(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        lsns = [await store.append("log", b"%d" % n) for n in range(10)]
        before = await told_by_all(store, "log")
        await store.trim("log", lsns[4])
        await asyncio.sleep(5)
        after = await told_by_all(store, "log")
        told = {node: (before if node == 1 else after)[node] for node in before}
        assert len(told[1].copies) > len(told[2].copies)
        assert judge_range(told) == (5, 15, [])


@pytest.mark.real
@pytest.mark.spark
def test_a_healthy_log_has_no_findings_and_a_dead_node_is_told(
    cluster: LiveCluster, store: BlockingStore, log: str
):
    """Without Spark: what each of its tasks does."""
    store.append_many(log, [b"%d" % n for n in range(5000)])
    info, tail = store.log(log), store.tail(log)
    read = Slice(info.log_id, log, int(OLDEST), tail + 1)
    scanned = scan_slice(store, read)
    assert scanned.findings == []
    assert scanned.copies == 3 * scanned.blocks > 0
    half = Slice(info.log_id, log, tail - 2500, tail + 1)
    assert scan_slice(store, half).findings == []
    victim = next(
        NodeId(node)
        for node, status in store.status().items()
        if not any(each.log == info.log_id and each.sequencing for each in status.logs)
    )
    cluster.kill(victim)
    try:
        found = {(each.node, each.kind) for each in scan_slice(store, read).findings}
    finally:
        cluster.start(victim)
    assert found == {(victim, "unasked")}


@pytest.mark.real
def test_a_log_of_the_plan_that_is_renamed_deleted_or_made_again(
    cluster: LiveCluster, store: BlockingStore, log: str
):
    """An audit that was stopped goes on days later: it ended each time at the first such log."""
    logs = [f"{log}-{what}" for what in ("renamed", "deleted", "again")]
    for each in logs:
        store.append_many(each, [bytes(100)] * 20)
    source = {SERVERS: cluster.url, "subscribe": ",".join(logs)}
    slices = audit.audit_slices(parse_options(source))
    store.log_tree.rename(logs[0], f"{log}-other")
    for each in logs[1:]:
        store.log_tree.delete(each)
    store.append_many(logs[2], [bytes(100)] * 20)
    # Another process, which remembers no names.
    with connect(cluster.url) as fresh:
        found = {each.name: scan_slice(fresh, each) for each in slices if each.stop > each.start}
    assert found[logs[0]].blocks
    assert not found[logs[0]].findings
    for each in logs[1:]:
        assert [one.kind for one in found[each].findings] == ["gone"]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.spark
def test_findings_are_durable_before_their_step_is_noted(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    log: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    store.append_many(log, [bytes(100)] * 20)
    steps: list[str] = []
    sync_file, rename = durable.sync_file, durable.rename
    swap(monkeypatch, durable.sync_file, lambda p: (steps.append(Path(p).name), sync_file(p)))
    swap(monkeypatch, durable.rename, lambda a, b: (steps.append(Path(b).name), rename(a, b)))
    audit.audit_into(spark, {SERVERS: cluster.url, "subscribe": log}, str(tmp_path / "f"))
    notes = [at for at, step in enumerate(steps) if step == "audit.json"]
    assert any(step.endswith(".parquet") for step in steps[notes[0] : notes[1]])


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.spark
def test_an_audit_that_is_stopped_goes_on(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    log: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    """The verb, in steps of one task of a few records each."""
    swap_value(monkeypatch, lambda: audit.TASK_BYTES, 100_000)
    swap_value(monkeypatch, lambda: audit.STEP_TASKS, 1)
    store.append_many(log, [bytes(100)] * 2500)
    source = {SERVERS: cluster.url, "subscribe": log}
    table = str(tmp_path / "findings")

    class Stopped(Exception):
        pass

    def stop(_: str) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        audit.audit_into(spark, source, table, stop)
    store.append_many(log, [bytes(100)] * 2500)  # none of it was planned
    verb = ["spark", "audit", log, "--cluster", cluster.url]
    assert run([*verb, "--dry-run", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["records"] == 5000
    assert run([*verb, "--table", table]) == 0
    told = capfd.readouterr()
    assert "0 copies are wrong, 0 harmless findings" in told.out
    steps = [line for line in told.err.splitlines() if line.endswith("ranges")]
    ranges = int(steps[0].split(" of ")[1].split()[0])
    assert steps == [f"{done} of {ranges} ranges" for done in range(2, ranges + 1)]
    assert run([*verb, "--table", table]) == 0
    assert "ranges" not in capfd.readouterr().err
    # Its findings were told for logs that nobody had looked at.
    store.append(f"{log}-other", b"1")
    assert run(["spark", "audit", f"{log}-other", *verb[3:], "--table", table]) == 1
    assert f"is an audit of {log}, and this one is of {log}-other" in capfd.readouterr().err
    (tmp_path / "of-another.parquet").touch()
    with pytest.raises(BadSetting, match="no audit made"):
        audit.audit_into(spark, source, str(tmp_path))


def test_an_audit_of_another_cluster_is_not_gone_on_with(tmp_path: Path):
    """Its findings were told for a cluster that nobody had looked at: names are the same there."""
    options = parse_options({SERVERS: "h:1", "subscribe": "/a"})
    note = tmp_path / "audit.json"
    plan_ = [Slice(1, "/a", OLDEST, OLDEST + 9)]
    audit._note(note, plan_, 1, options, "one")
    assert audit._noted(note, tmp_path, options, "one") == (plan_, 1)
    with pytest.raises(BadSetting, match=r"of cluster one, and this one is two.*another directory"):
        audit._noted(note, tmp_path, options, "two")
    of_earlier = json.loads(note.read_bytes())
    del of_earlier["cluster"]
    note.write_text(json.dumps(of_earlier))
    assert audit._noted(note, tmp_path, options, "two") == (plan_, 1)
