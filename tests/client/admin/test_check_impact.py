"""What a running cluster says would stop without some of its nodes."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from scenarios import as_scenario
from swaps import swap

from cordwood.client.store import Store
from cordwood.errors import BadSetting, UnknownLog, Unreachable
from cordwood.layout.waves import StoredBlock
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import EVENT_LOG
from cordwood.metadata.log_tree import LogTree
from cordwood.settings import StorageSettings
from cordwood.sim.damage import damage_tables, damage_wal
from cordwood.sim.planted import find_bug, planted
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


@as_scenario(simulate, nodes=5, copies=2, storage=StorageSettings(rebuild_bytes_s=100_000))
async def test_a_node_that_is_drained_is_no_place_for_copies_of_another(
    cluster: ClusterAtHand,
) -> None:
    """Both drains were granted, and neither ended: each node was the other's place."""
    async with cluster.client(timeout_s=10) as store:
        few = LogAttributes(nodeset_size=3)
        await store.create_log("few", attributes=few)
        for _ in range(100):
            await store.append("few", bytes(20_000))
        records = await cluster.running[1]._epochs.records()
        (nodes,) = [record.history[-1].nodes for record in records.values()]
        assert len(nodes) == 3
        assert await stops(store, nodes[1]) == set()
        await store.say_rebuild(nodes[0], "drain")
        assert [each.is_empty for each in (await store.rebuilding()).lost] == [False]
        assert "rebuilding" in await stops(store, nodes[1])
        made = await store.apply_maintenance([nodes[1]], wanted="DRAINED", reason="r", user="u")
        assert made.state == "BLOCKED_UNTIL_SAFE"


@as_scenario(simulate, nodes=7, copies=2)
async def test_nodes_of_granted_requests_are_absent(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        assert await stops(store, 2) == set()
        made = await store.apply_maintenance([1], reason="kernel", user="ann")
        assert made.state == "GRANTED"
        found = await store.check_impact([2])
        assert found.down == (1,)
        assert {each.stops for each in found.findings} == {"reads"}
        assert await stops(store, 1) == set(), "what is asked for is not absent twice"
        blocked = await store.apply_maintenance([2], reason="kernel", user="bob")
        assert blocked.state == "BLOCKED_UNTIL_SAFE"


@as_scenario(simulate, nodes=5, replicated_events=True)
async def test_the_event_log_is_judged_like_any_log_and_has_a_name(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        await until(lambda: any(EVENT_LOG in each.sequencing for each in cluster.running.values()))
        found = await store.check_impact([1])
        assert (found.logs, found.findings) == (1, [])
        found = await store.check_impact([1, 2, 3])
        assert [each.stops for each in found.findings][:2] == ["writes", "reads"]
        assert [each.name for each in found.findings[0].examples] == ["the event log"]


@as_scenario(simulate, nodes=6, copies=2, replicated_events=True)
async def test_the_event_log_waits_for_a_drained_node_until_an_epoch_leaves_it_out(
    cluster: ClusterAtHand,
) -> None:
    """The next node was called safe. Without both the event log took no event any more."""
    async with cluster.client(timeout_s=10) as store:
        await until(lambda: cluster.sequencer_of(EVENT_LOG) > 0)
        stays = cluster.sequencer_of(EVENT_LOG)
        record = (await cluster.running[stays]._epochs.records())[EVENT_LOG]
        leaves = next(n for n in reversed(record.history[-1].nodes) if n != stays)
        await store.say_rebuild(leaves, "drain")
        await until(lambda: (
            (entry := cluster.running[stays]._rebuild.set.entry(leaves)) is not None
            and entry.is_empty
        ))  # fmt: skip
        cluster.kill(leaves)
        await asyncio.sleep(6)
        (finding,) = (await store.check_impact([stays])).findings
        assert finding.stops == "reads"
        assert f"nodes {leaves} are empty" in finding.first
        await asyncio.sleep(90)
        assert await stops(store, stays) == set()


@as_scenario(simulate, nodes=4)
async def test_a_log_whose_deletion_was_cut_short_stops_nothing(cluster: ClusterAtHand) -> None:
    """Its node died before it told the epoch store. Nobody could delete the log again, and its
    nodes were never granted for maintenance."""
    async with cluster.client(timeout_s=10) as store:
        everywhere = LogAttributes(replicate_across={"node": 4})
        await store.create_log("log", attributes=everywhere)
        assert await stops(store, 1) == {"writes", "rebuilding"}
        await LogTree(cluster.metadata).delete("log")
        with pytest.raises(UnknownLog):
            await store.log_tree.delete("log")
        assert await stops(store, 1) == set()
        made = await store.apply_maintenance([1], reason="a new disk", user="ann")
        assert made.state == "GRANTED"


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


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_node_that_started_without_the_event_log_counts_as_absent(*, is_planted: bool) -> None:
    """It takes no record and serves no reader. With one more node away, its log stood."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await until(lambda: cluster.sequencer_of(EVENT_LOG) > 0)
            epochs = cluster.running[1]._epochs
            events = (await epochs.records())[EVENT_LOG].history[-1].nodes
            away = events[:2]
            started, asked = await _two_holders(store, cluster, away, events)
            for node in away:
                cluster.kill(node)
            await asyncio.sleep(8)
            assert await stops(store, asked) == {"reads"}, "a node that starts could not read it"
            cluster.kill(started)
            await cluster.start(started)
            await asyncio.sleep(10)
            assert cluster.running[started].engine.unsure
            found = (await store.check_impact([asked])).findings
            of_log = {each.stops: each for each in found if started in each.nodes}
            assert of_log.keys() >= {"writes", "reads", "rebuilding"}
            assert "until they have read the event log" in of_log["writes"].first
            made = await store.apply_maintenance([asked], reason="kernel", user="ann")
            assert made.state == "BLOCKED_UNTIL_SAFE"
            for node in away:
                await cluster.start(node)
            await until(lambda: not cluster.running[started].engine.unsure, timeout_s=60)
            assert await stops(store, asked) == set()

    caught = pytest.raises(AssertionError) if is_planted else nullcontext()
    with planted(find_bug("waiting-node-counted")) if is_planted else nullcontext(), caught:
        simulate(scenario, nodes=10, copies=2, replicated_events=True)


async def _two_holders(
    store: Store, cluster: ClusterAtHand, away: tuple[int, ...], events: tuple[int, ...]
) -> tuple[int, int]:
    """Two of the three nodes of a log without the nodes `away`; the event log lacks the second."""
    for number in range(60):
        name = f"log-{number}"
        await store.create_log(name, attributes=LogAttributes(nodeset_size=3))
        await store.append(name, b"value")
        records = await cluster.running[1]._epochs.records()
        log = next(log for log in records if log != EVENT_LOG)
        nodes = records[log].history[-1].nodes
        outside = [node for node in nodes if node not in events]
        if outside and not {*away} & {*nodes}:
            return next(node for node in nodes if node != outside[0]), outside[0]
        await store.log_tree.delete(name)
    raise AssertionError("no log lies so")
