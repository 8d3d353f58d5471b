"""Nodes whose disks are nearly full, on a whole cluster."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.errors import CordwoodError
from cordwood.sim.disk import DISK_BYTES

LOG = 1


@as_scenario(simulate, nodes=5, copies=3)
async def test_others_take_its_place_and_it_comes_back(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        await store.append("log", b"0")
        full = next(n for n in cluster.numbers if n != cluster.sequencer_of(LOG))
        cluster.machine(full).disk.free_bytes = 0
        await asyncio.sleep(3)
        stored = cluster.running[full].engine.stored_blocks
        await store.append_many("log", [b"%d" % n for n in range(1, 50)])
        for number in range(50, 60):
            await store.append("log", b"%d" % number)
        assert cluster.running[full].engine.stored_blocks == stored
        assert "no new records" in (await store.status())[full].failed
        # It serves and seals all the same: the log's sequencer dies, and recovery has it.
        cluster.kill(cluster.sequencer_of(LOG))
        await asyncio.sleep(1)
        await store.append("log", b"60")
        assert await values(store, "log") == [b"%d" % n for n in range(61)]
        cluster.machine(full).disk.free_bytes = DISK_BYTES
        await asyncio.sleep(3)
        assert not (await store.status())[full].failed
        for number in range(20):
            await store.append("log", b"%d" % number)
        assert cluster.running[full].engine.stored_blocks > stored


@as_scenario(simulate, nodes=3, copies=3)
async def test_where_all_are_full_appends_wait_and_then_go_on(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=5) as store:
        await store.append("log", b"0")
        for node in cluster.numbers:
            cluster.machine(node).disk.free_bytes = 0
        await asyncio.sleep(3)
        with pytest.raises(CordwoodError):
            await store.append("log", b"1")
        assert (await values(store, "log"))[:1] == [b"0"], "what is there can be read"
        for node in cluster.numbers:
            cluster.machine(node).disk.free_bytes = DISK_BYTES
        await asyncio.sleep(3)
        await store.append("log", b"2")
