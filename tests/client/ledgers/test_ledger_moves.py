"""Readers of ledgers whose entries go to other nodes meanwhile: each scene holds, and with its bug
planted it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.errors import NoEntry, OutcomeUnknown
from cordwood.sim.planted import find_bug, planted

ONE_COPY = {"ensemble": 1, "write": 1, "ack": 1}

Scene = Callable[[ClusterAtHand], Awaitable[None]]


async def moved(cluster: ClusterAtHand, made: WritableLedger) -> None:
    """The next entry goes to another node; the first one is back, and does not have it."""
    (first,) = made.metadata.newest.nodes
    cluster.kill(first)
    assert await made.append(b"one") == 1
    assert made.metadata.newest.nodes != (first,)
    await cluster.start(first)
    await asyncio.sleep(2)


async def opened_before(cluster: ClusterAtHand, made: WritableLedger, store) -> ReadableLedger:
    assert await made.append(b"zero") == 0
    opened = await store.ledgers.open(made.ledger_id)
    await moved(cluster, made)
    return opened


async def an_entry_is_on_a_node_that_the_reader_does_not_know(cluster: ClusterAtHand) -> None:
    """It was told that there is no such entry, of one that was acknowledged."""
    async with cluster.client() as writer, cluster.client() as reader:
        made = await writer.ledgers.create(**ONE_COPY)
        opened = await opened_before(cluster, made, reader)
        (found,) = await opened.read_unconfirmed(1, 1)
        assert found.payload == b"one"
        with pytest.raises(NoEntry):
            await opened.read_unconfirmed(2, 2)


async def a_reader_waits_for_an_entry_that_another_node_gets(cluster: ClusterAtHand) -> None:
    """It waited for the node that it knew, and was told after 20 s that no entry was confirmed."""
    async with cluster.client() as writer, cluster.client() as reader:
        made = await writer.ledgers.create(**ONE_COPY)
        await made.append(b"zero")
        opened = await reader.ledgers.open(made.ledger_id)
        assert await opened.wait_confirmed(-1, timeout_s=5) == 0
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(opened.wait_confirmed(0, timeout_s=20))
        await asyncio.sleep(0.5)
        (node,) = made.metadata.newest.nodes
        cluster.simulation.network.partition(["client-1"], [f"node-{node}"])
        await made.append(b"one")
        began = loop.time()
        assert await waiting == 1
        assert loop.time() - began < 3


async def a_reader_waits_for_longer_than_a_node_does(cluster: ClusterAtHand) -> None:
    """It was refused by the nodes, and gave up within a fifth of a second."""
    async with cluster.client() as writer, cluster.client() as reader:
        made = await writer.ledgers.create(ensemble=3, write=2, ack=2)
        opened = await reader.ledgers.open(made.ledger_id)
        waiting = asyncio.ensure_future(opened.wait_confirmed(-1, timeout_s=60))
        await asyncio.sleep(40)
        assert not waiting.done()
        await made.append(b"zero")
        assert await waiting == 0
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await opened.wait_confirmed(0, timeout_s=30) == 0
        assert 29.9 < loop.time() - began < 33


async def a_copy_is_left_behind_the_end(cluster: ClusterAtHand) -> None:
    """Its node was down while the ledger was recovered without this entry."""
    async with cluster.client() as writer, cluster.client() as store:
        made = await writer.ledgers.create(ensemble=3, write=3, ack=2)
        assert await made.append(b"zero") == 0
        first, *others = made.metadata.newest.nodes
        for node in others:
            cluster.machine(node).pause()
        cut = asyncio.ensure_future(made.append(b"one"))
        await asyncio.sleep(0.2)
        cluster.kill(first)
        made.abandon()
        for node in others:
            cluster.machine(node).kill()
            await cluster.start(node)
        with pytest.raises(OutcomeUnknown):
            await cut
        await store.ledgers.recover(made.ledger_id)
        await cluster.start(first)
        await asyncio.sleep(5)
        opened = await store.ledgers.open(made.ledger_id)
        assert (opened.is_closed, opened.last_add_confirmed) == (True, 0)
        found = None
        with suppress(NoEntry):
            found = await opened.read_unconfirmed(0, 1)
        assert found is None
        assert [each.payload async for each in opened] == [b"zero"]


SCENES: dict[str, Scene] = {
    "ledger-denies-by-old-nodes": an_entry_is_on_a_node_that_the_reader_does_not_know,
    "ledger-waits-for-old-nodes": a_reader_waits_for_an_entry_that_another_node_gets,
    "ledger-beyond-its-end": a_copy_is_left_behind_the_end,
}


@pytest.mark.parametrize(
    "scene",
    [*SCENES.values(), a_reader_waits_for_longer_than_a_node_does],
    ids=lambda scene: scene.__name__,
)
def test_the_scene_holds(scene: Scene) -> None:
    simulate(scene, nodes=3)


@pytest.mark.parametrize("name", SCENES)
def test_the_scene_catches_the_bug(name: str) -> None:
    with planted(find_bug(name)), pytest.raises((AssertionError, NoEntry)):
        simulate(SCENES[name], nodes=3)


@as_scenario(simulate)
async def test_an_entry_behind_the_end_is_told_as_missing_while_a_node_is_down(
    cluster: ClusterAtHand,
) -> None:
    """Its node could not be asked, and the reader asked for it until the timeout."""
    async with cluster.client() as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=2)
        assert await made.append_many([b"zero", b"one"]) == [0, 1]
        early = await store.ledgers.open(made.ledger_id)
        await made.close()
        cluster.kill(made.metadata.newest.nodes[0])
        for reader in (early, await store.ledgers.open(made.ledger_id)):
            with pytest.raises(NoEntry, match="no entry 2"):
                await reader.read_unconfirmed(0, 2)
            assert len(await reader.read_unconfirmed(0, 1)) == 2
