"""Which nodes hold which epoch: kept by storage nodes before release, learnt from them."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from scenarios import as_scenario
from swaps import swap

from cordwood.block import Record
from cordwood.client.cluster import Cluster
from cordwood.errors import Retryable, Unreachable
from cordwood.log_attributes import LogAttributes
from cordwood.storage.engine import StorageEngine

LOG = 1


def told(cluster: ClusterAtHand) -> dict[int, tuple[int, list[int]]]:
    """By node: up to which epoch it was told, and since when each nodeset holds."""
    found = {n: node.engine.nodesets(LOG) for n, node in cluster.running.items()}
    return {n: (epoch, [each.since for each in history]) for n, (epoch, history) in found.items()}


async def spread(store, size: int) -> None:
    """Change the log's nodeset, and wait until an epoch has it."""
    before = (await store.log("log")).epoch
    await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=size))
    async with asyncio.timeout(30):
        while (await store.log("log")).epoch == before:  # noqa: ASYNC110 - another node's doing
            await asyncio.sleep(0.1)


@as_scenario(simulate, nodes=5)
async def test_every_node_of_the_log_keeps_it_and_again_after_a_restart(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        await store.create_log("log", attributes=LogAttributes(nodeset_size=3))
        await store.append("log", b"1")
        assert sorted(told(cluster).values()) == [(0, [])] * 2 + [(1, [1])] * 3
        await spread(store, 0)
        await store.append("log", b"2")
        await until(lambda: set(map(str, told(cluster).values())) == {"(2, [1, 2])"})
        for number in list(cluster.running):
            cluster.kill(number)
        await cluster.start()
        assert set(map(str, told(cluster).values())) == {"(2, [1, 2])"}


@as_scenario(simulate, nodes=5)
async def test_a_reader_passes_into_new_nodesets_without_the_metadata_store(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as writer, cluster.client() as store:
        await writer.create_log("log", attributes=LogAttributes(nodeset_size=3))
        await writer.append("log", b"0")
        reader = await store.read("log", until=None)
        asked = 0

        async def out(self: Cluster, *_: object, **__: object) -> None:
            nonlocal asked
            asked += self is store._cluster
            raise Unreachable("the metadata store is out")

        sizes = [5, 3, 4, 5]
        for number, size in enumerate(sizes, 1):
            await spread(writer, size)
            await writer.append("log", b"%d" % number)
        swap(monkeypatch, Cluster.ask_log, out)
        found: list[bytes] = []
        async with asyncio.timeout(60):
            while len(found) <= len(sizes):
                found += [i.value for i in await reader.next_items() if isinstance(i, Record)]
        assert found == [b"%d" % number for number in range(len(sizes) + 1)]
        assert asked == 0
        # The last nodeset is met while the one before it is asked for.
        await until(lambda: [len(e.nodes) for e in reader.info.history] == [3, *sizes])
        assert asked == 0
        reader.close()


@as_scenario(simulate, nodes=5)
async def test_nothing_of_an_epoch_is_released_before_its_nodes_keep_its_nodeset(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as store:
        await store.create_log("log", attributes=LogAttributes(nodeset_size=3))
        await store.append("log", b"1")

        async def refuse(self: StorageEngine, *_: object) -> None:
            raise Retryable("not now")

        with monkeypatch.context() as refusing:
            swap(refusing, StorageEngine.tell_nodesets, refuse)
            await spread(store, 5)
            lsn = await store.append("log", b"2")
            await asyncio.sleep(3)
            assert all(n.engine.cache.log(LOG).released < lsn for n in cluster.running.values())
        items = await read_all(store, "log", until=lsn)
        assert [i.value for i in items if isinstance(i, Record)] == [b"1", b"2"]
        assert sum(epoch == 2 for epoch, _ in told(cluster).values()) >= 3
