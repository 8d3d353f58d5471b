"""Writers that change their ensemble only when they have to, while a member is lost or drained."""

from __future__ import annotations

import asyncio

from cluster_at_hand import ClusterAtHand, simulate
from rebuild_scene import call_lost, lose_disk, order
from scenarios import as_scenario

from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.store import Store
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.protocol.ledger_autorecovery import GRACE_US
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.quorum.ensemble_choice import ANYWHERE, Placement
from cordwood.sim.links import LinkSettings

DELAYED = WriterLimits(delays_change=True)
WRITES_S = 4 * GRACE_US // 1_000_000
"""Longer than a look for lost nodes and the grace: a recovery would have shut the writer out."""


async def made(store: Store, placement: Placement = ANYWHERE) -> WritableLedger:
    return await store.ledgers.create(
        ensemble=3, write=3, ack=2, limits=DELAYED, placement=placement
    )


async def write_on(ledger: WritableLedger) -> None:
    first = ledger.last_add_pushed + 1
    for entry in range(first, first + WRITES_S):
        assert await ledger.append(b"entry %d" % entry) == entry
        await asyncio.sleep(1)


@as_scenario(simulate, nodes=4)
async def test_a_lost_member_is_replaced_and_the_writer_goes_on(cluster: ClusterAtHand) -> None:
    """Both other members took the entries, so it stayed, until a recovery shut the writer out."""
    async with cluster.client() as store:
        ledger = await made(store)
        lost = ledger.metadata.newest.nodes[0]
        assert await ledger.append(b"entry 0") == 0
        lose_disk(cluster, lost)
        await call_lost(cluster, lost)
        await write_on(ledger)
        assert lost not in ledger.metadata.newest.nodes
        await ledger.close()


@as_scenario(simulate, nodes=4)
async def test_a_member_that_is_only_down_stays(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger = await made(store)
        down = ledger.metadata.newest.nodes[0]
        cluster.kill(down)
        await write_on(ledger)
        assert down in ledger.metadata.newest.nodes
        await ledger.close()


@as_scenario(simulate)
async def test_a_lost_member_stays_while_there_is_no_other_node(cluster: ClusterAtHand) -> None:
    """The quorum is not at stake, so the ledger is not closed for want of nodes."""
    async with cluster.client() as store:
        ledger = await made(store)
        await store.ledgers.switch_autorecovery(on=False)
        lost = ledger.metadata.newest.nodes[0]
        lose_disk(cluster, lost)
        await call_lost(cluster, lost)
        await write_on(ledger)
        assert lost in ledger.metadata.newest.nodes
        await ledger.close()


@as_scenario(simulate, nodes=4)
async def test_a_slow_member_that_is_drained_is_replaced(cluster: ClusterAtHand) -> None:
    """Its refusals came after the acknowledgements, and a recovery shut the writer out."""
    async with cluster.client() as store:
        ledger = await made(store)
        drained = ledger.metadata.newest.nodes[0]
        hosts = [address.partition(":")[0] for address in cluster.addresses]
        far, near = hosts[drained - 1], ["client-1", *hosts]
        links, slow = cluster.simulation.network.links, LinkSettings(delay_min_s=0.05)
        links.change([far], near, slow)
        links.change(near, [far], slow)
        await order(cluster, drained, RebuildOrder.DRAIN)
        await write_on(ledger)
        assert drained not in ledger.metadata.newest.nodes
        await ledger.close()


@as_scenario(simulate, nodes=4, locations={1: "a", 2: "a", 3: "b", 4: "a"})
async def test_a_lost_member_stays_while_no_other_node_is_in_a_right_rack(
    cluster: ClusterAtHand,
) -> None:
    """There was another node, of a rack that the placement forbids: the ledger was closed."""
    async with cluster.client() as store:
        ledger = await made(store, placement=Placement(is_enforced=True))
        await store.ledgers.switch_autorecovery(on=False)
        assert 3 in ledger.metadata.newest.nodes
        lose_disk(cluster, 3)
        await call_lost(cluster, 3)
        await write_on(ledger)
        assert 3 in ledger.metadata.newest.nodes
        await ledger.close()


@as_scenario(simulate)
async def test_a_read_only_member_stays_while_there_is_no_other_node(
    cluster: ClusterAtHand,
) -> None:
    """The others had a quorum, and the ledger was closed all the same."""
    async with cluster.client() as store:
        ledger = await made(store)
        held = ledger.metadata.newest.nodes[0]
        await store.set_storage(held, read_only=True)
        await write_on(ledger)
        assert held in ledger.metadata.newest.nodes
        await store.set_storage(held, read_only=False)
        await ledger.close()


@as_scenario(simulate, nodes=4)
async def test_a_read_only_member_stays_if_the_other_node_is_gone_by_the_next_entry(
    cluster: ClusterAtHand,
) -> None:
    """Its refusal came after the acknowledgement. The next entry closed the ledger, although the
    others had a quorum."""
    async with cluster.client() as store:
        ledger = await made(store)
        held = ledger.metadata.newest.nodes[0]
        (spare,) = {1, 2, 3, 4} - {*ledger.metadata.newest.nodes}
        hosts = [address.partition(":")[0] for address in cluster.addresses]
        far, near = hosts[held - 1], ["client-1", *hosts]
        links, slow = cluster.simulation.network.links, LinkSettings(delay_min_s=0.05)
        links.change([far], near, slow)
        links.change(near, [far], slow)
        await store.set_storage(held, read_only=True)
        assert await ledger.append(b"entry 0") == 0
        await asyncio.sleep(1)
        await store.set_storage(spare, read_only=True)
        await asyncio.sleep(5)
        await write_on(ledger)
        assert held in ledger.metadata.newest.nodes
        await ledger.close()
