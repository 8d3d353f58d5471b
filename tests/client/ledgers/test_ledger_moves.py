"""Readers of ledgers whose entries go to other nodes meanwhile: each scene holds, and with its bug
planted it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.errors import NoEntry
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


SCENES: dict[str, Scene] = {
    "ledger-denies-by-old-nodes": an_entry_is_on_a_node_that_the_reader_does_not_know,
    "ledger-waits-for-old-nodes": a_reader_waits_for_an_entry_that_another_node_gets,
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
