"""Clusters of real processes with either event log: verbs, and a node that is lost for ever while
ZooKeeper is away."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from scenarios import as_scenario, awaited_by
from verbs_at_hand import run_verb
from zookeeper_at_hand import want_of_zookeeper, zookeeper_server

from cordwood.block import Record
from cordwood.client import aio
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, NotOurCluster
from cordwood.host.real import real_host
from cordwood.local_cluster import ClusterShape, LocalCluster, local_cluster
from cordwood.lsn import EVENT_LOG
from cordwood.metadata.event_log import StoredEventLog
from cordwood.metadata.where import open_metadata
from cordwood.nodes import Authority, NodeId
from cordwood.settings import MIB

pytestmark = [pytest.mark.real, pytest.mark.slow]

LOGS = ("one", "two")
RECORDS = 40


async def until(is_so: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not await is_so():  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0.2)


async def has_moved(cluster: LocalCluster) -> bool:
    async with real_host() as host:
        metadata = open_metadata(cluster.metadata, host)
        try:
            return await StoredEventLog(metadata).read_base() is not None
        finally:
            await metadata.close()


async def verb(cluster: LocalCluster, *arguments: str) -> str:
    """What a verb said, which must succeed."""
    told = await asyncio.to_thread(run_verb, [*arguments, "--cluster", cluster.url])
    assert told.exit_code == 0, told.output
    return told.stdout


async def lost(cluster: LocalCluster) -> dict[int, str]:
    """The state of each lost node, as `cordwood rebuild` shows it."""
    rows = json.loads(await verb(cluster, "rebuild", "--json"))["lost"]
    return {row["node"]: row["state"] for row in rows}


async def called_empty(store: Store, node: NodeId) -> bool:
    """What a client's readers go by."""
    return (await store.authorities())[node] is Authority.AUTHORITATIVE_EMPTY


async def sequencers(store: Store) -> dict[NodeId, set[int]]:
    return {
        node: {log.log for log in status.logs if log.sequencing}
        for node, status in (await store.status()).items()
        if not isinstance(status, CordwoodError)
    }


async def has_sequencer(store: Store) -> bool:
    return any(EVENT_LOG in logs for logs in (await sequencers(store)).values())


async def values(store: Store, log: str) -> list[bytes]:
    return [item.value async for item in await store.read(log) if isinstance(item, Record)]


async def start_again(cluster: LocalCluster, node: NodeId) -> None:
    """As a supervisor does: a node that cannot be let in yet ends with an error."""
    for _ in range(60):
        try:
            await cluster.start_node(node)
        except CordwoodError:
            await asyncio.sleep(1)
        else:
            return
    raise NotOurCluster(f"node {node} does not start")


async def order_lost(cluster: LocalCluster, node: NodeId) -> None:
    """`cordwood rebuild start`, again until the others take the node for dead."""

    async def is_ordered() -> bool:
        arguments = ["rebuild", "start", str(node), "--cluster", cluster.url]
        return (await asyncio.to_thread(run_verb, arguments)).exit_code == 0

    await until(is_ordered, 60)


async def healed(cluster: LocalCluster) -> None:
    async def is_healed() -> bool:
        return not await lost(cluster)

    await until(is_healed, 60)


async def emptied(cluster: LocalCluster, node: NodeId) -> None:
    async def is_empty() -> bool:
        return (await lost(cluster)).get(node, "").startswith("empty")

    await until(is_empty, 120)


async def ended(cluster: LocalCluster, node: NodeId) -> None:
    process = cluster.nodes[node].process
    assert process is not None
    async with asyncio.timeout(20):
        await process.wait()


async def begin_anew(cluster: LocalCluster, node: NodeId) -> None:
    shutil.rmtree(cluster.nodes[node].directory)
    await start_again(cluster, node)
    await healed(cluster)


async def steer(cluster: LocalCluster, store: Store, node: NodeId) -> None:
    """What an operator does with the event log: it ends as it began."""
    cluster.kill(node)
    await order_lost(cluster, node)
    assert node in await lost(cluster)
    if not (await lost(cluster))[node].startswith("empty"):
        await asyncio.to_thread(run_verb, ["rebuild", "abort", str(node), "--cluster", cluster.url])
    await emptied_or_back(cluster, node)
    apply = f"maintenance apply {node} --drain --reason why --wait 60 --json"
    (made,) = json.loads(await verb(cluster, *apply.split()))
    await emptied(cluster, node)
    await until(lambda: called_empty(store, node), 20)
    await verb(cluster, "maintenance", "remove", str(made["number"]))
    assert (await lost(cluster))[node].startswith("empty")  # until an operator's word
    await verb(cluster, "nodes", "undrain", str(node))
    # Its data lies on others: it ends, and begins anew with an empty directory.
    await ended(cluster, node)
    await cluster.stop_node(node)
    await begin_anew(cluster, node)


async def emptied_or_back(cluster: LocalCluster, node: NodeId) -> None:
    """After `start` and `abort`: either the others were quicker, or it is waited for."""
    if node in await lost(cluster):
        await emptied(cluster, node)
        await begin_anew(cluster, node)
    else:
        await start_again(cluster, node)


@as_scenario(awaited_by(uvloop.run))
async def test_verbs_where_events_stay_in_the_metadata_store(*, tmp_path: Path) -> None:
    """Of four nodes and three copies two lost nodes leave the log no place."""
    async with (
        local_cluster(
            str(tmp_path), ClusterShape(4, 4, 3, 2, 16 * MIB, replicated_events=True)
        ) as cluster,
        await aio.connect(cluster.url) as store,
    ):
        for number in range(RECORDS):
            await store.append("one", b"%d" % number)
        await steer(cluster, store, NodeId(4))
        assert not await has_moved(cluster)
        assert len(await values(store, "one")) == RECORDS


@as_scenario(awaited_by(uvloop.run))
async def test_a_node_is_lost_and_rebuilt_while_the_metadata_store_is_away(
    *, tmp_path: Path, require
) -> None:
    if want_of_zookeeper():
        require("zookeeper", want_of_zookeeper())
    with zookeeper_server(tmp_path / "zookeeper") as server:
        shape = ClusterShape(
            5,
            5,
            3,
            2,
            16 * MIB,
            metadata=f"zookeeper://{server.address}/c/one",
        )
        async with (
            local_cluster(str(tmp_path / "cluster"), shape) as cluster,
            await aio.connect(cluster.url) as store,
        ):
            for log in LOGS:
                for number in range(RECORDS):
                    await store.append(log, b"%d" % number)
            # By default, and nobody asked for it.
            await until(lambda: has_moved(cluster), 60)
            assert not await lost(cluster)
            await steer(cluster, store, NodeId(5))
            # Only with the store does the log get a sequencer.
            await until(lambda: has_sequencer(store), 60)
            by_node = await sequencers(store)
            gone = next(node for node, logs in sorted(by_node.items()) if EVENT_LOG not in logs)
            server.kill()
            cluster.kill(gone)
            shutil.rmtree(cluster.nodes[gone].directory)
            await order_lost(cluster, gone)
            await emptied(cluster, gone)
            await until(lambda: called_empty(store, gone), 20)
            await asyncio.to_thread(server.start)
            await start_again(cluster, gone)
            await healed(cluster)
            for log in LOGS:
                assert len(await values(store, log)) == RECORDS
