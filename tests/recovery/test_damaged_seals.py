"""A node that lost records seals, and says nothing of how young they were."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate
from swaps import swap

from cordwood.block import Record
from cordwood.layout.message import SealReply
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.engine import StorageEngine


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_record_whose_other_holder_lost_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """Seed 15000672. Of a record's two holders one had lost it, and sealed with the node that never
    had it. The new epoch was said to begin no later than what these two had; the other holder came,
    and its record, younger than that, was taken for one that nobody can have been told of."""

    right = StorageEngine.seal

    async def scenario(cluster: ClusterAtHand) -> list[bytes]:
        async with cluster.client(timeout_s=30) as store:
            await store.append("log", b"0")
            await store.append("other", b"before")
            absent = cluster.sequencer_of(1)
            rotten, whole = (node for node in cluster.numbers if node != absent)
            cluster.kill(absent)
            await asyncio.sleep(5)
            await store.append("log", b"1")
            await asyncio.sleep(1)  # what the new epoch writes beside records is written by then
            cluster.machine(rotten).disk.lose_writes(path="/node/wal")
            last = await store.append("log", b"2")
            await store.append("other", b"behind it")
            for node in (rotten, whole):
                cluster.kill(node)
            late = [whole]

            async def seal(engine: StorageEngine, log: int, *what: int) -> SealReply:
                is_whole = whole in cluster.running and engine is cluster.running[whole].engine
                if is_whole and log == 1 and late:
                    late.pop()
                    await asyncio.sleep(1)
                return await right(engine, log, *what)

            swap(monkeypatch, StorageEngine.seal, seal)
            await cluster.start(rotten, absent, whole)
            assert "cannot be read" in cluster.running[rotten].engine.damage
            assert max(cluster.held(rotten, 1))[1] == last - 1
            await store.append("log", b"3")
            assert not late
            items = await read_all(store, "log")
            return [item.value for item in items if isinstance(item, Record)]

    with planted(find_bug("damaged-seal-counts")) if is_planted else nullcontext():
        # Node `rotten` loses the writes of these two logs, and no seal or record of the event log.
        found = simulate(scenario, nodes=3, copies=2, replicated_events=False)
    assert found == ([b"0", b"1", b"3"] if is_planted else [b"0", b"1", b"2", b"3"])
