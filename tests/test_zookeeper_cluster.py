"""A cluster of real processes whose metadata is in a real ZooKeeper."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from zookeeper_at_hand import want_of_zookeeper, zookeeper_server

from cordwood.client import aio
from cordwood.errors import BadSetting, CordwoodError, OutcomeUnknown
from cordwood.local_cluster import ClusterShape, local_cluster
from cordwood.settings import MIB

pytestmark = pytest.mark.real


def shape(address: str) -> ClusterShape:
    return ClusterShape(3, 3, 2, 2, 16 * MIB, metadata=f"zookeeper://{address}/c/one")


@pytest.mark.slow
def test_appends_go_on_without_it_and_sequencers_change_with_it(tmp_path: Path, require):
    if want_of_zookeeper():
        require("zookeeper", want_of_zookeeper())

    async def act() -> None:
        with zookeeper_server(tmp_path / "zookeeper") as server:
            async with (
                local_cluster(str(tmp_path / "cluster"), shape(server.address)) as cluster,
                await aio.connect(cluster.url) as store,
            ):
                acked = [await store.append("log", b"first")]
                # Off the append path: a sequencer that runs does not need it.
                server.kill()
                acked.append(await store.append("log", b"without"))
                await asyncio.to_thread(server.start)
                (sequencer,) = [
                    node
                    for node, status in (await store.status()).items()
                    if not isinstance(status, CordwoodError)
                    and any(log.sequencing for log in status.logs)
                ]
                cluster.kill(sequencer)
                try:
                    acked.append(await store.append("log", b"next"))
                except OutcomeUnknown:
                    acked.append(await store.append("log", b"again"))
                assert acked[-1] >> 32 > acked[0] >> 32
                await cluster.start_node(sequencer)
                found = [item.lsn async for item in await store.read("log") if hasattr(item, "lsn")]
                assert set(acked) <= set(found)
            # Started again without a word about it: the directory knows.
            async with local_cluster(str(tmp_path / "cluster")) as cluster:
                assert cluster.shape.metadata

    asyncio.run(act())


def test_what_is_no_ensemble_is_refused_before_anything_is_made():
    with pytest.raises(BadSetting, match="no ensemble"):
        ClusterShape(metadata="zookeeper:///x")
