"""Nodes that an operator made read-only: they are sealed and read, and store nothing."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario
from swaps import swap

from cordwood.client.store import Store
from cordwood.errors import BadSetting, NoSequencer, OutcomeUnknown
from cordwood.log_attributes import LogAttributes
from cordwood.metadata.membership import Membership
from cordwood.node import Node
from cordwood.nodes import NodeId

LOG = 1


def held(cluster: ClusterAtHand, node: int) -> list[tuple[int, int, str]]:
    """What a node holds of the log."""
    return cluster.held(node, LOG)


async def next_epoch(cluster: ClusterAtHand, store: Store) -> int:
    """Have another node sequence the log; its epoch."""
    cluster.kill(cluster.sequencer_of(LOG))
    await asyncio.sleep(1)  # the client has heard that it is gone
    return (await store.append("log", b"next")).epoch


@as_scenario(simulate, nodes=5, copies=2)
async def test_a_read_only_node_takes_no_store_of_anybody_and_tells_recovery_what_it_has(
    cluster: ClusterAtHand,
) -> None:
    """What is on read-only nodes is kept, its copies and the end of its epoch go to others."""
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"1")
        owner = cluster.sequencer_of(LOG)
        silent = next(n for n in cluster.numbers if n != owner)
        await store.set_storage(silent, read_only=True)
        assert (await store.read_only())[NodeId(silent)]
        await asyncio.sleep(3)
        before = held(cluster, silent)
        for number in range(20):
            await store.append("log", b"%d" % (number + 2))
        epoch = await next_epoch(cluster, store)
        last = await store.append("log", b"last")
        assert epoch > 1
        assert held(cluster, silent) == before, "neither records nor the end of the epoch"
        assert cluster.running[silent].engine.sealed(LOG) == epoch
        members = {m.node: m for m in await Membership(cluster.metadata).members()}
        nodes = (await store.log("log")).nodes_of(last.epoch)
        assert (silent in nodes, members[NodeId(silent)].weight) == (False, 0.0)
        wanted = [b"%d" % (n + 1) for n in range(21)]
        assert (await values(store, "log", until=last))[:21] == wanted

        # It stays so over a start, until the other is said.
        cluster.kill(silent)
        await cluster.start(silent)
        assert cluster.running[silent].engine.read_only
        await store.set_storage(silent, read_only=False)
        await asyncio.sleep(3)
        assert not cluster.running[silent].engine.read_only
        with pytest.raises(BadSetting, match="no node 9"):
            await store.set_storage(9, read_only=True)


def test_a_node_is_read_only_before_it_takes_its_first_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It listened before it had read the member list, and took stores until it had. It knows from
    its own entry, and by now it reads the list before it listens, too."""
    seen: list[tuple[bool, bool]] = []
    right = Node._refresh_members

    async def refresh_members(self: Node) -> None:
        if self.settings.node == 2:
            seen.append((hasattr(self, "_server"), bool(self.engine.read_only)))
        await right(self)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"1")
            await store.set_storage(2, read_only=True)
            cluster.kill(2)
            swap(monkeypatch, Node._refresh_members, refresh_members)
            await cluster.start(2)
            assert seen[0] == (False, True), "it knows before it listens"

    simulate(scenario, nodes=3, copies=2)


@as_scenario(simulate, nodes=4, copies=2)
async def test_recovery_waits_for_nodes_that_store_where_read_only_ones_alone_answer(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=60) as store:
        await store.append("log", b"1")
        owner = cluster.sequencer_of(LOG)
        some = [n for n in cluster.numbers if n != owner]
        for node in some[:2]:
            await store.set_storage(node, read_only=True)
        await asyncio.sleep(3)
        cluster.kill(owner)
        await asyncio.sleep(1)
        before = {node: held(cluster, node) for node in some[:2]}
        pending = asyncio.ensure_future(store.append("log", b"2"))
        await asyncio.sleep(20)
        assert not pending.done(), "one node is left that stores, and two copies are asked for"
        await cluster.start(owner)
        lsn = await pending
        assert await values(store, "log", until=lsn) == [b"1", b"2"]
        for node in some[:2]:
            new = [each for each in held(cluster, node) if each not in before[node]]
            assert {kind for _, _, kind in new} <= {"BRIDGE", "HOLE"}, "no record"


@as_scenario(simulate, nodes=5, copies=3)
async def test_an_epoch_that_only_a_read_only_node_could_end_is_ended(
    cluster: ClusterAtHand,
) -> None:
    """Its nodeset has no spare node. Reads waited until an operator let the node store."""
    async with cluster.client(timeout_s=20) as store:
        await store.create_log("log", copies=3, attributes=LogAttributes(nodeset_size=3))
        await store.append("log", b"1")
        owner = cluster.sequencer_of(LOG)
        nodes = (await store.log("log")).nodes_of(1)
        silent = next(node for node in nodes if node != owner)
        await store.set_storage(silent, read_only=True)
        await asyncio.sleep(3)
        cluster.kill(owner)
        await asyncio.sleep(5)
        await cluster.start(owner)
        last = await store.append("log", b"2")
        assert silent not in (await store.log("log")).nodes_of(last.epoch)
        assert await values(store, "log") == [b"1", b"2"]
        kinds = [kind for _, last, kind in held(cluster, silent) if last >> 32 == 1]
        assert set(kinds) <= {"DATA", "BRIDGE"}
        assert not [each for each in held(cluster, silent) if each[0] >> 32 > 1]


@as_scenario(simulate, nodes=5, copies=3)
async def test_a_record_that_a_read_only_node_lacks_waits_for_nodes_that_store_and_says_so(
    cluster: ClusterAtHand,
) -> None:
    """Its body would have to go there. The error named the nodes, and no reason or way out."""
    async with cluster.client(timeout_s=20) as store:
        await store.create_log("log", copies=3, attributes=LogAttributes(nodeset_size=3))
        await store.append("log", b"1")
        owner = cluster.sequencer_of(LOG)
        nodes = (await store.log("log")).nodes_of(1)
        silent = next(node for node in nodes if node != owner)
        cluster.machine(silent).pause()
        lost = asyncio.ensure_future(store.append("log", b"2"))
        await asyncio.sleep(1)
        cluster.kill(owner)
        with pytest.raises(OutcomeUnknown):
            await lost
        cluster.machine(silent).kill()
        cluster.running.pop(silent)
        await Membership(cluster.metadata).set_storage(NodeId(silent), read_only=True)
        await cluster.start(owner, silent)
        last = await store.append("log", b"3")
        with pytest.raises(NoSequencer, match=rf"nodes \[{silent}\] are read-only; let them"):
            await values(store, "log")
        await store.set_storage(silent, read_only=False)
        await asyncio.sleep(5)
        assert await values(store, "log", until=last) == [b"1", b"2", b"3"]
