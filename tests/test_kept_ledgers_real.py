"""`cordwood nodes keep-ledgers`: on a cluster of real processes, and what it writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import uvloop
from scenarios import as_scenario, awaited_by
from swaps import swap
from test_event_log_real import emptied, healed, order_lost, start_again, values, verb
from verbs_at_hand import run_verb

from cordwood import durable
from cordwood.client import aio
from cordwood.errors import CordwoodError
from cordwood.local_cluster import ClusterShape, local_cluster
from cordwood.nodes import NodeId
from cordwood.settings import MIB
from cordwood.storage.identity import ACCEPTED

RECORDS = 40


@pytest.mark.real
@pytest.mark.slow
@as_scenario(awaited_by(uvloop.run))
async def test_a_node_with_the_only_copies_comes_back_with_them(*, tmp_path: Path) -> None:
    shape = ClusterShape(4, 4, 3, 2, 16 * MIB, replicated_events=False)
    async with (
        local_cluster(str(tmp_path), shape) as cluster,
        aio.connect(cluster.url) as store,
    ):
        for number in range(RECORDS):
            await store.append("one", b"%d" % number)
        made = await store.ledgers.create(ensemble=1, write=1, ack=1)
        await made.append_many([b"entry %d" % number for number in range(RECORDS)])
        await made.close()
        node = NodeId(made.metadata.newest.nodes[0])
        cluster.kill(node)
        await order_lost(cluster, node)
        await emptied(cluster, node)
        for more, count in (((), None), (("--ledgers",), 1)):
            (row,) = json.loads(await verb(cluster, "rebuild", *more, "--json"))["lost"]
            assert row["ledgers"] == count
        assert "not counted" in await verb(cluster, "rebuild")
        assert f"ledgers list --node {node}" in await verb(cluster, "rebuild", "--ledgers")
        with pytest.raises(CordwoodError):
            await cluster.start_node(node)
        directory = str(cluster.nodes[node].directory)
        kept = await asyncio.to_thread(run_verb, ["nodes", "keep-ledgers", directory, "--yes"])
        assert kept.exit_code == 0, kept.output
        await start_again(cluster, node)
        await healed(cluster)
        opened = await store.ledgers.open(made.ledger_id)
        found = [each.payload for each in await opened.read(0, RECORDS - 1)]
        assert found == [b"entry %d" % number for number in range(RECORDS)]
        assert await values(store, "one") == [b"%d" % number for number in range(RECORDS)]


def test_its_word_outlives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "identity").write_text("{}")
    synced: list[Path] = []

    def sync(place: durable.Place) -> None:
        assert (tmp_path / "keep-ledgers").read_bytes() == ACCEPTED
        synced.append(Path(place))

    swap(monkeypatch, durable.sync_directory, sync)
    assert run_verb(["nodes", "keep-ledgers", str(tmp_path), "--yes"]).exit_code == 0
    assert synced == [tmp_path]


def test_it_refuses_what_is_no_directory_of_a_node(tmp_path: Path) -> None:
    told = run_verb(["nodes", "keep-ledgers", str(tmp_path), "--yes"])
    assert told.exit_code == 1
    assert "no node's directory" in told.output
    assert not (tmp_path / "keep-ledgers").exists()
