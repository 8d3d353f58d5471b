"""What a running cluster says would stop without some of its nodes."""

from __future__ import annotations

import asyncio
import random

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from scenarios import as_scenario
from swaps import swap

from cordwood.client.store import Store
from cordwood.errors import BadSetting, Unreachable
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import EVENT_LOG
from cordwood.settings import StorageSettings
from cordwood.sim.damage import damage_tables, damage_wal
from cordwood.storage.repair.copy_fetch import CopyFetches
from cordwood.storage.repair.wal_healing import WalHealing


@as_scenario(simulate, nodes=4)
async def test_a_cluster_judges_its_logs_by_nodes_racks_and_those_that_are_down(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=10) as store:
        for log in ("a", "b", "c"):
            await store.append(log, b"value")
        found = await store.check_impact([1])
        assert (found.logs, found.findings, found.down) == (3, [], ())
        found = await store.check_impact([1], ["rack2"])
        assert found.absent == (1, 2)
        stopped = {each.stops: each for each in found.findings}
        assert list(stopped) == ["writes", "rebuilding", "capacity"]
        assert sorted(each.name for each in stopped["writes"].examples) == ["/a", "/b", "/c"]
        assert stopped["writes"].replicate_across == {"node": 3, "rack": 1}
        cluster.kill(4)
        await asyncio.sleep(8)
        found = await store.check_impact([1])
        assert found.down == (4,)
        assert "bring back nodes 4" in found.findings[0].first
        for nodes, racks in (([9], []), ([], ["rack9"]), ([], [])):
            with pytest.raises(BadSetting):
                await store.check_impact(nodes, racks)


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_the_event_log_is_judged_like_any_log_and_has_a_name(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        await until(lambda: any(EVENT_LOG in each.sequencing for each in cluster.running.values()))
        found = await store.check_impact([1])
        assert (found.logs, found.findings) == (1, [])
        found = await store.check_impact([1, 2, 3])
        assert [each.stops for each in found.findings][:2] == ["writes", "reads"]
        assert [each.name for each in found.findings[0].examples] == ["the event log"]


async def stops(store: Store, node: int) -> set[str]:
    return {each.stops for each in (await store.check_impact([node])).findings}


@as_scenario(simulate, nodes=5, copies=2)
async def test_nodes_that_have_just_started_do_not_take_dead_ones_for_alive(
    cluster: ClusterAtHand,
) -> None:
    """Gossip has told them nothing yet, so they ask."""
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
    for node in cluster.numbers:
        cluster.kill(node)
    await cluster.start(1, 2, 3, 4)
    async with cluster.client(timeout_s=10) as store:
        assert "reads" in await stops(store, 4)
        found = await store.apply_maintenance([4], reason="a new disk", user="ann")
        assert found.state == "BLOCKED_UNTIL_SAFE"


@as_scenario(simulate, nodes=5, copies=2)
async def test_nodes_without_space_take_no_writes_of_those_that_go(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        for node in (1, 2, 3):
            cluster.machine(node).disk.free_bytes = 0
        await asyncio.sleep(8)
        await store.append("a", b"value")
        assert await stops(store, 4) == {"writes", "rebuilding"}
        assert await stops(store, 3) == set()


@pytest.mark.parametrize("replicated", [False, True], ids=["stored", "replicated"])
@pytest.mark.parametrize("rots", ["wal", "tables"])
def test_a_node_that_does_not_know_what_it_holds_counts_as_absent_for_reads(
    rots: str, replicated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the other holder of a block gone nobody could say what there was."""

    async def heal_nothing(healing: WalHealing) -> None:
        """It is asked before the loss is healed."""

    async def give_nothing(*wanted: object, digest: bool) -> list[StoredBlock]:
        raise Unreachable("it is asked before the rot is mended")

    swap(monkeypatch, WalHealing.run, heal_nothing)
    swap(monkeypatch, CopyFetches.bodies, give_nothing)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=10) as store:
            for _ in range(60):
                await store.append("a", b"value")
                await asyncio.sleep(0.05)
            await asyncio.sleep(2)
            for node in cluster.numbers:
                cluster.kill(node)
                disk = cluster.machine(node).disk
                damage = damage_wal if rots == "wal" else damage_tables
                hit = damage(disk, random.Random(3))
                await cluster.start(node)
                if hit:
                    break
            assert hit
            await asyncio.sleep(5)
            if rots == "tables":
                # A read finds rot only if this node sends the record: the copies are drawn.
                damages = cluster.running[node].engine.logs.damages
                await until(lambda: bool(damages.all()))
                assert len(await values(store, "a")) == 60
            others = [each for each in cluster.numbers if each != node]
            assert [await stops(store, each) for each in others] == [{"reads"}] * 4

    flush_age_s = 3000.0 if rots == "wal" else 0.5
    scrubbed = StorageSettings(flush_age_s=flush_age_s, scrub_every_s=1)
    simulate(scenario, nodes=5, copies=2, storage=scrubbed, replicated_events=replicated)
